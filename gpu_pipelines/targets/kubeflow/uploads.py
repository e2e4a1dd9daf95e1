"""Pipelines in Kubeflow Pipelines' own store: a pipeline by its name, and its immutable versions."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines import __version__
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.compiled import documents_of
from gpu_pipelines.targets.kubeflow.connection import all_of, connect, page_of, quietly, service_errors
from gpu_pipelines.targets.kubeflow.runs.request import KubeflowPipeline


@dataclass(frozen=True)
class UploadedVersion:
    """A version of a pipeline.

    Attributes:
        pipeline: name of the pipeline.
        version: name of the version.
        pipeline_id: id of the pipeline.
        version_id: id of the version.
        spec: the compiled pipeline.
    """

    pipeline: str
    version: str
    pipeline_id: str
    version_id: str
    spec: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The version as a JSON object, without its content."""
        return {name: value for name, value in vars(self).items() if name != "spec"}


def default_version(text: str) -> str:
    """The default name of a version: ours, and a digest of the file; the same file has the same name."""
    return f"{__version__}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def upload(pipeline: KubeflowPipeline, version: str, settings: ProjectSettings) -> tuple[UploadedVersion, bool]:
    """Uploads a version of a pipeline, which is created if there is none with its name.

    Args:
        pipeline: the pipeline.
        version: name of the version.
        settings: address and namespace.

    Returns:
        The version, and whether it is new: with the name of a digest, it may exist already.

    Raises:
        UserError: there is another version of that name, or the service refuses it.
    """
    client = connect(settings)
    with service_errors(f"Looking for the pipeline {pipeline.name}"):
        found = _pipeline_named(client, pipeline.name, settings)
        versions = _versions(client, found.pipeline_id) if found else []
    there = next((each for each in versions if each.display_name == version), None)
    if there is not None:
        if version != default_version(pipeline.text):
            raise UserError(f"{pipeline.name} has a version {version!r} already.", "Give another name with --tag.")
        return _uploaded(pipeline.name, there), False
    with tempfile.TemporaryDirectory() as folder, quietly(), service_errors(f"Uploading {pipeline.name}"):
        path = Path(folder) / "pipeline.yaml"
        path.write_text(pipeline.text, encoding="utf-8")
        if found is None:
            import kfp_server_api

            body = kfp_server_api.V2beta1Pipeline(display_name=pipeline.name, namespace=settings.kubeflow_namespace)
            found = client.pipelines.pipeline_service_create_pipeline(body)
        made = client.upload_pipeline_version(str(path), version, pipeline_id=found.pipeline_id)
    return _uploaded(pipeline.name, made, pipeline.spec), True


def find_version(address: str, settings: ProjectSettings) -> UploadedVersion:
    """The version for `PIPELINE` or `PIPELINE/VERSION`; without a version, the newest.

    Raises:
        UserError: there is no such version.
    """
    client = connect(settings)
    name, _, wanted = address.partition("/")
    with service_errors(f"Looking for the pipeline {name}"):
        found = _pipeline_named(client, name, settings)
        if found is None:
            raise UserError(f"Kubeflow Pipelines has no pipeline {name[:80]!r}.", "Upload it first.")
        versions = _versions(client, found.pipeline_id)
    if not versions:
        raise UserError(f"The pipeline {name} has no version.", "Upload one: gpu-pipelines upload --target kubeflow.")
    if not wanted:
        return _uploaded(name, max(versions, key=lambda version: str(version.created_at)))
    chosen = next((version for version in versions if version.display_name == wanted), None)
    if chosen is None:
        names = [str(version.display_name) for version in versions]
        raise UserError(f"The pipeline {name} has no version {wanted[:80]!r}.", nearest(wanted, names))
    return _uploaded(name, chosen)


def pipeline_page(version: UploadedVersion, settings: ProjectSettings) -> str:
    """The page of a version in the user interface of Kubeflow Pipelines."""
    return page_of(f"pipelines/details/{version.pipeline_id}/version/{version.version_id}", settings)


def _pipeline_named(client: Any, name: str, settings: ProjectSettings) -> Any | None:
    pipelines = all_of(client.list_pipelines, "pipelines", namespace=settings.kubeflow_namespace)
    return next((each for each in pipelines if name in (each.display_name, each.name)), None)


def _versions(client: Any, pipeline_id: str) -> list[Any]:
    return list(all_of(client.list_pipeline_versions, "pipeline_versions", pipeline_id=pipeline_id))


def _uploaded(pipeline: str, version: Any, spec: dict[str, Any] | None = None) -> UploadedVersion:
    return UploadedVersion(
        pipeline,
        str(version.display_name),
        str(version.pipeline_id),
        str(version.pipeline_version_id),
        spec if spec is not None else _spec_of(version),
    )


def _spec_of(version: Any) -> dict[str, Any]:
    """The pipeline of a version, which the service may have beside a part for Kubernetes."""
    content = version.pipeline_spec
    content = documents_of(content)[0] if isinstance(content, str) else content or {}
    spec: dict[str, Any] = content.get("pipeline_spec", content)
    return spec
