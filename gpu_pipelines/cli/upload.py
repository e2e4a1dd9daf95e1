"""`gpu-pipelines upload`: a compiled pipeline into a repository of Artifact Registry, or into Kubeflow Pipelines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_pipelines.cli import job_options as options
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.cli.vertex_request import JobFlags
    from gpu_pipelines.project_settings import ProjectSettings


def upload(
    pipeline: Annotated[str, typer.Argument(help="Name of the pipeline, or a compiled file.")],
    target: options.Cloud = "vertex",
    tag: Annotated[
        list[str] | None, typer.Option(help="A tag for this version, default latest; kubeflow: the version's name.")
    ] = None,
    repository: options.Repository = None,
    accelerator: Annotated[str, typer.Option(metavar="SPEC", help="What it trains on, l4:4, say.")] = "",
    evaluation_accelerator: options.EvaluationAccelerator = None,
    nodes: options.Nodes = 1,
    strategy: options.Strategy = None,
    machine_type: options.MachineType = None,
    reservation: options.Reservation = None,
    hours: options.Hours = None,
    max_wait: options.MaxWait = None,
    boot_disk_gb: options.BootDiskGb = options.BOOT_DISK_GB,
    reduction_server: options.ReductionServer = False,
    web_access: options.WebAccess = False,
    env: options.Env = None,
    data_nodes: options.DataNodes = 1,
    data_machine_type: options.DataMachineType = None,
    region: options.Region = None,
    image: options.Image = None,
    service_account: options.ServiceAccount = None,
    network: options.Network = None,
    network_attachment: options.NetworkAttachment = None,
    persistent_resource: options.PersistentResource = None,
    encryption_key: options.EncryptionKey = None,
    tensorboard: options.Tensorboard = None,
    label: options.Label = None,
    kubeflow_host: options.KubeflowHost = None,
    kubeflow_namespace: options.KubeflowNamespace = None,
    as_json: options.AsJson = False,
) -> None:
    """Upload a pipeline to Artifact Registry, as an immutable version with tags, or to Kubeflow Pipelines.

    With a name the pipeline is compiled for the accelerator first.
    """
    from gpu_pipelines.cli.vertex_request import JobFlags
    from gpu_pipelines.project_settings import load_project_settings

    given = {
        "repository": repository,
        "region": region,
        "image": image,
        "service_account": service_account,
        "network": network,
        "network_attachment": network_attachment,
        "persistent_resource": persistent_resource,
        "encryption_key": encryption_key,
        "tensorboard": tensorboard,
        "kubeflow_host": kubeflow_host,
        "kubeflow_namespace": kubeflow_namespace,
    }
    settings = options.with_labels(load_project_settings(given), label)
    flags = JobFlags(
        accelerator=accelerator,
        nodes=nodes,
        strategy=strategy,
        machine_type=machine_type,
        reservation=reservation,
        hours=hours,
        max_wait=max_wait,
        boot_disk_gb=boot_disk_gb,
        reduction_server=reduction_server,
        web_access=web_access,
        env=env,
        data_nodes=data_nodes,
        data_machine_type=data_machine_type,
        tensorboard=tensorboard,
        network_attachment=network_attachment,
        persistent_resource=persistent_resource,
        evaluation_accelerator=evaluation_accelerator,
    )
    if options.is_kubeflow(target):
        _upload_to_kubeflow(pipeline, flags, settings, tag or [], as_json)
    else:
        _upload_to_repository(pipeline, flags, settings, tag, as_json)


def _upload_to_kubeflow(
    pipeline: str, flags: JobFlags, settings: ProjectSettings, tags: list[str], as_json: bool
) -> None:
    from gpu_pipelines.cli.kubeflow_request import kubeflow_pipeline
    from gpu_pipelines.targets.kubeflow import uploads as kubeflow_uploads

    settings.require("kubeflow_host")
    if len(tags) > 1:
        raise UserError("A version has one name on Kubeflow Pipelines.", "Give --tag once.")
    compiled = kubeflow_pipeline(pipeline, flags, settings)
    version, is_new = kubeflow_uploads.upload(
        compiled, tags[0] if tags else kubeflow_uploads.default_version(compiled.text), settings
    )
    if as_json:
        print(json.dumps(version.to_json(), indent=2))
        return
    print(f"{'uploaded' if is_new else 'is there already:'} {version.pipeline}/{version.version}")
    print(f"console: {kubeflow_uploads.pipeline_page(version, settings)}")


def _upload_to_repository(
    pipeline: str, flags: JobFlags, settings: ProjectSettings, tag: list[str] | None, as_json: bool
) -> None:
    from gpu_pipelines.cli.vertex_request import compiled_pipeline, require_settings
    from gpu_pipelines.targets.vertex.console import repositories_page
    from gpu_pipelines.targets.vertex.repository import DEFAULT_TAG, PipelineRepository

    require_settings(pipeline, flags, settings, "repository")
    compiled = compiled_pipeline(pipeline, flags, settings)
    uploaded = PipelineRepository(str(settings.repository)).upload(compiled.text, tag or [DEFAULT_TAG])
    if as_json:
        print(json.dumps(uploaded.to_json(), indent=2))
        return
    print(f"uploaded {uploaded.package}")
    print(f"version: {uploaded.version}")
    print(f"tags:    {', '.join(uploaded.tags)}")
    print(f"address: {uploaded.address}")
    if project := repository_project(uploaded.repository):
        print(f"console: {repositories_page(project)}")


def repository_project(address: str) -> str:
    """The project in the address of a repository."""
    return address.split("/")[3]
