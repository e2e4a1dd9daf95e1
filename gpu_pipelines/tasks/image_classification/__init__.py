"""The task image_classification."""
