"""Runs in a real MLflow server: curves are whole whatever is killed, and nothing waits for a server that is away."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from followed import MANY_STEPS, STEPS, killed, require_whole, trained, training
from mlflow.tracking import MlflowClient
from mlflow_server import mlflow_server
from processes import start_python

from gpu_pipelines.accelerators.spent import Billed, MachineTime, Planned, spent_on
from gpu_pipelines.emulator.json_server import free_port
from gpu_pipelines.targets.runs.account import RunAccount, tell_tracker
from gpu_pipelines.tracking.facts import Facts
from gpu_pipelines.tracking.mlflow_tracker import MlflowTracker
from gpu_pipelines.tracking.sender import Sender
from gpu_pipelines.tracking.tracker import TrackedRun


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as address:
        yield address


class Runs:
    """What a server has of the runs of one name."""

    def __init__(self, address: str, name: str) -> None:
        self._client, self._name = MlflowClient(address), name

    def all(self) -> list[Any]:
        experiment = self._client.get_experiment_by_name("gpu-pipelines")
        if experiment is None:
            return []
        return list(self._client.search_runs([experiment.experiment_id], f"run_name = '{self._name}'"))

    def points(self) -> int:
        return sum(len(self.curve(run, "loss")) for run in self.all())

    def curve(self, run: Any, name: str) -> list[tuple[int, float]]:
        held = self._client.get_metric_history(run.info.run_id, name)
        return sorted((metric.step, metric.value) for metric in held)

    def only(self) -> Any:
        (run,) = self.all()
        return run

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        run = self.only()
        return {name: self.curve(run, name) for name in run.data.metrics}


@pytest.mark.slow
def test_a_training_that_is_killed_again_and_again_has_each_step_once(server: str, tmp_path: Path) -> None:
    runs = Runs(server, "killed")
    killed(2, f"mlflow:{server}", tmp_path / "killed", runs.points)
    run = runs.only()
    require_whole(runs.curves(), MANY_STEPS)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"model": "vit-micro", "seed": "0"}
    assert run.data.metrics["test_accuracy"] == 0.75
    assert run.data.metrics["test_accuracy_low"] == 0.5


@pytest.mark.slow
def test_twenty_kills(server: str, tmp_path: Path) -> None:
    runs = Runs(server, "twenty")
    killed(20, f"mlflow:{server}", tmp_path / "twenty", runs.points)
    require_whole(runs.curves(), MANY_STEPS)


@pytest.mark.slow
def test_a_server_that_goes_away_and_comes_back_has_all(tmp_path: Path) -> None:
    port = free_port()
    folder = tmp_path / "away"
    with mlflow_server(tmp_path, port) as address:
        started = start_python(training(f"mlflow:{address}", folder, 0.25), tmp_path / "training.log")
        runs = Runs(address, "away")
        while not runs.points():
            time.sleep(0.1)
    started.await_line("tracking: mlflow is away")
    # The steps that are left may be over before the server has started.
    started.process.send_signal(signal.SIGSTOP)
    with mlflow_server(tmp_path, port) as address:
        started.process.send_signal(signal.SIGCONT)
        assert started.wait() == 0
        require_whole(Runs(address, "away").curves())
    assert started.output.count("is away") == 1
    assert "tracking: mlflow is back, and has all" in started.output


@pytest.mark.slow
def test_the_login_of_an_address_in_the_environment_is_not_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:sec@ret@127.0.0.1:{free_port()}/at?token=secret")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert not Sender("mlflow", TrackedRun("/login", "login")).send()
    told = capsys.readouterr().out
    assert "API request to http://127.0.0.1:" in told
    assert "ret" not in told.replace("retries", "")


def test_a_server_that_is_never_there_costs_a_line_and_the_next_step_sends_what_it_misses(
    server: str, tmp_path: Path
) -> None:
    folder = tmp_path / "never"
    began = time.monotonic()
    said = trained(f"mlflow:http://127.0.0.1:{free_port()}", folder)
    assert time.monotonic() - began < 30
    assert said.count("tracking: mlflow is away") == 1
    assert "warning: mlflow has not got all of this step" in said
    # The next step follows the same log.
    trained(f"mlflow:{server}", folder, steps=STEPS)
    require_whole(Runs(server, "never").curves())


def test_a_step_of_kubeflow_pipelines_goes_to_the_run_of_its_pipeline(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MlflowClient(server)
    experiment = client.create_experiment("of the plugin")
    parent = client.create_run(experiment, run_name="pipeline").info.run_id
    step = client.create_run(experiment, tags={"mlflow.parentRunId": parent}).info.run_id
    told = {"MLFLOW_TRACKING_URI": server, "MLFLOW_RUN_ID": step, "MLFLOW_EXPERIMENT_ID": experiment}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert MlflowTracker.problems("", "kubeflow", is_here=True) == []
    trained("mlflow", tmp_path / "plugin", steps=8)
    assert [point.step for point in client.get_metric_history(parent, "loss")] == list(range(1, 9))
    assert client.get_run(step).data.metrics == {}


def test_a_parameter_that_has_changed_does_not_stop_what_follows(server: str) -> None:
    tracker = MlflowTracker(server)
    tracker.begin(TrackedRun("/changed", "changed"))
    tracker.log_parameters({"nodes": "1"})
    tracker.log_parameters({"nodes": "2", "seed": "3"})
    tracker.log_figures({"test_accuracy": 0.5})
    tracker.log_figures({"test_accuracy": 0.5})
    tracker.log_figures({"test_accuracy": 0.75})
    runs = Runs(server, "changed")
    assert runs.only().data.params == {"nodes": "1", "seed": "3"}
    assert [value for _, value in runs.curve(runs.only(), "test_accuracy")] == [0.5, 0.75]


def test_a_step_that_runs_again_adds_no_point_to_a_curve_whose_name_mlflow_does_not_take(server: str) -> None:
    for _ in range(2):
        sender = Sender(f"mlflow:{server}", TrackedRun("/at-five", "at-five"))
        sender.add(Facts(entries=[{"step": 0, "recall@5": 0.25}, {"step": 9, "recall@5": 0.5}]), {})
        sender.end(True)
    runs = Runs(server, "at-five")
    assert runs.curve(runs.only(), "recall_5") == [(0, 0.25), (9, 0.5)]


def test_names_that_mlflow_refuses_are_shortened_to_what_it_takes(server: str) -> None:
    sender = Sender(f"mlflow:{server}", TrackedRun("/paths", "paths"))
    named = {"/loss": 1.0, "train//loss": 2.0, "./../": 3.0, "n" * 300: 4.0, "acc/": 5.0}
    sender.add(Facts({"/seed": "1"}, {"test_/": 6.0}, [{"step": 0, **named}]), {})
    assert sender.send()
    run = Runs(server, "paths").only()
    taken = {"loss": 1.0, "train/loss": 2.0, "_": 3.0, "n" * 250: 4.0, "acc": 5.0, "test_": 6.0}
    assert (run.data.params, run.data.metrics) == ({"seed": "1"}, taken)


def test_a_run_elsewhere_is_told_what_it_has_cost_beside_its_other_figures(server: str) -> None:
    time_of = MachineTime("train-model", "1", "g2-standard-8", "l4", 1, 1, 7200.0, "spot", "us-central1")
    spent = replace(
        spent_on([time_of], planned={"train-model": Planned(0.9, 24.0)}), billed=Billed(1.25, "EUR", "", "a=b")
    )
    now = datetime.now(timezone.utc)
    tracked = TrackedRun("gs://b/checkpoints/of-cost", "of-cost")
    account = RunAccount(
        "of-cost", "vertex", "succeeded", [], spent, now, now, tracking=f"mlflow:{server}", tracked=tracked
    )
    warned: list[str] = []
    tell_tracker(account, warned.append)
    tell_tracker(account, warned.append)  # once more changes nothing
    assert warned == []
    [run] = Runs(server, "of-cost").all()
    assert run.data.metrics["cost_usd"] == pytest.approx(spent.usd, abs=0.0001)
    assert run.data.metrics["billed_eur"] == 1.25
    assert run.data.metrics["planned_usd_at_most"] == pytest.approx(21.6)
    assert run.data.params["prices_of"].startswith("2026-")
    assert run.info.status == "FINISHED"
