"""Schedules of Vertex AI Pipelines as the commands make, change and show them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from gpu_pipelines.errors import UserError
from gpu_pipelines.google_cloud.connection import endpoint_of, location_of
from gpu_pipelines.targets.cron import Cron, next_times, parse_cron, shown_time
from gpu_pipelines.targets.messages import Compiled, Done, Submission, Values, shown_request
from gpu_pipelines.targets.scheduling import Schedules, Wanted
from gpu_pipelines.targets.vertex import schedules
from gpu_pipelines.targets.vertex.console import schedule_page
from gpu_pipelines.targets.vertex.runs.pipelines import pipeline_job
from gpu_pipelines.terminal import Column, Table

if TYPE_CHECKING:
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.vertex.options import VertexOptions


_NOTEBOOK = "a notebook, not a pipeline"
#: The largest int64.
_MOST = 2**63 - 1


class VertexSchedules(Schedules):
    """The schedules of a project in a region.

    Args:
        settings: project and region.
        options: options of the commands.
        version: finds an uploaded version by its address.
        look_at_resources: checks that the persistent resources of a pipeline have its machines.

    Raises:
        UserError: project or region is not known.
    """

    def __init__(
        self,
        settings: ProjectSettings,
        options: VertexOptions,
        version: Callable[[str], Compiled],
        look_at_resources: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._settings, self._options, self._version = settings, options, version
        self._look_at_resources = look_at_resources
        self._settings.require("project", "region")

    def version(self, pipeline: str) -> Compiled:
        """An uploaded version: PACKAGE, PACKAGE/TAG, or its address; or a pipeline in a file."""
        self._settings.require("pipeline_root")
        return self._version(pipeline)

    def cron_of(self, found: Mapping[str, Any]) -> Cron:
        """The times of a schedule's runs."""
        return parse_cron(found["cron"])

    def contents(self, found: Mapping[str, Any]) -> tuple[Compiled, Mapping[str, Any]]:
        """The version that a schedule runs, and the values of its parameters."""
        if not (job := _job_of(found)):
            raise UserError(f"The schedule {found['displayName']} runs {_NOTEBOOK}.", "Its times can be changed here.")
        # The service need not return the content at the address of a version.
        spec = job.get("pipelineSpec") or self._version(job["templateUri"]).spec
        return Compiled(spec["pipelineInfo"]["name"], spec=spec), job["runtimeConfig"].get("parameterValues", {})

    def another(self, pipeline: str) -> Compiled:
        """The version that a schedule runs from now on."""
        return self._version(pipeline)

    def submission(self, wanted: Wanted) -> Submission:
        """A schedule as in the REST API, or the fields to change."""
        timing, found, job = wanted.timing, wanted.found, None
        if wanted.name and wanted.name.isdecimal():
            raise UserError(f"The name {wanted.name} would be read as an id.", "Give a --name that is not a number.")
        if wanted.compiled and wanted.values:
            job = self._changed(found, wanted.compiled, wanted.values) if found else self._new(wanted)
        queue = self._options.queue if found else bool(self._options.queue)
        cron = timing.when.text if timing.when else None
        limits = (self._options.max_runs, timing.max_concurrent, queue)
        for flag, most in zip(("--max-runs", "--max-concurrent"), limits, strict=False):
            if most and most > _MOST:
                raise UserError(f"{flag} is {most:,}; the most is {_MOST:,}.")
        request = schedules.ScheduleRequest(wanted.name, cron, timing.start, timing.end, *limits, job)
        body = request.to_json(self._settings)
        if not body:
            raise UserError("No change is given.", "Give what to change, such as --cron.")
        if found:
            method, place = "PATCH", f"{found['name']}?updateMask={','.join(body)}"
        else:
            method, place = "POST", f"{location_of(self._settings)}/schedules"
        url = f"{endpoint_of(self._settings)}/v1/{place}"
        return Submission((request, found), lambda: [shown_request(method, url, body)])

    def _new(self, wanted: Wanted) -> dict[str, Any]:
        assert wanted.compiled
        assert wanted.values
        spec, template = wanted.compiled.spec, wanted.compiled.origin.template
        self._look_at_resources(spec)
        return pipeline_job(spec, wanted.values.taken, self._settings, cache=wanted.cache, template=template)

    @staticmethod
    def _changed(found: Mapping[str, Any], compiled: Compiled, values: Values) -> dict[str, Any]:
        """The changes of each run: another version, other parameters, or both; all else stays."""
        before = found["createPipelineJobRequest"]["pipelineJob"]
        taken = {name: value for name, value in values.taken.items() if value is not None}
        runtime = {**before["runtimeConfig"], "parameterValues": taken}
        job = {**before, "pipelineSpec": compiled.spec, "runtimeConfig": runtime}
        return {**job, "templateUri": compiled.origin.template} if compiled.origin and compiled.origin.template else job

    def send(self, submission: Submission) -> dict[str, Any]:
        """Creates or changes a schedule."""
        request, found = submission.content
        if found:
            return schedules.update(found["name"], request, self._settings)
        return schedules.create(request, self._settings)

    def find(self, schedule: str) -> dict[str, Any]:
        """The schedule with a name or id."""
        return schedules.find(schedule, self._settings)

    def all(self) -> list[dict[str, Any]]:
        """All schedules of the project in the region."""
        return schedules.all_schedules(self._settings)

    def named(self, found: Mapping[str, Any]) -> tuple[str, str]:
        """Id and name."""
        return schedules.id_of(found), str(found["displayName"])

    def document(self, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """A schedule as in the REST API."""
        return found

    def table(self, found: Sequence[Mapping[str, Any]]) -> Table | str:
        """Schedules with their next runs."""
        if not found:
            return f"No schedules in {self._settings.region}."
        table = Table("name", "id", "state", "cron", Column("next run (UTC)", spare=1), Column.number("runs", spare=2))
        for each in found:
            table.add_row(
                each["displayName"],
                schedules.id_of(each),
                each.get("state", "").lower(),
                each.get("cron", ""),
                each.get("nextRunTime", "–")[:16].replace("T", " "),
                str(each.get("startedRunCount", 0)),
            )
        return table

    def shown(self, found: Mapping[str, Any], done: str = "") -> list[str]:
        """A schedule with its version, its next runs and its parameters."""
        job, when = _job_of(found), _cron_of(found)
        runtime = job.get("runtimeConfig", {})
        start, end = _moment(found.get("startTime")), _moment(found.get("endTime"))
        named = {
            done or "schedule": f"{found['displayName']} ({schedules.id_of(found)})",
            "state": found.get("state", "").lower(),
            "version": job.get("templateUri", "not from a repository") if job else _NOTEBOOK,
            "cron": found["cron"],
            "start": _shown(start, when),
            "end": _shown(end, when),
            "runs": _runs(found),
            "root": runtime.get("gcsOutputDirectory", "none"),
        }
        lines = [f"{name:<9} {text}" for name, text in named.items()]
        if found.get("state") == "ACTIVE":
            due = next_times(when, start, end) if when else filter(None, [_moment(found.get("nextRunTime"))])
            for number, time in enumerate(due):
                lines.append(f"{'' if number else 'next runs':<9} {shown_time(time)}")
        if not done:
            for number, (name, value) in enumerate(sorted(runtime.get("parameterValues", {}).items())):
                # The service writes every number with a decimal point.
                text = f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
                lines.append(f"{'' if number else 'with':<9} {name} = {text}")
        return [*lines, f"{'console':<9} {schedule_page(found['name'])}"]

    def pause(self, schedule: str) -> Done:
        """Stops it from starting runs."""
        found = self.find(schedule)
        schedules.pause(found["name"], self._settings)
        return _done("paused", found)

    def resume(self, schedule: str) -> Done:
        """Lets it start runs again; with --catch-up also those that were due in between."""
        found = self.find(schedule)
        schedules.resume(found["name"], self._settings, catch_up=self._options.catch_up)
        return _done("resumed", found)

    def delete(self, schedule: str) -> Done:
        """Deletes it."""
        found = self.find(schedule)
        schedules.delete(found["name"], self._settings)
        return _done("deleted", found)


def _done(what: str, found: Mapping[str, Any]) -> Done:
    return Done(found["name"], found, [f"{what} {found['displayName']} ({schedules.id_of(found)})"])


def _runs(found: Mapping[str, Any]) -> str:
    limit = f" of at most {found['maxRunCount']}" if "maxRunCount" in found else ""
    waits = "; one that is due meanwhile waits" if found.get("allowQueueing") else ""
    # A schedule without the limit starts runs whether or not others are active.
    together = found.get("maxConcurrentActiveRunCount", "any number")
    return f"{found.get('startedRunCount', 0)} so far{limit}, {together} at the same time{waits}"


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text[:19] + "+00:00") if text else None


def _shown(moment: datetime | None, when: Cron | None) -> str:
    return shown_time(moment.astimezone(ZoneInfo(when.zone if when else "UTC"))) if moment else "none"


def _job_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """The runs of a schedule; empty for one of Colab Enterprise, which the service keeps with the others."""
    job: dict[str, Any] = found.get("createPipelineJobRequest", {}).get("pipelineJob", {})
    return job


def _cron_of(found: Mapping[str, Any]) -> Cron | None:
    """When a schedule is due; None for an expression of another program that only the service can read."""
    try:
        return parse_cron(found["cron"])
    except UserError:
        return None
