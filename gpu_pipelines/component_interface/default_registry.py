"""The registry of whoever names none."""

#: A directory beside the runs. It does not exist before the first one, and then has no models.
DEFAULT_REGISTRY = "./registry"
