"""`gpu-pipelines run --target vertex`: checks a run, shows what it costs, submits it, and follows it if asked to."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.cli.arguments import given_values
from gpu_pipelines.cli.data_check import require_usable_data
from gpu_pipelines.cli.job_options import RUNS
from gpu_pipelines.cli.trial_record import FILE, hours_by_trial
from gpu_pipelines.cli.vertex_request import (
    JobFlags,
    checked_arguments,
    compiled_pipeline,
    of_the_project,
    require_settings,
    show_cost,
)
from gpu_pipelines.targets.target import TRAINS

if TYPE_CHECKING:
    from gpu_pipelines.cli.vertex_request import CompiledPipeline
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.vertex.pipelines import PipelineRequest


def run_on_vertex(
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
        pipeline: its name, a compiled file, or the address of an uploaded version.
        flags: accelerators and jobs.
        settings: project, region, pipeline root, image and so on.
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
    from gpu_pipelines.targets.vertex.pipelines import PipelineRequest, name_of, new_job_id, pipeline_job, submit

    require_settings(pipeline, flags, settings, "project", "region", "pipeline_root")
    given = given_values(assignments, file)
    compiled = compiled_pipeline(pipeline, flags, settings, given)
    arguments = checked_arguments(compiled.spec, assignments, file, of_the_project(compiled.spec, settings))
    require_usable_data(compiled.spec, arguments)
    if flags.accelerator and (hours := _hours_by_trial(compiled, flags, arguments)):
        compiled = compiled_pipeline(pipeline, flags, settings, given, hours)
    request = PipelineRequest(
        new_job_id(name_of(compiled.spec)),
        pipeline_job(compiled.spec, arguments, settings, cache=cache, template=compiled.template),
    )
    show_cost(compiled.machines, settings.region)
    if dry_run:
        print(json.dumps(_as_sent(request, settings), indent=2, ensure_ascii=False))
        return
    name = submit(request, settings)
    if not (follow and as_json):
        _show_submitted(name, request, settings, as_json)
    if follow:
        from gpu_pipelines.cli.follow import follow_run

        follow_run(name, settings, every, as_json)


def _hours_by_trial(compiled: CompiledPipeline, flags: JobFlags, arguments: Mapping[str, Any]) -> float | None:
    """The time limit of the training by the newest trial in this directory, which is said; None where it says none."""
    training = next((each for each in compiled.machines if each.step == TRAINS), None)
    if flags.hours is not None or training is None:
        return None
    hours = hours_by_trial(RUNS, arguments, training.plan)
    if hours is not None:
        print(f"the trial in {RUNS / FILE} limits {TRAINS} to {hours:g} h; --hours gives another", file=sys.stderr)
    return hours


def _as_sent(request: PipelineRequest, settings: ProjectSettings) -> dict[str, Any]:
    from gpu_pipelines.targets.vertex.connection import endpoint_of, location_of

    url = f"{endpoint_of(settings)}/v1/{location_of(settings)}/pipelineJobs?pipelineJobId={request.job_id}"
    return {"method": "POST", "url": url, "body": request.job}


def _show_submitted(name: str, request: PipelineRequest, settings: ProjectSettings, as_json: bool) -> None:
    from gpu_pipelines.cli.follow import ways_back
    from gpu_pipelines.targets.vertex.console import run_page

    if as_json:
        print(json.dumps({"name": name, "job": request.job_id, "console": run_page(name)}, indent=2))
        return
    print(f"submitted {request.job_id}")
    print(f"console: {run_page(name)}")
    for line in ways_back(name, settings):
        print(line)
    sys.stdout.flush()
