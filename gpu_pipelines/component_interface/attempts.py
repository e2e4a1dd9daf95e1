"""Whether a failed step is tried again: after an error of a service yes, after a user's mistake never.

A platform that restarts a step cannot tell these two apart, so the step does. If a service could not answer, it tries
again in the same container. A mistake is recorded beside the step's outputs, where the next attempt at the same step
finds it and ends with it at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote, read_remote
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.errors import (
    NodeFailedError,
    NodeLostError,
    ProcessFailedError,
    UserError,
    as_data,
    from_data,
    is_of_service,
)
from gpu_pipelines.step_environment import ATTEMPT, PAUSES, STORAGE

#: File beside the outputs of a step that ended with a user's mistake.
MISTAKE = "mistake.json"
#: Seconds before the second attempt and the third.
_PAUSES = (10.0, 60.0)
_EXECUTOR, _INPUT = "kfp.dsl.executor_main", "--executor_input"
#: Errors that may be a user's mistake or not.
_OF_NOBODY = (NodeLostError, NodeFailedError, ProcessFailedError)


@contextmanager
def attempts(again: Callable[[], None] | None = None) -> Iterator[None]:
    """The context of a step's work.

    Args:
        again: starts the step again in place of this process; left out, the command that started it.

    Raises:
        UserError: the step ended with a mistake before, or does now; or a service was away for too long.
    """
    place = _place_of_step()
    if place and (mistake := _left(place)):
        print("this attempt does nothing: the step has ended with a mistake before", file=sys.stderr, flush=True)
        raise mistake
    try:
        yield
    except UserError as error:
        if is_of_service(error):
            _try_again(error, again or _start_again)
        elif place and not isinstance(error, _OF_NOBODY):
            _leave(place, error)
        raise


def _try_again(error: UserError, again: Callable[[], None]) -> None:
    """Waits and starts the step again; returns if it was tried often enough, or is one of several nodes."""
    pauses, attempt = _pauses(), int(os.environ.get(ATTEMPT, "1"))
    if attempt > len(pauses) or not _is_alone() or not (_EXECUTOR in sys.orig_argv or again is not _start_again):
        return
    pause = pauses[attempt - 1]
    number = f"attempt {attempt + 1} of {len(pauses) + 1}"
    print(f"an error of a service, tried again in {pause:g} s ({number}): {error}", file=sys.stderr, flush=True)
    time.sleep(pause)
    os.environ[ATTEMPT] = str(attempt + 1)
    again()


def _start_again() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 (it is what runs already)


def _pauses() -> tuple[float, ...]:
    given = os.environ.get(PAUSES)
    return _PAUSES if given is None else tuple(float(each) for each in given.split(",") if each.strip())


def _is_alone() -> bool:
    """Whether no other node computes the same step: other nodes would wait for one that starts again."""
    with suppress(UserError):
        return Cluster.from_environment(os.environ).nodes == 1
    return False


def _place_of_step() -> str:
    """Where the outputs of this step go in a bucket or on this machine; empty if no attempt would find them."""
    if os.environ.get(STORAGE) or _INPUT not in sys.orig_argv[:-1]:
        # Kubeflow restarts a failed step only for a user, who may have corrected the mistake.
        return ""
    with suppress(ValueError, KeyError, IndexError, TypeError):
        given: Mapping[str, Any] = json.loads(sys.orig_argv[sys.orig_argv.index(_INPUT) + 1])
        held = given["outputs"].get("artifacts", {}).values()
        uris = [each["artifacts"][0]["uri"] for each in held]
        return str(uris[0] if uris else given["outputs"]["outputFile"]).rpartition("/")[0]
    return ""


def _key() -> str:
    """A text that all attempts at the same step share, and no other step has."""
    said = sys.orig_argv[sys.orig_argv.index(_INPUT) + 1]
    return hashlib.sha256(said.encode()).hexdigest()


def _left(place: str) -> UserError | None:
    """The mistake that an attempt at this step recorded; None if there is none."""
    with suppress(OSError, ValueError, UserError):
        uri = f"{place}/{MISTAKE}"
        text = read_remote(uri).decode() if is_remote(uri) else Path(uri).read_text(encoding="utf-8")
        content = json.loads(text)
        found = from_data(content["error"])
        if content["key"] == _key() and isinstance(found, UserError):
            return found
    return None


def _leave(place: str, error: UserError) -> None:
    text = json.dumps({"key": _key(), "error": as_data(error)})
    # Without the record, another attempt makes the mistake again.
    with suppress(OSError, UserError):
        if is_remote(place):
            RemoteFolder(place).write(MISTAKE, text.encode())
        elif Path(place).is_dir():
            (Path(place) / MISTAKE).write_text(text, encoding="utf-8")
