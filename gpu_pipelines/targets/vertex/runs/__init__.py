"""Runs on Vertex AI Pipelines: submitted, followed, continued, and what they took."""
