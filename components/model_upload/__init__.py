"""The step `model_upload`: an evaluated model becomes a registered version."""
