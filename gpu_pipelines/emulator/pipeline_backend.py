"""Runs pipeline jobs as Vertex AI Pipelines does: each task's container as a process, one after the other.

Branches and exit handlers are carried out, loops are not. An e-mail is not sent but noted.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.emulator.mounted_bucket import command_with_bucket
from gpu_pipelines.emulator.payload import (
    PipelineRun,
    as_stored,
    container_command,
    executor_input_of,
    image_of,
    tasks_of,
)
from gpu_pipelines.emulator.replicas import container_variables
from gpu_pipelines.emulator.transcoding import as_json
from gpu_pipelines.emulator.vertex_api import VertexApi

_MOUNT = Path("/gcs")
_WHATEVER_HAPPENED = "ALL_UPSTREAM_TASKS_COMPLETED"
_CONDITION = re.compile(r"inputs\.parameter_values\['([^']+)'\] == (true|false)")
_MAIL = "google_cloud_pipeline_components.container.v1.vertex_notification_email.executor"
Spec = Mapping[str, Any]


class PipelineBackend:
    """Runs the pipeline jobs of a server.

    Args:
        api: the server; from now on it runs custom jobs as well.
        rehearse: what the training step runs on in place of GPUs, such as cpu:1.

    Attributes:
        mails: recipients and final state of each e-mail that the service would have sent.
        images: the image of each task that was run.
        broken: tasks whose next attempts end with an error of the service, and how many.
    """

    def __init__(self, api: VertexApi, rehearse: str) -> None:
        self._api, self._jobs = api, api.state.pipeline_jobs
        self._bucket = api.folder / "gcs"
        self._bucket.mkdir(exist_ok=True)
        self.mails: list[tuple[list[str], str]] = []
        self.images: dict[str, str] = {}
        self.broken: dict[str, int] = {}
        self._kept: dict[str, dict[str, Any]] = {}
        variables = {**api.proxy_environment(), "STORAGE_EMULATOR_HOST": api.url}
        api.state.replicas.run_jobs(rehearse, **variables)
        api.state.replicas.prefix = command_with_bucket(self._bucket)
        # The launcher looks at its job every 20 s over gRPC; it is answered when there is news.
        api.state.custom_jobs.hold_s = 60.0

    def run_jobs(self) -> None:
        """From now on, pipeline jobs that are created are run, each in a thread."""
        self._jobs.start = lambda name: threading.Thread(target=self.run, args=(name,), daemon=True).start()

    def close(self) -> None:
        """Ends what runs."""

    def run(self, name: str) -> None:
        """Runs a pipeline job to its end.

        Args:
            name: its resource name.
        """
        job = as_json(self._jobs.one(name))
        spec, runtime = job["pipelineSpec"], job["runtimeConfig"]
        root, job_id = runtime["gcsOutputDirectory"].rstrip("/"), name.rpartition("/")[2]
        run = PipelineRun(
            root=root,
            files=_MOUNT / root.removeprefix("gs://") / job_id,
            parameters=runtime.get("parameterValues", {}),
            encryption_key=job.get("encryptionSpec", {}).get("kmsKeyName", ""),
            job_id=job_id,
        )
        self._jobs.begin(name)
        definitions = spec["root"].get("inputDefinitions", {}).get("parameters", {})
        values = {
            key: as_stored(run.parameters.get(key, definition.get("defaultValue")), definition)
            for key, definition in definitions.items()
        }
        failed = self._run_part(name, spec, spec["root"]["dag"]["tasks"], run, values)
        if failed:
            message = f"The DAG failed because some tasks failed. The failed tasks are: [{', '.join(failed)}]."
            self._jobs.end(name, "FAILED", message)
        else:
            self._jobs.end(name, "SUCCEEDED")

    def _run_part(
        self, name: str, spec: Spec, tasks: Mapping[str, Any], run: PipelineRun, values: Mapping[str, Any]
    ) -> list[str]:
        """Runs the tasks of a pipeline, or of a part of one; gives those that have failed.

        Args:
            name: resource name of the pipeline job.
            spec: the pipeline.
            tasks: those of the part.
            run: what placeholders stand for.
            values: of the part's input parameters.
        """
        done: dict[str, dict[str, Any]] = {}
        failed: list[str] = []
        while left := [task for task in tasks if task not in done]:
            task = next(task for task in left if set(tasks[task].get("dependentTasks", [])) <= set(done))
            policy, done[task] = tasks[task].get("triggerPolicy", {}), {}
            given = self._given(tasks[task], values, done, failed)
            component = spec["components"][tasks[task]["componentRef"]["name"]]
            if failed and policy.get("strategy") != _WHATEVER_HAPPENED:
                continue
            if not _holds(policy.get("condition", ""), given):
                self._jobs.set_task(name, task, "SKIPPED")
            elif "dag" in component:
                self._jobs.set_task(name, task, "RUNNING")
                below = self._run_part(name, spec, component["dag"]["tasks"], run, given)
                self._jobs.set_task(name, task, "FAILED" if below else "SUCCEEDED")
                failed += below
            elif _is_mail(spec, component):
                self.mails.append((given["recipients"], given["pipeline_task_final_status"]["state"]))
                self._jobs.set_task(name, task, "SUCCEEDED")
            else:
                done[task] = self._run_task(name, spec, task, run, done, given)
                failed += [] if done[task] else [task]
        return failed

    @staticmethod
    def _given(
        task: Mapping[str, Any], values: Mapping[str, Any], done: Mapping[str, Any], failed: list[str]
    ) -> dict[str, Any]:
        """The input parameters of a task that come from elsewhere."""
        found: dict[str, Any] = {}
        for key, given in task.get("inputs", {}).get("parameters", {}).items():
            if "componentInputParameter" in given:
                found[key] = values[given["componentInputParameter"]]
            elif "taskOutputParameter" in given:
                # There are none of a task that was not run because one before it has failed.
                output = given["taskOutputParameter"]
                found[key] = done[output["producerTask"]].get(output["outputParameterKey"])
            elif "taskFinalStatus" in given:
                found[key] = {"state": "FAILED" if failed else "SUCCEEDED"}
        return found

    def _run_task(
        self,
        name: str,
        spec: Spec,
        task: str,
        run: PipelineRun,
        done: Mapping[str, dict[str, Any]],
        values: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Runs a task; gives its outputs, or nothing if it failed."""
        artifacts = {
            key: done[given["taskOutputArtifact"]["producerTask"]][given["taskOutputArtifact"]["outputArtifactKey"]]
            for key, given in tasks_of(spec)[task].get("inputs", {}).get("artifacts", {}).items()
        }
        executor_input = executor_input_of(spec, task, run, artifacts, values)
        self.images[task] = image_of(spec, task, run)
        key = self._key(spec, task, executor_input)
        if tasks_of(spec)[task].get("cachingOptions", {}).get("enableCache") and key in self._kept:
            self._jobs.set_task(name, task, "SKIPPED")
            return self._kept[key]
        for _ in range(1 + int(tasks_of(spec)[task].get("retryPolicy", {}).get("maxRetryCount", 0))):
            if outputs := self._attempt(name, spec, task, run, executor_input):
                self._kept[key] = outputs
                return outputs
        return {}

    def _key(self, spec: Spec, task: str, executor_input: Mapping[str, Any]) -> str:
        """What a result is found again by: what the task runs, and the values of its inputs."""
        component = spec["components"][tasks_of(spec)[task]["componentRef"]["name"]]
        executor = spec["deploymentSpec"]["executors"][component["executorLabel"]]
        return json.dumps([executor, executor_input["inputs"]], sort_keys=True)

    def _attempt(
        self, name: str, spec: Spec, task: str, run: PipelineRun, executor_input: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Runs a task's container once; gives its outputs, or nothing if it failed."""
        if self.broken.get(task, 0) > 0:
            self.broken[task] -= 1
            self._jobs.set_task(name, task, "FAILED", "Internal error occurred for the current attempt.")
            return {}
        shutil.rmtree(self._here(run.files / task), ignore_errors=True)
        self._here(run.files / task).mkdir(parents=True)
        self._jobs.set_task(name, task, "RUNNING")
        process = subprocess.run(
            [*command_with_bucket(self._bucket), *container_command(spec, task, run, executor_input)],
            env=self._environment(run),
            cwd=self._api.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self._jobs.say(name, task, process.stdout.splitlines())
        resources = self._here(run.files / task / "gcp_resources")
        custom_job = ""
        if resources.exists():
            uri = json.loads(resources.read_text())["resources"][0]["resourceUri"]
            custom_job = re.sub(r"https://[^/]+/v1/", "", uri)
        if process.returncode:
            message = f"The replica workerpool0-0 exited with a non-zero status of {process.returncode}."
            self._jobs.set_task(name, task, "FAILED", message, custom_job)
            return {}
        outputs = self._outputs(executor_input)
        made = {key: outputs[key] for key in executor_input["outputs"]["artifacts"]}
        self._jobs.set_outputs(name, task, made)
        self._jobs.set_task(name, task, "SUCCEEDED", custom_job=custom_job)
        return outputs

    def _outputs(self, executor_input: Mapping[str, Any]) -> dict[str, Any]:
        """Artifacts and parameters of a task that succeeded, by name."""
        written = json.loads(self._here(Path(executor_input["outputs"]["outputFile"])).read_text())
        found = {key: held["artifacts"][0] for key, held in executor_input["outputs"]["artifacts"].items()}
        for key, held in written.get("artifacts", {}).items():
            found[key] = {**found[key], **held["artifacts"][0]}
        return {**found, **written.get("parameterValues", {})}

    def _environment(self, run: PipelineRun) -> dict[str, str]:
        number = self._api.state.names.projects[run.project]
        return {
            **container_variables(),
            **self._api.state.replicas.environment,
            "CLOUD_ML_PROJECT_ID": number,
            "CLOUD_ML_REGION": run.location,
        }

    def _here(self, path: Path) -> Path:
        """A path under `/gcs` as this machine has it."""
        return self._bucket / path.relative_to(_MOUNT)


def _holds(condition: str, values: Mapping[str, Any]) -> bool:
    """Whether a task's condition, in the one form of CEL that KFP writes for a truth, is met."""
    if not condition:
        return True
    match = _CONDITION.fullmatch(condition)
    assert match, condition
    return bool(values[match[1]]) is (match[2] == "true")


def _is_mail(spec: Spec, component: Mapping[str, Any]) -> bool:
    """The service runs the component for e-mails itself; its container does nothing but fail."""
    container = spec["deploymentSpec"]["executors"][component["executorLabel"]].get("container", {})
    return _MAIL in container.get("command", [])
