"""The layer between KFP and the functions that do a step's work."""
