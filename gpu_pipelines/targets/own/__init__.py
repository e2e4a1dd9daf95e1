"""Pipelines of anybody: files that are compiled for a target, and their steps placed there."""
