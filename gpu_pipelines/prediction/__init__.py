"""Batch prediction: the rows of a source, predicted with a registered model."""
