"""Recurring runs of Kubeflow Pipelines as the commands make and show them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.kubeflow import schedules
from gpu_pipelines.targets.kubeflow.runs import DEFAULT_EXPERIMENT
from gpu_pipelines.targets.kubeflow.uploads import find_version
from gpu_pipelines.targets.messages import Compiled, Done, Submission
from gpu_pipelines.targets.scheduling import Schedules, Wanted
from gpu_pipelines.terminal import Column, Table

if TYPE_CHECKING:
    from gpu_pipelines.project_settings import ProjectSettings


class KubeflowSchedules(Schedules):
    """The recurring runs of a namespace.

    Args:
        settings: address, namespace, experiment.
        as_sent: shows a request, from its path and its body.

    Raises:
        UserError: the address is not known.
    """

    def __init__(self, settings: ProjectSettings, as_sent: Callable[[str, object], str]) -> None:
        self._settings, self._as_sent = settings, as_sent
        self._settings.require("kubeflow_host")

    def version(self, pipeline: str) -> Compiled:
        """An uploaded version: PIPELINE, or PIPELINE/VERSION."""
        version = find_version(pipeline, self._settings)
        return Compiled(version.spec["pipelineInfo"]["name"], spec=version.spec, origin=version)

    def submission(self, wanted: Wanted) -> Submission:
        """A recurring run as it will be sent."""
        if wanted.cache is not None:
            raise UserError("What an uploaded version caches is compiled into it.", "Leave out --cache and --no-cache.")
        timing = wanted.timing
        assert wanted.name
        assert timing.when
        assert wanted.compiled
        assert wanted.values
        request = schedules.RecurringRequest(
            name=wanted.name,
            when=timing.when,
            start=timing.start,
            end=timing.end,
            max_concurrent=timing.max_concurrent or 1,
            version=wanted.compiled.origin,
            arguments=wanted.values.taken,
            experiment=self._settings.kubeflow_experiment or DEFAULT_EXPERIMENT,
            pipeline_root=self._settings.pipeline_root,
            service_account=self._settings.kubeflow_service_account,
        )
        schedules.cron_with_seconds(request.when)
        return Submission(request, lambda: [self._as_sent("recurringruns", request.to_json())])

    def send(self, submission: Submission) -> Any:
        """Creates a recurring run."""
        return schedules.create(submission.content, self._settings)

    def find(self, schedule: str) -> Any:
        """The recurring run of a name or id."""
        return schedules.find(schedule, self._settings)

    def all(self) -> Sequence[Any]:
        """All of them, by name."""
        return schedules.all_schedules(self._settings)

    def document(self, found: Any) -> Mapping[str, Any]:
        """A recurring run as the REST API has it."""
        return schedules.as_json(found)

    def table(self, found: Sequence[Any]) -> Table | str:
        """Recurring runs with their state."""
        if not found:
            return "No schedules."
        table = Table("name", "id", "state", Column("cron (seconds first)", spare=1))
        for each in found:
            table.add_row(each.display_name, each.recurring_run_id, _status(each), _cron(each))
        return table

    def shown(self, found: Any, done: str = "") -> list[str]:
        """A recurring run with its parameters."""
        named = {
            done or "schedule": f"{found.display_name} ({found.recurring_run_id})",
            "state": _status(found),
            "cron": f"{_cron(found)} (seconds first, UTC)",
            "runs": f"{found.max_concurrency or 1} at the same time; none is made up for",
        }
        lines = [f"{name:<9} {text}" for name, text in named.items()]
        if not done and found.runtime_config:
            for number, (name, value) in enumerate(sorted((found.runtime_config.parameters or {}).items())):
                lines.append(f"{'' if number else 'with':<9} {name} = {json.dumps(value, ensure_ascii=False)}")
        return [*lines, f"{'console':<9} {schedules.schedule_page(found.recurring_run_id, self._settings)}"]

    def pause(self, schedule: str) -> Done:
        """Lets it start no more runs."""
        return self._done("paused", schedules.pause, schedule)

    def resume(self, schedule: str) -> Done:
        """Lets it start runs again."""
        return self._done("resumed", schedules.resume, schedule)

    def delete(self, schedule: str) -> Done:
        """Deletes it."""
        return self._done("deleted", schedules.delete, schedule)

    def _done(self, what: str, do: Any, schedule: str) -> Done:
        found = self.find(schedule)
        do(found, self._settings)
        name = str(found.recurring_run_id)
        return Done(name, self.document(found), [f"{what} {found.display_name} ({name})"])


def _status(found: Any) -> str:
    status = str(found.status or found.mode or "").lower()
    return {"enabled": "active", "enable": "active", "disabled": "paused", "disable": "paused"}.get(status, status)


def _cron(found: Any) -> str:
    schedule = found.trigger.cron_schedule if found.trigger else None
    return str(schedule.cron) if schedule else "every so many seconds"
