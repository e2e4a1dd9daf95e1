"""The pipeline `train_evaluate_upload`."""
