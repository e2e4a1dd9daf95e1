"""Between KFP and the functions that do a step's work."""
