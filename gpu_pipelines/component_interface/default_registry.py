"""The registry of whoever names none."""

#: A directory beside the runs. It does not exist before the first one, and then has no models.
DEFAULT_REGISTRY = "./registry"


def registry_of_project() -> str:
    """The registry of commands that are told no other: that of `gpu-pipelines.yaml`, else the default.

    Raises:
        UserError: the file cannot be read, or a value is not of its form.
    """
    from gpu_pipelines.project_settings import load_project_settings

    return load_project_settings().registry or DEFAULT_REGISTRY
