"""Runs pipeline jobs as Vertex AI Pipelines does: each task's container as a process, one after the other.

Pipelines are flat, as this project's are: no loops, conditions or pipelines in pipelines.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vertex_api.mounted_bucket import command_with_bucket
from vertex_api.payload import PipelineRun, container_command, executor_input_of
from vertex_api.replicas import container_variables
from vertex_api.server import VertexApi
from vertex_api.transcoding import as_json

_MOUNT = Path("/gcs")


class PipelineBackend:
    """Runs the pipeline jobs of a server.

    Args:
        api: the server; from now on it runs custom jobs as well.
        rehearse: what the training step runs on in place of GPUs, such as cpu:1.
    """

    def __init__(self, api: VertexApi, rehearse: str) -> None:
        self._api, self._jobs = api, api.state.pipeline_jobs
        self._bucket = api.folder / "gcs"
        self._bucket.mkdir()
        variables = {**api.proxy_environment(), "STORAGE_EMULATOR_HOST": api.url}
        api.state.replicas.run_jobs(rehearse, **variables)
        api.state.replicas.prefix = command_with_bucket(self._bucket)
        # The launcher looks at its job every 20 s; it is answered when there is news.
        api.state.custom_jobs.hold_s = 60.0

    def run(self, name: str) -> None:
        """Runs a pipeline job to its end.

        Args:
            name: its resource name.
        """
        job = as_json(self._jobs.job(name))
        spec, runtime = job["pipelineSpec"], job["runtimeConfig"]
        root, job_id = runtime["gcsOutputDirectory"].rstrip("/"), name.rpartition("/")[2]
        run = PipelineRun(
            root=root,
            files=_MOUNT / root.removeprefix("gs://") / job_id,
            parameters=runtime.get("parameterValues", {}),
            job_id=job_id,
        )
        self._jobs.begin(name)
        done: dict[str, dict[str, Any]] = {}
        tasks = spec["root"]["dag"]["tasks"]
        while left := [task for task in tasks if task not in done]:
            task = next(task for task in left if set(tasks[task].get("dependentTasks", [])) <= set(done))
            done[task] = self._run_task(name, spec, task, run, done)
            if not done[task]:
                self._jobs.end(
                    name, "FAILED", f"The DAG failed because some tasks failed. The failed tasks are: [{task}]."
                )
                return
        self._jobs.end(name, "SUCCEEDED")

    def _run_task(
        self, name: str, spec: Mapping[str, Any], task: str, run: PipelineRun, done: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """Runs a task; gives its outputs, or nothing if it failed."""
        inputs = spec["root"]["dag"]["tasks"][task].get("inputs", {})
        artifacts = {
            key: done[given["taskOutputArtifact"]["producerTask"]][given["taskOutputArtifact"]["outputArtifactKey"]]
            for key, given in inputs.get("artifacts", {}).items()
        }
        values = {
            key: done[given["taskOutputParameter"]["producerTask"]][given["taskOutputParameter"]["outputParameterKey"]]
            for key, given in inputs.get("parameters", {}).items()
            if "taskOutputParameter" in given
        }
        executor_input = executor_input_of(spec, task, run, artifacts, values)
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
        self._jobs.set_task(name, task, "SUCCEEDED", custom_job=custom_job)
        return self._outputs(executor_input)

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
