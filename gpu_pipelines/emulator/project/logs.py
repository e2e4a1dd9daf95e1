"""Cloud Logging: the log lines of jobs, and `entries:list`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.filters import predicate
from gpu_pipelines.emulator.names import start_of_page
from gpu_pipelines.emulator.state_folder import StateFolder

_FIELDS = {"resourceNames": list, "projectIds": list, "filter": str, "orderBy": str, "pageSize": int, "pageToken": str}
_MOST = 1000


class Logs:
    """Log entries in the order of writing; those of the state come first."""

    def __init__(self, state: StateFolder) -> None:
        self._lock = threading.Lock()
        self._state = state
        self._entries: list[dict[str, Any]] = list(state.logs())

    def write(
        self,
        project: str,
        resource: str,
        labels: Mapping[str, str],
        message: str,
        severity: str = "INFO",
    ) -> None:
        """Adds an entry.

        Args:
            project: id of the project.
            resource: type of the monitored resource, such as ml_job.
            labels: labels of that resource.
            message: the line.
            severity: INFO, ERROR and so on.
        """
        with self._lock:
            moment = datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
            entry = {
                "insertId": f"entry{len(self._entries):09}",
                "logName": f"projects/{project}/logs/{labels['task_name']}",
                "resource": {"type": resource, "labels": {"project_id": project, **labels}},
                "timestamp": moment,
                "receiveTimestamp": moment,
                "severity": severity,
                "jsonPayload": {"message": message},
            }
            self._entries.append(entry)
            self._state.log(entry)

    def messages(self, resource: str = "", **labels: str) -> list[str]:
        """The lines of a resource with those labels."""
        with self._lock:
            return [
                entry["jsonPayload"]["message"]
                for entry in self._entries
                if entry["resource"]["type"] == (resource or entry["resource"]["type"])
                and labels.items() <= entry["resource"]["labels"].items()
            ]

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to entries:list.

        Raises:
            ApiError: a field or a value that Cloud Logging does not take.
        """
        for name, value in request.items():
            if name not in _FIELDS:
                raise ApiError(400, f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.')
            if not isinstance(value, _FIELDS[name]) or isinstance(value, bool):
                raise ApiError(400, f'Invalid value at "{name}".')
        names = [*request.get("resourceNames", []), *(f"projects/{name}" for name in request.get("projectIds", []))]
        if not names:
            raise ApiError(400, "resource_names is required.")
        if not all(isinstance(name, str) for name in names):
            raise ApiError(400, 'Invalid value at "resource_names".')
        start = start_of_page(request.get("pageToken", ""))
        if request.get("pageSize", 0) < 0:
            raise ApiError(400, "page_size must not be negative.")
        order = request.get("orderBy", "timestamp asc")
        if order not in ("timestamp asc", "timestamp desc", "timestamp"):
            raise ApiError(400, f"Unsupported order_by: {order}.")
        test = predicate(request.get("filter", ""))
        with self._lock:
            found = [
                entry
                for entry in self._entries
                if any(entry["logName"].startswith(f"{name}/") for name in names) and test(entry)
            ]
        found.sort(key=lambda entry: (entry["timestamp"], entry["insertId"]), reverse=order.endswith("desc"))
        end = start + min(request.get("pageSize") or 50, _MOST)
        more = {"nextPageToken": str(end)} if end < len(found) else {}
        return {"entries": found[start:end], **more}
