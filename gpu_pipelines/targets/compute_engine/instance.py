"""The VM of a run: read through the Compute API, started and deleted by gcloud."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.errors import UnavailableError
from gpu_pipelines.targets.compute_engine.create import run_gcloud

#: Google's guest agent puts this before a line of the start-up script on the serial port.
_OF_SCRIPT = "startup-script: "


class Instance:
    """The VM of a run: read through the Compute API, started and deleted by gcloud, which created it.

    Args:
        vm: `name`, `zone` and `project`.
    """

    def __init__(self, vm: Mapping[str, str]) -> None:
        from gpu_pipelines.google_cloud.connection import credentials
        from gpu_pipelines.google_cloud.rest import Rest, endpoint

        where = endpoint("compute")
        self._rest = Rest(credentials(where))
        # gcloud's endpoint has the path of the interface in it.
        prefix = "" if where.endswith("/compute/v1") else "/compute/v1"
        self._path = f"{prefix}/projects/{vm['project']}/zones/{vm['zone']}/instances/{vm['name']}"
        self.name, self.zone = vm["name"], vm["zone"]
        self._place = [vm["name"], f"--zone={vm['zone']}", f"--project={vm['project']}", "--quiet"]

    def look(self) -> dict[str, Any]:
        """The VM; empty if it is gone."""
        return self._get("", {})

    def serial_lines(self, start: int) -> tuple[list[str], int]:
        """Whole lines of the start-up script from a byte of the serial port on, and the byte to continue from."""
        answer = self._get("/serialPort", {"port": 1, "start": start})
        text, end = str(answer.get("contents", "")), int(answer.get("next", start))
        whole, _, rest = text.rpartition("\n")
        lines = [line.partition(_OF_SCRIPT)[2] for line in whole.splitlines() if _OF_SCRIPT in line]
        return lines, end - len(rest.encode())

    def operations(self) -> list[dict[str, Any]]:
        """Operations and events of the VM that the service still knows."""
        zone, _, name = self._path.partition("/instances/")
        found: list[dict[str, Any]] = []
        page = ""
        while True:
            # The filter of the Compute API is a regular expression over the whole of the field.
            wanted = {"filter": f'targetLink eq ".*/instances/{name}"', **({"pageToken": page} if page else {})}
            answer = self._get_at(f"{zone}/operations", wanted)
            found += answer.get("items", [])
            page = str(answer.get("nextPageToken") or "")
            if not page:
                return found

    def start(self) -> str:
        """Starts the VM again; returns gcloud's objection, empty for none."""
        done = run_gcloud(["gcloud", "compute", "instances", "start", *self._place])
        return "" if done.returncode == 0 else done.stderr.strip()

    def delete(self) -> str:
        """Deletes the VM; returns gcloud's objection, empty for none."""
        done = run_gcloud(["gcloud", "compute", "instances", "delete", *self._place])
        return "" if done.returncode == 0 or not self.look() else done.stderr.strip()

    def _get(self, path: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return self._get_at(self._path + path, parameters)

    def _get_at(self, path: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        from gpu_pipelines.google_cloud.rest import UnreachableError
        from gpu_pipelines.network_errors import error_of_status

        try:
            answer = self._rest.get("compute", path, parameters)
        except UnreachableError as error:
            raise UnavailableError(
                f"The state of {self.name} cannot be read: {error}.", "Check your network."
            ) from error
        if answer.status == 404:
            return {}
        if not answer.ok:
            raise error_of_status(answer.status, f"The state of {self.name} cannot be read: {answer.message}", "")
        return dict(answer.content)
