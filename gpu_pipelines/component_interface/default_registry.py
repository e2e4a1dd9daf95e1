"""The default registry."""

#: A directory beside the runs. It does not exist before the first one, and then has no models.
DEFAULT_REGISTRY = "./registry"
#: What a parameter with the registry of a model takes.
REGISTRIES = (
    "Directory of the model registry, vertex://PROJECT/REGION for Vertex AI Model Registry, vertex:// alone for the "
    "registry of the job's own project and region, or mlflow:https://HOST for that of an MLflow server."
)


def registry_of_project() -> str:
    """The default registry of commands: that of `gpu-pipelines.yaml`, else the default directory.

    Raises:
        UserError: the file cannot be read, or a value has the wrong form.
    """
    from gpu_pipelines.project_settings import load_project_settings

    return load_project_settings().registry or DEFAULT_REGISTRY
