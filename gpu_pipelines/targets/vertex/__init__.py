"""Vertex AI: pipelines, jobs without a pipeline, schedules, uploads, and what is asked of a project."""
