"""`gpu-pipelines run`: the options of all targets, and which target takes which."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gpu_pipelines.cli import job_options as options
from gpu_pipelines.errors import UserError, nearest

TARGETS = ("local", "vertex", "kubeflow")


def run(
    pipeline: Annotated[
        str,
        typer.Argument(
            help="train_evaluate_upload or scheduled_retraining; in the cloud also a compiled file; vertex: an address."
        ),
    ],
    param: options.Param = None,
    params: options.Params = None,
    target: Annotated[str, typer.Option(help="Where to run: local, vertex or kubeflow.")] = "local",
    accelerator: Annotated[
        str,
        typer.Option(metavar="SPEC", help="What to train on: l4:4, say; local: cpu:N, or all GPUs that are here."),
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and show the request; run nothing.")] = False,
    reuse: Annotated[bool, typer.Option("--reuse", help="local: skip steps whose inputs have not changed.")] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="local: continue the newest run with these parameters that was interrupted."),
    ] = False,
    trial: Annotated[
        bool,
        typer.Option("--trial", help="local: train a few dozen steps, and project time and cost on each accelerator."),
    ] = False,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="local: gets a directory for each run.")] = options.RUNS,
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
    project: options.Project = None,
    region: options.Region = None,
    pipeline_root: options.PipelineRoot = None,
    image: options.Image = None,
    service_account: options.ServiceAccount = None,
    network: options.Network = None,
    network_attachment: options.NetworkAttachment = None,
    persistent_resource: options.PersistentResource = None,
    failure_policy: options.FailurePolicy = None,
    encryption_key: options.EncryptionKey = None,
    tensorboard: options.Tensorboard = None,
    label: options.Label = None,
    kubeflow_host: options.KubeflowHost = None,
    kubeflow_namespace: options.KubeflowNamespace = None,
    experiment: options.Experiment = None,
    cache: options.Cache = None,
    follow: Annotated[bool, typer.Option("--follow", help="Show the run in the cloud until its end.")] = False,
    interval: options.Interval = options.INTERVAL,
    as_json: options.AsJson = False,
) -> None:
    """Run a pipeline: on this machine, on Vertex AI with --target vertex, or in GKE with --target kubeflow.

    Options without a target before their text are for the cloud.
    """
    for_here: dict[str, Any] = {"reuse": reuse, "resume": resume, "trial": trial}
    for_vertex: dict[str, Any] = {
        "evaluation_accelerator": evaluation_accelerator,
        "nodes": nodes != 1,
        "strategy": strategy,
        "machine_type": machine_type,
        "reservation": reservation,
        "hours": hours,
        "max_wait": max_wait,
        "boot_disk_gb": boot_disk_gb != options.BOOT_DISK_GB,
        "reduction_server": reduction_server,
        "web_access": web_access,
        "env": env,
        "data_nodes": data_nodes != 1,
        "data_machine_type": data_machine_type,
        "project": project,
        "region": region,
        "pipeline_root": pipeline_root,
        "image": image,
        "service_account": service_account,
        "network": network,
        "network_attachment": network_attachment,
        "persistent_resource": persistent_resource,
        "failure_policy": failure_policy,
        "encryption_key": encryption_key,
        "tensorboard": tensorboard,
        "label": label,
        "cache": cache is not None,
        "follow": follow,
        "json": as_json,
    }
    for_kubeflow = {
        "kubeflow_host": kubeflow_host,
        "kubeflow_namespace": kubeflow_namespace,
        "experiment": experiment,
    }
    if target == "local":
        _refuse({**for_vertex, **for_kubeflow}, "local", "Add --target vertex or kubeflow, or leave it out.")
        from gpu_pipelines.cli.run_here import run_here

        run_here(
            pipeline, param or [], params, accelerator, runs, reuse=reuse, resume=resume, dry_run=dry_run, trial=trial
        )
        return
    if target not in TARGETS:
        raise UserError(f"There is no target {target[:60]!r}.", nearest(target, TARGETS))
    _refuse(for_here if target == "kubeflow" else {**for_here, **for_kubeflow}, target, "Leave it out.")
    from gpu_pipelines.cli.vertex_request import JobFlags
    from gpu_pipelines.project_settings import load_project_settings

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
    given = {
        "project": project,
        "region": region,
        "pipeline_root": pipeline_root,
        "image": image,
        "service_account": service_account,
        "network": network,
        "network_attachment": network_attachment,
        "persistent_resource": persistent_resource,
        "failure_policy": failure_policy,
        "encryption_key": encryption_key,
        "tensorboard": tensorboard,
        "kubeflow_host": kubeflow_host,
        "kubeflow_namespace": kubeflow_namespace,
        "kubeflow_experiment": experiment,
    }
    settings = options.with_labels(load_project_settings(given), label)
    if target == "kubeflow":
        _refuse({"label": label}, target, "Leave it out.")
        from gpu_pipelines.cli.run_on_kubeflow import run_on_kubeflow as run_there
    else:
        from gpu_pipelines.cli.run_on_vertex import run_on_vertex as run_there
    run_there(
        pipeline,
        flags,
        settings,
        param or [],
        params,
        cache=cache,
        dry_run=dry_run,
        follow=follow,
        every=interval,
        as_json=as_json,
    )


def _refuse(flags: dict[str, Any], target: str, remedy: str) -> None:
    given = [f"--{name.replace('_', '-')}" for name, value in flags.items() if value]
    if given:
        raise UserError(f"The target {target} has no {', '.join(given)}.", remedy)
