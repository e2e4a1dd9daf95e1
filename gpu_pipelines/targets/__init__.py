"""The places where pipelines run."""
