"""Clients of Google Cloud, and what their errors mean."""
