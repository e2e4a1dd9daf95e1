"""Checks whether current data still resembles a champion's training data."""
