"""Recurring runs of Kubeflow Pipelines, as the commands create, find, show, pause and delete them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.component_interface.image import STEPS_IMAGE
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.targets.cron import Cron
from gpu_pipelines.targets.kubeflow.connection import all_of, connect, page_of, quietly, service_errors
from gpu_pipelines.targets.kubeflow.runs.request import DEFAULT_EXPERIMENT, KubeflowPipeline, experiment_id, given
from gpu_pipelines.targets.kubeflow.uploads import UploadedVersion, find_version
from gpu_pipelines.targets.messages import Compiled, Done, Submission, is_own
from gpu_pipelines.targets.scheduling import UPLOADED_REMEDY, Schedules, Wanted
from gpu_pipelines.targets.target import require_no_flags
from gpu_pipelines.terminal import Column, Table

if TYPE_CHECKING:
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.options import CloudOptions

_NONE = "There are no schedules here; gpu-pipelines schedule create makes one."
#: Most runs at the same time that the service takes.
MOST_AT_A_TIME = 10


@dataclass(frozen=True)
class RecurringRequest:
    """A recurring run to be created.

    Attributes:
        name: its name.
        when: times of its runs.
        start: no run before; None for now.
        end: no run after; None for no end.
        max_concurrent: most runs at the same time.
        pipeline: its pipeline: an uploaded version, or one that is sent with it.
        arguments: values of the pipeline's parameters.
        experiment: the experiment of the runs.
        pipeline_root: where artifacts go; None for the cluster's default.
        service_account: Kubernetes service account of the pods; None for the default.
        cache: whether steps may reuse results of earlier runs; None leaves each step its own setting.
    """

    name: str
    when: Cron
    start: datetime | None
    end: datetime | None
    max_concurrent: int
    pipeline: UploadedVersion | KubeflowPipeline
    arguments: Mapping[str, Any]
    experiment: str
    pipeline_root: str | None = None
    service_account: str | None = None
    cache: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """The body of the request, as in the REST API; the experiment by its name."""
        trigger = {
            "cron": cron_with_seconds(self.when),
            "start_time": _rfc3339(self.start),
            "end_time": _rfc3339(self.end),
        }
        body: dict[str, Any] = {
            "display_name": self.name,
            "experiment": self.experiment,
            "mode": "ENABLE",
            "max_concurrency": self.max_concurrent,
            "no_catchup": True,
            "trigger": {"cron_schedule": given(trigger)},
            "runtime_config": {"parameters": given(self.arguments), "pipeline_root": self.pipeline_root or ""},
        }
        if self.service_account:
            body["service_account"] = self.service_account
        if isinstance(self.pipeline, UploadedVersion):
            reference = {"pipeline_id": self.pipeline.pipeline_id, "pipeline_version_id": self.pipeline.version_id}
            return {**body, "pipeline_version_reference": reference}
        # Last, because it is a thousand lines in what a dry run prints.
        return {**body, "pipeline_spec": self.pipeline.to_json()}

    @contextmanager
    def as_sent(self) -> Iterator[dict[str, Any]]:
        """The pipeline in the form for KFP's client, as long as the context lasts."""
        if isinstance(self.pipeline, UploadedVersion):
            yield {"pipeline_id": self.pipeline.pipeline_id, "version_id": self.pipeline.version_id}
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pipeline.yaml"
            path.write_text(self.pipeline.text, encoding="utf-8")
            yield {"pipeline_package_path": str(path), "enable_caching": self.cache}


def _require_image(spec: Mapping[str, Any], uploaded: str) -> None:
    """Checks that the pods of an uploaded pipeline can start: KFP's client uploads a file as it is.

    Raises:
        UserError: steps have the placeholder of an image.
    """
    executors = spec.get("deploymentSpec", {}).get("executors", {}).values()
    if any(each.get("container", {}).get("image") == STEPS_IMAGE for each in executors):
        raise UserError(
            f"The steps of the uploaded {uploaded} run in {STEPS_IMAGE}, which stands for an image of your own.",
            "Upload the file with gpu-pipelines upload, or compile it with --image and upload that.",
        )


class KubeflowSchedules(Schedules):
    """The recurring runs of a namespace.

    Args:
        settings: address, namespace, experiment.
        options: options of the commands.
        of_file: reads and places a pipeline in a file.
        as_sent: shows a request, from its path and its body.

    Raises:
        UserError: the address is not known.
    """

    def __init__(
        self,
        settings: ProjectSettings,
        options: CloudOptions,
        of_file: Callable[[str], Compiled],
        as_sent: Callable[[str, object], str],
    ) -> None:
        self._settings, self._options, self._of_file, self._as_sent = settings, options, of_file, as_sent
        self._settings.require("kubeflow_host")

    def version(self, pipeline: str) -> Compiled:
        """An uploaded version: PIPELINE, or PIPELINE/VERSION; or a pipeline in a file, which is sent with it."""
        if is_own(pipeline):
            return self._of_file(pipeline)
        require_no_flags(f"The uploaded {pipeline}", self._options, UPLOADED_REMEDY)
        version = find_version(pipeline, self._settings)
        _require_image(version.spec, pipeline)
        return Compiled(version.spec["pipelineInfo"]["name"], spec=version.spec, origin=version)

    def submission(self, wanted: Wanted) -> Submission:
        """A recurring run as it will be sent."""
        timing = wanted.timing
        assert wanted.compiled
        pipeline: UploadedVersion | KubeflowPipeline = wanted.compiled.origin
        if wanted.cache is not None and isinstance(pipeline, UploadedVersion):
            raise UserError("What an uploaded version caches is compiled into it.", "Leave out --cache and --no-cache.")
        assert wanted.name
        assert timing.when
        assert wanted.values
        request = RecurringRequest(
            name=wanted.name,
            when=timing.when,
            start=timing.start,
            end=timing.end,
            max_concurrent=timing.max_concurrent or 1,
            pipeline=pipeline,
            arguments=wanted.values.taken,
            experiment=self._settings.kubeflow_experiment or DEFAULT_EXPERIMENT,
            pipeline_root=self._settings.pipeline_root,
            service_account=self._settings.kubeflow_service_account,
            cache=wanted.cache,
        )
        cron_with_seconds(request.when)
        return Submission(request, lambda: [self._as_sent("recurringruns", request.to_json())])

    def send(self, submission: Submission) -> Any:
        """Creates a recurring run.

        Raises:
            UserError: there is one of that name, or the service refuses it.
        """
        request: RecurringRequest = submission.content
        if request.max_concurrent > MOST_AT_A_TIME:
            raise UserError(f"Kubeflow Pipelines starts at most {MOST_AT_A_TIME} runs of a schedule at the same time.")
        client = connect(self._settings)
        if any(each.display_name == request.name for each in self._listed(client)):
            raise UserError(f"There is a schedule {request.name!r} already.", "Give another --name, or delete it.")
        experiment = experiment_id(client, request.experiment, self._settings)
        with quietly(), service_errors(f"Creating the schedule {request.name}"), request.as_sent() as pipeline:
            return client.create_recurring_run(
                experiment_id=experiment,
                job_name=request.name,
                cron_expression=cron_with_seconds(request.when),
                start_time=_rfc3339(request.start),
                end_time=_rfc3339(request.end),
                max_concurrency=request.max_concurrent,
                no_catchup=True,
                params=given(request.arguments),
                pipeline_root=request.pipeline_root,
                service_account=request.service_account,
                **pipeline,
            )

    def find(self, schedule: str) -> Any:
        """The recurring run with a name or id.

        Raises:
            UserError: there is none, or several have the name.
        """
        there = self.all()
        found = [each for each in there if schedule in (each.recurring_run_id, each.display_name)]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(str(each.recurring_run_id) for each in found)
            raise UserError(f"{len(found)} schedules have the name {schedule!r}.", f"Give the id: {ids}.")
        names = [str(each.display_name) for each in there]
        raise UserError(f"There is no schedule {schedule[:80]!r}.", nearest(schedule, names) if names else _NONE)

    def all(self) -> Sequence[Any]:
        """All of them, by name."""
        return sorted(self._listed(connect(self._settings)), key=lambda each: str(each.display_name))

    def _listed(self, client: Any) -> list[Any]:
        with service_errors("Listing the schedules"):
            namespace = self._settings.kubeflow_namespace
            return list(all_of(client.list_recurring_runs, "recurring_runs", namespace=namespace))

    def named(self, found: Any) -> tuple[str, str]:
        """Id and name."""
        return str(found.recurring_run_id), str(found.display_name)

    def document(self, found: Any) -> Mapping[str, Any]:
        """A recurring run as in the REST API."""
        import kfp_server_api

        document: dict[str, Any] = kfp_server_api.ApiClient().sanitize_for_serialization(found)
        return document

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
            "runs": f"{found.max_concurrency or 1} at the same time; missed runs are not started later",
        }
        lines = [f"{name:<9} {text}" for name, text in named.items()]
        if not done and found.runtime_config:
            for number, (name, value) in enumerate(sorted((found.runtime_config.parameters or {}).items())):
                lines.append(f"{'' if number else 'with':<9} {name} = {json.dumps(value, ensure_ascii=False)}")
        page = page_of(f"recurringrun/details/{found.recurring_run_id}", self._settings)
        return [*lines, f"{'console':<9} {page}"]

    def pause(self, schedule: str) -> Done:
        """Stops it from starting runs."""
        return self._done("Pausing", "paused", "disable_recurring_run", schedule)

    def resume(self, schedule: str) -> Done:
        """Lets it start runs again."""
        return self._done("Resuming", "resumed", "enable_recurring_run", schedule)

    def delete(self, schedule: str) -> Done:
        """Deletes it."""
        return self._done("Deleting", "deleted", "delete_recurring_run", schedule)

    def _done(self, doing: str, done: str, method: str, schedule: str) -> Done:
        found = self.find(schedule)
        name = str(found.recurring_run_id)
        with service_errors(f"{doing} {found.display_name}"):
            getattr(connect(self._settings), method)(name)
        return Done(name, self.document(found), [f"{done} {found.display_name} ({name})"])


def cron_with_seconds(when: Cron) -> str:
    """A cron expression in Kubeflow Pipelines' form: six fields, seconds first, Sunday only as 0.

    Format: https://pkg.go.dev/github.com/robfig/cron#hdr-CRON_Expression_Format

    Raises:
        UserError: it is in another time zone than UTC, in which the service reads it.
    """
    if when.zone not in ("UTC", "Etc/UTC"):
        raise UserError(
            f"Kubeflow Pipelines reads cron expressions in the time zone of its server, not in {when.zone}.",
            "Give the times in UTC, without --time-zone.",
        )
    *others, weekday = when.fields.split()
    return " ".join(["0", *others, ",".join(_weekday(part) for part in weekday.split(","))])


def _weekday(part: str) -> str:
    """A part of the last field with Sunday as 0; Unix also allows 7."""
    days, slash, step = part.partition("/")
    if days == "*":
        return part
    first, dash, last = days.partition("-")
    # A single day with a step continues to the end of the week.
    end = int(last) if dash else max(6 if slash else 0, int(first))
    if max(int(first), end) < 7:
        return part
    return ",".join(dict.fromkeys(str(day % 7) for day in range(int(first), end + 1, int(step or 1))))


def _status(found: Any) -> str:
    status = str(found.status or found.mode or "").lower()
    return {"enabled": "active", "enable": "active", "disabled": "paused", "disable": "paused"}.get(status, status)


def _cron(found: Any) -> str:
    schedule = found.trigger.cron_schedule if found.trigger else None
    return str(schedule.cron) if schedule else "every so many seconds"


def _rfc3339(time: datetime | None) -> str | None:
    return time.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if time else None
