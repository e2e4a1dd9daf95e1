"""A local server that stands in for Vertex AI and the Google Cloud APIs beside it; see server.py."""
