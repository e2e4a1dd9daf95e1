"""Scores, statistics, gates and the report of an evaluation."""
