"""Pipelines in a Python program: what the commands `run`, `compile`, `upload`, `schedule create` and `runs show` do."""

from __future__ import annotations

import json
import numbers
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.driver.opening import fields_of_command, open_target, option_of_targets
from gpu_pipelines.driver.run import Run, ended, watch_of
from gpu_pipelines.errors import InvalidRequestError

if TYPE_CHECKING:
    from gpu_pipelines.targets.target import Target

#: KFP's compiler and its local runner have one state for a whole program: in other threads pipelines wait.
_ONE_AT_A_TIME = threading.RLock()


def run(
    pipeline: Any,
    target: str = "local",
    accelerator: str = "",
    cache: bool | None = None,
    resume: bool | str = False,
    *,
    arguments: Mapping[str, Any] | None = None,
    progress: bool = True,
    **parameters: Any,
) -> Run:
    """Runs a pipeline: on this machine until its end, elsewhere until it is submitted.

    In a program one pipeline runs after the other, whatever its threads ask for.

    Args:
        pipeline: the name of one of this project, `FILE.py` or `FILE.py:function`, a compiled file, or a function that
            `@dsl.pipeline` decorates.
        target: where: local, vertex, kubeflow, compute_engine, or that of another package.
        accelerator: what to train on, `l4:4` say; empty for all GPUs that are here, else two CPU processes.
        cache: whether steps may take results of earlier runs; None leaves each step its own setting.
        resume: name of a run that failed or was cancelled, to go on from; True for the newest on this machine with
            these parameters.
        arguments: parameters whose names are those of options or of arguments of this function.
        progress: show the steps on stderr.
        parameters: options of the target, by the names of their flags with underscores (`nodes=2`, `runs="runs"`), and
            parameters of the pipeline. One that is None is not given.

    Returns:
        The run. One on this machine has succeeded.

    Raises:
        RunFailedError: a step has failed; its `run` says more.
        UserError: there cannot be such a run; nothing was run.
        KeyboardInterrupt: it was interrupted; `resume` continues it.
    """
    from gpu_pipelines.driver.request import is_here, submission_of
    from gpu_pipelines.targets.recorded_runs import LATEST

    opened, others = _opened(target, "run", {**parameters, "accelerator": accelerator})
    values = _values(others, arguments)
    with _ONE_AT_A_TIME, _named(pipeline) as name:
        earlier = LATEST if resume is True else resume or ""
        submission = submission_of(opened, name, _assignments(values), None, cache, earlier)
        here: Any = opened
        if is_here(opened):
            return ended(Run("", target, "running"), here.execute(submission, watch_of(progress)))
        done = here.submit(submission)
    return Run(done.name, target, "submitted", parameters=values, document=done.document, _opened=opened)


def compile(
    pipeline: Any, target: str = "local", path: str | PathLike[str] | None = None, *, task: str = "", **options: Any
) -> str | Path:
    """Compiles a pipeline for a target.

    Args:
        pipeline: as `run` takes it.
        target: where it will run.
        path: the file to write.
        task: the task that it is for; empty where that is a parameter.
        options: those of the target, `accelerator="l4:4"` say.

    Returns:
        The text of the compiled file; with `path`, the path of the file.

    Raises:
        UserError: there is no such pipeline, the target cannot run it so, or the file cannot be written.
    """
    from gpu_pipelines.targets.compiled import write_compiled

    opened, others = _opened(target, "compile", options)
    if others:
        remedies = dict.fromkeys(option_of_targets(name, "compile") for name in others)
        raise InvalidRequestError(
            f"compile has no {', '.join(others)}.",
            " ".join(filter(None, remedies)) or "Parameters of the pipeline are given to its runs.",
        )
    with _ONE_AT_A_TIME, _named(pipeline) as name:
        text = opened.compile(name, task).text
    if path is None:
        return text
    write_compiled(Path(path), text, name)
    return Path(path)


def upload(
    pipeline: Any,
    target: str = "vertex",
    tags: Sequence[str] = (),
    *,
    arguments: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> dict[str, Any]:
    """Uploads a pipeline: to Artifact Registry as an immutable version with tags, or to Kubeflow Pipelines.

    Args:
        pipeline: as `run` takes it; by name it is compiled first.
        target: vertex, kubeflow, or that of another package that has a store of pipelines.
        tags: of this version; none for `latest`. On Kubeflow the name of the version.
        arguments: parameters whose names are those of options or of arguments of this function.
        parameters: options of the target, `accelerator="l4:4"` say, and defaults of parameters in the file.

    Returns:
        What was uploaded, as `gpu-pipelines upload --json` prints it.

    Raises:
        UserError: there is no such pipeline, something is wrong with a value, or the store does not take it.
    """
    from gpu_pipelines.driver.defaults import defaults_in_file
    from gpu_pipelines.targets.messages import Request

    opened, others = _opened(target, "upload", parameters, "publish")
    store: Any = opened
    assignments = _assignments(_values(others, arguments))
    with _ONE_AT_A_TIME, _named(pipeline) as name, defaults_in_file(name, assignments):
        return dict(store.publish(store.load(Request(name, to_publish=True)), list(tags)).document)


def schedule(
    pipeline: str | PathLike[str],
    name: str,
    cron: str,
    target: str = "vertex",
    *,
    time_zone: str | None = None,
    start: str | None = None,
    end: str | None = None,
    max_concurrent: int = 1,
    cache: bool | None = None,
    arguments: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> dict[str, Any]:
    """Schedules runs of an uploaded pipeline.

    Args:
        pipeline: an uploaded version, `NAME`, `NAME/TAG` or `NAME/VERSION` or its address; or a file, which is sent.
        name: of the schedule; it has to be unique.
        cron: five fields; `0 3 * * *` is daily at 3.
        target: vertex, kubeflow, or that of another package that has schedules.
        time_zone: such as Europe/Paris; None for UTC.
        start: no run before this time, such as `2027-01-31T03:00`; None for now.
        end: no run after this time; None for none.
        max_concurrent: runs at the same time, at most.
        cache: whether steps may take results of earlier runs; None leaves each step its own setting.
        arguments: parameters whose names are those of options or of arguments of this function.
        parameters: options of the target, and parameters of the pipeline.

    Returns:
        The schedule, as `gpu-pipelines schedule create --json` prints it.

    Raises:
        UserError: there is no such version, something is wrong with a value, or nothing would ever run.
    """
    from gpu_pipelines.driver.scheduling import new_schedule
    from gpu_pipelines.targets.cron import parse_cron

    opened, others = _opened(target, "schedule create", parameters, "schedules")
    limits, assignments = (start, end, max_concurrent), _assignments(_values(others, arguments))
    when = parse_cron(cron, time_zone)
    _, submission = new_schedule(opened, fspath(pipeline), name, when, limits, assignments, cache=cache)
    there: Any = opened.schedules
    return dict(there.document(there.send(submission)))


def open_run(name: str = "latest", runs: str | PathLike[str] = "runs") -> Run:
    """A run on this machine, as it is now.

    Args:
        name: its id, a beginning that is only its, or `latest`.
        runs: directory of the runs.

    Raises:
        UserError: there is no such run, or there are several.
    """
    from gpu_pipelines.targets.recorded_runs import run_named

    return Run.of_record(run_named(Path(runs), name))


def _values(others: Mapping[str, Any], arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """Parameters of a pipeline, given by themselves and in a mapping."""
    if twice := [name for name in others if name in (arguments or {})]:
        raise InvalidRequestError(f"{', '.join(twice)} is given twice.", "Give it in arguments, or by itself.")
    return {**others, **(arguments or {})}


def _assignments(values: Mapping[str, Any]) -> list[str]:
    """Parameters as the command line takes them; one that is None is not given."""
    return [f"{name}={_text(name, value)}" for name, value in values.items() if value is not None]


def _opened(target: str, command: str, given: Mapping[str, Any], can: str = "") -> tuple[Target, dict[str, Any]]:
    """A target with those values that are its options, and the values that are not."""
    from gpu_pipelines.targets.target import target_named

    own = {name: hint for name, _, hint, _ in fields_of_command(target_named(target, can).Options, command)}
    options = {name: Path(value) if own[name] is Path else value for name, value in given.items() if name in own}
    others = {name: value for name, value in given.items() if name not in own}
    # Not a parameter of a pipeline: it is this function's own.
    if others.pop("accelerator", None):
        raise InvalidRequestError(f"The target {target} has no accelerator.", "Leave it out.")
    return open_target(target, options, command), others


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


def _text(name: str, value: Any) -> str:
    """A value as the command line takes it, whose checks are those of a program too."""
    if isinstance(value, str | PathLike):
        return fspath(value)
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        value = int(value) if isinstance(value, numbers.Integral) else float(value)
    try:
        return json.dumps(list(value) if isinstance(value, tuple) else value)
    except (TypeError, ValueError):
        raise InvalidRequestError(f"{name} is {value!r:.80}.", "Give a text, a number, a list or a mapping.") from None
