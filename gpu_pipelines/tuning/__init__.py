"""Searches for the parameters of a training: many trials, of which those with a high loss on val end early."""
