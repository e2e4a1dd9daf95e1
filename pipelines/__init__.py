"""Pipelines: DAGs built from the components through a target."""
