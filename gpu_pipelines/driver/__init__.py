"""What the command line and Python programs have in common: how a request becomes a run."""
