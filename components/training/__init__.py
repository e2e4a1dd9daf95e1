"""The step `training`: a dataset becomes checkpoints."""
