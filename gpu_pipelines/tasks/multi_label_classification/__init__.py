"""The task of rows that may be of several classes, or of none."""
