"""Benchmarks of lm-eval: what is asked of them, how they run, and what came of them."""
