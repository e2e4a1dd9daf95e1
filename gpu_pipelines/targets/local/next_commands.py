"""What makes sense after a run on this machine: a few commands, as they can be copied."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_pipelines.targets.trial_record import RUNS
from gpu_pipelines.tracking.trackers import problems_of_tracking

if TYPE_CHECKING:
    from gpu_pipelines.targets.messages import Request
    from gpu_pipelines.targets.run_record import RunRecord

_REGISTRY = Path("registry")
#: What a first training on a GPU is tried on.
_ON_A_GPU = "--target vertex --accelerator l4:1"


def next_commands(record: RunRecord, request: Request) -> list[str]:
    """The commands that make sense after a run, line by line.

    Args:
        record: the run's.
        request: what it was asked for with.
    """
    return ["next:", *(f"  {command}" for command in _commands(record, request))]


def _commands(record: RunRecord, request: Request) -> Iterator[str]:
    runs = record.directory.parent
    yield f"gpu-pipelines runs open {record.run_id}" + ("" if runs == RUNS else f" --runs {shlex.quote(str(runs))}")
    if record.tensorboard:
        yield f"tensorboard --logdir {shlex.quote(str(record.tensorboard))}"
    if record.status == "failed" and len(record.steps) > 1:
        # It goes on with the step that failed.
        yield f"{_again(request)} --cache"
    if record.status != "succeeded":
        return
    if record.model:
        yield from _commands_of_model(record)
    if record.tensorboard:
        # A file of this machine is no tracker there.
        is_only_here = problems_of_tracking(str(request.given.get("tracking", "")), "vertex", is_here=False)
        given = {name: value for name, value in request.given.items() if not (name == "tracking" and is_only_here)}
        yield f"{_again(replace(request, given=given))} {_ON_A_GPU}"


def _commands_of_model(record: RunRecord) -> Iterator[str]:
    name, place = record.model["model_name"], Path(record.artifacts["model"])
    if not place.is_dir():
        registry = record.parameters.get("registry", "")
        yield f"gpu-pipelines models show {name}" + (f" --registry {registry}" if registry else "")
        return
    # NAME/versions/NUMBER lies below it.
    root = place.resolve().parents[2]
    where = "" if root == _REGISTRY.resolve() else f" --registry {shlex.quote(str(root))}"
    yield f"gpu-pipelines models show {name}{where}"
    yield f"gpu-pipelines serve {name}@{int(record.model['version'])}{where}"


def _again(request: Request) -> str:
    """The command of the request, but for what it had besides parameters."""
    given = [part for name, value in request.given.items() for part in ("-p", f"{name}={_text(value)}")]
    return shlex.join(["gpu-pipelines", "run", request.pipeline, *given])


def _text(value: object) -> str:
    """A value of a parameter as `-p` takes it; those of a file need not be texts."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
