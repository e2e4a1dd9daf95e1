"""Machines that are tried one after the other: the choices, the record of tries, and the trying itself."""
