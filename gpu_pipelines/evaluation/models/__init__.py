"""The models that can be scored, and how each is opened."""
