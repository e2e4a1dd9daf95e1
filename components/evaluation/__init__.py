"""The step `evaluation`: checkpoints become one evaluated model."""
