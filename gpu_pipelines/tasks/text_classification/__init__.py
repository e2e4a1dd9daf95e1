"""The task text_classification."""
