"""A study that is ended at any moment goes on as if it had not been. Its trainings are formulas here: it ends often."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_pipelines.artifacts.checkpoint import checkpoint_path, complete_checkpoints, mark_complete
from gpu_pipelines.distributed.signals import Signalled
from gpu_pipelines.errors import Interrupted, ProcessFailedError, ProcessKilledError, UnfitParametersError, UserError
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.budget import Budget
from gpu_pipelines.tuning.folder import StudyFolder
from gpu_pipelines.tuning.halving import Part
from gpu_pipelines.tuning.journal import Journal
from gpu_pipelines.tuning.processes import Processes
from gpu_pipelines.tuning.result import best_of, trials_of
from gpu_pipelines.tuning.search import _require_same_study
from gpu_pipelines.tuning.shares import Share
from gpu_pipelines.tuning.space import space_of
from gpu_pipelines.tuning.study import SearchPlan, Study, StudyRequest

SPACE = space_of(
    {
        "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "global_batch_size": {"type": "categorical", "choices": [16, 32, 64]},
    }
)


def request(parallel: int = 3, trials: int = 12, reduction: int = 3) -> StudyRequest:
    base = TrainingSettings(model="mlp-small", max_steps=90)
    plan = SearchPlan(base, SPACE, trials, parallel, 0, "tpe", reduction, 1 / 9)
    return StudyRequest.of(plan, "", "regression", 1_000)


class Formulas(Processes):
    """Trains at once, by a formula, in the order last in, first out; and counts."""

    def __init__(self, parallel: int, fails: Any = lambda settings: None) -> None:
        super().__init__([Share(1, {})] * parallel, "")
        self.started: list[Part] = []
        self._done: dict[Part, Path] = {}
        self._failed: dict[Part, UserError] = {}
        self._fails = fails

    def start(self, part: Part, folder: Path, job: dict[str, Any]) -> None:
        self.started.append(part)
        settings, checkpoints = job["settings"], Path(job["checkpoints"])
        self._done[part] = folder
        if error := self._fails(settings):
            self._failed[part] = error
            return
        step, loss = job["until"], abs(math.log10(settings["learning_rate"]) + 2) + 10 / job["until"]
        place = checkpoint_path(checkpoints, step)
        place.mkdir(parents=True)
        with (checkpoints / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "val_loss": loss}) + "\n")
        said = {"epoch": 0.0, "samples_seen": step * settings["global_batch_size"], "world_size": 1}
        mark_complete(place, step=step, dataset_fingerprint="", configuration_hash="", **said)

    def ended(self) -> list[tuple[Part, Path]]:
        return list(reversed(self._done.items()))

    def take(self, part: Part) -> tuple[float, UserError | None]:
        del self._done[part]
        return 1.0, self._failed.pop(part, None)


class Killed(Exception):
    """The study was killed."""


def study(folder: Path, asked: StudyRequest, formulas: Formulas, **others: Any) -> Study:
    folder.mkdir(exist_ok=True)
    budget = others.pop("budget", None) or Budget(folder, 0.0, 0.0)
    signalled = others.pop("signalled", None) or Signalled()
    return Study(asked, StudyFolder(folder), Journal(folder), formulas, budget, signalled, lambda line: None)


def known(folder: Path, asked: StudyRequest) -> list[Any]:
    return [
        (each.parameters, each.loss, each.rung, each.step)
        for each in trials_of(asked, StudyFolder(folder), Journal(folder))
    ]


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_study_that_is_killed_at_any_line_of_its_journal_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: int
) -> None:
    asked = request(parallel)
    whole = Formulas(parallel)
    study(tmp_path / "whole", asked, whole).run()
    written = len((tmp_path / "whole" / "journal.jsonl").read_text().splitlines())
    assert written == 12 + len(whole.started)
    real = Journal._write
    for moment in range(0, written, 4 if parallel == 1 else 3):
        folder, lines = tmp_path / f"killed-{moment}", [0]

        def write(journal: Journal, entry: Any, moment: int = moment, lines: list[int] = lines) -> None:
            if lines[0] == moment:
                raise Killed
            lines[0] += 1
            real(journal, entry)

        first, second = Formulas(parallel), Formulas(parallel)
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "_write", write)
            with pytest.raises(Killed):
                study(folder, asked, first).run()
        study(folder, asked, second).run()
        assert known(folder, asked) == known(tmp_path / "whole", asked)
        assert sorted(first.started + second.started, key=str) == sorted(whole.started, key=str), (
            "none lost, none twice"
        )


def test_fewer_rows_are_trained_on_than_by_whole_trainings(tmp_path: Path) -> None:
    asked = request(trials=27)
    study(tmp_path, asked, Formulas(3)).run()
    trials = trials_of(asked, StudyFolder(tmp_path), Journal(tmp_path))
    whole = sum(90 * each.parameters["global_batch_size"] for each in trials)
    assert sum(each.rows for each in trials) < 0.4 * whole
    best = best_of(trials)
    assert best.is_whole
    assert best.loss == min(each.loss for each in trials if each.is_whole)


def test_more_trials_can_be_asked_for_later(tmp_path: Path) -> None:
    study(tmp_path, request(trials=4), Formulas(3)).run()
    before = Journal(tmp_path).parameters
    more = Formulas(3)
    study(tmp_path, request(trials=8), more).run()
    after = Journal(tmp_path)
    assert {number: after.parameters[number] for number in before} == before
    assert len(after.parameters) == 8
    assert not {part for part in more.started if part.trial < 4 and part.rung == 0}


def test_trials_that_diverge_are_known_and_other_errors_end_the_study(tmp_path: Path) -> None:
    def diverges(settings: dict[str, Any]) -> UserError | None:
        return UnfitParametersError("it has diverged.") if settings["learning_rate"] > 0.01 else None

    asked = request()
    study(tmp_path / "some", asked, Formulas(3, diverges)).run()
    trials = trials_of(asked, StudyFolder(tmp_path / "some"), Journal(tmp_path / "some"))
    assert {each.error for each in trials} == {"", "it has diverged."}
    assert best_of(trials).parameters["learning_rate"] <= 0.01
    with pytest.raises(UserError, match=r"Trial \d+ \(.*learning_rate=.*\) failed: the disk is full"):
        study(tmp_path / "full", asked, Formulas(3, lambda settings: UserError("the disk is full"))).run()
    repaired = Formulas(3)
    study(tmp_path / "full", asked, repaired).run()
    assert Part(0, 0) in repaired.started, "what has failed so is tried again"
    study(tmp_path / "none", asked, Formulas(3, lambda settings: UnfitParametersError("It is too large."))).run()
    with pytest.raises(UserError, match=r"^No trial has a loss on val: It is too large\.\n"):
        best_of(trials_of(asked, StudyFolder(tmp_path / "none"), Journal(tmp_path / "none")))


def test_trials_that_are_killed_have_failed_and_too_many_of_them_end_the_study(tmp_path: Path) -> None:
    def killed(settings: dict[str, Any]) -> UserError | None:
        return ProcessKilledError("It was killed.") if settings["global_batch_size"] >= smallest else None

    asked, smallest = request(), 64
    study(tmp_path / "some", asked, Formulas(3, killed)).run()
    trials = trials_of(asked, StudyFolder(tmp_path / "some"), Journal(tmp_path / "some"))
    assert {(each.parameters["global_batch_size"] == 64, each.error) for each in trials} == {
        (True, "It was killed."),
        (False, ""),
    }
    assert best_of(trials).is_whole
    smallest = 0
    with pytest.raises(UserError, match=r"Trial \d+ \(.*global_batch_size=.*\) failed: It was killed\."):
        study(tmp_path / "all", asked, Formulas(3, killed)).run()
    assert len(Journal(tmp_path / "all").outcomes) == 2
    smallest = 128
    study(tmp_path / "all", asked, Formulas(3, killed)).run()
    failing = study(tmp_path / "some", asked, Formulas(3, lambda settings: ProcessKilledError("It was killed.")))
    with pytest.raises(UserError, match=r"failed: It was killed\."):
        failing.train_longer(best_of(trials).number, 2.0)
    assert study(tmp_path / "some", asked, Formulas(3)).train_longer(best_of(trials).number, 2.0), "it is tried again"


def test_a_process_of_a_trial_that_is_killed_or_crashes_is_told_apart(tmp_path: Path) -> None:
    for signal_of, expected in ((signal.SIGKILL, None), (signal.SIGABRT, ProcessFailedError)):
        processes = Processes([Share(1, {})], "")
        processes.start(Part(0, 0), tmp_path, {})
        os.kill(processes._running[Part(0, 0)].process.pid, signal_of)
        if expected:
            with pytest.raises(expected, match=r"trial 0 has ended with status -6"):
                processes.take(Part(0, 0))
        else:
            assert isinstance(processes.take(Part(0, 0))[1], ProcessKilledError)


def test_the_winner_is_trained_longer_once_for_each_length(tmp_path: Path) -> None:
    asked = request(trials=4)
    study(tmp_path, asked, Formulas(3)).run()
    best = best_of(trials_of(asked, StudyFolder(tmp_path), Journal(tmp_path)))
    for times, steps in ((2.0, 180), (3.0, 270), (2.0, 180)):
        formulas = Formulas(3)
        folder = study(tmp_path, asked, formulas).train_longer(best.number, times)
        assert folder == f"winner-{best.number:04d}-{steps}"
        assert complete_checkpoints(StudyFolder(tmp_path).seen_of(folder))[-1].info.step == steps
    assert formulas.started == [], "it was done before"
    failing = study(tmp_path, asked, Formulas(3, lambda settings: UnfitParametersError("It is too large.")))
    with pytest.raises(UserError, match=rf"^Trial {best.number} failed when it .*: It is too large\.$"):
        failing.train_longer(best.number, 4.0)
    assert best_of(trials_of(asked, StudyFolder(tmp_path), Journal(tmp_path))) == best, "a longer training is no trial"


def test_a_signal_interrupts_it(tmp_path: Path) -> None:
    signalled = Signalled()
    signalled.name = "SIGINT"
    with pytest.raises(Interrupted, match="SIGINT"):
        study(tmp_path, request(), Formulas(3), signalled=signalled).run()


def test_a_parameter_that_the_version_of_a_study_lacked_is_its_default(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    _require_same_study(folder, request(), "of the data")
    study = json.loads((tmp_path / "study.json").read_text())
    del study["lora_targets"]
    (tmp_path / "study.json").write_text(json.dumps(study))
    _require_same_study(folder, request(), "of the data")
    other = replace(request(), base=replace(request().base, lora_targets="all-linear"))
    with pytest.raises(UserError, match=r"another study: lora_targets is 'all-linear', there it was ''\."):
        _require_same_study(folder, other, "of the data")
