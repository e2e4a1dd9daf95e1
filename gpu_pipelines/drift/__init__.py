"""Whether the data of today is still what a champion learned from."""
