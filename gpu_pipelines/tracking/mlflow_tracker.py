"""MLflow: a server at an address, or a SQLite file beside the runs on this machine."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.mlflow_server import QUIET, TRACKED_RUN_TAG, mlflow_name
from gpu_pipelines.step_environment import TRACKED_RUN
from gpu_pipelines.tracking.tracker import Point, TrackedRun, Tracker

#: Variables that MLflow's own client reads, and that Kubeflow Pipelines' plugin sets on the steps.
_URI, _RUN, _EXPERIMENT, _EXPERIMENT_ID = (
    "MLFLOW_TRACKING_URI",
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_EXPERIMENT_ID",
)
#: A request must not hang: the client's defaults are 120 s and seven tries.
_CLIENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", **QUIET}
_DEFAULT_EXPERIMENT = "gpu-pipelines"
_PARENT = "mlflow.parentRunId"
_FORM = re.compile(r"(https?|sqlite|databricks|postgresql|mysql)(\+\w+)?://\S*|databricks")
#: Most parameters in one request.
_MOST_PARAMETERS = 100


class MlflowTracker(Tracker):
    """A run of MLflow, found again by a tag."""

    title, package, extra = "MLflow", "mlflow", "mlflow"

    @classmethod
    def problems(cls, address: str, place: str, *, is_here: bool) -> list[str]:
        """Problems with an address, or with a missing one if the run is not on this machine."""
        form = "mlflow:https://HOST, the address of an MLflow server"
        if address and not _FORM.fullmatch(address):
            return [f"tracking is mlflow:{address[:100]}, which is not an address of MLflow. Give {form}."]
        if address.startswith("sqlite:") and place not in ("", "local"):
            return [f"tracking is mlflow:{address[:100]}, a file that would be lost with its machine. Give {form}."]
        if address or place == "local" or (is_here and os.environ.get(_URI)):
            return []
        if place == "kubeflow" and not is_here:
            return []  # the plugin of Kubeflow Pipelines sets it in the cluster; the first step checks
        return [
            f"tracking is mlflow, but the address of the server is not known. Give {form}, or set {_URI} in the steps."
        ]

    def begin(self, run: TrackedRun) -> None:
        """Connects, and finds the run by its tag; in Kubeflow Pipelines it is the run of the pipeline."""
        for name, value in _CLIENT.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        uri, folder = self._place()
        self._client: Any = MlflowClient(uri)
        self._id = self._of_kubeflow() or self._found(run, folder)
        self._client.update_run(self._id, status="RUNNING")
        held = self._client.get_run(self._id).data
        self._figures: dict[str, float] = dict(held.metrics)
        self._last = {metric.key: metric.step for metric in held._metric_objs}

    def _place(self) -> tuple[str, Path | None]:
        if self.address or os.environ.get(_URI):
            return self.address or os.environ[_URI], None
        beside = Path(os.environ[TRACKED_RUN]).parent.parent
        return f"sqlite:///{beside / 'mlflow.db'}", beside / "mlflow-artifacts"

    def _of_kubeflow(self) -> str:
        """The run of the pipeline, the parent of the step's run; empty if Kubeflow Pipelines has none."""
        if not (step := os.environ.get(_RUN, "")):
            return ""
        return str(self._client.get_run(step).data.tags.get(_PARENT, step))

    def _found(self, run: TrackedRun, folder: Path | None) -> str:
        experiment = os.environ.get(_EXPERIMENT_ID) or self._experiment(folder)
        key = run.key.replace("'", "")
        found = self._client.search_runs([experiment], f"tags.`{TRACKED_RUN_TAG}` = '{key}'", max_results=1)
        if found:
            return str(found[0].info.run_id)
        return str(self._client.create_run(experiment, tags={TRACKED_RUN_TAG: key}, run_name=run.name).info.run_id)

    def _experiment(self, folder: Path | None) -> str:
        name = os.environ.get(_EXPERIMENT, _DEFAULT_EXPERIMENT)
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        return str(self._client.create_experiment(name, artifact_location=folder.as_uri() if folder else None))

    def last_steps(self) -> dict[str, int]:
        """The last step of each metric, which MLflow returns with a run."""
        return self._last

    def log_points(self, points: Sequence[Point]) -> None:
        """Sends the points in one request, which is kept as a whole or not at all; repeating it adds nothing."""
        from mlflow.entities import Metric

        # Whoever asks for the last step knows a curve by its own name.
        named = [(mlflow_name(point.name), point) for point in points]
        new = [(name, point) for name, point in named if point.step > self._last.get(name, -1)]
        self._client.log_batch(self._id, [Metric(name, p.value, int(p.seconds * 1000), p.step) for name, p in new])

    def log_parameters(self, values: Mapping[str, str]) -> None:
        """Sends the parameters that are not there yet: MLflow refuses to change a value."""
        from mlflow.entities import Param

        held = self._client.get_run(self._id).data.params
        new = [Param(mlflow_name(name), value) for name, value in values.items() if mlflow_name(name) not in held]
        for start in range(0, len(new), _MOST_PARAMETERS):
            self._client.log_batch(self._id, params=new[start : start + _MOST_PARAMETERS])

    def log_figures(self, values: Mapping[str, float]) -> None:
        """Sends metrics without a step, those that are new or have changed."""
        for name, value in values.items():
            if self._figures.get(mlflow_name(name)) != value:
                self._client.log_metric(self._id, mlflow_name(name), value)
                self._figures[mlflow_name(name)] = value

    def log_file(self, name: str, file: Path) -> None:
        """Adds the file to the artifacts of the run, which MLflow displays by file suffix."""
        with tempfile.TemporaryDirectory() as scratch:
            named = shutil.copy(file, Path(scratch) / name)
            self._client.log_artifact(self._id, str(named))

    def end(self, succeeded: bool) -> None:
        """Sets the status of the run, which the next step sets to running again."""
        self._client.set_terminated(self._id, "FINISHED" if succeeded else "FAILED")
