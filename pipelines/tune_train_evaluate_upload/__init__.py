"""The pipeline `tune_train_evaluate_upload`."""
