"""Vertex ML Metadata and TensorBoard."""
