"""Vertex AI Experiments: a run in Vertex ML Metadata, curves in its TensorBoard, and the lineage of the model.

The resources are those that google-cloud-aiplatform creates and reads (`aiplatform.ExperimentRun`), whose import takes
seconds.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_pipelines.google_cloud.connection import location_of, metadata_service, tensorboard_service
from gpu_pipelines.project_settings import ProjectSettings, load_project_settings
from gpu_pipelines.tracking.tracker import Point, TrackedRun, Tracker, with_types

_EXPERIMENT = "gpu-pipelines"
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
#: Most characters of an id; the service allows more, but the experiment precedes it, and a word follows.
_MOST_CHARACTERS = 48
#: Variables that Vertex AI sets in the containers of jobs.
_OF_THE_JOB = {"project": "CLOUD_ML_PROJECT_ID", "region": "CLOUD_ML_REGION"}
#: Seconds for a request; it is sent again with the next try.
_LIMIT = {"timeout": 20.0}
_VERSION = "0.0.1"
#: The SDK's names for a run's parameters, figures and state, and its link to a TensorBoard.
_PARAMETERS, _FIGURES, _STATE, _TENSORBOARD_RUN = "_params", "_metrics", "_state", "google.VertexTensorboardRun"
_BACKING = "backing_tensorboard_resource"


class VertexTracker(Tracker):
    """A run of a Vertex AI experiment."""

    title = "Vertex AI Experiments"

    @classmethod
    def problems(cls, address: str, place: str, *, is_here: bool) -> list[str]:
        """Problems with the name of an experiment, or a missing project."""
        if address and not _ID.fullmatch(address):
            return [
                f"tracking is vertex:{address[:100]}; the name of an experiment has lower-case letters, digits and "
                "dashes, at most 63. Give vertex:EXPERIMENT, or vertex."
            ]
        if not is_here:
            return []
        settings = _settings()
        if missing := [name for name in _OF_THE_JOB if not getattr(settings, name)]:
            return [f"tracking is vertex, but no {' and no '.join(missing)} is known. Set it in gpu-pipelines.yaml."]
        return []

    def begin(self, run: TrackedRun) -> None:
        """Finds experiment, run and TensorBoard by ids made from the run's; creates what is missing."""
        settings = _settings()
        self._metadata, self._boards = metadata_service(settings), tensorboard_service(settings)
        self._place = location_of(settings)
        self._store = f"{self._place}/metadataStores/default"
        self._experiment = self.address or _EXPERIMENT
        self._run_id = _run_id(run)
        board = self._board()
        parent = self._context(self._experiment, "system.Experiment", {"experiment_deleted": False, _BACKING: board})
        empty = {_PARAMETERS: {}, _FIGURES: {}, _STATE: "RUNNING"}
        self._context_name = self._context(f"{self._experiment}-{self._run_id}", "system.ExperimentRun", empty)
        self._metadata.add_context_children(
            request={"context": parent, "child_contexts": [self._context_name]}, **_LIMIT
        )
        self._link_to(board)
        self._change({_STATE: "RUNNING"})
        self._series: dict[str, str] = {}
        self._last: dict[str, int] = {}
        for series in self._boards.list_tensorboard_time_series(request={"parent": self._board_run}, **_LIMIT):
            self._series[series.display_name] = series.name.rpartition("/")[2]
            if series.metadata.max_wall_time:
                self._last[series.display_name] = series.metadata.max_step

    def last_steps(self) -> dict[str, int]:
        """The last steps of TensorBoard's time series."""
        return dict(self._last)

    def log_points(self, points: Sequence[Point]) -> None:
        """Sends the points of all curves in one request."""
        data: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for point in points:
            seconds, rest = divmod(point.seconds, 1)
            time = {"seconds": int(seconds), "nanos": int(rest * 1e9)}
            data[point.name].append({"wall_time": time, "step": point.step, "scalar": {"value": point.value}})
        sent = [
            {"tensorboard_time_series_id": self._series_of(name), "value_type": "SCALAR", "values": values}
            for name, values in data.items()
        ]
        self._boards.write_tensorboard_run_data(
            request={"tensorboard_run": self._board_run, "time_series_data": sent}, **_LIMIT
        )

    def log_parameters(self, values: Mapping[str, str]) -> None:
        """Sends the run's parameters; links the dataset as its input and the model version as its output."""
        self._change({_PARAMETERS: with_types(values)})
        if fingerprint := values.get("dataset_fingerprint", ""):
            dataset = self._artifact(
                f"dataset-{fingerprint[:40]}", "system.Dataset", values.get("source", ""), {"fingerprint": fingerprint}
            )
            self._add_event(dataset, "INPUT")
        if place := values.get("registered_place", ""):
            name, version = values.get("registered_model", ""), values.get("registered_version", "")
            checkpoint = {"checkpoint": values.get("best_checkpoint", ""), "version": version, "place": place}
            digest = hashlib.sha256(f"{place}@{version}".encode()).hexdigest()[:16]
            self._add_event(self._artifact(f"model-{digest}", "system.Model", place, checkpoint, name), "OUTPUT")

    def log_figures(self, values: Mapping[str, float]) -> None:
        """Sends the run's metrics."""
        self._change({_FIGURES: dict(values)})

    def end(self, succeeded: bool) -> None:
        """Sets the state of the run."""
        self._change({_STATE: "COMPLETE" if succeeded else "FAILED"})

    def _board(self) -> str:
        """The default TensorBoard of the project, created if there is none, as the SDK does."""
        boards = list(self._boards.list_tensorboards(request={"parent": self._place}, **_LIMIT))
        if default := next((board for board in boards if board.is_default), None):
            return str(default.name)
        made = {"display_name": "Default Tensorboard", "is_default": True}
        done = self._boards.create_tensorboard(request={"parent": self._place, "tensorboard": made}, **_LIMIT)
        return str(done.result(timeout=60).name)

    def _link_to(self, board: str) -> None:
        """Creates the run in TensorBoard, and the artifact through which the SDK and the console find it."""
        experiment = _made(
            lambda: self._boards.create_tensorboard_experiment(
                request={
                    "parent": board,
                    "tensorboard_experiment_id": self._experiment,
                    "tensorboard_experiment": {
                        "display_name": self._experiment,
                        "labels": {"vertex_tensorboard_experiment_source": "vertex_experiment"},
                    },
                },
                **_LIMIT,
            ),
            f"{board}/experiments/{self._experiment}",
        )
        self._board_run = _made(
            lambda: self._boards.create_tensorboard_run(
                request={
                    "parent": experiment,
                    "tensorboard_run_id": self._run_id,
                    "tensorboard_run": {"display_name": self._run_id},
                },
                **_LIMIT,
            ),
            f"{experiment}/runs/{self._run_id}",
        )
        region = self._place.rpartition("/")[2]
        told = {"resourceName": self._board_run, "vertex_experiment_tracking": True}
        uri = f"https://{region}-aiplatform.googleapis.com/v1/{self._board_run}"
        name = self._artifact(f"{self._experiment}-{self._run_id}-tb-run", _TENSORBOARD_RUN, uri, told)
        self._add_to_run(artifacts=[name])

    def _series_of(self, name: str) -> str:
        if name not in self._series:
            made = self._boards.create_tensorboard_time_series(
                request={
                    "parent": self._board_run,
                    "tensorboard_time_series": {"display_name": name, "value_type": "SCALAR"},
                },
                **_LIMIT,
            )
            self._series[name] = made.name.rpartition("/")[2]
        return self._series[name]

    def _context(self, key: str, schema: str, metadata: Mapping[str, Any]) -> str:
        context = {"display_name": key, "schema_title": schema, "schema_version": _VERSION, "metadata": metadata}
        if schema == "system.ExperimentRun":
            context["display_name"] = self._run_id
        return _made(
            lambda: self._metadata.create_context(
                request={"parent": self._store, "context_id": key, "context": context}, **_LIMIT
            ),
            f"{self._store}/contexts/{key}",
        )

    def _change(self, changes: Mapping[str, Any]) -> None:
        """Adds to the metadata of the run, which the service replaces as a whole."""
        context = self._metadata.get_context(request={"name": self._context_name}, **_LIMIT)
        held: dict[str, Any] = dict(context.metadata)
        for name, value in changes.items():
            held[name] = value if isinstance(value, str) else {**dict(held.get(name) or {}), **value}
        held = {name: value if isinstance(value, str) else dict(value) for name, value in held.items()}
        changed = {"name": self._context_name, "metadata": held, "etag": context.etag}
        self._metadata.update_context(request={"context": changed, "update_mask": "metadata"}, **_LIMIT)

    def _artifact(self, key: str, schema: str, uri: str, metadata: Mapping[str, Any], title: str = "") -> str:
        artifact = {
            "display_name": title or key,
            "schema_title": schema,
            "schema_version": _VERSION,
            "uri": uri,
            "metadata": metadata,
        }
        return _made(
            lambda: self._metadata.create_artifact(
                request={"parent": self._store, "artifact_id": key, "artifact": artifact}, **_LIMIT
            ),
            f"{self._store}/artifacts/{key}",
        )

    def _add_event(self, artifact: str, kind: str) -> None:
        """Records an artifact as an input or output of the run."""
        key = f"{self._experiment}-{self._run_id}-run"
        execution = _made(
            lambda: self._metadata.create_execution(
                request={
                    "parent": self._store,
                    "execution_id": key,
                    "execution": {
                        "display_name": self._run_id,
                        "schema_title": "system.Run",
                        "schema_version": _VERSION,
                    },
                },
                **_LIMIT,
            ),
            f"{self._store}/executions/{key}",
        )
        event = {"artifact": artifact, "type_": kind}
        self._metadata.add_execution_events(request={"execution": execution, "events": [event]}, **_LIMIT)
        self._add_to_run(artifacts=[artifact], executions=[execution])

    def _add_to_run(self, **members: list[str]) -> None:
        self._metadata.add_context_artifacts_and_executions(
            request={"context": self._context_name, **members}, **_LIMIT
        )


def _made(make: Callable[[], Any], name: str) -> str:
    """The name of a resource, which is created unless it exists."""
    try:
        return str(make().name)
    except Exception as error:
        if getattr(error, "code", None) == 409:
            return name
        raise


def _run_id(run: TrackedRun) -> str:
    """A valid id for the run; two runs with one name have different ids."""
    name = re.sub(r"[^a-z0-9]+", "-", run.name.lower()).strip("-")[:_MOST_CHARACTERS].strip("-") or "run"
    return f"{name}-{hashlib.sha256(run.key.encode()).hexdigest()[:8]}"


def _settings() -> ProjectSettings:
    """Project and region: those of the job that runs this, else those of the settings."""
    project, region = (os.environ.get(variable) for variable in _OF_THE_JOB.values())
    if project and region:
        return ProjectSettings(project=project, region=region)  # the project is a number there, not an id
    return load_project_settings()
