"""The folder of a run in the pipeline root: the request and the state of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from gpu_pipelines.artifacts.remote_files import RemoteFolder, read_remote
from gpu_pipelines.errors import NotFoundError
from gpu_pipelines.project_settings import ProjectSettings

#: Contents of the folder of a run.
REQUEST, STATE, CHECKPOINTS, LOGS = "request.json", "run.json", "checkpoints", "vm-logs"
#: Folder in the container that outlives it, on the disk of the VM.
WORK = "/work"
#: Final states of a run.
ENDED = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class VmRun:
    """A run, by its folder.

    Attributes:
        uri: the folder, `gs://…`.
    """

    uri: str

    @classmethod
    def of(cls, run: str, settings: ProjectSettings) -> VmRun:
        """The run with a name, or with the URI of its folder.

        Raises:
            UserError: it is a name, and the project has no pipeline root.
        """
        if "://" in run:
            return cls(run.rstrip("/"))
        settings.require("pipeline_root")
        return cls(f"{str(settings.pipeline_root).rstrip('/')}/runs/{run}")

    @property
    def name(self) -> str:
        return self.uri.rpartition("/")[2]

    def read(self, file: str) -> dict[str, Any]:
        """A document of the folder.

        Raises:
            NotFoundError: there is no such document.
        """
        try:
            content: dict[str, Any] = json.loads(read_remote(f"{self.uri}/{file}"))
        except FileNotFoundError:
            raise NotFoundError(
                f"There is no run {self.name} on Compute Engine: {self.uri} has no {file}.",
                "Give the name that run printed, and the same pipeline root.",
            ) from None
        return content

    def write(self, file: str, content: Mapping[str, Any]) -> None:
        """Writes a document of the folder, replacing an existing one."""
        RemoteFolder(self.uri).write(file, json.dumps(content, indent=2, ensure_ascii=False).encode())

    def end(self, status: str, **more: Any) -> None:
        """Records that the run has ended, unless it was cancelled before."""
        state = self.read(STATE)
        if state["status"] != "cancelled":
            self.write(STATE, {**state, "status": status, "ended": ended_now(), **more})

    def logs(self) -> list[str]:
        """The names of the logs that the VM has copied here, one for each of its starts, in order."""
        return RemoteFolder(f"{self.uri}/{LOGS}").names()

    def last_log(self, earlier: int = 0) -> str:
        """The newest log that the VM has copied here; empty if there is none besides the first `earlier` ones."""
        names = self.logs()[earlier:]
        return RemoteFolder(f"{self.uri}/{LOGS}").read(names[-1]).decode(errors="replace") if names else ""


def ended_now() -> str:
    """The end of a run, now, in the format of its state."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
