"""The step `data_prep`: raw records become a dataset."""
