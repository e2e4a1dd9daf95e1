"""Trackers, in which runs are followed and compared: MLflow, Vertex AI Experiments, Weights & Biases, or others."""
