"""The parameters of a run: their values as given, read, checked and completed."""
