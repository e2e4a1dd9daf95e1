"""A run on Kubeflow Pipelines that goes on, seen from here."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import typer

from gpu_pipelines.cli.run_on_kubeflow import ways_back
from gpu_pipelines.errors import ERROR_PREFIX

if TYPE_CHECKING:
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.kubeflow.runs import RunState

RUN_FAILED, INTERRUPTED = 1, 130


def follow_on_kubeflow(run_id: str, settings: ProjectSettings, every: float, as_json: bool) -> None:
    """Waits for the end of a run and shows which steps begin and end.

    Args:
        run_id: its id.
        settings: address and namespace.
        every: seconds between two looks.
        as_json: print one JSON document at the end, and nothing else.

    Raises:
        UserError: there is no such run, or the service cannot be reached.
        typer.Exit: the run has failed, or Ctrl-C was pressed.
    """
    from gpu_pipelines.cli.follow import Silent
    from gpu_pipelines.cli.progress import progress_on
    from gpu_pipelines.cli.tables import console_on
    from gpu_pipelines.targets.kubeflow.runs import follow, run_page

    try:
        if as_json:
            run = follow(run_id, settings, Silent(), every)
        else:
            with progress_on(console_on(sys.stdout)) as progress:
                run = follow(run_id, settings, progress, every)
    except KeyboardInterrupt:
        print(f"{run_id} goes on without being followed", file=sys.stderr)
        for line in ways_back(run_id, settings):
            print(line, file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print(json.dumps(run.to_json(), indent=2, ensure_ascii=False))
    if run.state == "succeeded":
        if not as_json:
            print(f"succeeded; its reports and metrics: {run_page(run_id, settings)}")
        return
    _show_failure(run, settings)
    raise typer.Exit(RUN_FAILED)


def _show_failure(run: RunState, settings: ProjectSettings) -> None:
    from gpu_pipelines.targets.kubeflow.runs import run_page

    failed = next((step for step in run.steps if step.state == "failed"), None)
    if failed is None:
        print(f"{ERROR_PREFIX}the run was {run.state}. {run.error}".rstrip(), file=sys.stderr)
    else:
        said = failed.error or run.error or "its log says why"
        print(f"{ERROR_PREFIX}{failed.name} failed: {said}", file=sys.stderr)
    print(f"its steps and their logs: {run_page(run.run_id, settings)}", file=sys.stderr)
