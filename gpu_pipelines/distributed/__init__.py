"""The machines of one step: which there are, which of them this is, and whether the others are alive."""
