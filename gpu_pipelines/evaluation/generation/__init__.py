"""Metrics of the text that a model writes behind the prompts of a dataset."""
