"""Sends a custom job once, and follows it to its end.

`customJobs.create` takes no id from the client, so a request that is sent twice creates two jobs, and two bills. Each
job gets a unique label; when an answer is lost, the service is asked for a job with that label. The request is sent
again only if there is none, and the request was surely refused.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpu_pipelines.errors import ERROR_PREFIX, UserError
from gpu_pipelines.google_cloud.connection import (
    REQUEST_SECONDS,
    answer_was_lost,
    job_service,
    location_of,
    message_of,
    service_errors,
    tried_again,
    with_label,
)
from gpu_pipelines.network_errors import untrusted_certificate
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.messages import Outcome, Watch
from gpu_pipelines.targets.vertex.console import custom_job_page
from gpu_pipelines.targets.vertex.jobs.request import PreparedJob
from gpu_pipelines.targets.vertex.logs import JobLogs

#: Label with a different value for each submitted job.
REQUEST_LABEL = "gpu_pipelines_request"
#: Seconds before each further try of a request that was refused because there were too many.
_WAITS = (1.0, 4.0, 16.0)
#: Seconds before each search for a job whose answer was lost; a list may be behind.
_LOOKS = (0.0, 2.0, 5.0)
#: A quota of GPUs, unlike one of requests per minute, is not free again in a few seconds.
_LASTING_QUOTA = "quota metrics exceed quota limits"

#: Final states of a job, and their names here.
_ENDS = {
    "JOB_STATE_SUCCEEDED": "succeeded",
    "JOB_STATE_FAILED": "failed",
    "JOB_STATE_CANCELLED": "cancelled",
    "JOB_STATE_EXPIRED": "expired",
    "JOB_STATE_PARTIALLY_SUCCEEDED": "partially succeeded",
}
_READINGS_AFTER_THE_END = 3


@dataclass(frozen=True)
class _JobState:
    """The state of a job.

    Attributes:
        name: full name of the job.
        state: a final one, such as succeeded; otherwise the service's word for it, in lower case.
        error: the service's message; empty if there is none.
        ended: whether nothing will change any more.
    """

    name: str
    state: str
    error: str
    ended: bool


def submit_job(prepared: PreparedJob, settings: ProjectSettings, label: str = "") -> str:
    """Submits a job once.

    Args:
        prepared: the job.
        settings: project and region; a region that is open is an error.
        label: the value of `REQUEST_LABEL`, for this request only; left out, a new one.

    Returns:
        The full name of the job.

    Raises:
        UserError: the service refuses it, or it is not known whether it was created.
    """
    settings = replace(settings, project=prepared.project, region=prepared.region)
    settings.require("project", "region")
    label = label or secrets.token_hex(16)
    create = _creation(prepared, settings, label)
    lost = (
        f"Whether it was created is not known. Check before you try again: gcloud ai custom-jobs list "
        f"--project={settings.project} --region={settings.region} --filter=labels.{REQUEST_LABEL}={label}"
    )
    try:
        with service_errors("Submitting the job", lost):
            return _once(create, lambda: _look(settings, label))
    except KeyboardInterrupt:
        raise UserError("Interrupted while the job was being sent.", lost) from None


def _once(create: Callable[[], str], look: Callable[[], str | None]) -> str:
    """The name of the job that `create` made, at once, without an answer, or at a later try."""
    for wait in (*_WAITS, None):
        try:
            return create()
        except Exception as error:
            if _was_never_sent(error):
                raise UserError(
                    f"Vertex AI cannot be reached, so nothing was sent: {message_of(error)}", "Check your network."
                ) from error
            if not (_was_refused_for_now(error) or answer_was_lost(error)):
                raise
            if found := look():
                return found
            if wait is None or not _was_refused_for_now(error):
                raise
            time.sleep(wait)
    raise AssertionError("unreachable")


def _was_refused_for_now(error: Exception) -> bool:
    """Whether an error says that nothing was done, and that it may succeed soon."""
    import google.api_core.exceptions as api

    return isinstance(error, api.TooManyRequests) and _LASTING_QUOTA not in str(error)


def _was_never_sent(error: Exception) -> bool:
    """Whether no connection was made, or no token was available for the request."""
    import google.auth.exceptions as auth
    import requests
    import urllib3.exceptions

    if untrusted_certificate(error):
        # Not a network failure; it is reported as it is.
        return False
    if isinstance(error, (requests.ConnectTimeout, auth.TransportError)):
        return True
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return isinstance(error, requests.ConnectionError) and isinstance(reason, urllib3.exceptions.NewConnectionError)


def _creation(prepared: PreparedJob, settings: ProjectSettings, label: str) -> Callable[[], str]:
    """A function that creates the job and returns its full name."""
    from google.cloud.aiplatform_v1.types import CustomJob
    from google.protobuf import json_format

    client, job = job_service(settings), CustomJob()
    json_format.ParseDict({**prepared.job, "labels": {**prepared.labels, REQUEST_LABEL: label}}, CustomJob.pb(job))

    def create() -> str:
        created = client.create_custom_job(
            parent=location_of(settings), custom_job=job, timeout=REQUEST_SECONDS, retry=None
        )
        return str(created.name)

    return create


def _look(settings: ProjectSettings, label: str) -> str | None:
    """The full name of the job with a label; None if there is none after a while."""
    client = job_service(settings)
    for wait in _LOOKS:
        time.sleep(wait)
        if found := job_with_label(client, settings, label):
            return found
    return None


def job_with_label(client: Any, settings: ProjectSettings, label: str) -> str | None:
    """The full name of the job with a label; None if there is none now."""
    listed = with_label(client.list_custom_jobs, settings, REQUEST_LABEL, label)
    return next((str(job.name) for job in listed if job.labels.get(REQUEST_LABEL) == label), None)


def is_custom_job(job: str) -> bool:
    """Whether it is the number or the full name of a custom job; the id of a run begins with a letter."""
    return job.isdigit() or "/customJobs/" in job


def full_job_name(job: str, settings: ProjectSettings) -> str:
    """The full name of a job, from its number or full name.

    Raises:
        UserError: it is neither.
    """
    parts = job.split("/")
    if len(parts) == 6 and parts[4] == "customJobs":
        return job
    if not job.isdigit():
        raise UserError(
            f"{job[:100]!r} is not a custom job.", "Give its number or full name, as job submit printed it."
        )
    settings.require("project", "region")
    return f"{location_of(settings)}/customJobs/{job}"


def cancel_job(name: str, settings: ProjectSettings) -> None:
    """Requests the cancellation of a job.

    Raises:
        UserError: there is no such job, or it has ended.
    """
    with service_errors(f"Cancelling {name.rpartition('/')[2]}"):
        job_service(settings).cancel_custom_job(name=name, timeout=REQUEST_SECONDS, retry=tried_again())


def follow_job(name: str, settings: ProjectSettings, watch: Watch, every: float) -> Outcome:
    """Shows a job until its end.

    Args:
        name: full name of the job.
        settings: project and region.
        watch: shows its states and its lines, and a message if the log cannot be read.
        every: seconds between two reads.

    Raises:
        UserError: there is no such job, or the service cannot be reached.
    """
    client = job_service(settings)
    logs = JobLogs(str(settings.project), lambda why: watch.tell(f"{why} The job is followed without its lines."))
    before = ""
    while True:
        found = _read(client, name)
        if found.state != before and not found.ended:
            watch.tell(found.state)
            before = found.state
        _say_new(logs, name, watch)
        if found.ended:
            break
        time.sleep(every)
    # Lines arrive late.
    for _ in range(_READINGS_AFTER_THE_END):
        time.sleep(min(every, 5.0))
        if not _say_new(logs, name, watch):
            break
    watch.tell(found.state)
    page = custom_job_page(name)
    failure = f"{ERROR_PREFIX}{name.rpartition('/')[2]} {found.state}. {found.error}".rstrip()
    lines = [] if found.state == "succeeded" else [failure, f"console: {page}"]
    document = {"name": found.name, "state": found.state, "error": found.error, "console": page}
    return Outcome(found.state, lines, document)


def _say_new(logs: JobLogs, name: str, watch: Watch) -> bool:
    """Shows the new lines of a job, and returns whether there were any."""
    found = logs.new_lines([name.rpartition("/")[2]])
    for line in found:
        watch.say(line.shown)
    return bool(found)


def _read(client: Any, name: str) -> _JobState:
    with service_errors(f"Looking at {name.rpartition('/')[2]}", "The job continues; try again later."):
        job = client.get_custom_job(name=name, timeout=REQUEST_SECONDS, retry=tried_again())
    return _JobState(str(job.name), state_in_words(job), str(job.error.message), job.state.name in _ENDS)


def state_in_words(job: Any) -> str:
    """The state of the service's `CustomJob`: a final one, such as succeeded, or its word in lower case."""
    state = job.state.name
    return _ENDS.get(state, state.removeprefix("JOB_STATE_").lower())
