"""`gpu-pipelines job`: training jobs on Vertex AI without a pipeline, as a file for gcloud or submitted directly."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.cli.application import Application, print_json
from gpu_pipelines.cli.run import cancel as cancel_run_or_job
from gpu_pipelines.cli.run import follow as follow_run_or_job
from gpu_pipelines.cli.run import follow_run, ways_back
from gpu_pipelines.cli.target_options import INTERVAL, Arguments, AsJson, Interval, with_fields

if TYPE_CHECKING:
    from gpu_pipelines.targets.vertex.jobs.request import PreparedJob

_FLAGS = "gpu_pipelines.targets.vertex.options:JobFlags"

app = Application(name="job", help="Run training jobs on Vertex AI without a pipeline.")


@app.command()
@with_fields(_FLAGS, "job")
def config(
    options: Any,
    arguments: Arguments = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="File to write; printed if not given.")
    ] = None,
) -> None:
    """Print the file for gcloud ai custom-jobs create --config, with the whole command as a comment."""
    from gpu_pipelines.driver.jobs import prepared_job, tell_cautions
    from gpu_pipelines.submit_commands import NOT_BY_GCLOUD, leaves_a_pool_out
    from gpu_pipelines.targets.compiled import require_another, write_file
    from gpu_pipelines.targets.vertex.jobs.config import config_text, submit_command

    if output is not None and options.config is not None:
        require_another(output, options.config, "job of --config")
    prepared, _ = prepared_job(options, arguments or ())
    file = str(output or "config.yaml")
    text = config_text(prepared, file)
    tell_cautions(prepared, _tell)
    if leaves_a_pool_out(prepared.spec["worker_pool_specs"]):
        print(f"warning: {NOT_BY_GCLOUD}", file=sys.stderr)
    if output is None:
        print(text, end="")
        return
    write_file(output, text)
    print(f"wrote {output}; submit it:")
    print(submit_command(prepared, file))


@app.command()
@with_fields(_FLAGS, "job")
def submit(
    options: Any,
    arguments: Arguments = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the request and send nothing.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Follow states and log lines until the job ends.")] = False,
    interval: Interval = INTERVAL,
    as_json: AsJson = False,
) -> None:
    """Submit a training job to Vertex AI. The cost is shown first."""
    from gpu_pipelines.driver.jobs import job_to_send, sent_job
    from gpu_pipelines.targets.vertex.vertex import Vertex

    prepared, settings = job_to_send(options, arguments or (), _tell)
    if dry_run:
        print_json(_as_sent(prepared))
        return
    job = sent_job(prepared, settings, _tell)
    target = Vertex(settings=settings)
    if not as_json:
        print(f"submitted {prepared.name}: {job.id}")
        print(f"console: {job.document['console']}")
        print("\n".join(ways_back(target, job.id)), flush=True)
    elif not follow:
        print_json(job.document)
    if follow:
        follow_run(target, job.id.rpartition("/")[2], interval, as_json, job.id)


# These are separate commands, also for runs.
app.command("follow", hidden=True)(follow_run_or_job)
app.command("cancel", hidden=True)(cancel_run_or_job)


def _as_sent(prepared: PreparedJob) -> dict[str, Any]:
    from gpu_pipelines.targets.vertex.jobs.config import job_document

    parent = f"projects/{prepared.project}/locations/{prepared.region}"
    return {"method": "POST", "path": f"/v1/{parent}/customJobs", "body": job_document(prepared)}


def _tell(text: str) -> None:
    """Prints for the reader, not for programs that read stdout."""
    print(text, file=sys.stderr)
