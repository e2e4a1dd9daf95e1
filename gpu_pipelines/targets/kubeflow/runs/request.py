"""A run on Kubeflow Pipelines that is asked for: its pipeline, its parameters, and submitting it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.compiled import EMAILS_OF_VERTEX, parsed_documents, required_pipeline
from gpu_pipelines.targets.kubeflow.connection import connect, page_of, quietly, service_errors

#: The default experiment of runs.
DEFAULT_EXPERIMENT = "gpu-pipelines"


@dataclass(frozen=True)
class KubeflowPipeline:
    """A compiled pipeline for Kubeflow.

    Attributes:
        text: the file.
        spec: its first document, the pipeline.
        platform: its second, settings for Kubernetes; empty if there are none.
    """

    text: str
    spec: dict[str, Any]
    platform: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the pipeline."""
        return str(self.spec["pipelineInfo"]["name"])

    def to_json(self) -> dict[str, Any]:
        """The field `pipeline_spec` of a request of the REST API."""
        platform = {"platform_spec": self.platform} if self.platform else {}
        return {"pipeline_spec": self.spec, **platform}


def parsed_pipeline(text: str, origin: str) -> KubeflowPipeline:
    """The pipeline in a compiled file.

    Args:
        text: content of the file.
        origin: name of the file in messages.

    Raises:
        UserError: it is not a compiled pipeline, or has steps that only Vertex AI runs.
    """
    documents = parsed_documents(text, origin)
    spec = required_pipeline(documents[0] if documents else None, origin, "kubeflow")
    if "custom_job.launcher" in text:
        raise UserError(
            f"{origin} is for Vertex AI: steps of it are CustomJobs.",
            "Give the pipeline from before it was compiled for Vertex AI. In place of a CustomTrainingJobOp of your "
            "own use the component itself and accelerate(task, …).",
        )
    if EMAILS_OF_VERTEX in text:
        raise UserError(
            f"{origin} sends e-mails by a component of Google's that only Vertex AI Pipelines runs.",
            "Use send_message of this project in its place.",
        )
    platform = documents[1] if len(documents) > 1 else {}
    return KubeflowPipeline(text, spec, platform)


@dataclass(frozen=True)
class RunRequest:
    """A run to be submitted.

    Attributes:
        name: its display name.
        pipeline: its pipeline.
        arguments: values of the pipeline's parameters.
        experiment: its experiment.
        pipeline_root: where its artifacts go; None for the cluster's default.
        service_account: Kubernetes service account of its pods; None for the default.
        cache: whether steps may reuse results of earlier runs; None leaves each step its own setting.
    """

    name: str
    pipeline: KubeflowPipeline
    arguments: Mapping[str, Any]
    experiment: str = DEFAULT_EXPERIMENT
    pipeline_root: str | None = None
    service_account: str | None = None
    cache: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """The body of the request, as in the REST API; the experiment by its name."""
        runtime: dict[str, Any] = {"parameters": given(self.arguments)}
        if self.pipeline_root:
            runtime["pipeline_root"] = self.pipeline_root
        body: dict[str, Any] = {"display_name": self.name, "experiment": self.experiment, "runtime_config": runtime}
        if self.service_account:
            body["service_account"] = self.service_account
        # Last, because it is a thousand lines in what a dry run prints.
        return {**body, "pipeline_spec": self.pipeline.to_json()}


def given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that have a value."""
    return {name: value for name, value in arguments.items() if value is not None}


def new_run_name(pipeline: str) -> str:
    """Name of a new run: the pipeline's and the time (UTC)."""
    return f"{pipeline} {datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S}"


def submit(request: RunRequest, settings: ProjectSettings) -> str:
    """Submits a run.

    Returns:
        The id of the run.

    Raises:
        UserError: the service refuses it, or cannot be reached.
    """
    client = connect(settings)
    lost = f"Check whether it has begun: {page_of('runs', settings)}."
    with tempfile.TemporaryDirectory() as folder, quietly():
        path = Path(folder) / "pipeline.yaml"
        path.write_text(request.pipeline.text, encoding="utf-8")
        experiment = experiment_id(client, request.experiment, settings)
        with service_errors("Submitting the pipeline", lost):
            run = client.run_pipeline(
                experiment_id=experiment,
                job_name=request.name,
                pipeline_package_path=str(path),
                params=given(request.arguments),
                pipeline_root=request.pipeline_root,
                enable_caching=request.cache,
                service_account=request.service_account,
            )
    return str(run.run_id)


def experiment_id(client: Any, name: str, settings: ProjectSettings) -> str:
    """The id of an experiment, which is created if there is none with the name.

    Raises:
        UserError: the service cannot be reached, or does not allow it.
    """
    with quietly(), service_errors(f"Looking for the experiment {name!r}"):
        return str(client.create_experiment(name, namespace=settings.kubeflow_namespace).experiment_id)
