"""Runs what the services were given: pipelines, tuning jobs, batch predictions, and schedules by the clock."""
