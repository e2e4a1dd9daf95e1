"""The champion beside a model: compared with on the same rows, and replaced by a better one alone."""
