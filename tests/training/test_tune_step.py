"""The step `tune_model` with real trainings: what it leaves, and that a kill loses nothing of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from killed import killed_again_and_again

from gpu_pipelines.artifacts.checkpoint import complete_checkpoints
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.evaluation.step import run as evaluate
from gpu_pipelines.tuning.folder import StudyFolder
from gpu_pipelines.tuning.journal import Journal
from gpu_pipelines.tuning.settings import TuningSettings
from gpu_pipelines.tuning.step import run

SPACE = "learning_rate: {type: float, low: 0.001, high: 0.1, log: true}\nwarmup_steps: {type: int, low: 0, high: 9}"
ASKED: dict[str, Any] = {"model": "mlp-small", "max_steps": 18, "global_batch_size": 8, "space": SPACE}


def outputs(folder: Path) -> dict[str, Any]:
    """The artifacts of the step, as KFP makes them for a task of a run."""
    (folder / "artifacts").mkdir(parents=True, exist_ok=True)
    place = str(folder / "artifacts")
    return {
        "checkpoints": dsl.Artifact(name="checkpoints", uri=f"{place}/checkpoints"),
        "training_metrics": dsl.Metrics(name="training_metrics", uri=f"{place}/training_metrics"),
        "training_report": dsl.HTML(name="training_report", uri=f"{place}/training_report"),
        "study": dsl.Artifact(name="study", uri=f"{place}/study"),
    }


@pytest.mark.slow
def test_what_the_step_leaves_is_evaluated_as_any_training(numbers: Path, tmp_path: Path) -> None:
    made, dataset = outputs(tmp_path), dsl.Dataset(name="dataset", uri=str(numbers))
    settings = TuningSettings(**ASKED, trials=5, reduction=1)
    place = str(tmp_path / "study")
    # As fields of `advanced` come, in whose numbers JSON may have put a point.
    (best,) = run(settings, dataset=dataset, checkpoint_uri=place, advanced={"trials": 1.0}, **made)
    assert best.keys() == {"learning_rate", "warmup_steps"}
    assert made["study"].uri == place
    assert made["checkpoints"].uri == f"{place}/trials/0000/checkpoints"
    assert json.loads(made["checkpoints"].metadata["best_parameters"]) == best
    assert made["checkpoints"].metadata["rehearsal"] is False
    figures = made["training_metrics"].metadata
    assert (figures["trials"], figures["dollars"], figures["best_learning_rate"]) == (1, 0, best["learning_rate"])
    assert "Trial 0 has the lowest loss" in Path(made["training_report"].path).read_text()
    assert complete_checkpoints(Path(made["checkpoints"].uri))[-1].info.step == 18
    model = dsl.Model(name="best_checkpoint", uri=str(tmp_path / "model"))
    (passed,) = evaluate(
        EvaluationSettings(registry=str(tmp_path / "registry")),
        dataset=dataset,
        checkpoints=made["checkpoints"],
        best_checkpoint=model,
        evaluation=dsl.Metrics(name="evaluation", uri=str(tmp_path / "evaluation")),
        confusion=dsl.ClassificationMetrics(name="confusion", uri=str(tmp_path / "confusion")),
        report=dsl.HTML(name="report", uri=str(tmp_path / "report")),
        benchmark_results=dsl.Artifact(name="benchmark_results", uri=str(tmp_path / "benchmark_results")),
        advanced={},
    )
    assert passed
    assert model.metadata["checkpoint"].startswith("step-")


@pytest.mark.slow
def test_a_rehearsed_search_marks_what_it_leaves(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PIPELINES_REHEARSE", "cpu:1")
    made, dataset = outputs(tmp_path), dsl.Dataset(name="dataset", uri=str(numbers))
    run(TuningSettings(**ASKED, trials=1, reduction=1), dataset=dataset, advanced={}, **made)
    assert made["checkpoints"].metadata["rehearsal"] is True


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"budget": 3.0}, "budget is 3 dollars, and no price is known"),
        ({"space": "learning_rat: {type: float, low: 1, high: 2}"}, "Did you mean 'learning_rate'?"),
        ({"warmup_steps": 3}, "warmup_steps is searched for, and given as well"),
        ({"model": "mlp-smal"}, "There is no model 'mlp-smal'"),
    ],
)
def test_what_is_wrong_ends_the_step_before_anything_is_trained(
    numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: dict[str, Any], wrong: str
) -> None:
    dataset = dsl.Dataset(name="dataset", uri=str(numbers))
    with pytest.raises(SystemExit):
        run(TuningSettings(**{**ASKED, **given}), dataset=dataset, advanced={}, **outputs(tmp_path))
    assert wrong in capsys.readouterr().err
    assert not (tmp_path / "artifacts" / "study").exists()


PROGRAM = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
from pathlib import Path
from kfp import dsl
from test_tune_step import outputs
from gpu_pipelines.tuning.settings import TuningSettings
from gpu_pipelines.tuning.step import run
dataset, place, folder, settings = json.loads(sys.argv[2])
run(TuningSettings(**settings), dataset=dsl.Dataset(name="dataset", uri=dataset), checkpoint_uri=place, advanced={},
    **outputs(Path(folder)))
"""


def step(dataset: str, place: str, folder: Path, settings: dict[str, Any]) -> subprocess.Popen[str]:
    job = [json.dumps(sys.path), json.dumps([dataset, place, str(folder), settings])]
    environment = {**os.environ, "GPU_PIPELINES_RUN": "run-1", "GPU_PIPELINES_CHECKPOINT_LEASE": "2"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *job],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    )


def journal(place: str, scratch: Path) -> Journal:
    """What a study in a bucket says, to whoever sees it for the first time."""
    scratch.mkdir()
    folder = StudyFolder(place, scratch)
    folder.fetch()
    return Journal(folder.directory)


@pytest.mark.slow
def test_a_step_in_a_bucket_that_is_killed_again_and_again_continues_its_study(
    numbers: Path, bucket: str, tmp_path: Path
) -> None:
    RemoteFolder(f"{bucket}/dataset").upload(
        numbers, [path.relative_to(numbers).as_posix() for path in numbers.rglob("*") if path.is_file()]
    )
    settings = {**ASKED, "trials": 3, "parallel_trials": 2}
    began = time.monotonic()
    whole = step(f"{bucket}/dataset", f"{bucket}/whole", tmp_path / "whole", settings)
    output, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, output
    killed = killed_again_and_again(
        lambda folder: step(f"{bucket}/dataset", f"{bucket}/{folder.name}", folder, settings),
        *(tmp_path, time.monotonic() - began, signal.SIGTERM, 2, 4),
    ).name
    one, other = (journal(f"{bucket}/{name}", tmp_path / f"read-{name}") for name in ("whole", killed))
    assert other.parameters == one.parameters
    assert {part: outcome.loss for part, outcome in other.outcomes.items()} == {
        part: outcome.loss for part, outcome in one.outcomes.items()
    }
    names = RemoteFolder(f"{bucket}/{killed}").names()
    for kept in ("report.html", "result.json", "spent.json", "study.json", "journal/0000.jsonl"):
        assert kept in names
    for trial in range(3):
        assert f"trials/{trial:04d}/checkpoints/metrics.jsonl" in names, "a trial that ended early keeps its curve"
    # What a machine said that was killed is lost with it.
    assert any(name.endswith("/log.txt") for name in names)
    result = json.loads(RemoteFolder(f"{bucket}/{killed}").read("result.json"))
    assert result["checkpoints"].startswith(f"{bucket}/{killed}/trials/")
    assert f"{result['checkpoints'].removeprefix(f'{bucket}/{killed}/')}/step-00000018/checkpoint.json" in names
