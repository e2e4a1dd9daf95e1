"""Migrates an old job, from its file and its command line, to Vertex AI with the settings of the project."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath

from gpu_pipelines.migration.gcloud_flags import GcloudCommand, parse_command
from gpu_pipelines.migration.job_file import read_job_file
from gpu_pipelines.migration.migrate import MigrationOptions, migrate
from gpu_pipelines.migration.result import Migration
from gpu_pipelines.project_settings import load_project_settings
from gpu_pipelines.targets.options import words_of


def migrate_job(
    file: str | PathLike[str] | None = None,
    flags: Sequence[str] = (),
    *,
    arguments: Sequence[str] | None = None,
    image: str | None = None,
    keep: bool = False,
) -> Migration:
    """Migrates a job of AI Platform Training to Vertex AI, like `gpu-pipelines migrate`. Nothing is sent or written.

    Args:
        file: the config.yaml of the job; None if the flags describe the whole job.
        flags: flags of `gcloud ai-platform jobs submit training`, such as `["--region=us-central1"]`, or the command as
            one line of a shell; they take precedence over the file.
        arguments: the application's own arguments, which gcloud takes after `--`; None leaves those of the file.
        image: image that runs a job of Python packages; None for Google's own, if there is one.
        keep: refuse GPUs that are gone (K80, P100) instead of replacing them.

    Returns:
        The config of the new job with notes on the changes, and the commands that submit it.

    Raises:
        UserError: lists what the old service would have refused, and what Vertex AI does not offer.
    """
    given = words_of("flags", flags) if isinstance(flags, str) else flags
    words = [*given, *([] if file is None else [f"--config={fspath(file)}"])]
    return migrated(parse_command(words, arguments), image=image, keep=keep)


def migrated(command: GcloudCommand, *, image: str | None, keep: bool) -> Migration:
    """The job of a parsed command line; see `migrate_job`."""
    job = read_job_file(command.file) if command.file else {}
    return migrate(job, command, load_project_settings(), MigrationOptions(keep=keep, image=image))
