"""Starts the runs of schedules: the emulator's clock, which may run faster than the machine's."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.emulator.api_error import as_warning
from gpu_pipelines.emulator.jobs.job_states import now
from gpu_pipelines.emulator.pipelines.jobs import ENDED, PipelineJobs
from gpu_pipelines.emulator.pipelines.schedules import STATES, Schedules

_LOOK_S = 0.1


class Clock:
    """Creates the pipeline jobs of schedules when they are due.

    Args:
        schedules: the schedules.
        jobs: creates the jobs.
        speed: seconds of the schedules per second.
    """

    def __init__(self, schedules: Schedules, jobs: PipelineJobs, speed: float = 1.0) -> None:
        self._schedules, self._jobs, self._speed = schedules, jobs, speed
        self._began = now()
        schedules.time = self.time
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True, name="clock")

    def start(self) -> None:
        """Runs the clock until `close`."""
        self._thread.start()

    def close(self) -> None:
        """Stops it."""
        self._ended.set()
        self._thread.join()

    def time(self) -> datetime:
        """What it shows."""
        return self._began + timedelta(seconds=(now() - self._began).total_seconds() * self._speed)

    def look(self) -> None:
        """Starts the runs that are due, at most one of each schedule."""
        for name in list(self._schedules.held):
            # So that no request changes or deletes a schedule that is written here.
            with self._schedules.lock:
                schedule = self._schedules.held.get(name)
                if schedule and schedule.state == STATES.ACTIVE:
                    with as_warning(schedule.display_name):
                        self._look(schedule)

    def _go(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self.look()

    def _look(self, schedule: Any) -> None:
        if self._is_over(schedule):
            schedule.state = STATES.COMPLETED
            self._schedules.plan(schedule)
            self._schedules.keep(schedule)
            return
        if "next_run_time" not in schedule or self.time() < schedule.next_run_time:
            return
        # One that fell due while the schedule was paused; all of them are started, before those of now.
        catches_up = schedule.catch_up and "last_resume_time" in schedule
        late = schedule.next_run_time if catches_up and schedule.next_run_time < schedule.last_resume_time else None
        full = self._is_full(schedule)
        if full and (schedule.allow_queueing or late):  # it stays due
            return
        due = schedule.next_run_time
        self._schedules.plan(schedule, late)
        if full:
            return
        request = api.CreatePipelineJobRequest(schedule.create_pipeline_job_request)
        request.pipeline_job.schedule_name = schedule.name
        job = self._jobs.create(request)
        schedule.last_scheduled_run_response = {"scheduled_run_time": due, "run_response": job.name}
        schedule.started_run_count += 1
        if self._is_over(schedule):
            schedule.state = STATES.COMPLETED
            self._schedules.plan(schedule)
        self._schedules.keep(schedule)

    def _is_over(self, schedule: Any) -> bool:
        """Whether a schedule has had its last run."""
        if schedule.max_run_count and schedule.started_run_count >= schedule.max_run_count:
            return True
        return "next_run_time" not in schedule and "end_time" in schedule and self.time() >= schedule.end_time

    def _is_full(self, schedule: Any) -> bool:
        """Whether a schedule has its most concurrent runs."""
        most = schedule.max_concurrent_active_run_count
        runs = [job for job in list(self._jobs.held.values()) if job.schedule_name == schedule.name]
        return bool(most) and sum(job.state not in ENDED for job in runs) >= most
