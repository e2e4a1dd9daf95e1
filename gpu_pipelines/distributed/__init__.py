"""The machines that one step runs on: which there are, which of them this is, and whether the others live."""
