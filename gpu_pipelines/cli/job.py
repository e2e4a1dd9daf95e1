"""`gpu-pipelines job`: training jobs on Vertex AI without a pipeline, as a file for gcloud or sent from here."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.cli import job_options as options
from gpu_pipelines.cli.application import Application
from gpu_pipelines.errors import ERROR_PREFIX, UserError

if TYPE_CHECKING:
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.vertex.job_request import PreparedJob

RUN_FAILED, INTERRUPTED = 1, 130

app = Application(name="job", help="Training jobs on Vertex AI without a pipeline.")

Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="-- ARGUMENT…", help="The application's own arguments, after --.")
]
Accelerator = Annotated[str | None, typer.Option(metavar="SPEC", help="GPUs of each machine: NAME:COUNT, as h100:8.")]
Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Begin with this config of gcloud ai custom-jobs create; flags win over it."),
]
Name = Annotated[str | None, typer.Option(help="Display name; made from image and accelerator if not given.")]
Nodes = Annotated[int | None, typer.Option(help="Machines; 1 if not given.")]
Image = Annotated[str | None, typer.Option(help="Image of the replicas.")]
Command = Annotated[
    str | None,
    typer.Option(metavar="WORDS", help='Runs in place of the image\'s entrypoint, in quotes: "python -m trainer".'),
]
OutputDir = Annotated[
    str | None, typer.Option(metavar="URI", help="gs://…, from which AIP_MODEL_DIR and its like are made.")
]
BootDiskGb = Annotated[int | None, typer.Option(metavar="GB", help="Boot disk of each machine; 200 if not given.")]

Job = Annotated[str, typer.Argument(metavar="JOB", help="Number or full name of the job, as job submit printed it.")]


@app.command()
def config(
    arguments: Arguments = None,
    config: Config = None,
    accelerator: Accelerator = None,
    nodes: Nodes = None,
    strategy: options.Strategy = None,
    region: options.Region = None,
    machine_type: options.MachineType = None,
    reservation: options.Reservation = None,
    hours: options.Hours = None,
    max_wait: options.MaxWait = None,
    image: Image = None,
    command: Command = None,
    env: options.Env = None,
    output_dir: OutputDir = None,
    name: Name = None,
    project: options.Project = None,
    service_account: options.ServiceAccount = None,
    network: options.Network = None,
    network_attachment: options.NetworkAttachment = None,
    persistent_resource: options.PersistentResource = None,
    encryption_key: options.EncryptionKey = None,
    tensorboard: options.Tensorboard = None,
    label: options.Label = None,
    boot_disk_gb: BootDiskGb = None,
    reduction_server: options.ReductionServer = False,
    web_access: options.WebAccess = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; printed if not given.")
    ] = None,
) -> None:
    """Print the file for gcloud ai custom-jobs create --config, with the whole command as a comment."""
    from gpu_pipelines.submit_commands import NOT_BY_GCLOUD, leaves_a_pool_out
    from gpu_pipelines.targets.vertex.job_config import config_text, submit_command

    prepared, _ = _prepared(locals())
    file = str(output or "config.yaml")
    text = config_text(prepared, file)
    _warn(prepared)
    if leaves_a_pool_out(prepared.spec["worker_pool_specs"]):
        print(f"warning: {NOT_BY_GCLOUD}", file=sys.stderr)
    if output is None:
        print(text, end="")
        return
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"The file {output} cannot be written: {error.strerror}.") from None
    print(f"wrote {output}; submit it:")
    print(submit_command(prepared, file))


@app.command()
def submit(
    arguments: Arguments = None,
    config: Config = None,
    accelerator: Accelerator = None,
    nodes: Nodes = None,
    strategy: options.Strategy = None,
    region: options.Region = None,
    machine_type: options.MachineType = None,
    reservation: options.Reservation = None,
    hours: options.Hours = None,
    max_wait: options.MaxWait = None,
    image: Image = None,
    command: Command = None,
    env: options.Env = None,
    output_dir: OutputDir = None,
    name: Name = None,
    project: options.Project = None,
    service_account: options.ServiceAccount = None,
    network: options.Network = None,
    network_attachment: options.NetworkAttachment = None,
    persistent_resource: options.PersistentResource = None,
    encryption_key: options.EncryptionKey = None,
    tensorboard: options.Tensorboard = None,
    label: options.Label = None,
    boot_disk_gb: BootDiskGb = None,
    reduction_server: options.ReductionServer = False,
    web_access: options.WebAccess = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the request and send nothing.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show states and log lines until the end.")] = False,
    interval: options.Interval = options.INTERVAL,
    as_json: options.AsJson = False,
) -> None:
    """Submit a training job to Vertex AI. What it costs is shown before."""
    prepared, settings = _prepared(locals())
    _show_cost(prepared)
    _warn(prepared)
    if dry_run:
        _print_json(_as_sent(prepared))
        return
    from gpu_pipelines.targets.vertex.console import custom_job_page
    from gpu_pipelines.targets.vertex.jobs import submit_job

    submitted = submit_job(prepared, settings)
    page = custom_job_page(submitted)
    if not as_json:
        print(f"submitted {prepared.name}: {submitted}")
        print(f"console: {page}")
        print("\n".join(_ways_back(submitted)), flush=True)
    elif not follow:
        _print_json({"name": submitted, "display_name": prepared.name, "console": page})
    if follow:
        _follow(submitted, settings, interval, as_json)


@app.command("follow")
def follow_submitted(
    job: Job,
    project: options.Project = None,
    region: options.Region = None,
    interval: options.Interval = options.INTERVAL,
    as_json: options.AsJson = False,
) -> None:
    """Show the states of a job and its log lines, until its end. Ctrl-C leaves it running."""
    name, settings = _named(job, project, region)
    _follow(name, settings, interval, as_json)


@app.command()
def cancel(job: Job, project: options.Project = None, region: options.Region = None) -> None:
    """Cancel a job."""
    from gpu_pipelines.targets.vertex.console import custom_job_page
    from gpu_pipelines.targets.vertex.jobs import cancel_job

    name, settings = _named(job, project, region)
    cancel_job(name, settings)
    print(f"asked to cancel {name.rpartition('/')[2]}\nconsole: {custom_job_page(name)}")


def _named(job: str, project: str | None, region: str | None) -> tuple[str, ProjectSettings]:
    """The full name of a job, and the settings with its project and region."""
    from gpu_pipelines.project_settings import load_project_settings
    from gpu_pipelines.targets.vertex.jobs import full_job_name
    from gpu_pipelines.targets.vertex.pipelines import settings_of

    settings = settings_of(job, load_project_settings({"project": project, "region": region}))
    return full_job_name(job, settings), settings


def _follow(name: str, settings: ProjectSettings, every: float, as_json: bool) -> None:
    """Shows how a job goes, with its state on stderr beside the lines if these are not wanted.

    Raises:
        typer.Exit: the job has failed, or Ctrl-C was pressed.
    """
    from gpu_pipelines.targets.vertex.console import custom_job_page
    from gpu_pipelines.targets.vertex.jobs import follow_job

    def tell(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr if as_json else sys.stdout, flush=True)

    def say(line: str) -> None:
        if not as_json:
            print(f"  {line}", flush=True)

    try:
        ended = follow_job(name, settings, every, tell, say)
    except KeyboardInterrupt:
        print(f"{name.rpartition('/')[2]} goes on without being followed", file=sys.stderr)
        print("\n".join(_ways_back(name)), file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        _print_json({**ended.to_json(), "console": custom_job_page(name)})
    if ended.state != "succeeded":
        print(f"{ERROR_PREFIX}{name.rpartition('/')[2]} {ended.state}. {ended.error}".rstrip(), file=sys.stderr)
        print(f"console: {custom_job_page(name)}", file=sys.stderr)
        raise typer.Exit(RUN_FAILED)


def _ways_back(name: str) -> list[str]:
    """The commands that follow and cancel a job, as they can be copied."""
    return [f"{command}: gpu-pipelines job {command} {name}" for command in ("follow", "cancel")]


def _as_sent(prepared: PreparedJob) -> dict[str, Any]:
    from gpu_pipelines.targets.vertex.job_config import job_document

    parent = f"projects/{prepared.project}/locations/{prepared.region}"
    return {"method": "POST", "path": f"/v1/{parent}/customJobs", "body": job_document(prepared)}


def _show_cost(prepared: PreparedJob) -> None:
    """What is for the reader, not for what reads stdout."""
    from gpu_pipelines.targets.vertex.job_config import told_machines

    for line in told_machines(prepared):
        print(line, file=sys.stderr)


def _prepared(given: dict[str, Any]) -> tuple[PreparedJob, ProjectSettings]:
    """The checked job of a command's parameters, by their names, and the project's settings."""
    import shlex

    from gpu_pipelines.project_settings import load_project_settings
    from gpu_pipelines.targets.vertex.job_request import JobRequest, prepare_job

    try:
        command = shlex.split(given["command"] or "")
    except ValueError as error:
        raise UserError(f"--command {given['command'][:80]!r} cannot be split into words: {error}.") from None
    same = ("name", "accelerator", "nodes", "machine_type", "strategy", "reservation", "hours", "boot_disk_gb")
    flags = JobRequest(
        **{name: given[name] for name in (*same, "reduction_server", "web_access", "image")},
        max_wait_hours=given["max_wait"],
        command=command,
        arguments=given["arguments"] or [],
        environment=options.variables(given["env"]),
        output_directory=given["output_dir"],
    )
    of_jobs = (
        "service_account",
        "network",
        "network_attachment",
        "persistent_resource",
        "encryption_key",
        "tensorboard",
    )
    settings = load_project_settings({name: given[name] for name in ("project", "region", "image", *of_jobs)})
    settings = options.with_labels(settings, given["label"])
    return prepare_job(flags, settings, given["config"]), settings


def _warn(prepared: PreparedJob) -> None:
    cautions = [caution.message for plan in prepared.plans for caution in plan.warnings]
    for message in dict.fromkeys([*prepared.remarks, *cautions]):
        print(f"warning: {message}", file=sys.stderr)


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))
