"""Runs pipeline jobs like Vertex AI Pipelines: each task's container as a process of this machine.

Images are ignored; an e-mail is not sent but recorded; results for the same inputs are reused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from gpu_pipelines.emulator.api_error import answer_to
from gpu_pipelines.emulator.jobs.preemption import stockout
from gpu_pipelines.emulator.jobs.replicas import container_variables
from gpu_pipelines.emulator.pipelines.payload import (
    PipelineRun,
    as_stored,
    executor_input_with,
    read_parameter,
    resolved_texts,
)
from gpu_pipelines.emulator.pipelines.support import check_supported
from gpu_pipelines.emulator.running.pipeline_run import (
    AT_A_TIME,
    CANCELLED,
    FAILED,
    SKIPPED,
    SUCCEEDED,
    Ended,
    JobRun,
    Spec,
    Task,
    Values,
    failure_message,
    parameters_with_defaults,
)
from gpu_pipelines.emulator.running.step_environments import StepEnvironments
from gpu_pipelines.emulator.storage.mounted_bucket import command_with_bucket, require_mounts
from gpu_pipelines.emulator.transcoding import as_json
from gpu_pipelines.emulator.vertex_api import VertexApi
from gpu_pipelines.numbers import finite_json
from gpu_pipelines.step_environment import MOUNTED, SECONDS_AFTER_STEP

_MAIL = "google_cloud_pipeline_components.container.v1.vertex_notification_email.executor"
_CACHE = "cache"
#: Seconds for the steps to end when the emulator does.
_SECONDS_TO_END = 5.0
_PARAMETER = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")


class PipelineBackend:
    """Runs the pipeline jobs of a server.

    Args:
        api: the server, which from now on also runs custom jobs.
        rehearse: the devices of the training step in place of GPUs, such as cpu:1.

    Raises:
        UserError: this machine does not allow a process to see a bucket under /gcs.

    Attributes:
        mails: recipients and final state of each e-mail that the service would have sent.
        images: the image of each task that was run.
        broken: tasks whose next attempts end with an error of the service, and how many attempts.
    """

    def __init__(self, api: VertexApi, rehearse: str) -> None:
        require_mounts()
        self._api, self._jobs = api, api.state.pipeline_jobs
        self._bucket = api.folder / "gcs"
        self.mails: list[tuple[list[str], str]] = []
        self.images: dict[str, str] = {}
        self.broken: dict[str, int] = {}
        self._kept = {path.stem: document for path, document in api.kept.documents(_CACHE)}
        self._processes: dict[str, list[subprocess.Popen[str]]] = {}
        self._places = threading.Semaphore(AT_A_TIME)
        self._stopped: set[str] = set()
        self._pythons = StepEnvironments(api.folder / "environments")
        self._processes_lock = threading.Lock()
        variables = {**api.proxy_environment(), **api.gcloud_of_steps(), "STORAGE_EMULATOR_HOST": api.url}
        api.state.replicas.run_jobs(rehearse, **variables)
        api.state.replicas.prefix = command_with_bucket(self._bucket)
        # GCPC's launchers poll their jobs every 20 s over gRPC; the answers are held back until there is news.
        for jobs in (api.state.custom_jobs, api.state.tuning_jobs, api.state.batch_prediction_jobs):
            jobs.hold_s = 60.0

    def run_jobs(self) -> None:
        """Makes new pipeline jobs run, each in a thread; those that cannot be run are refused."""
        self._jobs.check = check_supported
        self._jobs.start = lambda name: threading.Thread(target=self.run, args=(name,), daemon=True).start()
        self._jobs.stop = self._stop

    def close(self) -> None:
        """Ends what runs."""
        for name in list(self._processes):
            self._stop(name)
        # GCPC's launcher polls its job until that has ended, and would wait for a server that is gone.
        until = time.monotonic() + _SECONDS_TO_END
        for process in [each for several in self._processes.values() for each in several if each.poll() is None]:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for left in self._api.folder.glob("root-*"):
            with suppress(OSError):
                left.rmdir()

    def run(self, name: str) -> None:
        """Runs a pipeline job to its end.

        Args:
            name: the job's resource name.
        """
        job = as_json(self._jobs.one(name))
        spec, runtime = job["pipelineSpec"], job["runtimeConfig"]
        root, job_id = runtime["gcsOutputDirectory"].rstrip("/"), name.rpartition("/")[2]
        given = runtime.get("parameterValues", {})
        run = PipelineRun(
            root=root,
            files=Path(MOUNTED, root.removeprefix("gs://"), job_id),
            parameters=given,
            encryption_key=job.get("encryptionSpec", {}).get("kmsKeyName", ""),
            job_id=job_id,
            location=name.split("/")[3],
            created=job.get("createTime", ""),
        )
        definitions = spec["root"].get("inputDefinitions", {}).get("parameters", {})
        job_run = JobRun(
            spec,
            run,
            runtime.get("failurePolicy", ""),
            partial(self._in_its_place, name, spec, run),
            lambda task, state: self._jobs.set_task(name, task, state),
            lambda task, made: self._jobs.set_outputs(name, task, made.parameters, made.artifacts),
            lambda: name in self._stopped,
        )
        try:
            self._jobs.begin(name)
            values = parameters_with_defaults(spec, given).items()
            ended = job_run.whole({key: as_stored(value, definitions[key]) for key, value in values})
        except Exception as error:
            # Whatever the error is, the job has to end, and to report it.
            ended = Ended(FAILED, error=answer_to(error).message)
        if name in self._stopped:
            return
        if ended.state == FAILED:
            self._jobs.end(name, "FAILED", failure_message(job_run.failed) if job_run.failed else ended.error)
        else:
            self._jobs.set_outputs(name, "", ended.made.parameters, ended.made.artifacts)
            self._jobs.end(name, "SUCCEEDED")

    def _stop(self, name: str) -> None:
        with self._processes_lock:
            self._stopped.add(name)
            for process in self._processes.get(name, []):
                if process.poll() is None:
                    # This makes GCPC's launcher cancel its custom job.
                    process.send_signal(signal.SIGTERM)

    def _in_its_place(self, name: str, spec: Spec, run: PipelineRun, task: Task) -> Ended:
        """Runs a task once this machine has room for it."""
        with self._places:
            if name in self._stopped:
                self._jobs.set_task(name, task.name, CANCELLED)
                return Ended(CANCELLED)
            return self._carry_out(name, spec, run, task)

    def _carry_out(self, name: str, spec: Spec, run: PipelineRun, task: Task) -> Ended:
        """Runs a single task; reports its state."""
        executor = spec["deploymentSpec"]["executors"][task.component["executorLabel"]]
        if "importer" in executor:
            return self._import(name, executor["importer"], run, task)
        if _MAIL in executor["container"].get("command", []):
            # The service runs this component itself; its container only fails.
            given = task.given.parameters
            self.mails.append((given["recipients"], given["pipeline_task_final_status"]["state"]))
            self._jobs.set_task(name, task.name, SUCCEEDED)
            return Ended(SUCCEEDED)
        if missing := _missing(task):
            return self._failed(name, task, f"The input artifact {missing} of {task.name} was not made.")
        executor_input = executor_input_with(
            task.component, task.name, run, task.given.parameters, task.given.artifacts
        )
        inputs = executor_input["inputs"]
        held = {key: each["artifacts"] for key, each in inputs["artifacts"].items()}
        self._jobs.set_inputs(name, task.name, inputs["parameterValues"], held)
        self.images[task.name] = _given_to(task, executor["container"]["image"])
        key = _key(executor, task.component, executor_input)
        if task.placed.get("cachingOptions", {}).get("enableCache") and key in self._kept:
            found = Values(self._kept[key]["parameters"], self._kept[key]["artifacts"])
            self._jobs.set_outputs(name, task.name, found.parameters, found.artifacts)
            self._jobs.set_task(name, task.name, SKIPPED)
            return Ended(SKIPPED, found)
        shutil.rmtree(self._here(run.files / task.name), ignore_errors=True)
        ended = Ended(FAILED)
        for _ in range(1 + int(task.placed.get("retryPolicy", {}).get("maxRetryCount", 0))):
            ended = self._attempt(name, executor["container"], task, run, executor_input)
            if ended.state == SUCCEEDED:
                self._kept[key] = {"parameters": ended.made.parameters, "artifacts": ended.made.artifacts}
                self._api.kept.write(_CACHE, key, self._kept[key])
            if ended.state == SUCCEEDED or name in self._stopped:
                break
        return ended

    def _import(self, name: str, importer: Mapping[str, Any], run: PipelineRun, task: Task) -> Ended:
        """An existing artifact, by its URI."""
        values = {"inputs": {"parameterValues": task.given.parameters, "artifacts": {}}, "outputs": {}}
        source = importer["artifactUri"]
        uri = task.given.parameters[source["runtimeParameter"]] if "runtimeParameter" in source else source["constant"]
        text = json.dumps(importer.get("metadata", {}))
        (metadata,) = resolved_texts([text], task.component, task.name, run, values)
        made = {
            "name": "artifact",
            "uri": uri,
            "type": importer.get("typeSchema", {}),
            "metadata": json.loads(metadata),
        }
        self._jobs.set_outputs(name, task.name, {}, {"artifact": [made]})
        self._jobs.set_task(name, task.name, SUCCEEDED)
        return Ended(SUCCEEDED, Values(artifacts={"artifact": [made]}))

    def _attempt(
        self, name: str, container: Mapping[str, Any], task: Task, run: PipelineRun, executor_input: Mapping[str, Any]
    ) -> Ended:
        """Runs a task's container once."""
        if self.broken.get(task.name, 0) > 0:
            self.broken[task.name] -= 1
            return self._failed(name, task, "Internal error occurred for the current attempt.")
        here = self._here(run.files / task.name)
        here.mkdir(parents=True, exist_ok=True)
        # The output of a failed attempt is there for the next one, because its place in the bucket is the same.
        for left in (here / "gcp_resources", here / Path(executor_input["outputs"]["outputFile"]).name):
            left.unlink(missing_ok=True)
        for each in executor_input["outputs"]["artifacts"].values():
            if (uri := each["artifacts"][0]["uri"]).startswith("gs://"):
                (self._bucket / uri.removeprefix("gs://")).parent.mkdir(parents=True, exist_ok=True)
        capacity, place = self._api.state.replicas.capacity, f"{name} {task.name}"
        if not capacity.take(place, run.location, _accelerators_of(container, task)):
            return self._failed(name, task, stockout(run.location))
        try:
            self._jobs.set_task(name, task.name, "RUNNING")
            code = self._process(name, container, task, run, executor_input)
        finally:
            capacity.free(place)
        custom_job = _custom_job_in(here / "gcp_resources")
        if code:
            error = f"The replica workerpool0-0 exited with a non-zero status of {code}."
            return self._failed(name, task, error, custom_job, CANCELLED if name in self._stopped else FAILED)
        try:
            made = self._outputs(task.component, executor_input)
        except ValueError as wrong:
            return self._failed(name, task, str(wrong), custom_job)
        self._jobs.set_outputs(name, task.name, made.parameters, made.artifacts)
        self._jobs.set_task(name, task.name, SUCCEEDED, custom_job=custom_job)
        return Ended(SUCCEEDED, made)

    def _failed(self, name: str, task: Task, error: str, custom_job: str = "", state: str = FAILED) -> Ended:
        self._jobs.set_task(name, task.name, state, error, custom_job)
        return Ended(FAILED, error=error)

    def _process(
        self, name: str, container: Mapping[str, Any], task: Task, run: PipelineRun, executor_input: Mapping[str, Any]
    ) -> int:
        """Runs the command of a container to its end, with its lines in the log; returns its exit status."""

        def resolved(texts: list[str]) -> list[str]:
            return resolved_texts(texts, task.component, task.name, run, executor_input)

        command = resolved([*container.get("command", []), *container.get("args", [])])
        own = {each["name"]: resolved([each.get("value", "")])[0] for each in container.get("env", [])}
        environment = {**self._environment(name, run), **own}
        if not any("pip install" in part for part in command):
            return self._ended(name, task, command, environment)
        with self._pythons.lent(command) as python:
            environment["PATH"] = f"{python / 'bin'}:{environment['PATH']}"
            environment.setdefault("PYTHONPATH", str(python / "for-inner"))
            return self._ended(name, task, command, environment)

    def _ended(self, name: str, task: Task, command: list[str], environment: dict[str, str]) -> int:
        """The exit status of a process, whose lines go to the log."""
        process = subprocess.Popen(
            [*command_with_bucket(self._bucket), *command],
            env=environment,
            cwd=self._api.folder / "work",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        with self._processes_lock:
            self._processes.setdefault(name, []).append(process)
            if name in self._stopped:
                process.send_signal(signal.SIGTERM)
        threading.Thread(target=_end_what_it_leaves, args=(process,), daemon=True).start()
        for line in process.stdout or ():
            self._jobs.say(name, task.name, [line.rstrip("\n")])
        return process.wait()

    def _outputs(self, component: Mapping[str, Any], executor_input: Mapping[str, Any]) -> Values:
        """Artifacts and parameters of a successful task."""
        outputs = executor_input["outputs"]
        file = self._here(Path(outputs["outputFile"]))
        written = finite_json(file.read_text()) if file.exists() else {}
        made = Values(artifacts={key: [held["artifacts"][0]] for key, held in outputs["artifacts"].items()})
        for key, held in written.get("artifacts", {}).items():
            first = made.artifacts.get(key, [{}])[0]
            made.artifacts[key] = [{**first, **each} for each in held["artifacts"]]
        for key, definition in component.get("outputDefinitions", {}).get("parameters", {}).items():
            if key in written.get("parameterValues", {}):
                made.parameters[key] = written["parameterValues"][key]
            elif (text := self._here(Path(outputs["parameters"][key]["outputFile"]))).exists():
                made.parameters[key] = read_parameter(key, definition["parameterType"], text.read_text())
        return made

    def _environment(self, name: str, run: PipelineRun) -> dict[str, str]:
        number = self._api.state.names.projects[run.project]
        account = self._jobs.one(name).service_account or f"{number}-compute@developer.gserviceaccount.com"
        return {
            **container_variables(),
            **self._api.state.replicas.environment,
            **self._api.identity(account),
            "CLOUD_ML_PROJECT_ID": number,
            "CLOUD_ML_REGION": run.location,
            # GCPC's launchers put them on their jobs.
            "VERTEX_AI_PIPELINES_RUN_LABELS": json.dumps(dict(self._jobs.one(name).labels)),
        }

    def _here(self, path: Path) -> Path:
        """The path on this machine of a path under `/gcs`."""
        return self._bucket / path.relative_to(MOUNTED)


def _end_what_it_leaves(process: subprocess.Popen[str]) -> None:
    """Ends what a step leaves behind, as the end of its container does; it may keep the step's output open."""
    if process.wait() >= 0:  # else it was told to end, and what it has started may take a while for that
        time.sleep(SECONDS_AFTER_STEP)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _missing(task: Task) -> str:
    """An artifact that a task needs but no earlier task has made; empty if there is none."""
    wanted = task.component.get("inputDefinitions", {}).get("artifacts", {})
    return next(
        (key for key, each in wanted.items() if not each.get("isOptional") and key not in task.given.artifacts), ""
    )


def _key(executor: Mapping[str, Any], component: Mapping[str, Any], executor_input: Mapping[str, Any]) -> str:
    """The cache key of a result: the task's command, the values of its inputs, and its outputs."""
    made = [executor, executor_input["inputs"], component.get("outputDefinitions", {})]
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()


def _accelerators_of(container: Mapping[str, Any], task: Task) -> dict[str, int]:
    """The accelerators of a step's machine, by type and number; either may be a parameter of the task."""
    asked = container.get("resources", {}).get("accelerator", {})
    kind, number = asked.get("resourceType", asked.get("type", "")), asked.get("resourceCount", asked.get("count", 0))
    return {_given_to(task, str(kind)): int(float(_given_to(task, str(number))))} if kind else {}


def _given_to(task: Task, text: str) -> str:
    """A text of a container, such as its image; a parameter of the task may be in its place that its component does
    not have.
    """
    match = _PARAMETER.fullmatch(text)
    return str(task.given.parameters[match[1]]) if match else text


def _custom_job_in(file: Path) -> str:
    """Name of the custom job that a launcher has written to a file; empty if there is none."""
    if not file.exists():
        return ""
    uri = json.loads(file.read_text())["resources"][0]["resourceUri"]
    return re.sub(r"https://[^/]+/v1/", "", uri)
