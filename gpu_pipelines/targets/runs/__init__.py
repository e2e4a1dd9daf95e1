"""Runs: their names, records and accounts, and runs that continue an earlier one."""
