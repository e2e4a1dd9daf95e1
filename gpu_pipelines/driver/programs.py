"""Pipelines in a Python program: what the commands `run`, `parameters`, `compile` and `upload` do."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from gpu_pipelines.driver.opening import target_and_others, target_with
from gpu_pipelines.driver.parameters.given import assignments_of, parameters_given
from gpu_pipelines.driver.run import Run, ended, watch_of
from gpu_pipelines.errors import InvalidRequestError

if TYPE_CHECKING:
    from gpu_pipelines.component_interface.parameter import Parameter

#: KFP's compiler and its local runner have one state per process, so pipelines in other threads wait.
ONE_AT_A_TIME = threading.RLock()


def run(
    pipeline: Any = "",
    target: str = "local",
    accelerator: str | Sequence[str] = "",
    cache: bool | None = None,
    resume: bool | str | Run = False,
    *,
    arguments: Mapping[str, Any] | None = None,
    progress: bool = True,
    **parameters: Any,
) -> Run:
    """Runs a pipeline: on this machine until its end, elsewhere until it is submitted.

    A program runs one pipeline at a time, even from several threads.

    Args:
        pipeline: the name of one of this project, `FILE.py` or `FILE.py:function`, a compiled file, or a function that
            `@dsl.pipeline` decorates. Empty for that of the run to resume.
        target: local, vertex, kubeflow, compute_engine, or that of another package.
        accelerator: what to train on, such as `l4:4`; in the cloud also several, tried in order. Empty for all GPUs
            that are here, else two CPU processes.
        cache: whether steps may take results of earlier runs; None leaves each step its own setting.
        resume: a run that failed or was cancelled, or its name, to continue; True for the newest on this machine with
            these parameters.
        arguments: parameters that share a name with an option or an argument of this function.
        progress: show the steps on stderr.
        parameters: options of the target, by the names of their flags with underscores (`nodes=2`, `runs="runs"`), and
            parameters of the pipeline. None means not given.

    Returns:
        The run. One on this machine has succeeded.

    Raises:
        RunFailedError: a step has failed; its `run` says more.
        UserError: such a run is not possible; nothing was run.
        KeyboardInterrupt: it was interrupted; `resume` continues it.
    """
    from gpu_pipelines.driver.request import is_here, submission_of
    from gpu_pipelines.targets.runs.recorded import LATEST

    opened, others = target_and_others(target, "run", {**parameters, "accelerator": accelerator})
    values = parameters_given(others, arguments)
    with ONE_AT_A_TIME, _named(pipeline) as name:
        named = resume.id if isinstance(resume, Run) else resume or ""
        earlier = LATEST if named is True else named
        submission = submission_of(opened, name, assignments_of(values), None, cache, earlier)
        here: Any = opened
        if is_here(opened):
            return ended(Run("", target, "running"), here.execute(submission, watch_of(progress)))
        done = here.submit(submission)
    return Run(done.name, target, "submitted", parameters=values, document=done.document, _opened=opened)


@overload
def compile(pipeline: Any, target: str = "local", path: None = None, *, task: str = "", **options: Any) -> str: ...


@overload
def compile(pipeline: Any, target: str, path: str | PathLike[str], *, task: str = "", **options: Any) -> Path: ...


@overload
def compile(
    pipeline: Any, target: str = "local", *, path: str | PathLike[str], task: str = "", **options: Any
) -> Path: ...


def compile(
    pipeline: Any, target: str = "local", path: str | PathLike[str] | None = None, *, task: str = "", **options: Any
) -> str | Path:
    """Compiles a pipeline for a target.

    Args:
        pipeline: as `run` takes it.
        target: where it will run.
        path: the file to write.
        task: the task that it is for; empty to leave that a parameter.
        options: those of the target, such as `accelerator="l4:4"`.

    Returns:
        The text of the compiled file; with `path`, the path of the file.

    Raises:
        UserError: there is no such pipeline, the target cannot run it like that, or the file cannot be written.
    """
    from gpu_pipelines.component_interface.image import STEPS_IMAGE
    from gpu_pipelines.targets.compiled import write_compiled

    opened: Any = target_with(target, "compile", options, otherwise="Parameters of the pipeline are given to its runs.")
    with ONE_AT_A_TIME, _named(pipeline) as name:
        compiled = opened.compile(name, task)
    for line in compiled.told:
        print(line, file=sys.stderr)
    if opened.note and STEPS_IMAGE in compiled.text and not opened.settings.image:
        print(f"note: {opened.note} Give image, or write it into gpu-pipelines.yaml.", file=sys.stderr)
    if path is None:
        return compiled.text
    write_compiled(Path(path), compiled.text, name)
    return Path(path)


def upload(
    pipeline: Any,
    target: str = "vertex",
    tags: str | Sequence[str] = (),
    *,
    arguments: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> dict[str, Any]:
    """Uploads a pipeline: to Artifact Registry as an immutable version with tags, or to Kubeflow Pipelines.

    Args:
        pipeline: as `run` takes it; by name it is compiled first.
        target: vertex, kubeflow, or that of another package that has a store of pipelines.
        tags: of this version, one or several; none for `latest`. On Kubeflow the name of the version.
        arguments: parameters that share a name with an option or an argument of this function.
        parameters: options of the target, such as `accelerator="l4:4"`, and defaults of parameters in the file.

    Returns:
        What was uploaded, as `gpu-pipelines upload --json` prints it.

    Raises:
        UserError: there is no such pipeline, something is wrong with a value, or the store refuses it.
    """
    from gpu_pipelines.driver.parameters.defaults import defaults_in_file
    from gpu_pipelines.targets.messages import Request

    opened, others = target_and_others(target, "upload", parameters, "publish")
    store: Any = opened
    named = [tags] if isinstance(tags, str) else list(tags)
    assignments = assignments_of(parameters_given(others, arguments))
    with ONE_AT_A_TIME, _named(pipeline) as asked, defaults_in_file(asked, assignments) as name:
        compiled = store.load(Request(name, to_publish=True))
        for line in compiled.told:
            print(line, file=sys.stderr)
        return dict(store.publish(compiled, named).document)


def list_parameters(pipeline: Any, task: str | None = None) -> dict[str, dict[str, Parameter]]:
    """The parameters of a pipeline, as `gpu-pipelines parameters`.

    Args:
        pipeline: as `run` takes it.
        task: the task whose defaults the parameters have; None for those of the pipeline.

    Returns:
        The parameters, with `type`, `optional`, `default` and `text`, by the first step that takes them, in the order
        of the pipeline, and by name. Those that no step of this project takes are below `pipeline`.

    Raises:
        UserError: there is no such pipeline or task, or the pipeline has no parameter task.
    """
    from gpu_pipelines.driver.parameters.known import parameters_by_step

    with ONE_AT_A_TIME, _named(pipeline) as name:
        return parameters_by_step(name, task)


@contextmanager
def _named(pipeline: Any) -> Iterator[str]:
    """A pipeline by a name that targets take, as long as the context lasts."""
    if isinstance(pipeline, str | PathLike):
        yield fspath(pipeline)
        return
    if not hasattr(pipeline, "pipeline_func"):
        raise InvalidRequestError(
            f"{pipeline!r:.80} is not a pipeline.",
            "Give a name, FILE.py, a compiled file, or a function with @dsl.pipeline (from kfp import dsl).",
        )
    from gpu_pipelines.targets.own.file import place_of

    with place_of(pipeline) as place:
        yield place
