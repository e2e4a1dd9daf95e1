"""Kubeflow Pipelines on GKE, and Kubeflow Trainer for several nodes."""
