"""The step `tuning`: a dataset and a search space become the checkpoints of the best parameters."""
