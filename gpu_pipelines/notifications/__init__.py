"""Messages about the end of a run: what they say, where they go, and how they get there."""
