"""The pipeline `train_script_evaluate_upload`."""
