"""Training jobs on Vertex AI without a pipeline, in a Python program and for the commands `job`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpu_pipelines.driver.opening import arguments_of, container_options
from gpu_pipelines.driver.run import Run, teller

if TYPE_CHECKING:
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.vertex.jobs.request import PreparedJob
    from gpu_pipelines.targets.vertex.options import JobFlags


def job_config(
    accelerator: str | None = None,
    *,
    command: Sequence[str] = (),
    arguments: Sequence[Any] = (),
    progress: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """The config of a training job on Vertex AI, as `gpu-pipelines job config`.

    Args:
        accelerator: GPUs of each machine, NAME:COUNT, such as h100:8; None for those of a file, `config`.
        command: what to run in place of the image's entrypoint; empty for that.
        arguments: the application's own, texts and numbers; or one line, as a shell has it.
        progress: print warnings to stderr.
        options: those of the command, by the names of their flags with underscores: `image`, `nodes`,
            `region`, `strategy`, `hours`, `config="job.yaml"` and so on. The others are those of the project.

    Returns:
        The `CustomJobSpec` with the field names of the REST API; as YAML or JSON it is the file that
        `gcloud ai custom-jobs create --config` takes.

    Raises:
        UserError: something is wrong, or missing.
        PlanError: the accelerator is not available like that.
    """
    from gpu_pipelines.targets.vertex.jobs.config import config_document
    from gpu_pipelines.targets.vertex.options import JobFlags

    flags = container_options(JobFlags, "job", accelerator, command, options)
    prepared, _ = prepared_job(flags, arguments_of(arguments))
    tell_cautions(prepared, teller(progress))
    return config_document(prepared)


def submit_job(
    accelerator: str | None = None,
    *,
    command: Sequence[str] = (),
    arguments: Sequence[Any] = (),
    progress: bool = True,
    **options: Any,
) -> Run:
    """Submits a training job to Vertex AI without a pipeline, as `gpu-pipelines job submit`.

    Args:
        accelerator: GPUs of each machine, NAME:COUNT, such as h100:8; None for those of a file, `config`.
        command: what to run in place of the image's entrypoint; empty for that.
        arguments: the application's own, texts and numbers; or one line, as a shell has it.
        progress: print cost and warnings to stderr.
        options: as of `job_config`.

    Returns:
        The job, which can be followed and cancelled like a run. `id` is its full name; `document` has its page in the
        console.

    Raises:
        UserError: something is wrong, or missing, or the service refuses the job.
        PlanError: the accelerator is not available like that.
    """
    from gpu_pipelines.targets.vertex.options import JobFlags

    flags = container_options(JobFlags, "job", accelerator, command, options)
    prepared, settings = job_to_send(flags, arguments_of(arguments), teller(progress))
    return sent_job(prepared, settings, teller(progress))


def prepared_job(flags: JobFlags, arguments: Sequence[str]) -> tuple[PreparedJob, ProjectSettings]:
    """The checked job, and the settings of its project; errors as those of `job_config`."""
    from gpu_pipelines.targets.vertex.jobs.file import prepare_job

    settings = flags.project_settings()
    return prepare_job(replace(flags, arguments=arguments), settings, flags.config), settings


def job_to_send(
    flags: JobFlags, arguments: Sequence[str], tell: Callable[[str], None]
) -> tuple[PreparedJob, ProjectSettings]:
    """The checked job, and the settings that it is sent with.

    Args:
        flags: the request.
        arguments: the application's own.
        tell: called with the cost and each warning.

    Raises:
        UserError: something is wrong, or missing.
    """
    from gpu_pipelines.targets.vertex.jobs.config import told_machines

    prepared, settings = prepared_job(flags, arguments)
    for line in told_machines(prepared):
        tell(line)
    tell_cautions(prepared, tell)
    # The service names projects by their numbers, and logs are kept by their ids.
    settings = replace(settings, project=prepared.project, region=prepared.region)
    settings.require("project", "region")
    return prepared, settings


def sent_job(prepared: PreparedJob, settings: ProjectSettings, tell: Callable[[str], None]) -> Run:
    """Sends a job.

    Args:
        prepared: the job.
        settings: those that `job_to_send` returned.
        tell: called with whether a persistent resource has room for it.

    Raises:
        UserError: the service refuses it, or it is not known whether it was created.
    """
    from gpu_pipelines.targets.vertex.console import custom_job_page
    from gpu_pipelines.targets.vertex.jobs.custom_jobs import submit_job as send
    from gpu_pipelines.targets.vertex.persistent_resource import told_resource
    from gpu_pipelines.targets.vertex.vertex import Vertex

    if resource := prepared.spec.get("persistent_resource_id"):
        there = replace(settings, network=prepared.spec.get("network"))
        tell(told_resource(resource, {prepared.name: prepared.spec["worker_pool_specs"]}, there))
    name = send(prepared, settings)
    document = {"name": name, "display_name": prepared.name, "console": custom_job_page(name)}
    return Run(name, Vertex.name, "submitted", document=document, _opened=Vertex(settings=settings))


def tell_cautions(prepared: PreparedJob, tell: Callable[[str], None]) -> None:
    """Tells each warning once.

    Args:
        prepared: the job.
        tell: called with each.
    """
    cautions = [caution.message for plan in prepared.plans for caution in plan.warnings]
    for message in dict.fromkeys([*prepared.remarks, *cautions]):
        tell(f"warning: {message}")
