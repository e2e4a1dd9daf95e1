"""Which rows go into which split: duplicates and split assignments."""
