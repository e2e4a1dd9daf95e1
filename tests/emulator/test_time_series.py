"""Curves of TensorBoards' runs: what was written is read, also after a restart, and thinned out where there is much."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.cloud import aiplatform_v1 as api

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.experiments.tensorboards import Tensorboards
from gpu_pipelines.emulator.names import Names
from gpu_pipelines.emulator.operations import Operations
from gpu_pipelines.emulator.state_folder import StateFolder

SCALAR = api.TensorboardTimeSeries.ValueType.SCALAR


def opened(folder: Path) -> tuple[StateFolder, Tensorboards]:
    state, names = StateFolder(folder), Names({"example-project": "123"})
    return state, Tensorboards(names, Operations(), 100, state)


def run_of(boards: Tensorboards) -> str:
    parent = "projects/example-project/locations/us-central1"
    boards.create(api.CreateTensorboardRequest(parent=parent, tensorboard={"display_name": "b"}))
    (board,) = boards.boards.held
    experiment = api.CreateTensorboardExperimentRequest(parent=board, tensorboard_experiment_id="e")
    run = api.CreateTensorboardRunRequest(parent=boards.create_experiment(experiment).name, tensorboard_run_id="r")
    return str(boards.create_run(run).name)


def series_of(boards: Tensorboards, run: str, name: str = "loss", kind: int = SCALAR) -> str:
    made = api.TensorboardTimeSeries(display_name=name, value_type=kind)
    request = api.CreateTensorboardTimeSeriesRequest(parent=run, tensorboard_time_series=made)
    return str(boards.time_series.create(request).name)


def write(boards: Tensorboards, run: str, *series: str, steps: range) -> None:
    points = [{"step": step, "wall_time": {"seconds": 9 + step}, "scalar": {"value": step / 4}} for step in steps]
    data = [{"tensorboard_time_series_id": name.rpartition("/")[2], "values": points} for name in series]
    boards.time_series.write(api.WriteTensorboardRunDataRequest(tensorboard_run=run, time_series_data=data))


def read(boards: Tensorboards, series: str, most: int = 0) -> list[tuple[int, float]]:
    request = api.ReadTensorboardTimeSeriesDataRequest(tensorboard_time_series=series, max_data_points=most)
    return [(each.step, each.scalar.value) for each in boards.time_series.read(request).time_series_data.values]


def test_points_are_there_after_a_restart_and_all_but_the_last_are_thinned_out(tmp_path: Path) -> None:
    state, boards = opened(tmp_path)
    run = run_of(boards)
    loss = series_of(boards, run)
    write(boards, run, loss, steps=range(1, 5))
    write(boards, run, loss, steps=range(5, 2001))
    state.close()
    (file,) = (tmp_path / "tensorboardPoints").iterdir()
    with file.open("a") as lines:  # killed while it wrote
        lines.write('\n{"step": "20')
    state, boards = opened(tmp_path)
    write(boards, run, loss, steps=range(2001, 2002))
    assert read(boards, loss, most=5000) == [(step, step / 4) for step in range(1, 2002)]
    few = read(boards, loss, most=5)
    assert [step for step, _ in few] == [1, 501, 1001, 1501, 2001]
    assert len(read(boards, loss)) == 1000
    listed = boards.time_series.list(api.ListTensorboardTimeSeriesRequest(parent=run)).tensorboard_time_series
    assert [(each.metadata.max_step, each.metadata.max_wall_time.timestamp()) for each in listed] == [(2001, 2010.0)]
    (board,) = boards.boards.held
    boards.delete(api.DeleteTensorboardRequest(name=board))
    assert not file.exists()
    state.close()
    assert not opened(tmp_path)[1].time_series.series.held


def test_a_request_of_which_something_is_wrong_writes_nothing(tmp_path: Path) -> None:
    _, boards = opened(tmp_path)
    run = run_of(boards)
    loss = series_of(boards, run)
    with pytest.raises(ApiError, match="not found"):
        write(boards, run, loss, f"{run}/timeSeries/7", steps=range(1, 3))
    assert read(boards, loss) == []
    with pytest.raises(ApiError, match="already exists"):
        series_of(boards, run)
    with pytest.raises(ApiError, match="scalars alone, and not of TENSOR"):
        series_of(boards, run, "t", api.TensorboardTimeSeries.ValueType.TENSOR)
