"""Training pipelines for Kubeflow and Vertex AI in which the accelerator is a choice."""

__version__ = "0.1.0"
