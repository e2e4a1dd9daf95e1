"""A local server in place of Vertex AI and the Google Cloud APIs beside it; see server.py."""
