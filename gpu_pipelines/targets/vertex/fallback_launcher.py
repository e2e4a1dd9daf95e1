"""The program of a step with choices in its own container: it sends its CustomJob to one choice after the other.

It replaces GCPC's launcher and gets its arguments, after the choices. Tries are recorded in the pipeline root before
each request; a successor of this container continues from there.

`python3 -m gpu_pipelines.targets.vertex.fallback_launcher --choices JSON --tries gs://… --payload JSON …`
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gpu_pipelines.distributed.signals import Signalled, noted
from gpu_pipelines.errors import NoMachinesError, UserError, user_errors_end_the_step
from gpu_pipelines.google_cloud.connection import REQUEST_SECONDS, job_service, service_errors, tried_again
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.fallback.tries import (
    FAILED,
    NO_CAPACITY,
    NO_QUOTA,
    SENT,
    SUCCEEDED,
    Choice,
    Tries,
    Try,
    tries_at,
)
from gpu_pipelines.targets.fallback.trying import CANCELLED, Seen, try_in_order
from gpu_pipelines.targets.vertex.jobs.custom_jobs import cancel_job, job_with_label, submit_job
from gpu_pipelines.targets.vertex.jobs.request import PreparedJob
from gpu_pipelines.targets.vertex.placement.fallback import CHOICES, MAX_PRICE, TRIES, job_on

#: The service's messages that it has no machines, and that the project may not have more. They are from its errors, the
#: second and third from Compute Engine, which it passes on. The last is that of a region without the machine: the
#: catalog knows what Compute Engine has in a region, but not which of it Vertex AI offers.
_NO_CAPACITY = re.compile(
    r"Resources are insufficient|STOCKOUT|RESOURCE_POOL_EXHAUSTED|does not have enough resources|no resources available"
    r'|Machine type "?[\w-]+"? is not supported'
)
_NO_QUOTA = re.compile(r"quota metrics exceed quota limits|QUOTA_EXCEEDED|[Qq]uota .{0,200}exceeded")
_STATES = {
    "JOB_STATE_SUCCEEDED": SUCCEEDED,
    "JOB_STATE_FAILED": FAILED,
    "JOB_STATE_EXPIRED": FAILED,
    "JOB_STATE_PARTIALLY_SUCCEEDED": FAILED,
    "JOB_STATE_CANCELLED": CANCELLED,
}
#: Labels that the service puts on everything that a run creates, as GCPC's launcher does.
_SYSTEM_LABELS = "VERTEX_AI_PIPELINES_RUN_LABELS"


@dataclass
class VertexJobs:
    """CustomJobs of one step.

    Attributes:
        payload: the job as GCPC's launcher would send it.
        first: the first choice, for which the payload was made.
        settings: project, and the region of the run.
        resources: file in which the service finds the job of the step; None for none.
        tried: returns the tries so far, for the report of the job.
    """

    payload: Mapping[str, Any]
    first: Choice
    settings: ProjectSettings
    resources: Path | None = None
    tried: Callable[[], str] = str

    def send(self, choice: Choice, made: Try, seconds: float | None) -> str:
        """See `Jobs.send`."""
        job = job_on(self.payload, choice, self.first, seconds, self.tried())
        job["labels"] = {**_system_labels(), **job.get("labels", {})}
        where = self._in(choice)
        try:
            name = submit_job(PreparedJob(job, (), where.project, where.region), where, made.label)
        except UserError as error:
            if _NO_CAPACITY.search(error.problem):
                raise NoMachinesError(error.problem, error.remedy) from error
            raise
        self._leave(name, str(where.region))
        return name

    def find(self, choice: Choice, made: Try) -> str | None:
        """See `Jobs.find`."""
        where = self._in(choice)
        with service_errors("Looking for the job of the step"):
            name = job_with_label(self._client(where), where, made.label)
        if name:
            self._leave(name, str(where.region))
        return name

    def look(self, choice: Choice, job: str) -> Seen:
        """See `Jobs.look`."""
        with service_errors(f"Looking at {job.rpartition('/')[2]}"):
            found = self._client(self._in(choice)).get_custom_job(
                name=job, timeout=REQUEST_SECONDS, retry=tried_again()
            )
        state, reason = _STATES.get(found.state.name, SENT), str(found.error.message)
        if state == FAILED:
            state = refusal(reason) or FAILED
        began, ended = (None if moment is None else moment.timestamp() for moment in (found.start_time, found.end_time))
        return Seen(state, reason, began, ended if state != SENT else None)

    def cancel(self, choice: Choice, job: str) -> None:
        """See `Jobs.cancel`."""
        try:
            cancel_job(job, self._in(choice))
        except UserError:
            if self.look(choice, job).state == SENT:
                raise

    def _in(self, choice: Choice) -> ProjectSettings:
        return replace(self.settings, region=choice.region or self.settings.region)

    def _client(self, where: ProjectSettings) -> Any:
        if where.region not in self._clients:
            self._clients[where.region] = job_service(where)
        return self._clients[where.region]

    @cached_property
    def _clients(self) -> dict[str | None, Any]:
        return {}

    def _leave(self, name: str, region: str) -> None:
        """Tells the service the job of the step, as GCPC's launcher does."""
        if self.resources is not None:
            uri = f"https://{region}-aiplatform.googleapis.com/v1/{name}"
            content = {"resources": [{"resourceType": "CustomJob", "resourceUri": uri}]}
            self.resources.parent.mkdir(parents=True, exist_ok=True)
            self.resources.write_text(json.dumps(content), encoding="utf-8")


def refusal(reason: str) -> str | None:
    """The meaning of the service's message for the next choice; None if it is about something else."""
    if _NO_QUOTA.search(reason):
        return NO_QUOTA
    return NO_CAPACITY if _NO_CAPACITY.search(reason) else None


def _system_labels() -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(os.environ.get(_SYSTEM_LABELS) or "{}")
    except ValueError:
        return {}
    return found


def tries_of(payload: Mapping[str, Any], folder: str, choices: Sequence[Choice], max_price: float | None) -> Tries:
    """The tries of a step; its payload for GCPC's launcher has its inputs and outputs in it."""
    return tries_at(folder, str(payload.get("display_name") or "step"), payload, choices, max_price)


def run_step(given: argparse.Namespace, stopped: Signalled) -> None:
    """Runs the step; arguments are those of the command line."""
    payload = json.loads(given.payload, strict=False)
    choices = Choice.each_of(json.loads(given.choices))
    tries = tries_of(payload, given.tries, choices, given.max_price)
    settings = ProjectSettings(project=given.project, region=given.location)
    resources = Path(given.gcp_resources) if given.gcp_resources else None
    jobs = VertexJobs(payload, choices[0], settings, resources, tries.for_report)
    try_in_order(tries, jobs, stopped, _say)


def _say(line: str) -> None:
    print(line, flush=True)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="fallback_launcher")
    parser.add_argument(CHOICES, required=True)
    parser.add_argument(MAX_PRICE, type=float)
    parser.add_argument(TRIES, required=True)
    for name in ("--type", "--payload", "--project", "--location", "--gcp_resources"):
        parser.add_argument(name, default="")
    return parser.parse_args(arguments)


def main() -> None:
    """Reads the command line and runs the step."""
    with user_errors_end_the_step(), noted() as stopped:
        run_step(parsed(), stopped)


if __name__ == "__main__":
    main()
