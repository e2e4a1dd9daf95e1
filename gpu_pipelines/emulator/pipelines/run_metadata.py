"""Writes the metadata of runs like Vertex AI Pipelines: contexts, executions, artifacts and events."""

from __future__ import annotations

import re
from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.emulator.experiments.metadata import DEFAULT_STORE, Metadata
from gpu_pipelines.emulator.transcoding import as_json

_METRICS = re.compile(r"system\.Metrics|google\.\w+Metrics")
_STATES = {"SUCCEEDED": "COMPLETE", "FAILED": "FAILED", "CANCELLED": "CANCELLED", "SKIPPED": "CACHED"}
_PIPELINE, _RUN = "system.Pipeline", "system.PipelineRun"


class PipelineMetadata:
    """Writes the metadata of pipeline jobs.

    Args:
        metadata: the destination.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def begin(self, job: Any) -> None:
        """Creates the contexts of a starting job, and the execution of the whole run; adds them to the job."""
        store, run_id = self._place(job)
        contexts, spec = self._metadata.contexts, as_json(job)
        name = spec["pipelineSpec"]["pipelineInfo"]["name"]
        pipeline = contexts.held.get(f"{store}/contexts/{name}") or contexts.make(
            store, api.Context(display_name=name, schema_title=_PIPELINE, schema_version="0.0.1"), name
        )
        if f"{store}/contexts/{run_id}" in contexts.held:
            # A deleted one had the same name.
            contexts.forget(f"{store}/contexts/{run_id}")
        run = contexts.make(
            store,
            api.Context(
                display_name=run_id,
                schema_title=_RUN,
                schema_version="0.0.1",
                parent_contexts=[pipeline.name],
                metadata={"pipeline_job": job.name},
            ),
            run_id,
        )
        job.job_detail.pipeline_context, job.job_detail.pipeline_run_context = pipeline, run
        given = spec.get("runtimeConfig", {}).get("parameterValues", {})
        metadata = {f"input:{key}": value for key, value in given.items()}
        self._execution(job, run_id, run_id, "system.Run", "RUNNING", metadata)

    def end(self, job: Any, state: str) -> None:
        """Writes the inputs and outputs of a job's tasks, and its state: SUCCEEDED, FAILED or CANCELLED."""
        store, run_id = self._place(job)
        whole = f"{store}/executions/{run_id}"
        if whole not in self._metadata.executions.held:
            # It never began, or an emulator without metadata began it.
            return
        for task in list(job.job_detail.task_details)[1:]:
            reached = _STATES.get(task.state.name)
            if reached is None:
                continue
            metadata = as_json(task.execution).get("metadata", {})
            key = f"{run_id}-{task.task_id}"
            execution = self._execution(job, key, task.task_name, "system.ContainerExecution", reached, metadata)
            for kind, held in (("INPUT", task.inputs), ("OUTPUT", task.outputs)):
                made = [self._artifact(job, each, name) for name, several in held.items() for each in several.artifacts]
                self._metadata.note(execution, [(artifact.name, kind) for artifact in made])
                if kind == "OUTPUT":
                    metrics = [each for each in made if _METRICS.fullmatch(each.schema_title)]
                    self._metadata.note(whole, [(artifact.name, kind) for artifact in metrics])
        self._metadata.executions.change(api.Execution(name=whole, state=_STATES[state]), ["state"])

    def refresh(self, job: Any) -> None:
        """Updates a job's copy of its run's context: experiments may have become its parents."""
        held = self._metadata.contexts.held.get(job.job_detail.pipeline_run_context.name)
        if held is not None:
            job.job_detail.pipeline_run_context = held

    def _place(self, job: Any) -> tuple[str, str]:
        location, _, run_id = job.name.partition("/pipelineJobs/")
        return f"{location}/metadataStores/{DEFAULT_STORE}", run_id

    def _contexts(self, job: Any) -> list[str]:
        return [job.job_detail.pipeline_context.name, job.job_detail.pipeline_run_context.name]

    def _execution(self, job: Any, key: str, shown: str, schema: str, state: str, metadata: dict[str, Any]) -> str:
        store, _ = self._place(job)
        executions = self._metadata.executions
        if f"{store}/executions/{key}" in executions.held:
            executions.forget(f"{store}/executions/{key}")
        node = api.Execution(
            display_name=shown, schema_title=schema, schema_version="0.0.1", state=state, metadata=metadata
        )
        made = executions.make(store, node, key)
        for context in self._contexts(job):
            self._metadata.put_in(context, [made.name])
        return str(made.name)

    def _artifact(self, job: Any, artifact: Any, name: str) -> Any:
        """The artifact of a URI, created if it is not known; metrics may have none, and are new each time."""
        store, _ = self._place(job)
        artifacts = self._metadata.artifacts
        known = [
            each
            for each in list(artifacts.held.values())
            if artifact.uri and (each.uri, each.schema_title) == (artifact.uri, artifact.schema_title)
        ]
        made = (
            known[0]
            if known
            else artifacts.make(
                store,
                api.Artifact(
                    display_name=artifact.display_name or name,
                    uri=artifact.uri,
                    schema_title=artifact.schema_title or "system.Artifact",
                    schema_version="0.0.1",
                    state="LIVE",
                    metadata=as_json(artifact).get("metadata", {}),
                ),
            )
        )
        for context in self._contexts(job):
            self._metadata.put_in(context, [made.name])
        return made
