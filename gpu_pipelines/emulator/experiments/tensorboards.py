"""TensorBoards, their experiments and runs, as far as experiments of the SDK need them."""

from __future__ import annotations

from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.experiments.time_series import TimeSeries
from gpu_pipelines.emulator.jobs.job_states import now
from gpu_pipelines.emulator.jobs.rules import check_name_and_labels, raise_found
from gpu_pipelines.emulator.names import Names, Resources
from gpu_pipelines.emulator.operations import Operations
from gpu_pipelines.emulator.state_folder import StateFolder


class Tensorboards:
    """The TensorBoards of all projects.

    Attributes:
        boards, experiments, runs: the resources.
        time_series: the curves of the runs.
    """

    def __init__(self, names: Names, operations: Operations, page_size: int, state: StateFolder) -> None:
        self._names, self._operations = names, operations
        self.boards = Resources(names, api.ListTensorboardsResponse, page_size, state)
        self.experiments = Resources(names, api.ListTensorboardExperimentsResponse, page_size, state)
        self.runs = Resources(names, api.ListTensorboardRunsResponse, page_size, state)
        self.time_series = TimeSeries(names, self.runs, page_size, state)

    def create(self, request: Any) -> Any:
        """CreateTensorboard."""
        raise_found(list(check_name_and_labels(request.tensorboard)))
        made = api.Tensorboard(request.tensorboard)
        made = self._kept(self.boards, made, self._names.new(request.parent, "tensorboards"))
        return self._operations.done(made.name, made)

    def delete(self, request: Any) -> Any:
        """DeleteTensorboard, with all its content."""
        name = self.boards.one(request.name).name
        self.time_series.forget_those_of(name)
        for held in (self.runs, self.experiments):
            for each in [each for each in held.held if each.startswith(f"{name}/")]:
                held.forget(each)
        self.boards.forget(name)
        return self._operations.done(name)

    def create_experiment(self, request: Any) -> Any:
        """CreateTensorboardExperiment."""
        parent = self.boards.one(request.parent).name
        name = self._names.new(parent, "experiments", request.tensorboard_experiment_id)
        return self._kept(self.experiments, api.TensorboardExperiment(request.tensorboard_experiment), name)

    def create_run(self, request: Any) -> Any:
        """CreateTensorboardRun."""
        parent = self.experiments.one(request.parent).name
        name = self._names.new(parent, "runs", request.tensorboard_run_id)
        return self._kept(self.runs, api.TensorboardRun(request.tensorboard_run), name)

    def delete_time_series(self, request: Any) -> Any:
        """DeleteTensorboardTimeSeries."""
        return self._operations.done(self.time_series.delete(request))

    def _kept(self, held: Resources, made: Any, name: str) -> Any:
        if name in held.held:
            raise ApiError(409, f"{name} already exists.")
        made.name, made.create_time, made.update_time = name, now(), now()
        held.keep(made)
        return made
