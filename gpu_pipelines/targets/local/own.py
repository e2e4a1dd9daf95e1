"""A user's own pipeline as this machine runs it: with installed packages, and containers if there is an engine."""

from __future__ import annotations

import copy
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.step_environment import INPUT_STATE
from gpu_pipelines.targets.compiled import EMAILS_OF_VERTEX
from gpu_pipelines.targets.local.cluster_parts import ClusterPart, cluster_parts, problems_without_cluster
from gpu_pipelines.targets.local.container import ENGINES, engine_here
from gpu_pipelines.targets.local.runner.digests import state_of_own
from gpu_pipelines.targets.local.target import LocalTarget
from gpu_pipelines.targets.own.names import free_name
from gpu_pipelines.targets.own.pipeline import OwnPipeline
from gpu_pipelines.targets.own.placed import drop_unused
from gpu_pipelines.targets.own.steps import Step, steps_in
from gpu_pipelines.targets.spec_steps import tasks_in

#: KFP's start of a component of Python code.
_EXECUTOR = "kfp.dsl.executor_main"
#: A component that KFP built into an image: its code is not in the file.
_IN_IMAGE = ["python3", "-m", _EXECUTOR]
#: The part of a command that installs packages first, and the installer in it.
_INSTALLS = re.compile(r"python3 -m pip install (?P<what>.*?)\s*&&", re.DOTALL)
#: KFP's options for pip that have a value.
_OF_AN_INDEX = ("--index-url", "--extra-index-url", "--trusted-host")
_CONTAINER = "gpu_pipelines.targets.local.container"
#: The start of a component of Google's, such as a job of Vertex AI or a query.
_LAUNCHER = re.compile(r"google_cloud_pipeline_components\.container\.\S+")


def own_here(
    own: OwnPipeline,
    target: LocalTarget,
    plans: Mapping[str, Any],
    arguments: Mapping[str, Any],
    *,
    containers: bool,
    may_install: bool = False,
) -> tuple[Mapping[str, Any], Any]:
    """A user's own pipeline with digests of what its steps read, so that changes run them again, and with checkpoints.

    Args:
        own: the pipeline.
        target: this machine, with the place of the checkpoints.
        plans: accelerators of the steps, by their names.
        arguments: all parameters of the pipeline.
        containers: as for `for_this_machine`.
        may_install: as for `for_this_machine`.

    Returns:
        The pipeline as KFP's local runner runs it: its specification, and the component.
    """
    made = own.placed(target, plans, str(target.checkpoint_uri))
    reread = state_of_own(made.steps, arguments)
    for step in made.steps:
        if step.name in reread:
            step.set_variable(INPUT_STATE, reread[step.name])
            step.task["cachingOptions"] = {"enableCache": True}
        elif step.is_ours or _ends_the_run(step):
            step.task["cachingOptions"] = {}
    spec = for_this_machine(made.documents, containers=containers, may_install=may_install)[0]
    return spec, component_of(spec)


def component_of(spec: Mapping[str, Any]) -> Any:
    """A compiled pipeline as KFP's local runner takes it.

    KFP takes a pipeline that is called like one of its steps for that step alone, and would not run the others.
    """
    from kfp.components import load_component_from_text
    from kfp.dsl.utils import sanitize_component_name

    info, parts = spec["pipelineInfo"], [key.removeprefix("comp-") for key in spec["components"]]
    name = sanitize_component_name(info["name"]).removeprefix("comp-")
    if name in parts:
        spec = {**spec, "pipelineInfo": {**info, "name": free_name(name, parts)}}
    # KFP reads YAML, which JSON is not quite: PyYAML takes 1e-05 for a text, and no escapes of emoji.
    return load_component_from_text(OwnPipeline([spec]).text)


def for_this_machine(
    documents: Sequence[Mapping[str, Any]], *, containers: bool, may_install: bool = False
) -> list[dict[str, Any]]:
    """A compiled pipeline changed so that KFP's local runner runs it as intended.

    Each task gets a component of its own, by whose name the runner identifies it and keeps its results. Packages that a
    step would install must be installed: a run does not change this environment. A container component runs in a
    container.

    Args:
        documents: documents of the file.
        containers: whether container components run in containers; otherwise as processes of this machine.
        may_install: whether a step may install its packages: this environment exists only for the run.

    Raises:
        UserError: lists the missing packages, the containers for which there is no engine, and what steps would get
            from a cluster.
    """
    made = [copy.deepcopy(dict(each)) for each in documents]
    spec = made[0]
    problems: dict[str, None] = {}
    engine = cache(engine_here)
    for step in steps_in(spec):
        container, key, label = copy.deepcopy(step.container), f"comp-{step.name}", f"exec-{step.name}"
        parts = cluster_parts(step, made)
        if lacking := problems_without_cluster(step, parts):
            problems.update(dict.fromkeys(lacking))
        elif _is_container(container):
            problems.update(dict.fromkeys(_problems_of_container(step, containers, engine)))
            _wrap(container, containers, parts)
        elif not may_install:
            problems.update(dict.fromkeys([*_of_another_version(step), *_missing(step)]))
            container["command"] = _without_installation(container.get("command", []))
        spec["components"][key] = {**step.spec, "executorLabel": label}
        spec["deploymentSpec"]["executors"][label] = {"container": container}
        step.task["componentRef"] = {"name": key}
    if problems:
        raise UserError.of_all(list(problems))
    _one_at_a_time(spec, {step.name for step in steps_in(spec) if step.uses_accelerators})
    drop_unused(made)
    # Settings for Kubernetes have no effect here.
    return made[:1]


def _ends_the_run(step: Step) -> bool:
    """Whether it gets the state of the run: it sends messages, or cleans up, after each run.

    On the platforms no two runs give it the same input; with the local runner they do.
    """
    return any("taskFinalStatus" in each for each in step.task.get("inputs", {}).get("parameters", {}).values())


def require_no_container(steps: Sequence[Step]) -> None:
    """Checks that all steps are Python code, for a pipeline that runs in one container as a whole.

    Raises:
        UserError: lists those that are programs of an image.
    """
    if found := [step.name for step in steps if _is_container(step.container)]:
        raise UserError(
            "The whole pipeline runs in one container here, which cannot start container components: "
            f"{', '.join(found)}.",
            "Use another target, or write the steps in Python.",
        )


def _one_at_a_time(spec: Mapping[str, Any], accelerated: Collection[str]) -> None:
    """Makes the turns of loops with steps that take all accelerators of this machine run one after the other."""
    for name, task in tasks_in(spec):
        if not ("parameterIterator" in task or "artifactIterator" in task):
            continue
        inside = spec["components"][task["componentRef"]["name"]]
        names = {name} if "executorLabel" in inside else {step.name for step in steps_in({**spec, "root": inside})}
        if names & set(accelerated):
            task["iteratorPolicy"] = {"parallelismLimit": 1}


def _is_container(container: Mapping[str, Any]) -> bool:
    """Whether a step is a program of its image, and not Python code of the file."""
    command = container.get("command", [])
    return command[: len(_IN_IMAGE)] == _IN_IMAGE or not any(_EXECUTOR in part for part in command)


def _problems_of_container(step: Step, containers: bool, engine: Callable[[], str]) -> list[str]:
    if found := _LAUNCHER.search(" ".join(step.container.get("command", []))):
        where = "which this machine starts only in a rehearsal: --target vertex --emulate"
        if step.has_accelerators:
            return [
                f"{step.name} is a job of Vertex AI, {where}. To run the step here, use its component itself and "
                "accelerate(task, …), or run the pipeline from before it was compiled for --target vertex."
            ]
        instead = "use send_message of this project" if EMAILS_OF_VERTEX in found[0] else "run a pipeline without it"
        return [f"{step.name} is a component of Google's, {where}. To run the other steps here, {instead}."]
    if containers and not engine():
        here = " and ".join(filter(shutil.which, ENGINES))
        what = f"{here} cannot be reached. Start it" if here else "there is neither docker nor podman here. Install one"
        return [
            f"{step.name} runs in the container {step.container.get('image')}, and {what}, or give --no-containers to "
            "run its command as a process of this machine."
        ]
    program = next(iter(step.container.get("command", [])), "")
    if not containers and not program:
        return [f"{step.name} runs what its image {step.container.get('image')} starts, which is only there."]
    if not containers and not shutil.which(program):
        return [f"{step.name} runs {program}, which is not installed here. Install it, or leave --no-containers out."]
    return []


def _wrap(container: dict[str, Any], containers: bool, parts: Sequence[ClusterPart]) -> None:
    """Makes a step start its container, or its command, through a program of this project.

    KFP's process runner takes only commands that name its own executor.
    """
    image = ["--image", container.get("image", "")] if containers else []
    names = [*(each["name"] for each in container.get("env", [])), *(part.name for part in parts if not part.is_folder)]
    variables = [part for name in names for part in ("--env", name)]
    mounted = [word for part in parts if part.is_folder and part.is_here for word in ("--mount", part.name)]
    command = [*container.get("command", []), *container.get("args", [])]
    container["command"] = [
        "python3",
        "-m",
        _CONTAINER,
        "--instead-of",
        _EXECUTOR,
        "--input",
        "{{$}}",
        *image,
        *variables,
        *mounted,
        "--",
    ]
    container["args"] = command


def _without_installation(command: Sequence[str]) -> list[str]:
    """The command of a Python component without the installation of packages: `sh -c "… && "$0" "$@""`."""
    if len(command) > 3 and command[1] == "-c" and "pip install" in command[2]:
        return list(command[3:])
    return list(command)


def packages_by_address(steps: Iterable[Step]) -> Iterator[str]:
    """Of packages that have no name to search for, such as `git+https://…`: which step would install which."""
    for step in steps:
        for word in () if _is_container(step.container) else _installed_by(step):
            if _requirement(word) is None:
                why = "which has no name to search for: make sure that it is installed."
                yield f"{step.name} would install {word}, {why}"


def _of_another_version(step: Step) -> list[str]:
    """The modules of this project that a step imports and that this version does not have."""
    return [
        f"{step.name} was compiled by another version of gpu-pipelines: it imports {name}, which this version does not "
        "have. Compile the pipeline again, or install that version."
        for name in step.modules
        if not _is_module(name)
    ]


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False


def _missing(step: Step) -> list[str]:
    """The packages of a step that are not installed here in the required version."""
    return [
        f"{step.name} needs {word}, which is not installed here. pip install {shlex.quote(word)}"
        for word in _installed_by(step)
        if (wanted := _requirement(word))
        and (wanted.marker is None or wanted.marker.evaluate())
        and not _is_here(wanted)
    ]


def _requirement(word: str) -> Any:
    """A package by its name; None for an address or a file."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(word)
    except InvalidRequirement:
        return None


def _installed_by(step: Step) -> Iterator[str]:
    """The packages that a step would install, as it passes them to pip."""
    text = next((part for part in step.container.get("command", []) if "pip install" in part), "")
    for match in _INSTALLS.finditer(text):
        words = shlex.split(match["what"])
        if "--no-deps" in words:  # KFP itself, which is installed
            continue
        each = zip(["", *words], words, strict=False)
        yield from (word for option, word in each if not word.startswith("-") and option not in _OF_AN_INDEX)


def _is_here(wanted: Any) -> bool:
    try:
        return wanted.specifier.contains(metadata.version(wanted.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False
