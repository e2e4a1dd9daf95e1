"""Benchmarks of lm-eval: requests, runs and results."""
