"""An MLflow server, or a SQLite file in its place: its address, its client, and the meaning of its errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpu_pipelines.errors import UnavailableError, UserError
from gpu_pipelines.network_errors import (
    TRUST_REMEDY,
    UNAVAILABLE,
    error_of_status,
    untrusted_certificate,
    why_unreachable,
)

#: The beginning of an address, as in the parameter `tracking`; the rest is MLflow's own.
MLFLOW = "mlflow:"
#: A file of this machine.
MLFLOW_FILE = f"{MLFLOW}sqlite:///"
#: Tag of a tracker's run: the run of a pipeline that it belongs to.
TRACKED_RUN_TAG = "gpu_pipelines.run"
_FORM = re.compile(r"mlflow:(https?://[\w.-]+(:\d+)?(/[\w./~-]*)?|sqlite:///[^\s?#]+)", re.ASCII)
#: Settings that keep the client from further output, from reporting its use, and from looking for a Git repository.
QUIET = {
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
#: The client's own number is seven, the last after minutes.
_RETRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3"}
_NOT_IN_NAMES, _LONGEST_NAME = re.compile(r"[^\w\-./ ]"), 250
_LOGIN = "Give the login in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or in MLFLOW_TRACKING_TOKEN."


def mlflow_name(name: str) -> str:
    """A name of a metric or parameter as MLflow takes it: in its characters, and a path in its shortest form."""
    parts = [part for part in _NOT_IN_NAMES.sub("_", name).split("/") if part.strip(".")]
    return "/".join(parts)[:_LONGEST_NAME].rstrip("/") or "_"


def mlflow_uri(given: str) -> str:
    """An address of MLflow that is valid on all machines and in all folders: a file with its full path, no final slash.

    Args:
        given: `mlflow:https://HOST`, `mlflow:http://HOST:PORT`, or `mlflow:sqlite:///FILE`.

    Raises:
        UserError: it has another form. The message does not repeat what may hold a secret.
    """
    if not _FORM.fullmatch(given):
        said = " " if "@" in given or "?" in given else f" {given[:100]} "
        raise UserError(
            f"The address{said}is not one of MLflow.",
            "Give mlflow:https://HOST, mlflow:http://HOST:PORT or mlflow:sqlite:///FILE, without user, password or "
            f"key. {_LOGIN}",
        )
    if given.startswith(MLFLOW_FILE):
        return f"{MLFLOW_FILE}{Path(given.removeprefix(MLFLOW_FILE)).expanduser().absolute()}"
    return given.rstrip("/")


@lru_cache(maxsize=16)
def mlflow_client(uri: str) -> Any:
    """MLflow's client for an address.

    Args:
        uri: as `mlflow_uri` gives it.

    Raises:
        UserError: MLflow's client is not installed.
    """
    client = client_class(uri)
    address = uri.removeprefix(MLFLOW)
    with mlflow_errors(f"Opening {uri}"):
        return client(address, registry_uri=address)


def client_class(uri: str) -> Any:
    """The class of MLflow's client; creating an object of it creates the file that it is to read.

    Args:
        uri: what it is for.

    Raises:
        UserError: MLflow's client is not installed.
    """
    for name, value in {**QUIET, **_RETRIES}.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise UserError(
            f"{uri} cannot be read: {error}.", "Install MLflow's client: pip install 'gpu-pipelines[mlflow]'."
        ) from None
    return MlflowClient


@lru_cache(maxsize=256)
def artifacts_of(uri: str, run: str) -> Any:
    """MLflow's access to the files of a run, whose place never changes."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    place = str(mlflow_client(uri).get_run(run).info.artifact_uri)
    return get_artifact_repository(place, tracking_uri=uri.removeprefix(MLFLOW))


def would_lose_files(uri: str, place: str) -> bool:
    """Whether a client would write the files of a server's runs into a folder of its own machine.

    This happens if a server neither takes files itself nor keeps them in a bucket. A server on the client's machine
    finds them there.

    Args:
        uri: of the server.
        place: where the server says that files belong.
    """
    is_here = uri.startswith(MLFLOW_FILE) or is_of_loopback(uri)
    return not is_here and urlsplit(place).scheme in ("", "file")


def is_of_loopback(uri: str) -> bool:
    """Whether an address of MLflow, such as localhost, means a server on each machine itself."""
    address = uri.removeprefix(MLFLOW)
    return address != uri and urlsplit(address).hostname in ("localhost", "127.0.0.1", "::1")


@contextmanager
def mlflow_errors(done: str) -> Iterator[None]:
    """Turns errors of MLflow's client into a `UserError`; a missing thing is a `FileNotFoundError`.

    Args:
        done: the action that fails, such as "Listing the models of mlflow:https://HOST".
    """
    try:
        yield
    except (UserError, FileNotFoundError):
        raise
    except Exception as error:  # The client's own exceptions, those of requests, and of files on this machine.
        raise _explained(error, done) from error


def _explained(error: Exception, done: str) -> Exception:
    if reason := untrusted_certificate(error):
        return UserError(f"{done} failed: its certificate is not trusted ({reason}).", TRUST_REMEDY)
    told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    status = _status_of(error)
    if status == 404:
        return FileNotFoundError(f"{done} failed: {told}")
    if status in (401, 403):
        return error_of_status(status, f"{done} failed: {told}", _LOGIN)
    if status in UNAVAILABLE or isinstance(error, (ConnectionError, TimeoutError)):
        return UnavailableError(
            f"{done} failed: {why_unreachable(error) or told}",
            "Check that the server runs, and that the address is right.",
            status,
        )
    return error_of_status(status, f"{done} failed: {told}")


def _status_of(error: Exception) -> int:
    """The HTTP status of an error; 0 if it has none."""
    if (response := getattr(error, "response", None)) is not None:
        return int(response.status_code)
    if hasattr(error, "get_http_status_code"):
        return int(error.get_http_status_code())
    return UNAVAILABLE[-1] if type(error).__module__.startswith("requests") else 0
