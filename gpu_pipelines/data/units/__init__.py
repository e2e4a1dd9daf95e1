"""Units of work: cut, shared out, resumed and joined."""
