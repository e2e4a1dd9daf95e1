"""Metrics of the text that a model writes after the prompts of a dataset."""
