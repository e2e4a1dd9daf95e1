"""Profiles of a champion's training data, kept with the champion, to compare with later data."""
