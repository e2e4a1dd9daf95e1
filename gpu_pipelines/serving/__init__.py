"""The prediction server behind Vertex AI's container contract."""
