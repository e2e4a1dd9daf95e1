"""The pipeline `batch_prediction`."""
