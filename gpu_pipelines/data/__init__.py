"""The data step: sources to a dataset."""
