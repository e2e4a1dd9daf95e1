"""`gpu-pipelines job`: training jobs on Vertex AI without a pipeline, as a file for gcloud or sent from here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.cli import job_options as options
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.targets.vertex_job_request import PreparedJob

app = typer.Typer(
    name="job",
    help="Training jobs on Vertex AI without a pipeline.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

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
    from gpu_pipelines.targets.vertex_job_config import config_text, gcloud_command

    prepared = _prepared(locals())
    file = str(output or "config.yaml")
    text = config_text(prepared, file)
    _warn(prepared)
    if output is None:
        print(text, end="")
        return
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"The file {output} cannot be written: {error.strerror}.") from None
    print(f"wrote {output}; submit it:")
    print(gcloud_command(prepared, file))


def _prepared(given: dict[str, Any]) -> PreparedJob:
    """The checked job of a command's parameters, by their names."""
    import shlex

    from gpu_pipelines.project_settings import load_project_settings
    from gpu_pipelines.targets.vertex_job_request import JobFlags, prepare_job

    try:
        command = shlex.split(given["command"] or "")
    except ValueError as error:
        raise UserError(f"--command {given['command'][:80]!r} cannot be split into words: {error}.") from None
    same = ("name", "accelerator", "nodes", "machine_type", "strategy", "reservation", "hours", "boot_disk_gb")
    flags = JobFlags(
        **{name: given[name] for name in (*same, "reduction_server", "web_access", "image")},
        max_wait_hours=given["max_wait"],
        command=command,
        arguments=given["arguments"] or [],
        environment=options.pairs("--env", given["env"]),
        output_directory=given["output_dir"],
    )
    names = ("project", "region", "image", "service_account", "network", "encryption_key", "tensorboard")
    settings = load_project_settings({name: given[name] for name in names})
    return prepare_job(flags, options.with_labels(settings, given["label"]), given["config"])


def _warn(prepared: PreparedJob) -> None:
    told = dict.fromkeys(caution.message for plan in prepared.plans for caution in plan.warnings)
    for message in told:
        print(f"warning: {message}", file=sys.stderr)


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))
