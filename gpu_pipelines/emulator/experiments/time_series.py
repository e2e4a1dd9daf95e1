"""The scalar curves of TensorBoards' runs: create, write and read."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.jobs.job_states import now
from gpu_pipelines.emulator.names import Names, Resources
from gpu_pipelines.emulator.state_folder import StateFolder
from gpu_pipelines.emulator.transcoding import as_json, parsed

SCALAR = api.TensorboardTimeSeries.ValueType.SCALAR
_POINTS = "tensorboardPoints"
#: The default number of points of a curve in an answer: reference of
#: `ReadTensorboardTimeSeriesDataRequest`.
_MOST_POINTS = 1000


class TimeSeries:
    """The time series of all runs.

    Args:
        names: the projects.
        runs: the runs of TensorBoards.
        page_size: the longest page of a list.
        state: where they are kept.
    """

    def __init__(self, names: Names, runs: Resources, page_size: int, state: StateFolder) -> None:
        self._lock = threading.RLock()
        self._names, self._runs, self._state = names, runs, state
        self.series = Resources(names, api.ListTensorboardTimeSeriesResponse, page_size, state, self._lock)
        self._points: dict[str, list[Any]] = {}
        for name in list(self.series.held):
            points = [parsed(api.TimeSeriesDataPoint, line) for line in state.lines(_POINTS, name)]
            self._points[name] = points
            self._note(name, points)

    def create(self, request: Any) -> Any:
        """CreateTensorboardTimeSeries."""
        parent = self._runs.one(request.parent).name
        made = api.TensorboardTimeSeries(request.tensorboard_time_series)
        if made.value_type != SCALAR:
            raise ApiError(501, f"The emulator has time series of scalars alone, and not of {made.value_type.name}.")
        if not made.display_name:
            raise ApiError(400, "tensorboard_time_series.display_name is required.")
        with self._lock:
            if any(each.display_name == made.display_name for each in self._of(parent)):
                raise ApiError(409, f"A time series {made.display_name} already exists in {parent}.")
            made.name = self._names.new(parent, "timeSeries", request.tensorboard_time_series_id)
            if made.name in self.series.held:
                raise ApiError(409, f"{made.name} already exists.")
            made.create_time = made.update_time = now()
            self.series.keep(made)
            self._points[made.name] = []
        return made

    def list(self, request: Any) -> Any:
        """ListTensorboardTimeSeries."""
        self._runs.one(request.parent)
        return self.series.list(request)

    def write(self, request: Any) -> Any:
        """WriteTensorboardRunData: everything, or nothing if a part is wrong."""
        run = self._runs.one(request.tensorboard_run).name
        with self._lock:
            found = []
            for data in request.time_series_data:
                name = self.series.one(f"{run}/timeSeries/{data.tensorboard_time_series_id}").name
                if any("scalar" not in point for point in data.values):
                    raise ApiError(400, f"The time series {name} takes scalars.")
                found.append((name, list(data.values)))
            for name, points in found:
                self._state.add_lines(_POINTS, name, [as_json(point) for point in points])
                self._points[name] += points
                self._note(name, points)
        return api.WriteTensorboardRunDataResponse()

    def read(self, request: Any) -> Any:
        """ReadTensorboardTimeSeriesData."""
        most = request.max_data_points or _MOST_POINTS
        if most < 0:
            raise ApiError(400, f"max_data_points must not be negative: {most}.")
        if request.filter:
            raise ApiError(501, "The emulator reads time series whole: it has no filters of their points.")
        data = self._data(self.series.one(request.tensorboard_time_series).name, most)
        return api.ReadTensorboardTimeSeriesDataResponse(time_series_data=data)

    def read_several(self, request: Any) -> Any:
        """BatchReadTensorboardTimeSeriesData."""
        parent = self._names.number(request.tensorboard)
        names = [self.series.one(name).name for name in request.time_series]
        if others := [name for name in names if not name.startswith(f"{parent}/")]:
            raise ApiError(400, f"The time series {others[0]} is not in {parent}.")
        data = [self._data(name, _MOST_POINTS) for name in names]
        return api.BatchReadTensorboardTimeSeriesDataResponse(time_series_data=data)

    def points_of(self, name: str) -> Sequence[Any]:
        """All points of a time series, in the order of writing."""
        with self._lock:
            return tuple(self._points[name])

    def delete(self, request: Any) -> str:
        """DeleteTensorboardTimeSeries; returns its name."""
        name = str(self.series.one(request.name).name)
        self.forget(name)
        return name

    def forget_those_of(self, parent: str) -> None:
        """Deletes the time series of a run, or of all runs of a TensorBoard."""
        for name in [name for name in self.series.held if name.startswith(f"{parent}/")]:
            self.forget(name)

    def forget(self, name: str) -> None:
        """Deletes one, with its points."""
        with self._lock:
            self._state.remove_lines(_POINTS, name)
            self.series.forget(name)
            del self._points[name]

    def _of(self, run: str) -> Iterable[Any]:
        return (each for name, each in self.series.held.items() if name.startswith(f"{run}/"))

    def _data(self, name: str, most: int) -> Any:
        """The points of a series by step, evenly reduced to this many; the last one stays."""
        points = sorted(self.points_of(name), key=lambda point: int(point.step))
        if len(points) > most:
            last = len(points) - 1
            places = {last - number * last // max(1, most - 1) for number in range(most)}
            points = [points[place] for place in sorted(places)]
        key = name.rpartition("/")[2]
        return api.TimeSeriesData(tensorboard_time_series_id=key, value_type=SCALAR, values=points)

    def _note(self, name: str, points: Iterable[Any]) -> None:
        metadata = self.series.held[name].metadata
        for point in points:
            metadata.max_step = max(metadata.max_step, point.step)
            if point.wall_time:
                metadata.max_wall_time = max(metadata.max_wall_time or point.wall_time, point.wall_time)
