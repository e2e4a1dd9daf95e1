"""Vertex AI Pipelines: pipeline jobs, their schedules, and the repository of compiled pipelines."""
