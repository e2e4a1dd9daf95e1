"""Lines that the machines of Vertex AI jobs wrote to Cloud Logging."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpu_pipelines.errors import AccessDeniedError, UserError
from gpu_pipelines.google_cloud.connection import REQUEST_SECONDS, logging_session, service_errors, tried_again

#: Entries arrive some seconds late and out of order; each read begins so many seconds back.
_LATE = timedelta(seconds=30)
_PAGE = 1000
#: The main machine, whose lines are shown without its name.
_RANK_0 = "workerpool0-0"


@dataclass(frozen=True)
class LogLine:
    """One line of a job.

    Attributes:
        job: id of the custom job.
        machine: name of the machine in the job, such as workerpool1-0; service for messages of Vertex AI itself.
        text: the line.
    """

    job: str
    machine: str
    text: str

    @property
    def shown(self) -> str:
        """The line, with the name of the machine in front unless it is rank 0's."""
        return self.text if self.machine == _RANK_0 else f"[{self.machine}] {self.text}"


class JobLogs:
    """The log of custom jobs, read from where the last read ended, until access is denied.

    The log of a custom job has the resource type `ml_job`, and the job's id and its machine (`task_name`) as labels, as
    `gcloud ai custom-jobs stream-logs` reads it.

    Args:
        project: id of the project.
        warn: called with why the log cannot be read: once if access is denied, else once until it can be read again.
    """

    def __init__(self, project: str, warn: Callable[[str], None]) -> None:
        self._project, self._warn = project, warn
        self._is_lost = self._is_silent = False
        self._session, self._endpoint = logging_session()
        self._seen: dict[str, set[str]] = {}
        self._newest: dict[str, str] = {}

    def new_lines(self, jobs: Iterable[str]) -> list[LogLine]:
        """Lines that were not returned before, by time.

        Args:
            jobs: ids of custom jobs.
        """
        found: list[tuple[str, LogLine]] = []
        if self._is_lost:
            return []
        try:
            with service_errors("Reading the log"):
                for job in jobs:
                    found += self._of_job(job)
            self._is_silent = False
        except UserError as error:
            # A service that does not answer, or limits requests, answers later. Lines are not read twice.
            self._is_lost = isinstance(error, AccessDeniedError)
            if not self._is_silent:
                self._warn(error.problem)
            self._is_silent = True
        return [line for _, line in sorted(found, key=lambda each: each[0])]

    def _of_job(self, job: str) -> Iterator[tuple[str, LogLine]]:
        for entry in self._entries(job):
            if entry.get("insertId") in self._seen.setdefault(job, set()):
                continue
            self._seen[job].add(str(entry.get("insertId")))
            moment = str(entry.get("timestamp", ""))
            self._newest[job] = max(self._newest.get(job, ""), moment)
            yield from ((moment, line) for line in _lines(job, entry))

    def _entries(self, job: str) -> Iterator[dict[str, Any]]:
        wanted = f'resource.type="ml_job" resource.labels.job_id="{job}"'
        if newest := self._newest.get(job):
            since = datetime.fromisoformat(newest[:19]) - _LATE
            wanted += f' timestamp>="{since.isoformat()}Z"'
        body: dict[str, Any] = {
            "resourceNames": [f"projects/{self._project}"],
            "filter": wanted,
            "orderBy": "timestamp asc",
            "pageSize": _PAGE,
        }
        while True:
            answer = tried_again()(self._ask)(body)
            yield from answer.get("entries", [])
            if not answer.get("nextPageToken"):
                return
            body["pageToken"] = answer["nextPageToken"]

    def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        import google.api_core.exceptions as api

        response = self._session.post(f"{self._endpoint}/v2/entries:list", json=body, timeout=REQUEST_SECONDS)
        if not response.ok:
            raise api.from_http_response(response)
        answer: dict[str, Any] = response.json()
        return answer


def _lines(job: str, entry: dict[str, Any]) -> list[LogLine]:
    payload = entry.get("jsonPayload") or {}
    text = str(payload.get("message", "") if payload else entry.get("textPayload", ""))
    machine = str(entry.get("resource", {}).get("labels", {}).get("task_name", _RANK_0))
    return [LogLine(job, machine, line) for line in text.splitlines() if line.strip()]
