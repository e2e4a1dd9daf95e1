"""Runs on Kubeflow Pipelines: submitted, followed, and why their steps failed."""
