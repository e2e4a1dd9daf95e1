"""Trials that a service starts: they go on exactly, end with the budget, and leave what the end of the study needs.

The trainings are real, in the process of the test and without the launcher.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import storage_emulator
from trainings import entries, names, train_here

from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.emulator.json_server import free_port
from gpu_pipelines.errors import Interrupted, UnfitParametersError, UserError
from gpu_pipelines.training.metrics import MetricsLog
from gpu_pipelines.tuning.service import finish as finishing
from gpu_pipelines.tuning.service import training as trainings_of_studies
from gpu_pipelines.tuning.service.begin import begin
from gpu_pipelines.tuning.service.documents import StudyDocuments
from gpu_pipelines.tuning.service.records import BUDGET, FAILED, RUNNING, UNFIT, WHOLE, Record, Records
from gpu_pipelines.tuning.service.study import ServiceStudy
from gpu_pipelines.tuning.service.trial import run
from gpu_pipelines.tuning.settings import TuningSettings
from gpu_pipelines.tuning.study import MOST_FAILURES

SPACE = "learning_rate: {type: float, low: 1e-4, high: 1e6, log: true}"
GOOD, BAD = ["--learning_rate=0.01"], ["--learning_rate=100000.0"]


@pytest.fixture(autouse=True)
def trained_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Trainings without the launcher; the file that Vertex AI reads is in the folder of the test."""

    def train(settings: Any, dataset: str, place: str, cluster: Cluster, tracked: Any = None) -> None:
        if tracked is not None:
            tracked.follow(Path(place))
        if not train_here(settings, dataset, place):
            raise Interrupted("stopped")

    monkeypatch.setattr(trainings_of_studies, "train_model", train)
    monkeypatch.setenv("CLOUD_ML_TRIAL_ID", "1")
    monkeypatch.setenv("CLOUD_ML_HP_METRIC_FILE", str(tmp_path / "output.metric"))


def study(folder: Path, dataset: Path, **settings: Any) -> str:
    given = {"model": "mlp-small", "max_steps": 18, "space": SPACE, "trials": 3, **settings}
    begin(TuningSettings(**given), str(dataset), str(folder), processes=1)
    return str(folder)


def record(folder: str, trial: str = "1") -> Record:
    found = Records(StudyDocuments(folder)).read(trial)
    assert found is not None
    return found


def told(tmp_path: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (tmp_path / "output.metric").read_text().splitlines()]
    return [(int(each["global_step"]), float(each["val_loss"])) for each in lines]


def test_a_trial_leaves_its_record_and_tells_its_losses(tmp_path: Path, numbers: Path) -> None:
    place = study(tmp_path / "study", numbers)
    assert run(place, "1", GOOD, Cluster()) == WHOLE
    found, checkpoints = record(place), tmp_path / "study" / "trials" / "1" / "checkpoints"
    assert found.outcome == WHOLE
    assert [loss for _, loss in found.curve] == entries(checkpoints, "val_loss")
    assert told(tmp_path) == list(found.curve)
    assert (found.step, found.rows) == (18, 18 * 64)
    assert found.loss == min(loss for _, loss in found.curve)
    assert 0 < found.seconds < 60
    with pytest.raises(UserError, match=r"Trial 1 has .* here, but .*0\.01"):
        run(place, "1", ["--learning_rate=0.02"], Cluster())


def test_a_trial_in_a_bucket_has_the_losses_of_its_last_second(
    tmp_path: Path, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(settings: Any, dataset: str, place: str, cluster: Cluster, tracked: Any = None) -> None:
        # What a training in a bucket writes on this machine is deleted when it ends, before it was looked at.
        tracked.follow(tmp_path / "deleted")
        assert train_here(settings, dataset, place)

    monkeypatch.setattr(trainings_of_studies, "train_model", train)
    with storage_emulator("studies") as bucket:
        place, given = f"{bucket}/study", {"model": "mlp-small", "max_steps": 18, "space": SPACE, "trials": 3}
        begin(TuningSettings(**given), str(numbers), place, processes=1)
        assert run(place, "1", GOOD, Cluster()) == WHOLE
        found = record(place)
    assert found.curve[-1][0] == found.step == 18
    assert found.loss == min(loss for _, loss in found.curve)
    assert told(tmp_path) == list(found.curve)


@pytest.mark.slow
def test_a_trial_that_is_preempted_goes_on_to_the_same_bits(
    tmp_path: Path, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = {"max_steps": 400, "checkpoint_every_steps": 40}
    whole, cut = study(tmp_path / "whole", numbers, **long), study(tmp_path / "cut", numbers, **long)
    run(whole, "1", GOOD, Cluster())
    look, validation, preemption = trainings_of_studies.Watch._look, MetricsLog.validation, threading.Event()

    def preempted(watch: Any) -> bool:
        changed = look(watch)
        if watch.record.curve and not preemption.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
            preemption.set()
        return changed

    def waits(log: MetricsLog, *of_step: Any) -> None:
        # The whole training may be shorter than the time between two turns of the thread that looks at it.
        validation(log, *of_step)
        assert preemption.wait(60)

    monkeypatch.setattr("gpu_pipelines.tuning.service.watch._SECONDS_BETWEEN_LOOKS", 0.01)
    with monkeypatch.context() as patch:
        # After each step: all 400 may take less than two of the times between which processes tell each other.
        patch.setattr("gpu_pipelines.training.machine.interruption.SECONDS_BETWEEN", 0)
        patch.setattr(trainings_of_studies.Watch, "_look", preempted)
        patch.setattr(MetricsLog, "validation", waits)
        with pytest.raises(Interrupted):
            run(cut, "1", GOOD, Cluster())
    before = record(cut)
    assert before.outcome == RUNNING
    assert 0 < len(before.curve) < len(record(whole).curve)
    assert run(cut, "1", GOOD, Cluster()) == WHOLE
    after = record(cut)
    assert after.curve == record(whole).curve
    assert told(tmp_path) == list(after.curve), "the losses before the preemption are told again"
    assert after.seconds > before.seconds
    assert after.began == before.began


@pytest.mark.slow
def test_the_budget_ends_a_trial_with_a_checkpoint_and_the_study(tmp_path: Path, numbers: Path) -> None:
    # A dollar a second.
    asked = {"budget": 4.0, "dollars_per_hour": 3600.0, "max_steps": 1_000_000, "checkpoint_every_steps": 100}
    place = study(tmp_path / "study", numbers, **asked)
    assert run(place, "1", GOOD, Cluster()) == BUDGET
    found = record(place)
    assert (found.outcome, found.step < 1_000_000, found.error) == (BUDGET, True, "")
    assert 2 < found.seconds < 8
    assert names(tmp_path / "study" / "trials" / "1" / "checkpoints")
    with pytest.raises(UserError, match="The budget of 4 dollars is spent"):
        run(place, "2", GOOD, Cluster())
    assert Records(StudyDocuments(place)).read("2") is None
    result = finishing.finish(place, tmp_path / "report.html", Cluster())
    assert result is not None
    assert (result.ended_by, result.best, result.loss) == ("budget", 1, found.loss)
    assert result.dollars == pytest.approx(found.seconds, abs=0.1)


def test_parameters_that_do_not_fit_end_a_trial_and_not_the_study(tmp_path: Path, numbers: Path) -> None:
    place = study(tmp_path / "study", numbers, optimizer="sgd", gradient_clip=0.0)
    with pytest.raises(UnfitParametersError):
        run(place, "1", BAD, Cluster())
    found = record(place)
    assert (found.outcome, found.loss) == (UNFIT, None)
    assert found.error
    assert run(place, "2", GOOD, Cluster()) == WHOLE
    result = finishing.finish(place, tmp_path / "report.html", Cluster())
    assert result is not None
    assert [bool(trial.error) for trial in result.trials] == [True, False]
    assert result.best == 2


def test_a_study_in_which_nothing_can_be_trained_begins_no_further_trials(tmp_path: Path, numbers: Path) -> None:
    place = study(tmp_path / "study", numbers)
    documents = StudyDocuments(place)
    asked = ServiceStudy.load(documents)
    replace(asked, request=replace(asked.request, dataset=str(tmp_path / "gone"))).save(documents)
    for trial in range(1, MOST_FAILURES + 1):
        with pytest.raises(UserError, match="is no dataset"):
            run(place, str(trial), GOOD, Cluster())
        assert record(place, str(trial)).outcome == FAILED
    with pytest.raises(UserError, match="3 trials have failed, and none has a loss"):
        run(place, "9", GOOD, Cluster())
    with pytest.raises(UserError, match=r"No trial has a loss on val: .*is no dataset"):
        finishing.finish(place, tmp_path / "report.html", Cluster())


def test_the_end_of_a_study_is_a_report_and_a_longer_training(tmp_path: Path, numbers: Path) -> None:
    place = study(tmp_path / "study", numbers, longer=2.0, dollars_per_hour=3.0)
    for trial, rate in (("1", 1e-4), ("2", 0.01), ("3", 1e-3)):
        run(place, trial, [f"--learning_rate={rate}"], Cluster())
    result = finishing.finish(place, tmp_path / "report.html", Cluster())
    assert result is not None
    losses = {trial.number: trial.loss for trial in result.trials}
    assert result.best_parameters == {"learning_rate": {1: 1e-4, 2: 0.01, 3: 1e-3}[result.best]}
    assert losses[result.best] == min(losses.values()) == result.loss
    assert result.checkpoints == f"{place}/winner-{result.best}-36/checkpoints"
    assert names(Path(str(result.checkpoints)))[-1] == "step-00000036"
    seconds = sum(each.seconds for each in Records(StudyDocuments(place)).all())
    assert result.dollars == pytest.approx(seconds / 3600 * 3, abs=1e-4)
    assert len(result.trials) == 3, "the longer training is none of them"
    page = (tmp_path / "report.html").read_text()
    assert f"Trial {result.best} has the lowest loss on val" in page
    assert (tmp_path / "study" / "report.html").read_text() == page
    assert json.loads((tmp_path / "study" / "result.json").read_text())["best"] == result.best
    again = finishing.finish(place, tmp_path / "again.html", Cluster())
    assert again is not None
    assert again.checkpoints == result.checkpoints
    with pytest.raises(UserError, match="has 4 trials already"):
        study(tmp_path / "study", numbers)


@pytest.mark.slow
def test_the_budget_ends_a_trial_on_all_of_its_machines(tmp_path: Path, numbers: Path) -> None:
    # A dollar a second.
    asked = {"budget": 60.0, "dollars_per_hour": 3600.0, "max_steps": 10_000_000, "checkpoint_every_steps": 1_000}
    place = study(tmp_path / "study", numbers, **asked)
    command = [sys.executable, "-m", "gpu_pipelines.tuning.service.trial", "--study", place, "--trial", "1", *GOOD]
    shared = {"PET_NNODES": "2", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(free_port())}
    shared |= {"GPU_PIPELINES_ACCELERATOR": "cpu:1", "OMP_NUM_THREADS": "1"}
    nodes = [
        subprocess.Popen(command, env={**os.environ, **shared, "PET_NODE_RANK": str(rank)}, stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    said = [node.communicate(timeout=200)[0].decode() for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "".join(said)
    assert "the budget of the study is spent" in said[0]
    found = record(place)
    assert found.outcome == BUDGET
    assert found.seconds < 75
    assert names(tmp_path / "study" / "trials" / "1" / "checkpoints")
