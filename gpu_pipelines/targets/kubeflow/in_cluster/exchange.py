"""The exchange between a step and the nodes of its TrainJob: inputs to the nodes, outputs of rank 0 back to the step.

Kubeflow Pipelines fills in and collects only the artifacts of the step's own pod. The nodes are other pods, so
they exchange files in a folder that all of them reach: in a bucket, or on a claim that all of them mount.
"""

from __future__ import annotations

import copy
import json
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.remote_files import RemoteFolder, folder_at, is_remote
from gpu_pipelines.component_interface.step import PLACE
from gpu_pipelines.errors import Interrupted, UserError, as_data, from_data

#: KFP's argument with the inputs and outputs of a step.
EXECUTOR_INPUT = "--executor_input"
#: The last file of a step: its parameters, and the state of its artifacts.
EXECUTOR_OUTPUT = "executor_output.json"
_INPUTS, _OUTPUTS, _ERROR = "inputs", "outputs", "error"
#: Folders in which KFP's launcher puts the artifacts of each kind of storage (`LocalPathForURI`).
_LOCAL_PATHS = {"gs://": "/gcs/", "minio://": "/minio/", "s3://": "/s3/"}


def executor_input_of(command: Sequence[str]) -> dict[str, Any]:
    """The inputs and outputs in the command of a step.

    Raises:
        UserError: it has none.
    """
    if EXECUTOR_INPUT not in command:
        raise UserError(f"The command of the step has no {EXECUTOR_INPUT}.", "Take a component made by @dsl.component.")
    document: dict[str, Any] = json.loads(command[list(command).index(EXECUTOR_INPUT) + 1])
    return document


def with_executor_input(command: Sequence[str], document: dict[str, Any]) -> list[str]:
    """The command with other inputs and outputs."""
    changed = list(command)
    changed[changed.index(EXECUTOR_INPUT) + 1] = json.dumps(document)
    return changed


def local_path(uri: str) -> str:
    """KFP's local path of an artifact in the step's pod."""
    for scheme, folder in _LOCAL_PATHS.items():
        if uri.startswith(scheme):
            return folder + uri.removeprefix(scheme)
    return uri


class Exchange:
    """A folder that a step and the nodes of its TrainJob share.

    Args:
        place: gs://… or a directory.
    """

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/")

    def send_inputs(self, document: dict[str, Any]) -> dict[str, Any]:
        """Copies the input artifacts to where the nodes can read them.

        Those in Cloud Storage stay there: the nodes read it themselves.

        Args:
            document: the step's executor input.

        Returns:
            The executor input for the nodes.
        """
        before, sent = _input_artifacts(document), self.sent(document)
        for artifact, there in zip(before, _input_artifacts(sent), strict=True):
            if artifact["uri"] != there["uri"]:
                _copy(Path(local_path(artifact["uri"])), there["uri"])
        return sent

    def sent(self, document: dict[str, Any]) -> dict[str, Any]:
        """The executor input for the nodes, once the input artifacts have been copied."""
        sent = copy.deepcopy(document)
        for name, artifacts in sent.get("inputs", {}).get("artifacts", {}).items():
            listed = artifacts.get("artifacts", [])
            for number, artifact in enumerate(listed):
                if not (artifact.get("uri", "").startswith("gs://") or artifact.get("metadata", {}).get(PLACE)):
                    # In a loop there are several, each in a folder of its own.
                    own = f"{name}/{number}" if len(listed) > 1 else name
                    artifact["uri"] = f"{self.place}/{_INPUTS}/{own}"
        return sent

    def note(self, name: str, text: str) -> None:
        """Writes a line to the folder; an earlier one with the same name is replaced at once.

        Raises:
            UserError: the storage cannot be written to.
        """
        if is_remote(self.place):
            RemoteFolder(self.place).write(name, text.encode())
            return
        Path(self.place).mkdir(parents=True, exist_ok=True)
        scratch = Path(self.place) / f".{name}.{secrets.token_hex(4)}"
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(Path(self.place) / name)

    def noted(self, name: str) -> str:
        """The line that `note` wrote; empty if there is none.

        Raises:
            UserError: the storage cannot be read.
        """
        try:
            if is_remote(self.place):
                return RemoteFolder(self.place).read(name).decode()
            return (Path(self.place) / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def forget(self, name: str) -> None:
        """Removes the line that `note` wrote."""
        if is_remote(self.place):
            RemoteFolder(self.place).delete([name])
        else:
            (Path(self.place) / name).unlink(missing_ok=True)

    def send_error(self, node: int, error: UserError | Interrupted) -> None:
        """Writes the error with which the step ended on a node."""
        self.note(f"{_ERROR}-{node}", json.dumps(as_data(error)))

    def errors(self, nodes: int) -> list[UserError]:
        """The errors of the nodes, except interruptions, in order of the nodes."""
        told = [self.noted(f"{_ERROR}-{node}") for node in range(nodes)]
        found = [from_data(json.loads(text)) for text in told if text]
        return [error for error in found if isinstance(error, UserError)]

    def forget_errors(self, nodes: int) -> None:
        """Removes errors that nodes of an earlier TrainJob left."""
        for node in range(nodes):
            self.forget(f"{_ERROR}-{node}")

    def send_outputs(self, directory: Path) -> None:
        """Copies what rank 0 wrote; the executor output goes last."""
        _copy(directory, f"{self.place}/{_OUTPUTS}", last=EXECUTOR_OUTPUT)

    def end_of_rank_0(self) -> str:
        """Complete or Failed once rank 0 has left its outputs or an error; empty before.

        Raises:
            UserError: the storage cannot be read.
        """
        if Exchange(f"{self.place}/{_OUTPUTS}").noted(EXECUTOR_OUTPUT):
            return "Complete"
        return "Failed" if self.errors(1) else ""

    def collect_outputs(self, document: dict[str, Any]) -> None:
        """Puts the output of rank 0 where KFP's launcher expects it.

        An artifact that rank 0 moved, such as checkpoints, keeps the URI that KFP gave it, and has its place in its
        metadata.

        Args:
            document: the step's executor input.

        Raises:
            UserError: rank 0 left no outputs.
        """
        place = f"{self.place}/{_OUTPUTS}"
        directory = folder_at(place)
        if not (directory / EXECUTOR_OUTPUT).is_file():
            raise UserError(f"The TrainJob has ended without outputs in {place}.", "Look at the log of its first node.")
        told = json.loads((directory / EXECUTOR_OUTPUT).read_text(encoding="utf-8"))
        outputs = document["outputs"]
        for name, artifacts in outputs.get("artifacts", {}).items():
            uri = artifacts["artifacts"][0]["uri"]
            if (directory / "artifacts" / name).exists():
                _copy(directory / "artifacts" / name, local_path(uri))
            for artifact in told.get("artifacts", {}).get(name, {}).get("artifacts", []):
                if not artifact["uri"].endswith(f"/{_OUTPUTS}/artifacts/{name}"):
                    artifact.setdefault("metadata", {})[PLACE] = artifact["uri"]
                artifact["uri"] = uri
        for name, parameter in outputs.get("parameters", {}).items():
            if (directory / "parameters" / name).exists():
                _copy(directory / "parameters" / name, parameter["outputFile"])
        output = Path(outputs["outputFile"])
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(told), encoding="utf-8")

    def delete(self) -> None:
        """Removes the folder."""
        if is_remote(self.place):
            folder = RemoteFolder(self.place)
            folder.delete(folder.names())
        else:
            shutil.rmtree(self.place, ignore_errors=True)


def for_node(document: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """The executor input of a node, whose outputs go to a directory of its own.

    Args:
        document: the document from the step.
        scratch: the directory; `send_outputs` takes `outputs` below it.
    """
    changed = copy.deepcopy(document)
    directory, outputs = scratch / _OUTPUTS, changed["outputs"]
    for kind in ("artifacts", "parameters"):
        (directory / kind).mkdir(parents=True)
    for name, artifacts in outputs.get("artifacts", {}).items():
        artifacts["artifacts"][0]["uri"] = str(directory / "artifacts" / name)
    for name, parameter in outputs.get("parameters", {}).items():
        parameter["outputFile"] = str(directory / "parameters" / name)
    outputs["outputFile"] = str(directory / EXECUTOR_OUTPUT)
    return changed


def outputs_in(scratch: Path) -> Path:
    """The directory of a node's outputs."""
    return scratch / _OUTPUTS


def _input_artifacts(document: dict[str, Any]) -> list[dict[str, Any]]:
    artifacts = document.get("inputs", {}).get("artifacts", {}).values()
    return [{"uri": "", **artifact} for each in artifacts for artifact in each.get("artifacts", [])]


def _copy(source: Path, target: str, last: str = "") -> None:
    """Copies a file or a directory to gs://… or another path, the file `last` after all others."""
    if not is_remote(target):
        place = Path(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, place, dirs_exist_ok=True, ignore=lambda _, names: [n for n in names if n == last])
            if last:
                shutil.copy2(source / last, place / last)
        else:
            shutil.copy2(source, place)
        return
    if source.is_dir():
        names = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())
        folder = RemoteFolder(target)
        folder.upload(source, [name for name in names if name != last])
        if last:
            folder.upload(source, [last])
    else:
        parent, _, file = target.rpartition("/")
        RemoteFolder(parent).write(file, source.read_bytes())
