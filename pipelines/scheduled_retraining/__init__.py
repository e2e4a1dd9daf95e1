"""The pipeline `scheduled_retraining`."""
