"""`gpu-pipelines follow` and `cancel`: a run in the cloud that goes on, seen from here."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_pipelines.cli import job_options as options
from gpu_pipelines.errors import ERROR_PREFIX

if TYPE_CHECKING:
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.local.log import StepRecord
    from gpu_pipelines.targets.vertex.follow import Followed

RUN_FAILED, INTERRUPTED = 1, 130
Job = Annotated[
    str, typer.Argument(metavar="JOB", help="What run --target … printed, or on Vertex AI the job's full name.")
]


def follow(
    job: Job,
    target: options.Cloud = "vertex",
    project: options.Project = None,
    region: options.Region = None,
    kubeflow_host: options.KubeflowHost = None,
    kubeflow_namespace: options.KubeflowNamespace = None,
    interval: options.Interval = options.INTERVAL,
    as_json: options.AsJson = False,
) -> None:
    """Show the steps of a run until its end, on Vertex AI with their log lines. Ctrl-C leaves it running."""
    if options.is_kubeflow(target):
        from gpu_pipelines.cli.follow_on_kubeflow import follow_on_kubeflow

        follow_on_kubeflow(job, options.kubeflow_settings(kubeflow_host, kubeflow_namespace), interval, as_json)
        return
    from gpu_pipelines.targets.vertex.pipelines import full_name, settings_of

    settings = settings_of(job, _settings(project, region))
    follow_run(full_name(job, settings), settings, interval, as_json)


def cancel(
    job: Job,
    target: options.Cloud = "vertex",
    project: options.Project = None,
    region: options.Region = None,
    kubeflow_host: options.KubeflowHost = None,
    kubeflow_namespace: options.KubeflowNamespace = None,
) -> None:
    """Cancel a run, with the jobs of its steps."""
    if options.is_kubeflow(target):
        from gpu_pipelines.targets.kubeflow import runs as kubeflow_runs

        settings = options.kubeflow_settings(kubeflow_host, kubeflow_namespace)
        kubeflow_runs.terminate(job, settings)
        print(f"asked to cancel {job}\nconsole: {kubeflow_runs.run_page(job, settings)}")
        return
    from gpu_pipelines.targets.vertex import pipelines as vertex_pipelines
    from gpu_pipelines.targets.vertex.console import run_page

    settings = vertex_pipelines.settings_of(job, _settings(project, region))
    name = vertex_pipelines.full_name(job, settings)
    vertex_pipelines.cancel(name, settings)
    print(f"asked to cancel {name.rpartition('/')[2]}\nconsole: {run_page(name)}")


def _settings(project: str | None, region: str | None) -> ProjectSettings:
    from gpu_pipelines.project_settings import load_project_settings

    return load_project_settings({"project": project, "region": region})


def follow_run(name: str, settings: ProjectSettings, every: float, as_json: bool) -> None:
    """Waits for the end of a run and shows how it goes.

    Args:
        name: full name of the job.
        settings: project and region.
        every: seconds between two looks.
        as_json: print one JSON document at the end, and nothing else.

    Raises:
        UserError: there is no such run, or the service cannot be reached.
        typer.Exit: the run has failed, or Ctrl-C was pressed.
    """
    from gpu_pipelines.cli.progress import progress_on
    from gpu_pipelines.cli.tables import console_on
    from gpu_pipelines.targets.vertex import follow as vertex_follow

    def warn(text: str) -> None:
        print(f"warning: {text}", file=sys.stderr)

    try:
        if as_json:
            followed = vertex_follow.follow(name, settings, Silent(), every, warn)
        else:
            with progress_on(console_on(sys.stdout)) as progress:
                followed = vertex_follow.follow(name, settings, progress, every, warn)
    except KeyboardInterrupt:
        print(f"{name.rpartition('/')[2]} goes on without being followed", file=sys.stderr)
        for line in ways_back(name, settings):
            print(line, file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print(json.dumps(followed.run.to_json(), indent=2, ensure_ascii=False))
    if followed.run.state == "succeeded":
        if not as_json:
            _show_success(followed)
        return
    _show_failure(followed)
    raise typer.Exit(RUN_FAILED)


def ways_back(name: str, settings: ProjectSettings) -> list[str]:
    """The commands that follow and cancel a run, as they can be copied."""
    job = name.rpartition("/")[2]
    given = [
        f" --{setting} {getattr(settings, setting)}"
        for setting in ("project", "region")
        if settings.origins.get(setting, "").startswith("--")
    ]
    return [f"{command}: gpu-pipelines {command} {job}{''.join(given)}" for command in ("follow", "cancel")]


class Silent:
    """An observer for whoever wants the end alone."""

    def step_began(self, step: str) -> None:
        return None

    def step_said(self, step: str, line: str) -> None:
        return None

    def step_ended(self, step: StepRecord) -> None:
        return None


def _show_success(followed: Followed) -> None:
    from gpu_pipelines.targets.vertex.console import run_page

    print(f"succeeded; its reports and metrics: {run_page(followed.run.name)}")


def _show_failure(followed: Followed) -> None:
    """The step that failed, the service's message, and the end of its log."""
    from gpu_pipelines.targets.vertex.console import custom_job_page, run_page

    run = followed.run
    failed = next((step for step in run.steps if step.state == "failed"), None)
    if failed is None:
        print(f"{ERROR_PREFIX}{run.name.rpartition('/')[2]} was {run.state}. {run.error}".rstrip(), file=sys.stderr)
        print(f"console: {run_page(run.name)}", file=sys.stderr)
        return
    said = followed.messages.get(failed.name) or failed.error or run.error
    print(f"{ERROR_PREFIX}{failed.name} failed: {said}", file=sys.stderr)
    if failed.error and failed.error != said:
        print(f"Vertex AI says: {failed.error}", file=sys.stderr)
    lines = followed.last_lines.get(failed.name, [])
    if lines:
        print("its log ends:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in lines), file=sys.stderr)
    print(f"console: {run_page(run.name)}", file=sys.stderr)
    for job in failed.jobs:
        print(f"job: {custom_job_page(job)}", file=sys.stderr)
