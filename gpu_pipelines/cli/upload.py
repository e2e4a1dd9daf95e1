"""`gpu-pipelines upload`: a compiled pipeline into a repository of Artifact Registry."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gpu_pipelines.cli import job_options as options


def upload(
    pipeline: Annotated[str, typer.Argument(help="Name of the pipeline, or a compiled file.")],
    tag: Annotated[list[str] | None, typer.Option(help="A tag that is to name this version; default latest.")] = None,
    repository: options.Repository = None,
    accelerator: Annotated[str, typer.Option(metavar="SPEC", help="What it trains on, l4:4, say.")] = "",
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
    region: options.Region = None,
    image: options.Image = None,
    service_account: options.ServiceAccount = None,
    network: options.Network = None,
    encryption_key: options.EncryptionKey = None,
    tensorboard: options.Tensorboard = None,
    label: options.Label = None,
    as_json: options.AsJson = False,
) -> None:
    """Upload a pipeline to Artifact Registry, as an immutable version with tags.

    With a name the pipeline is compiled for the accelerator first.
    """
    from gpu_pipelines.cli.vertex_request import JobFlags, compiled_pipeline
    from gpu_pipelines.project_settings import load_project_settings
    from gpu_pipelines.targets.vertex.console import repositories_page
    from gpu_pipelines.targets.vertex.repository import DEFAULT_TAG, PipelineRepository

    given = {
        "repository": repository,
        "region": region,
        "image": image,
        "service_account": service_account,
        "network": network,
        "encryption_key": encryption_key,
        "tensorboard": tensorboard,
    }
    settings = options.with_labels(load_project_settings(given), label)
    settings.require("repository")
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
        tensorboard=tensorboard,
    )
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
