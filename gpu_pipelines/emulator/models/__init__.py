"""The model registry, endpoints, and batch prediction."""
