"""Compute Engine: a VM that trains and then stops."""
