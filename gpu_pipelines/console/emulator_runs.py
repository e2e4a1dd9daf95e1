"""The pipeline jobs of an emulator in the form in which the console shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from gpu_pipelines.artifacts.checkpoint import METRICS
from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.console.emulator_client import EmulatorClient
from gpu_pipelines.console.local_runs import curve_of, measured_in
from gpu_pipelines.console.shown import EMULATOR, GOING_ON, Curve, LogPart, Measured, Page, Row, Run, Task
from gpu_pipelines.errors import NotFoundError, UserError
from gpu_pipelines.numbers import as_number

_STATES = {
    "PIPELINE_STATE_QUEUED": "waiting",
    "PIPELINE_STATE_PENDING": "waiting",
    "PIPELINE_STATE_RUNNING": "running",
    "PIPELINE_STATE_SUCCEEDED": "succeeded",
    "PIPELINE_STATE_FAILED": "failed",
    "PIPELINE_STATE_CANCELLING": "running",
    "PIPELINE_STATE_CANCELLED": "cancelled",
    "PIPELINE_STATE_PAUSED": "waiting",
}
_TASK_STATES = {
    "PENDING": "waiting",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "CANCEL_PENDING": "running",
    "CANCELLING": "running",
    "CANCELLED": "cancelled",
    "FAILED": "failed",
    "SKIPPED": "reused",
    "NOT_TRIGGERED": "not triggered",
}
_HTML, _MODEL, _METRICS = ("system.HTML", "system.Markdown"), "system.Model", "system.Metrics"
#: Most jobs of an emulator to show.
_MOST_JOBS = 1000
#: Prefix of a task's output parameters in the metadata of its execution.
_OUTPUT = "output:"
#: The fields of a job for the list: without its pipeline, which is most of it.
_FIELDS = "name,displayName,state,createTime,startTime,endTime"
#: Entries of a log to read at once.
_LINES = 1000
#: An iteration of a loop: the name of the task, and the numbers of the iterations.
_TURN = re.compile(r"-#\d+(-#\d+)*$")
_ID = re.compile(r"[a-z0-9][-a-z0-9]{0,127}")


class EmulatorRuns:
    """The pipeline jobs of an emulator.

    Args:
        client: the client of the emulator.
    """

    def __init__(self, client: EmulatorClient) -> None:
        self._client = client
        self._jobs = f"v1/{client.parent}/pipelineJobs"

    def rows(self) -> list[Row]:
        """The jobs, the newest first."""
        return [_row(job) for job in self._client.every(self._jobs, "pipelineJobs", _MOST_JOBS, _FIELDS)]

    def run(self, run_id: str) -> Run:
        """A job.

        Raises:
            UserError: there is no such job.
        """
        from gpu_pipelines.targets.compiled import steps_of
        from gpu_pipelines.targets.local.runs import without_early_checks

        job = self.job(run_id)
        spec = job.get("pipelineSpec") or {}
        steps = without_early_checks(steps_of(spec))
        details = _details(job)
        named = set(steps)
        tasks = [_task(name, each) for name, each in details.items() if _without_turn(name) in named]
        tasks.sort(key=lambda task: details[task.name].get("startTime", "~"))
        begun = [task for task in tasks if task.status != "waiting"]
        row, error = _row(job), job.get("error", {}).get("message", "")
        failed = next((task.message for task in begun if task.message), "")
        return Run(
            row,
            steps,
            begun,
            _parameters(job),
            {**_values(job), **{name: artifact["uri"] for name, artifact in _artifacts(job)}},
            [
                Page(name.partition("/")[0], name.partition("/")[2], name)
                for name, artifact in _artifacts(job)
                if artifact.get("schemaTitle") in _HTML
            ],
            _metrics(job),
            _headline(row, begun),
            failed or error,
            _about(job),
            row.is_going_on,
        )

    def job(self, run_id: str) -> dict[str, Any]:
        """The resource of a job.

        Raises:
            UserError: there is no such job.
        """
        if not _ID.fullmatch(run_id):
            raise NotFoundError(f"There is no run {run_id[:80]!r} on the emulator.", "It may have been deleted.")
        found: dict[str, Any] = self._client.ask("GET", f"{self._jobs}/{run_id}")
        return found

    def log(self, run_id: str, task: str, start: int) -> LogPart:
        """A part of the log of a task, from the line number `start`.

        Raises:
            UserError: there is no such job or task.
        """
        job = self.job(run_id)
        details = _details(job)
        if task not in details:
            raise NotFoundError(f"There is no task {task[:80]!r} in {run_id}.", "It has not begun.")
        wanted = f'resource.labels.job_id="{self._log_of(job, task, details[task])}"'
        body = {"resourceNames": [f"projects/{self._client.about['project']}"], "filter": wanted, "pageSize": _LINES}
        answer = self._client.ask("POST", "v2/entries:list", {**body, "pageToken": str(start)})
        lines = [str(entry.get("jsonPayload", {}).get("message", "")) for entry in answer.get("entries", [])]
        is_over = _TASK_STATES.get(details[task].get("state", ""), "") not in GOING_ON
        text = "".join(f"{line}\n" for line in lines)
        return LogPart(text, start + len(lines), is_over and "nextPageToken" not in answer)

    def _log_of(self, job: Mapping[str, Any], task: str, detail: Mapping[str, Any]) -> str:
        """The job whose lines are the log of a task: the custom job that it created, else its own container.

        The service knows the custom job only when the task has ended; before, it is found by its label.
        """
        from gpu_pipelines.targets.vertex.runs.machine_times import RUN_LABEL, launchers

        held = detail.get("execution", {}).get("metadata", {}).get("output:gcp_resources", "")
        with suppress(ValueError, KeyError, IndexError, TypeError):
            return str(json.loads(held)["resources"][0]["resourceUri"]).rpartition("/")[2]
        names = [name for name, of in launchers(job.get("pipelineSpec") or {}).items() if of == task]
        if names and (label := job.get("labels", {}).get(RUN_LABEL)):
            made = f'labels.{RUN_LABEL}="{label}"'
            answer = self._client.ask("GET", f"v1/{self._client.parent}/customJobs", filter=made)
            for each in answer.get("customJobs", []):
                if each["displayName"] in names:
                    return str(each["name"]).rpartition("/")[2]
        main = detail.get("executorDetail", {}).get("containerDetail", {}).get("mainJob", "")
        return str(main).rpartition("/")[2]

    def page(self, run_id: str, key: str) -> bytes:
        """An HTML page that a task wrote.

        Raises:
            UserError: there is no such page.
        """
        uri = next((each["uri"] for name, each in _artifacts(self.job(run_id)) if name == key), "")
        if not uri:
            raise NotFoundError(f"There is no page {key[:80]!r} of {run_id}.", "Open the run again.")
        return self._client.object(uri)

    def stop(self, run_id: str) -> None:
        """Cancels a job.

        Raises:
            UserError: there is no such job, or it has ended.
        """
        self.job(run_id)
        self._client.ask("POST", f"{self._jobs}/{run_id}:cancel", {})

    def submit(self, spec: Mapping[str, Any], parameters: Mapping[str, Any], job_id: str) -> str:
        """Creates a job from a compiled pipeline, as Vertex AI Pipelines does with an uploaded file.

        Args:
            spec: the pipeline.
            parameters: the given values by name.
            job_id: the id for the job.

        Returns:
            The job's id.

        Raises:
            UserError: the emulator refuses it.
        """
        job = {
            "displayName": spec.get("pipelineInfo", {}).get("name") or job_id,
            "pipelineSpec": spec,
            "runtimeConfig": {
                "gcsOutputDirectory": f"{self._client.about['bucket']}/runs",
                "parameterValues": dict(parameters),
            },
        }
        made = self._client.ask("POST", self._jobs, job, pipelineJobId=job_id)
        return str(made["name"]).rpartition("/")[2]

    def measured(self, run_id: str) -> dict[str, Measured]:
        """The figures of a job's model on test, with their intervals."""
        for _, artifact in _artifacts(self.job(run_id)):
            if artifact.get("schemaTitle") == _MODEL:
                with suppress(UserError, ValueError, KeyError):
                    content = json.loads(self._client.object(f"{artifact['uri']}/{EVALUATION}"))
                    return measured_in(Evaluation.from_json(content))
        return {name: Measured(value) for name, value in _metrics(self.job(run_id)).items()}

    def curves(self, run_id: str) -> list[Curve]:
        """The curves that the trainings of a job have logged."""
        places = [each["uri"] for name, each in _artifacts(self.job(run_id)) if name.endswith("/checkpoints")]
        found = []
        for place in places:
            for name in self._client.objects(place):
                if name.endswith(f"/{METRICS}"):
                    lines = self._client.object(name).decode("utf-8", "replace").splitlines()
                    found.append(curve_of("", [json.loads(line) for line in lines if line.endswith("}")]))
        return found


def _row(job: Mapping[str, Any]) -> Row:
    return Row(
        EMULATOR,
        str(job["name"]).rpartition("/")[2],
        job.get("pipelineSpec", {}).get("pipelineInfo", {}).get("name") or job.get("displayName", ""),
        _STATES.get(job.get("state", ""), "waiting"),
        job.get("createTime", ""),
        _seconds(job.get("startTime") or job.get("createTime", ""), job.get("endTime", "")),
    )


def _details(job: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tasks of a job by name; the first is the pipeline itself."""
    tasks = job.get("jobDetail", {}).get("taskDetails", [])[1:]
    return {str(task["taskName"]): task for task in tasks}


def _artifacts(job: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The output artifacts of the tasks: `TASK/OUTPUT` and the artifact."""
    return [
        (f"{name}/{output}", artifact)
        for name, task in _details(job).items()
        for output, held in task.get("outputs", {}).items()
        for artifact in held.get("artifacts", [])
        if "uri" in artifact
    ]


def _values(job: Mapping[str, Any]) -> dict[str, Any]:
    """The output parameters of the tasks, as far as the job has them: `TASK/OUTPUT` and the value."""
    return {
        f"{name}/{key.removeprefix(_OUTPUT)}": value
        for name, task in _details(job).items()
        for key, value in task.get("execution", {}).get("metadata", {}).items()
        if key.startswith(_OUTPUT) and key != f"{_OUTPUT}gcp_resources"
    }


def _metrics(job: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that the tasks have logged, as far as the job has them."""
    return {
        name: float(value)
        for _, artifact in _artifacts(job)
        if artifact.get("schemaTitle") == _METRICS
        for name, value in artifact.get("metadata", {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _task(name: str, detail: Mapping[str, Any]) -> Task:
    status = _TASK_STATES.get(detail.get("state", ""), "waiting")
    seconds = _seconds(detail["startTime"], detail.get("endTime", "")) if "startTime" in detail else None
    message = detail.get("error", {}).get("message", "")
    return Task(name, name, status, seconds, message, status not in ("waiting", "not triggered", "reused"))


def _parameters(job: Mapping[str, Any]) -> dict[str, Any]:
    definitions = job.get("pipelineSpec", {}).get("root", {}).get("inputDefinitions", {}).get("parameters", {})
    defaults = {name: each["defaultValue"] for name, each in definitions.items() if "defaultValue" in each}
    values = {**defaults, **job.get("runtimeConfig", {}).get("parameterValues", {})}
    whole = {name for name, each in definitions.items() if each.get("parameterType") == "NUMBER_INTEGER"}
    return {name: as_number(int, value) if name in whole else value for name, value in values.items()}


def _about(job: Mapping[str, Any]) -> dict[str, str]:
    return {
        "started": str(job.get("createTime", "")).partition(".")[0].replace("T", " ").removesuffix("Z") + " UTC",
        "name": str(job["name"]),
        "pipeline root": job.get("runtimeConfig", {}).get("gcsOutputDirectory", ""),
        **({"schedule": job["scheduleName"]} if job.get("scheduleName") else {}),
    }


def _headline(row: Row, begun: list[Task]) -> str:
    if row.status == "running":
        now = ", ".join(task.label for task in begun if task.status == "running")
        return f"Running: {now}." if now else "Running."
    if row.status == "failed":
        failed = next((task.label for task in begun if task.status == "failed"), "")
        return f"{failed} failed." if failed else "It has failed."
    texts = {"succeeded": "It has succeeded.", "cancelled": "It was cancelled.", "waiting": "It waits."}
    return texts.get(row.status, row.status)


def _without_turn(name: str) -> str:
    return _TURN.sub("", name)


def _seconds(start: str, end: str) -> float | None:
    """The time between two moments; the end is now if it is not known."""
    try:
        began = datetime.fromisoformat(start.replace("Z", "+00:00"))
        ended = datetime.fromisoformat(end.replace("Z", "+00:00")) if end else datetime.now(timezone.utc)
    except ValueError:
        return None
    return max(0.0, (ended - began).total_seconds())
