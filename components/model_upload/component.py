"""The KFP interface of `upload_model`."""

from kfp import dsl
from kfp.dsl import Artifact, Input, Model, Output

from gpu_pipelines.component_interface.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def upload_model(
    best_checkpoint: Input[Artifact],
    model: Output[Model],
    registry: str = "./registry",
    model_name: str = "",
    serving_image: str = "",
    pipeline_job: str = "",
    encryption_key: str = "",
    smoke_test: bool = True,
    passed: bool = False,
    tracking: str = "none",
    outcome_uri: str = "",
    advanced: dict = {},  # noqa: B006 (KFP takes the default from here)
) -> None:
    """Adds a version to a model registry; the alias champion moves to it only if it passed.

    Args:
        best_checkpoint: Made by evaluate_checkpoints; or any model: a folder in Hugging Face layout, an ONNX file, a
            SavedModel, whatever. Without the evaluation.json of evaluate_checkpoints it is registered under model_name,
            without metrics, and does not take the place of a champion that was evaluated.
        registry: Directory of the model registry, created if it does not exist; vertex://PROJECT/REGION for Vertex AI
            Model Registry, vertex:// alone for the registry of the job's own project and region; or mlflow:https://HOST
            for that of an MLflow server.
        model_name: Name of the model in the registry: lower-case letters, digits, dots, dashes, underscores. Empty for
            the name that the evaluation used; a model without evaluation.json needs one.
        serving_image: Container that serves the model, for Vertex AI Model Registry. Empty for the image of this step,
            for vLLM if it is a language model of 1 GiB or more, and for Hugging Face's inference container if this
            project's server does not serve the model.
        pipeline_job: Name of the pipeline job that this is a step of, to be recorded with the version.
        encryption_key: Full name of the Cloud KMS key with which Vertex AI encrypts its copy of the model. Empty for
            the key of the project's settings, if there is one.
        smoke_test: Whether to start this project's prediction server on the uploaded files and compare its predictions
            with the evaluated ones, before any alias moves. A version with another container is marked as not tested.
        passed: Whether the model may become the champion. The alias challenger names the new version either way.
        tracking: Tracker that shows the run, as for check_request; none for no tracker.
        outcome_uri: Directory, local or gs://, in which the step leaves its outcome for the message at the end of the
            run; empty for a run without a message.
        advanced: Parameters by name, from check_request; they win over those above.

    Returns:
        model: The version in the registry, with its name, number and aliases as metadata.
    """
    from gpu_pipelines.registry.upload_step import UploadSettings, run

    run(
        UploadSettings(
            registry=registry,
            model_name=model_name,
            serving_image=serving_image,
            pipeline_job=pipeline_job,
            encryption_key=encryption_key,
            smoke_test=smoke_test,
        ),
        best_checkpoint=best_checkpoint,
        model=model,
        passed=passed,
        tracking=tracking,
        outcome_uri=outcome_uri,
        advanced=advanced,
    )
