"""Queries to Google's APIs: quota of a project, and fresh prices and places. Needs the extra `live` and credentials.

Nothing in `gpu_pipelines.accelerators` imports this package.
"""
