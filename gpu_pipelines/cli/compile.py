"""`gpu-pipelines compile`: pipelines and components as YAML files that Kubeflow and Vertex Pipelines take."""

from __future__ import annotations

import sys
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_pipelines.cli import job_options as options
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.accelerators.request import PlanRequest
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.vertex.job_spec import JobOptions

DIFFERENCE_LINES_SHOWN = 20
TARGETS = ("local", "vertex", "kubeflow")


def compile_pipelines(
    pipeline: Annotated[str | None, typer.Argument(help="Name of the pipeline.")] = None,
    target: Annotated[str, typer.Option(help="Where it will run: local, vertex or kubeflow.")] = "local",
    task: Annotated[str, typer.Option(help="The task that it is for; left out, the file has all of them.")] = "",
    accelerator: Annotated[str, typer.Option(metavar="SPEC", help="What it trains on, cpu:2 or l4:4, say.")] = "cpu:2",
    evaluation_accelerator: options.EvaluationAccelerator = None,
    nodes: options.Nodes = 1,
    strategy: options.Strategy = None,
    region: options.Region = None,
    machine_type: options.MachineType = None,
    reservation: options.Reservation = None,
    hours: options.Hours = None,
    max_wait: options.MaxWait = None,
    image: options.Image = None,
    service_account: options.ServiceAccount = None,
    network: options.Network = None,
    network_attachment: options.NetworkAttachment = None,
    persistent_resource: options.PersistentResource = None,
    encryption_key: options.EncryptionKey = None,
    tensorboard: options.Tensorboard = None,
    boot_disk_gb: options.BootDiskGb = options.BOOT_DISK_GB,
    reduction_server: options.ReductionServer = False,
    web_access: options.WebAccess = False,
    env: options.Env = None,
    data_nodes: options.DataNodes = 1,
    data_machine_type: options.DataMachineType = None,
    label: options.Label = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Write all files of the directory compiled; takes --image.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="With --all: compare instead of writing.")] = False,
    directory: Annotated[Path, typer.Option(metavar="DIR", help="With --all: where the files are.")] = Path("compiled"),
) -> None:
    """Compile a pipeline, or all pipelines and components.

    The region of --region or of the settings is only checked: the file runs wherever it is submitted. Without --image
    and without an image in the settings, a file for vertex has a parameter for it, and one for kubeflow has none yet.
    """
    if every == (pipeline is not None):
        raise UserError("Give either the name of a pipeline or --all.")
    if every and task:
        raise UserError("--all writes files of every task.", "Leave --task out, or give the name of a pipeline.")
    if pipeline is None:
        _all(directory, check, image)
        return
    from gpu_pipelines.accelerators.request import PlanRequest
    from gpu_pipelines.project_settings import load_project_settings

    given = {
        "region": region,
        "image": image,
        "service_account": service_account,
        "network": network,
        "network_attachment": network_attachment,
        "persistent_resource": persistent_resource,
        "encryption_key": encryption_key,
        "tensorboard": tensorboard,
    }
    settings = options.with_labels(load_project_settings(given), label)
    job = options.job_options(max_wait, boot_disk_gb, reduction_server, web_access, env)
    request = PlanRequest(accelerator, nodes, region, strategy, machine_type, reservation, hours)
    data = (data_nodes, data_machine_type or "")
    text = _text(pipeline, target, request, settings, job, data, evaluation_accelerator, task)
    path = output or Path(f"{pipeline}.yaml")
    _write(path, text)
    print(f"wrote {path}")
    _show_image(target, settings)


def _show_image(target: str, settings: ProjectSettings) -> None:
    """Says which image the steps of a file run in, or that it has to be given."""
    if target == "vertex":
        from gpu_pipelines.targets.vertex.target import note_of_image
    elif target == "kubeflow":
        from gpu_pipelines.targets.kubeflow.target import note_of_image
    else:
        return
    print(note_of_image(settings))
    if not settings.image:
        print("To compile it for an image of your own give --image, or write image into gpu-pipelines.yaml.")


def _text(
    pipeline: str,
    target: str,
    request: PlanRequest,
    settings: ProjectSettings,
    job: JobOptions,
    data: tuple[int, str],
    evaluation_accelerator: str | None,
    task: str,
) -> str:
    from gpu_pipelines.accelerators import plan_request
    from gpu_pipelines.accelerators.one_gpu import named_evaluation_plan
    from gpu_pipelines.accelerators.request import require_gpu
    from gpu_pipelines.errors import nearest
    from gpu_pipelines.tasks.tasks import task_problems

    if target not in TARGETS:
        raise UserError(f"There is no target {target[:60]!r}.", nearest(target, TARGETS))
    if target != "vertex" and data != (1, ""):
        raise UserError(f"The target {target} has no --data-nodes and no --data-machine-type.", "Leave them out.")
    if task and (problems := task_problems(task)):
        raise UserError.of_all(problems)
    if target == "local":
        if evaluation_accelerator:
            raise UserError("The target local has no --evaluation-accelerator.", "Leave it out.")
        from gpu_pipelines.targets.local.target import compiled_for_here

        return compiled_for_here(pipeline, plan_request(request), task)
    require_gpu(request.spec, {"vertex": "Vertex AI", "kubeflow": "Kubeflow"}[target])
    planned = plan_request(request)
    evaluation = named_evaluation_plan(evaluation_accelerator, planned) if evaluation_accelerator else None
    if target == "kubeflow":
        from gpu_pipelines.targets.kubeflow.compiled import compiled_for_kubeflow

        options.require_no_vertex_job(job, settings)
        text = compiled_for_kubeflow(pipeline, planned, settings, job.environment, evaluation, task=task)
    else:
        from gpu_pipelines.targets.vertex.compiled import compiled_for_vertex
        from gpu_pipelines.targets.vertex.data_nodes import DataNodes

        text = compiled_for_vertex(pipeline, planned, settings, job, DataNodes(*data), evaluation, task=task)
    for caution in planned.warnings:
        print(f"warning: {caution.message}", file=sys.stderr)
    return text


def _all(directory: Path, check: bool, image: str | None) -> None:
    from gpu_pipelines.project_settings import ProjectSettings

    files = compiled_files(ProjectSettings(image=image))
    if check:
        _compare(files, directory)
        return
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        _write(directory / name, text)
    print(f"wrote {len(files)} files to {directory}")
    if image is None:
        print("For an image of your own give --image: those for kubeflow need one, those for vertex ask for one.")


def compiled_files(settings: ProjectSettings | None = None) -> dict[str, str]:
    """The text of every file of the directory `compiled`, by its path there.

    `train_evaluate_upload` has a file for each accelerator and each task that files are published for;
    `scheduled_retraining` one for each of the accelerators that are used most, of all tasks.

    Args:
        settings: the image of the steps; left out, that is open.
    """
    from gpu_pipelines.accelerators import plan, plan_request
    from gpu_pipelines.component_interface.catalog import COMPONENTS, load_component
    from gpu_pipelines.dag import PIPELINES
    from gpu_pipelines.targets.compiled import compiled
    from gpu_pipelines.targets.kubeflow.compiled import compiled_for_kubeflow
    from gpu_pipelines.targets.local.target import compiled_for_here
    from gpu_pipelines.targets.vertex.compiled import MOST_USED, PUBLISHED, compiled_for_vertex, file_of
    from gpu_pipelines.tasks.tasks import TASKS

    files = {f"{name}/local/cpu-2.yaml": compiled_for_here(name, plan("cpu:2")) for name in PIPELINES}
    tasks = [task.name for task in TASKS.values() if task.published]
    wanted = [("train_evaluate_upload", request, task) for request in PUBLISHED for task in tasks]
    wanted += [("scheduled_retraining", request, "") for request in MOST_USED]
    for name, request, task in wanted:
        planned = plan_request(request)
        place = f"{task}/{file_of(planned)}" if task else file_of(planned)
        files[f"{name}/vertex/{place}"] = compiled_for_vertex(name, planned, settings, task=task)
        files[f"{name}/kubeflow/{place}"] = compiled_for_kubeflow(name, planned, settings, task=task)
    return {**files, **{f"components/{name}.yaml": compiled(load_component(name)) for name in COMPONENTS}}


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"The file {path} cannot be written: {error.strerror}.") from None


def _compare(files: dict[str, str], directory: Path) -> None:
    there = {path.relative_to(directory).as_posix() for path in directory.rglob("*.yaml")}
    problems = [f"{name} is missing" for name in sorted(files.keys() - there)]
    problems += [f"{name} is of no pipeline, target or component" for name in sorted(there - files.keys())]
    for name in sorted(files.keys() & there):
        before = (directory / name).read_text(encoding="utf-8")
        if before != files[name]:
            lines = list(unified_diff(before.splitlines(), files[name].splitlines(), name, "compiled now", lineterm=""))
            problems.append("\n".join([f"{name} differs:", *lines[:DIFFERENCE_LINES_SHOWN]]))
    if problems:
        print("\n".join([*problems, "Run gpu-pipelines compile --all."]), file=sys.stderr)
        raise typer.Exit(1)
    print(f"{len(files)} files of {directory} are up to date")
