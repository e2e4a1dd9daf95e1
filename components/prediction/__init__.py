"""The step `predict_batch`: the rows of a source, predicted with a registered model."""
