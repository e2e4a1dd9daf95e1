"""From the words of a command line to a compiled pipeline and checked parameters for Kubeflow."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.cli import job_options as options
from gpu_pipelines.cli.arguments import all_arguments, as_taken, compiled_in, fields_of, parameters_of_spec
from gpu_pipelines.cli.vertex_request import FILE_SUFFIXES, JobFlags, require_no_flags
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.kubeflow.runs import KubeflowPipeline

#: The settings that runs, versions and schedules on Kubeflow take from the command line.
SETTINGS = ("project", "region", "pipeline_root", "image", "kubeflow_host", "kubeflow_namespace", "kubeflow_experiment")


def kubeflow_pipeline(what: str, flags: JobFlags, settings: ProjectSettings) -> KubeflowPipeline:
    """The pipeline that a name or a file stands for.

    Args:
        what: name of a pipeline, which is compiled; or a compiled file.
        flags: accelerators.
        settings: image, claim, node pool and so on.

    Raises:
        UserError: there is no such pipeline or file, or GKE has no such nodes.
    """
    from gpu_pipelines.targets.kubeflow.runs import parsed_pipeline
    from gpu_pipelines.targets.vertex.machines import with_image

    if what.endswith(FILE_SUFFIXES):
        require_no_flags(what, flags)
        try:
            text = Path(what).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"The file {what} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
        return parsed_pipeline(with_image(text, settings, what), what)
    return parsed_pipeline(_compiled(what, flags, settings), what)


def _compiled(name: str, flags: JobFlags, settings: ProjectSettings) -> str:
    from gpu_pipelines.accelerators.one_gpu import one_gpu
    from gpu_pipelines.targets.kubeflow.compiled import compiled_for_kubeflow

    planned = flags.planned(settings, "Kubeflow")
    settings.require("image")
    if flags.data_nodes != 1 or flags.data_machine_type:
        raise UserError("The target kubeflow has no --data-nodes and no --data-machine-type.", "Leave them out.")
    job = options.job_options(flags.max_wait, flags.boot_disk_gb, flags.reduction_server, flags.web_access, flags.env)
    options.require_no_vertex_job(job, settings)
    evaluation = flags.evaluation(planned) or one_gpu(planned)
    text = compiled_for_kubeflow(name, planned, settings, job.environment, evaluation)
    for what, plan in (("training", planned), ("evaluation", evaluation)):
        machines = f"{plan.nodes} × {plan.machine_type}"
        print(f"{what}: {machines} with {plan.count} × {plan.accelerator_type}", file=sys.stderr)
    for caution in planned.warnings:
        print(f"warning: {caution.message}", file=sys.stderr)
    return text


def checked_arguments(
    spec: Mapping[str, Any], assignments: Sequence[str], file: Path | None, settings: ProjectSettings
) -> dict[str, Any]:
    """All parameters of a run on Kubeflow, as its pipeline takes them.

    Args:
        spec: the compiled pipeline.
        assignments: texts of the form `key=value`.
        file: a YAML file of parameters.
        settings: whether a claim is mounted.

    Raises:
        UserError: lists everything that is wrong with them.
    """
    from gpu_pipelines.dag import PIPELINES, load_pipeline
    from gpu_pipelines.targets.kubeflow.target import MOUNT_PATH, claim_of

    known, name = parameters_of_spec(spec), str(spec["pipelineInfo"]["name"]).replace("-", "_")
    fields = fields_of(name, known)
    arguments = all_arguments(known, assignments, file, fields=fields)
    if name in PIPELINES:
        module, checked = load_pipeline(name), {**compiled_in(spec), **arguments}
        mounted = f"{MOUNT_PATH}/" if claim_of(settings) else ""
        if problems := module.problems(checked) or module.problems_on_kubeflow(checked, mounted):
            raise UserError.of_all(problems)
    return as_taken(arguments, known, fields)
