"""Migrates jobs of AI Platform Training, which Google shut down on 2025-01-31, to Vertex AI."""

from gpu_pipelines.migration.migrate import MigrationOptions, migrate
from gpu_pipelines.migration.result import Migration

__all__ = ["Migration", "MigrationOptions", "migrate"]
