"""Training by a script of the user's own."""
