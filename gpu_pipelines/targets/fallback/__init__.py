"""Machines that are tried one after the other: what there is to choose from, what was tried, and the trying itself."""
