"""`gpu-pipelines run --target kubeflow`: checks a run, submits it, and follows it if asked to."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_pipelines.cli.data_check import require_usable_data
from gpu_pipelines.cli.kubeflow_request import checked_arguments, kubeflow_pipeline
from gpu_pipelines.cli.vertex_request import JobFlags, require_settings

if TYPE_CHECKING:
    from gpu_pipelines.project_settings import ProjectSettings


def run_on_kubeflow(
    pipeline: str,
    flags: JobFlags,
    settings: ProjectSettings,
    assignments: Sequence[str],
    file: Path | None,
    *,
    cache: bool | None,
    dry_run: bool,
    follow: bool,
    every: float,
    as_json: bool,
) -> None:
    """Submits a run.

    Args:
        pipeline: its name, or a compiled file.
        flags: accelerators.
        settings: address, namespace, image, claim and so on.
        assignments: parameters as texts of the form `key=value`.
        file: a YAML file of parameters.
        cache: whether steps may take results of earlier runs; None leaves each step its own setting.
        dry_run: print the request and send nothing.
        follow: wait for the end and show how it goes.
        every: seconds between two looks.
        as_json: print one JSON document.

    Raises:
        UserError: lists everything that is wrong with the request; or the service refuses it.
        typer.Exit: the run was followed and has failed.
    """
    from gpu_pipelines.targets.kubeflow.runs import DEFAULT_EXPERIMENT, RunRequest, new_run_name, run_page, submit

    require_settings(pipeline, flags, settings, "kubeflow_host", target="Kubeflow")
    compiled = kubeflow_pipeline(pipeline, flags, settings)
    request = RunRequest(
        name=new_run_name(compiled.name),
        pipeline=compiled,
        arguments=checked_arguments(compiled.spec, assignments, file, settings),
        experiment=settings.kubeflow_experiment or DEFAULT_EXPERIMENT,
        pipeline_root=settings.pipeline_root,
        service_account=settings.kubeflow_service_account,
        cache=cache,
    )
    require_usable_data(compiled.spec, request.arguments)
    if dry_run:
        url = f"{str(settings.kubeflow_host).rstrip('/')}/apis/v2beta1/runs"
        print(json.dumps({"method": "POST", "url": url, "body": request.to_json()}, indent=2, ensure_ascii=False))
        return
    run_id = submit(request, settings)
    if as_json and not follow:
        print(json.dumps({"run_id": run_id, "name": request.name, "console": run_page(run_id, settings)}, indent=2))
    elif not as_json:
        print(f"submitted {run_id}")
        print(f"console: {run_page(run_id, settings)}")
        for line in ways_back(run_id, settings):
            print(line)
        sys.stdout.flush()
    if follow:
        from gpu_pipelines.cli.follow_on_kubeflow import follow_on_kubeflow

        follow_on_kubeflow(run_id, settings, every, as_json)


def ways_back(run_id: str, settings: ProjectSettings) -> list[str]:
    """The commands that follow and cancel a run, as they can be copied."""
    given = [
        f" --{name.replace('_', '-')} {getattr(settings, name)}"
        for name in ("kubeflow_host", "kubeflow_namespace")
        if settings.origins.get(name, "").startswith("--")
    ]
    return [f"{what}: gpu-pipelines {what} {run_id} --target kubeflow{''.join(given)}" for what in ("follow", "cancel")]
