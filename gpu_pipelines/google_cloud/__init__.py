"""Clients of Google Cloud, and the meaning of their errors."""
