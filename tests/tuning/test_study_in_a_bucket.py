"""A study in Cloud Storage goes on on another machine, of which it knows nothing but what is in the bucket."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_study import Formulas, request

from gpu_pipelines.artifacts.documents import read_document
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.distributed.signals import Signalled
from gpu_pipelines.errors import UserError
from gpu_pipelines.tuning.budget import Budget
from gpu_pipelines.tuning.folder import SPENT, StudyFolder
from gpu_pipelines.tuning.halving import Part
from gpu_pipelines.tuning.journal import Journal
from gpu_pipelines.tuning.result import trials_of
from gpu_pipelines.tuning.study import Study, StudyRequest


class AfarFormulas(Formulas):
    """Trains by a formula, and leaves its checkpoints in a bucket."""

    def __init__(self, parallel: int, scratch: Path) -> None:
        super().__init__(parallel)
        self._scratch = scratch

    def start(self, part: Part, folder: Path, job: dict[str, Any]) -> None:
        here = self._scratch / f"{part.trial}-{part.rung}"
        super().start(part, folder, {**job, "checkpoints": str(here)})
        place = RemoteFolder(job["checkpoints"])
        before = place.read("metrics.jsonl") if "metrics.jsonl" in place.names() else b""
        (here / "metrics.jsonl").write_bytes(before + (here / "metrics.jsonl").read_bytes())
        place.upload(here, [path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file()])


class Killed(Exception):
    """The study was killed."""


def opened(place: str, scratch: Path) -> StudyFolder:
    """The folder of a study on a machine that has nothing of it."""
    scratch.mkdir(parents=True)
    folder = StudyFolder(place, scratch)
    folder.fetch()
    return folder


def carried_out(folder: StudyFolder, asked: StudyRequest, formulas: Formulas, dies_after: int = 10**6) -> None:
    left = [dies_after]

    def keep(trial: int, lines: Sequence[bytes]) -> None:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        folder.keep_trial(trial, lines)

    budget = Budget(folder.directory, 0.0, 0.0, keep=folder.keep)
    Study(asked, folder, Journal(folder.directory, keep), formulas, budget, Signalled(), lambda line: None).run()


def known(folder: StudyFolder, asked: StudyRequest) -> list[Any]:
    trials = trials_of(asked, folder, Journal(folder.directory))
    return [(each.parameters, each.loss, each.rung, each.step, each.curve) for each in trials]


def test_a_study_that_is_killed_goes_on_elsewhere_and_is_the_same(bucket: str, tmp_path: Path) -> None:
    asked = request(parallel=2, trials=6)
    whole = AfarFormulas(2, tmp_path / "training-whole")
    carried_out(opened(f"{bucket}/whole", tmp_path / "whole"), asked, whole)
    expected = known(opened(f"{bucket}/whole", tmp_path / "whole-again"), asked)
    assert any(len(curve) == 3 for *_, curve in expected), "one was trained to its end"
    lines = 6 + len(whole.started)
    for moment in (1, lines // 2, lines - 1):
        place = f"{bucket}/killed-{moment}"
        first, second = (AfarFormulas(2, tmp_path / f"training-{moment}-{each}") for each in (1, 2))
        with pytest.raises(Killed):
            carried_out(opened(place, tmp_path / f"first-{moment}"), asked, first, dies_after=moment)
        carried_out(opened(place, tmp_path / f"second-{moment}"), asked, second)
        assert known(opened(place, tmp_path / f"third-{moment}"), asked) == expected
        assert sorted(first.started + second.started, key=str) == sorted(whole.started, key=str), (
            "none lost, none twice"
        )


def test_what_was_spent_is_known_elsewhere(bucket: str, tmp_path: Path) -> None:
    folder = opened(f"{bucket}/spent", tmp_path / "one")
    Budget(folder.directory, 1.0, 3600.0, keep=folder.keep)
    written = json.loads(RemoteFolder(folder.place).read(SPENT))["seconds"]
    assert written == pytest.approx(1.0), "a dollar is a second of it, and no more is written down"
    other = opened(f"{bucket}/spent", tmp_path / "two")
    assert read_document(other.directory / SPENT, "study")["seconds"] == written
    assert Budget(other.directory, 1.0, 3600.0, keep=other.keep).is_over


def test_a_journal_that_cannot_be_kept_ends_the_study_before_anything_is_trained(bucket: str, tmp_path: Path) -> None:
    folder, formulas = opened(f"{bucket}/full", tmp_path / "one"), AfarFormulas(1, tmp_path / "training")

    def keep(trial: int, lines: Sequence[bytes]) -> None:
        raise UserError("the bucket is gone")

    study = Study(
        request(1),
        folder,
        Journal(folder.directory, keep),
        formulas,
        Budget(folder.directory, 0.0, 0.0),
        Signalled(),
        lambda line: None,
    )
    with pytest.raises(UserError, match="the bucket is gone"):
        study.run()
    assert formulas.started == []
