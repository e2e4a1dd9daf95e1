"""Datasets of text."""
