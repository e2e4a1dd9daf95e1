"""Features of a pipeline that the emulator cannot run: refused at submission, each by name."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.pipelines.conditions import check_condition
from gpu_pipelines.emulator.pipelines.task_order import tasks_before

_EXECUTORS = ("container", "importer")
#: The command of a Python component; with a module's path the code is in the file of the pipeline.
_EXECUTOR = "kfp.dsl.executor_main"
#: The program of a component of GCPC, and those whose services are emulated.
_OF_GCPC = re.compile(r"google_cloud_pipeline_components\.container\.(\S+)\.\w+")
_GCPC_HERE = {
    "v1.batch_prediction_job",
    "v1.bigquery.query_job",
    "v1.custom_job",
    "v1.endpoint.create_endpoint",
    "v1.endpoint.delete_endpoint",
    "v1.endpoint.deploy_model",
    "v1.endpoint.undeploy_model",
    "v1.hyperparameter_tuning_job",
    "v1.model.delete_model",
    "v1.model.get_model",
    "v1.model.upload_model",
    "v1.vertex_notification_email",
}
_SHELL = re.compile(r"(.*/)?(sh|bash|python[\d.]*)")
_FILE = re.compile(r"[\w./][\w./-]*")


def check_supported(spec: Mapping[str, Any]) -> None:
    """Checks that all of a pipeline can be run here.

    Raises:
        ApiError: lists all parts that cannot.
    """
    if found := [*_of_inputs(spec), *_of_executors(spec), *_of_tasks(spec), *_of_parts(spec)]:
        raise ApiError(400, "The emulator does not run this pipeline: " + "; ".join(found) + ".", "UNIMPLEMENTED")


def _of_inputs(spec: Mapping[str, Any]) -> Iterator[str]:
    for name, artifact in spec["root"].get("inputDefinitions", {}).get("artifacts", {}).items():
        if not artifact.get("isOptional"):
            yield f"its input {name} is an artifact, which the emulator takes from no metadata store"


def _of_executors(spec: Mapping[str, Any]) -> Iterator[str]:
    known = spec.get("deploymentSpec", {}).get("executors", {})
    for name, component in spec.get("components", {}).items():
        if "dag" in component:
            continue
        executor = known.get(component.get("executorLabel", ""))
        if executor is None:
            yield f"{name} has no executor"
            continue
        if other := sorted(set(executor) - set(_EXECUTORS)):
            yield f"{name} is a {other[0]}"
        elif uri := executor.get("importer", {}).get("artifactUri", {}).get("constant", ""):
            if uri.startswith("oci://"):
                yield f"{name} imports {uri}, and images are not read here"
        elif container := executor.get("container"):
            yield from _of_container(name, container)


def _of_container(name: str, container: Mapping[str, Any]) -> Iterator[str]:
    command, image = container.get("command", []), container.get("image", "")
    words = [*command, *container.get("args", [])]
    theirs = _OF_GCPC.search(" ".join(command))
    if theirs and theirs[1] not in _GCPC_HERE:
        yield f"{name} is a component of Google's whose service is not emulated"
    elif not command:
        yield f"{name} has no command, and images are not run here ({image})"
    elif "{{" not in command[0] and not _is_here(command[0]):
        yield f"{name} runs {command[0]}, which is not on this machine, and images are not run here"
    elif _EXECUTOR in words and "--component_module_path" not in words:
        yield f"{name} has its code in the image {image}, and images are not run here"
    elif _SHELL.fullmatch(command[0]) and len(words) > 1 and _is_of_the_image(words[1]):
        yield f"{name} runs {words[1]} of the image {image}, and images are not run here"


def _is_of_the_image(word: str) -> bool:
    """Whether a word names a file that is not on this machine; a bucket exists when the step runs."""
    path = Path(word)
    return bool(_FILE.fullmatch(word)) and not word.startswith("/gcs/") and not (path.is_absolute() and path.exists())


def _is_here(program: str) -> bool:
    beside = Path(sys.executable).with_name(program) if "/" not in program else None
    return shutil.which(program) is not None or bool(beside and beside.exists())


def _of_tasks(spec: Mapping[str, Any]) -> Iterator[str]:
    for part in (spec["root"], *spec.get("components", {}).values()):
        for name, task in part.get("dag", {}).get("tasks", {}).items():
            try:
                check_condition(task.get("triggerPolicy", {}).get("condition", ""))
            except ApiError as error:
                yield f"{name}: {error.message.rstrip('.')}"
            component = spec.get("components", {}).get(task.get("componentRef", {}).get("name"))
            if component is None:
                yield f"{name} is of a component that the file does not have"
            elif ("parameterIterator" in task or "artifactIterator" in task) and "dag" not in component:
                yield f"{name} is a loop over one component that is no part"


def _of_parts(spec: Mapping[str, Any]) -> Iterator[str]:
    """Tasks that wait for each other, and sub-DAGs that contain themselves: they would never end."""
    components = spec.get("components", {})
    inner: dict[str, set[str]] = {}
    for name, part in (("the pipeline", spec["root"]), *components.items()):
        tasks = part.get("dag", {}).get("tasks", {})
        before = {task: tasks_before(placed) for task, placed in tasks.items()}
        if unknown := sorted(set().union(*before.values()) - set(tasks)):
            yield f"a task of {name} waits for {unknown[0]}, which is not there"
        elif _is_circular(before):
            yield f"the tasks of {name} wait for each other"
        inner[name] = {placed.get("componentRef", {}).get("name", "") for placed in tasks.values()} & set(components)
    if _is_circular(inner):
        yield "a part of it is in itself"


def _is_circular(before: Mapping[str, set[str]]) -> bool:
    try:
        list(TopologicalSorter(before).static_order())
    except CycleError:
        return True
    return False
