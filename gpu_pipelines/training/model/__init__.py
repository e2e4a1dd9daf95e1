"""The model of a training on its devices."""
