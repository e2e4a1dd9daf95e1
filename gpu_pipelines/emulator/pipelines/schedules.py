"""Schedules of pipeline jobs: create, get, list, update, pause, resume, delete."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from croniter import croniter
from google.cloud import aiplatform_v1 as api
from google.protobuf import empty_pb2

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.jobs.job_states import now
from gpu_pipelines.emulator.names import Names, Resources
from gpu_pipelines.emulator.operations import Operations
from gpu_pipelines.emulator.pipelines.jobs import check_pipeline_job
from gpu_pipelines.emulator.state_folder import StateFolder

STATES: Any = api.Schedule.State
_FIELD = re.compile(r"(\*|\d+(-\d+)?)(/\d+)?(,(\*|\d+(-\d+)?)(/\d+)?)*")
_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_CHANGEABLE = (
    "display_name",
    "cron",
    "start_time",
    "end_time",
    "max_run_count",
    "max_concurrent_run_count",
    "max_concurrent_active_run_count",
    "allow_queueing",
    "create_pipeline_job_request",
)


class Schedules(Resources):
    """The schedules of all projects.

    Attributes:
        schedules: by name.
        time: returns their current time.
        lock: held while they change.
    """

    def __init__(self, names: Names, operations: Operations, page_size: int, state: StateFolder) -> None:
        super().__init__(names, api.ListSchedulesResponse, page_size, state)
        self.schedules, self.lock = self.held, self._lock
        self.time: Callable[[], datetime] = now
        self._operations = operations
        # Runs that fell due while the emulator was stopped are not made up for.
        for each in self.held.values():
            self.plan(each)

    def create(self, request: Any) -> Any:
        """CreateSchedule."""
        parent, given = self._names.number(request.parent), request.schedule
        schedule = api.Schedule(given)
        schedule.name, schedule.state = self._names.new(parent, "schedules"), STATES.ACTIVE
        schedule.create_time = schedule.update_time = now()
        if "start_time" not in schedule:
            schedule.start_time = schedule.create_time
        self._check(schedule, parent)
        self.plan(schedule)
        self.keep(schedule)
        return self._copy(schedule)

    def update(self, request: Any) -> Any:
        """UpdateSchedule."""
        with self.lock:
            changed = self._copy(self.one(request.schedule.name))
            for path in request.update_mask.paths:
                if path not in _CHANGEABLE:
                    raise ApiError(400, f"The field {path} cannot be updated.")
                # A field that is in the mask but not sent is cleared.
                if path in request.schedule:
                    setattr(changed, path, getattr(request.schedule, path))
                else:
                    delattr(changed, path)
            changed.update_time = now()
            self._check(changed, changed.name.rpartition("/schedules/")[0])
            self.plan(changed)
            self.keep(changed)
            return self._copy(changed)

    def pause(self, request: Any) -> Any:
        """PauseSchedule."""
        self._turn(request.name, STATES.ACTIVE, STATES.PAUSED, "last_pause_time")
        return empty_pb2.Empty()

    def resume(self, request: Any) -> Any:
        """ResumeSchedule."""
        with self.lock:
            schedule = self._turn(request.name, STATES.PAUSED, STATES.ACTIVE, "last_resume_time")
            schedule.catch_up = request.catch_up
            if request.catch_up:
                self.plan(schedule, schedule.last_pause_time)
            self.keep(schedule)
        return empty_pb2.Empty()

    def delete(self, request: Any) -> Any:
        """DeleteSchedule."""
        with self.lock:
            schedule = self.one(request.name)
            self.forget(schedule.name)
        return self._operations.done(schedule.name)

    def plan(self, schedule: Any, after: datetime | None = None) -> None:
        """Sets the time of a schedule's next run, or none if it is not active, or ends before.

        Args:
            schedule: one of them.
            after: the next run is later; None for now.
        """
        with self.lock:
            # The emulator's clock may have been ahead before it was started again.
            due, shown = None, min(after or self.time(), self.time())
            if schedule.state == STATES.ACTIVE:
                due = following(schedule.cron, max(schedule.start_time, shown) if "start_time" in schedule else shown)
            if due is None or ("end_time" in schedule and due > schedule.end_time):
                del schedule.next_run_time
            else:
                schedule.next_run_time = due

    def _turn(self, name: str, before: Any, after: Any, time_of: str) -> Any:
        with self.lock:
            schedule = self.one(name)
            if schedule.state != before:
                state = STATES(schedule.state).name
                raise ApiError(400, f"The schedule is {state}, not {STATES(before).name}.", "FAILED_PRECONDITION")
            schedule.state = after
            schedule.update_time = now()
            setattr(schedule, time_of, self.time())
            self.plan(schedule)
            self.keep(schedule)
        return schedule

    def _check(self, schedule: Any, parent: str) -> None:
        if not schedule.display_name:
            raise ApiError(400, "Display name is required.")
        if len(schedule.display_name) > 128:
            raise ApiError(400, "The display name can be up to 128 characters long.")
        check_cron(schedule.cron)
        if schedule.max_concurrent_run_count < 1:
            raise ApiError(400, "max_concurrent_run_count must be positive.")
        if "end_time" in schedule and schedule.end_time <= max(schedule.start_time, now()):
            raise ApiError(400, "end_time must be in the future and after start_time.")
        request = schedule.create_pipeline_job_request
        if "pipeline_job" not in request:
            raise ApiError(400, "create_pipeline_job_request.pipeline_job is required.")
        if self._names.number(request.parent) != parent:
            raise ApiError(400, f"The parent of the pipeline jobs must be that of the schedule, {parent}.")
        if request.pipeline_job_id:
            raise ApiError(400, "pipeline_job_id cannot be set: each run gets one of its own.")
        check_pipeline_job(request.pipeline_job)


def check_cron(text: str) -> None:
    """Checks a cron expression, which may have a time zone before it.

    Raises:
        ApiError: it is invalid.
    """
    match = re.fullmatch(r"(?:(?:CRON_)?TZ=(\S+)\s+)?(.*)", text)
    zone, fields = (match[1], match[2].split()) if match else (None, [])
    wrong = ApiError(400, f"Invalid cron expression: {text!r}.")
    if len(fields) != len(_RANGES):
        raise wrong
    for field, (low, high) in zip(fields, _RANGES, strict=True):
        values = [int(value[:9]) for value in re.findall(r"(?<!/)\b\d+", field)]
        if not _FIELD.fullmatch(field) or any(not low <= value <= high for value in values):
            raise wrong
    try:
        ZoneInfo(zone or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ApiError(400, f"Invalid time zone: {zone!r}.") from None


def following(cron: str, moment: datetime) -> datetime | None:
    """The next time after a moment of a cron expression, which may begin with a time zone; None for never."""
    match = re.fullmatch(r"(?:(?:CRON_)?TZ=(\S+)\s+)?(.*)", cron)
    zone, fields = (match[1], match[2]) if match else (None, cron)
    # The library takes a range of one number, such as 1-1, for any number.
    fields = re.sub(r"\b(\d+)-\1\b(/\d+)?", r"\1", fields)
    try:
        found: datetime = croniter(fields, moment.astimezone(ZoneInfo(zone or "UTC"))).get_next(datetime)
    except (ValueError, OverflowError):
        # Such as the 31st of February, or after the year 9999.
        return None
    return found
