"""Where runs are followed and compared: MLflow, Vertex AI Experiments, Weights & Biases, or a package's own."""
