"""Errors pass between processes as data: what one leaves, another raises again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_pipelines import errors
from gpu_pipelines.distributed.signals import noted
from gpu_pipelines.emulator.json_server import JsonHandler, answering, server_of
from gpu_pipelines.errors import (
    ERROR_FILE,
    AccessDeniedError,
    ConnectionLostError,
    Interrupted,
    InvalidRequestError,
    NodeFailedError,
    NodeLostError,
    NotFoundError,
    ProcessFailedError,
    ProcessKilledError,
    QuotaExceededError,
    UnavailableError,
    UserError,
    as_data,
    distance_from_cause,
    from_data,
    left_error,
    root_of,
    user_errors_end_the_step,
)
from gpu_pipelines.network_errors import error_of_status
from gpu_pipelines.training.worker import _explained

DOCUMENT = Path(__file__).parents[2] / "docs" / "command-line.md"


def every_class() -> Iterator[type[UserError]]:
    waiting: list[type[UserError]] = [UserError]
    while waiting:
        each = waiting.pop()
        waiting += each.__subclasses__()
        if each.__module__ == errors.__name__:
            yield each


def test_the_reference_has_every_error_that_a_program_may_catch() -> None:
    reference = (DOCUMENT.parent / "reference" / "python.md").read_text(encoding="utf-8")
    public = [*every_class(), errors.Interrupted]
    assert [each.__name__ for each in public if f"::: {errors.__name__}.{each.__name__}\n" not in reference] == []


@pytest.mark.parametrize("kind", list(every_class()), ids=lambda kind: kind.kind)
def test_each_kind_of_error_is_the_same_after_its_way_through_json(kind: type[UserError]) -> None:
    cause = NodeLostError("node 1 has not been heard from for 30 s.")
    error = kind("The column 'x' is missing.", "Add it.")
    error.__cause__ = cause
    found = from_data(json.loads(json.dumps(as_data(error))))
    assert type(found) is kind
    assert str(found) == str(error) == "The column 'x' is missing.\n  Add it."
    assert isinstance(found, UserError)
    assert type(root_of(found)) is NodeLostError
    assert str(found.__cause__) == str(cause)


@pytest.mark.parametrize("kind", list(every_class()), ids=lambda kind: kind.kind)
def test_each_kind_of_error_is_described(kind: type[UserError]) -> None:
    (line,) = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if f"`{kind.kind}`" in line]
    assert f"`{kind.__name__}`" in line


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("width"), "KeyError: 'width'"),
        (MemoryError(), "MemoryError"),
        (ValueError("two\nlines"), "ValueError: two"),
        (ValueError("wrong sizes:\n  3 and 4"), "ValueError: wrong sizes: 3 and 4"),
    ],
)
def test_an_error_of_other_code_is_named_in_one_line(error: Exception, text: str) -> None:
    assert errors.named(error) == text


@pytest.mark.parametrize("data", [None, 1, [], "error: x", {}, {"kind": "node_lost"}, {"problem": 3}])
def test_what_is_no_error_is_none(data: Any) -> None:
    assert from_data(data) is None


def test_an_unknown_kind_and_a_chain_that_does_not_end_are_still_read() -> None:
    data: dict[str, Any] = {"kind": "of_a_later_version", "problem": "p", "remedy": None}
    assert type(from_data(data)) is UserError
    data["cause"] = data
    found: BaseException | None = from_data(data)
    depth = 0
    while found := found.__cause__ if found else None:
        depth += 1
    assert depth == 8


STEP = """
import sys
from gpu_pipelines.errors import Interrupted, NodeLostError, NotFoundError, user_errors_end_the_step
with user_errors_end_the_step():
    if sys.argv[1] == "stop":
        raise Interrupted("node 0 was interrupted")
    raise NotFoundError("There is no table.", "Name one.") from NodeLostError("error: node 1 is gone")
"""


@pytest.mark.parametrize(("word", "status"), [("fail", 1), ("stop", 75)])
def test_a_step_leaves_its_error_for_the_process_that_started_it(tmp_path: Path, word: str, status: int) -> None:
    file = tmp_path / "error.json"
    environment = {**os.environ, ERROR_FILE: str(file)}
    done = subprocess.run([sys.executable, "-c", STEP, word], env=environment, capture_output=True, text=True)
    assert done.returncode == status
    left = left_error(file)
    if word == "stop":
        assert isinstance(left, Interrupted)
        assert left.message == "node 0 was interrupted"
        assert done.stderr.startswith("interrupted: node 0 was interrupted;")
    else:
        assert isinstance(left, NotFoundError)
        assert isinstance(left.__cause__, NodeLostError)
        assert done.stderr == f"error: {left}\n"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here that is always full")
def test_a_full_disk_ends_a_step_with_one_message(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, user_errors_end_the_step():
        Path("/dev/full").write_text("more than there is room for")
    assert ended.value.code == 1
    told = "Something could not be written: [Errno 28] No space left on device.\n  Make room there, and run it again."
    assert capfd.readouterr().err == f"error: {told}\n"


def test_a_file_that_may_not_be_used_ends_a_step_with_one_message(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, user_errors_end_the_step():
        Path("/sys/new").mkdir()  # nobody may, not even root
    assert ended.value.code == 1
    assert re.fullmatch(r"error: /sys/new may not be used: .+\.\n  Fix its permissions.*\n", capfd.readouterr().err)


def test_what_is_left_half_written_or_not_at_all_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "half").write_text('{"kind": "not_found", "prob')
    assert left_error(tmp_path / "half") is None
    assert left_error(tmp_path / "none") is None


def test_what_a_process_says_itself_is_nearest_to_the_cause() -> None:
    kinds = [InvalidRequestError, NodeLostError, ProcessKilledError, ProcessFailedError, ConnectionLostError]
    distances = [distance_from_cause(kind("p")) for kind in (*kinds, NodeFailedError)]
    assert distances == sorted(set(distances))
    assert distances[0] == distance_from_cause(UserError("p")) == 0


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, NotFoundError),
        (401, AccessDeniedError),
        (403, AccessDeniedError),
        (429, UnavailableError),
        (503, UnavailableError),
        (400, UserError),
        (None, UserError),
    ],
)
def test_programs_can_tell_what_a_service_answered(status: int | None, kind: type[UserError]) -> None:
    assert type(error_of_status(status, "p", "r")) is kind


def test_a_quota_that_is_used_up_is_told_from_too_many_requests_a_minute() -> None:
    from google.api_core import exceptions as api

    from gpu_pipelines.google_cloud.connection import service_errors

    used_up = "The following quota metrics exceed quota limits: custom_model_training_nvidia_h100_gpus"
    raised = (api.ResourceExhausted(used_up), api.TooManyRequests("slower"), api.Forbidden("no"), api.NotFound("x"))
    kinds = (QuotaExceededError, UnavailableError, AccessDeniedError, NotFoundError)
    for error, kind in zip(raised, kinds, strict=True):
        with pytest.raises(UserError) as caught, service_errors("Submitting"):
            raise error
        assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("status", "error", "kind"), [(503, "server_error", UnavailableError), (400, "invalid_grant", AccessDeniedError)]
)
def test_a_token_that_could_not_be_given_says_nothing_of_the_credentials(
    monkeypatch: pytest.MonkeyPatch, status: int, error: str, kind: type[UserError]
) -> None:
    """Else a moment without the metadata server would end a step for good, as a mistake of the user's does."""
    from gcsfs.retry import HttpError
    from google.auth import _exponential_backoff as backoff
    from google.auth.exceptions import RefreshError
    from google.auth.transport.requests import Request
    from google.oauth2.credentials import Credentials

    from gpu_pipelines.artifacts.remote_files import as_user_errors
    from gpu_pipelines.google_cloud.connection import service_errors

    class Tokens(JsonHandler):
        def do_POST(self) -> None:
            self.body()
            self.send(status, {"error": error})

    monkeypatch.setattr(backoff, "time", SimpleNamespace(sleep=lambda seconds: None))
    with answering(server_of(Tokens)) as address, pytest.raises(RefreshError) as refused:
        Credentials(None, "r", token_uri=f"{address}/token", client_id="i", client_secret="s").refresh(Request())
    with pytest.raises(kind, match=error), service_errors("Looking"):
        raise refused.value
    with pytest.raises(kind), as_user_errors("gs://b/x", "read"):
        raise HttpError({"code": 401, "message": "Invalid Credentials"}) from refused.value  # as gcsfs does


def test_of_several_workers_that_fail_the_first_is_the_cause() -> None:
    failures: list[str] = []

    def add(name: str, more: int) -> int:
        failures.extend([name] * more)
        return len(failures)

    store = SimpleNamespace(add=add)
    first = _explained(ValueError("the loss is not finite"), store, 2)
    second = _explained(RuntimeError("Connection closed by peer"), store, 2)
    assert (type(first), type(second)) == (ProcessFailedError, ConnectionLostError)
    assert str(first) == "ValueError: the loss is not finite"


def test_signals_are_noted_and_the_handlers_of_before_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with noted() as signalled:
        assert not signalled.wait(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signalled.wait(5)
        assert signalled.name == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before


POOL = """
import os, time
from gpu_pipelines.distributed.processes import one_process
if __name__ == "__main__":
    pool = one_process(print, ())
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(60)
"""


def test_the_processes_of_a_pool_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text(POOL)
    process = subprocess.Popen([sys.executable, str(tmp_path / "pool.py")], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "\n"  # what the initializer prints
    worker = int(process.stdout.readline())
    os.kill(worker, signal.SIGTERM)
    assert Path(f"/proc/{worker}").exists(), "it leaves signals to the one that started it"
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while _runs(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(worker)


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
