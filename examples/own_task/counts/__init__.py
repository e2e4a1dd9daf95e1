"""How many events to expect."""
