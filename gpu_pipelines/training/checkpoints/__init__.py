"""Checkpoints of a training: written, found and read again."""
