"""Vertex AI: pipelines, jobs without a pipeline, schedules, uploads, and checks of a project."""
