"""Retraining on this machine: runs on data that grows in between, as a scheduler would start them.

On numbers, whose models need no transformers: each process of a step would import it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Finished, gpu_pipelines, newest_run

PIPELINE = "scheduled_retraining"
CHEAP = {"smoke_test": False, "max_steps": 4, "checkpoint_every_steps": 2, "global_batch_size": 16}
LOOKS = ["check-request", "check-for-new-data"]
STEPS = [*LOOKS, "prepare-data", "train-model", "evaluate-checkpoints", "upload-model"]


@dataclass(frozen=True)
class Run:
    """A run that has ended: what the command said, `run.json`, and the outcome file as it was then."""

    done: Finished
    record: dict[str, Any]
    outcome: dict[str, Any]

    @property
    def page(self) -> str:
        return (self.record["directory"] / "report.html").read_text()


def retrain(cwd: Path, **parameters: Any) -> Run:
    given = [part for name, value in parameters.items() for part in ("-p", f"{name}={value}")]
    done = gpu_pipelines("run", PIPELINE, "--accelerator", "cpu:1", *given, cwd=cwd)
    assert done.status == 0, done.out + done.err
    return Run(done, newest_run(cwd), json.loads((cwd / f"runs/{PIPELINE}-outcome.json").read_text()))


def grow(table: Path, seed: int) -> None:
    """Adds rows: two numbers, and one that follows from them."""
    pairs = np.random.default_rng(seed).normal(size=(80, 2)).round(3)
    with table.open("a") as file:
        file.writelines(f"{a},{b},{3 * a - b}\n" for a, b in pairs)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """The first run, one with the same data, one with more data and gates that nothing meets, and one after that."""
    cwd = tmp_path_factory.mktemp("retraining")
    table = cwd / "prices.csv"
    table.write_text("a,b,label\n")
    grow(table, seed=0)
    good = {"source": table.name, "task": "regression", **CHEAP, "gates": "mae<=1000"}
    found = [retrain(cwd, **good), retrain(cwd, **good)]
    grow(table, seed=1)
    harder = {**good, "gates": "mae<=0", "start_from_champion": True}
    return [*found, retrain(cwd, **harder), retrain(cwd, **harder)]


def test_the_first_run_makes_a_champion(runs: list[Run]) -> None:
    first = runs[0]
    assert [step["name"] for step in first.record["steps"]] == STEPS
    assert first.record["dependencies"]["prepare-data"] == ["check-for-new-data"]
    assert first.outcome["outcome"] == "promoted"
    assert (first.outcome["model"], first.outcome["version"]) == ("prices", 1)
    assert "there was no champion of prices" in first.outcome["reason"]
    assert "prices version 1 is the champion" in first.page
    assert "<h2>Training</h2>" in first.page


def test_unchanged_data_ends_the_run_at_once(runs: list[Run]) -> None:
    second = runs[1]
    assert [step["name"] for step in second.record["steps"]] == LOOKS
    assert "nothing new: the source prices.csv is as it was for version 1 of prices, the champion" in second.done.out
    assert (second.outcome["outcome"], second.outcome["version"]) == ("nothing new", None)
    assert "Nothing new: no model was trained" in second.page
    # In the table of the steps, and in both pictures of the DAG.
    assert second.page.count("not run") == 8


def test_grown_data_gives_a_challenger_that_is_compared_on_the_new_rows(runs: list[Run]) -> None:
    third = runs[2]
    evaluation = json.loads(Path(third.record["artifacts"]["best_checkpoint"], "evaluation.json").read_text())
    assert evaluation["champion"]["version"] == 1
    first = json.loads(Path(runs[0].record["artifacts"]["best_checkpoint"], "evaluation.json").read_text())
    assert evaluation["test"]["rows"] > first["test"]["rows"]
    assert (third.outcome["outcome"], third.outcome["version"]) == ("not promoted", 2)
    assert "the champion stays" in third.done.out
    assert "Trained because the source prices.csv has changed since version 1 of prices was trained." in third.page


def test_training_can_go_on_from_the_champions_weights(runs: list[Run]) -> None:
    settings = json.loads(next(runs[2].record["directory"].glob("artifacts/checkpoints/*/training.json")).read_text())[
        "settings"
    ]
    assert settings["model"].endswith("registry/prices/versions/1")


def test_a_challenger_that_was_not_promoted_is_not_trained_again_on_the_same_data(runs: list[Run]) -> None:
    assert runs[3].outcome["outcome"] == "nothing new"
    assert "as it was for version 2 of prices" in runs[3].outcome["reason"]


def test_a_wrong_request_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = gpu_pipelines("run", PIPELINE, "-p", "min_champion_age_days=-1", "-p", "epochs=-1", cwd=tmp_path)
    assert done.status == 2
    assert "min_champion_age_days is -1.0; give 0 to 36,500 days." in done.err
    assert "epochs is -1.0" in done.err
    assert not (tmp_path / "runs").exists()


def test_a_step_that_fails_is_in_the_outcome_file(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for name in ("red", "blue"):
        (folder / name).mkdir(parents=True)
        (folder / name / "a.png").write_bytes(b"no picture")
    done = gpu_pipelines("run", PIPELINE, "-p", "source=photos", cwd=tmp_path)
    assert done.status == 1
    outcome = json.loads((tmp_path / f"runs/{PIPELINE}-outcome.json").read_text())
    assert outcome["outcome"] == "failed"
    assert outcome["reason"] == newest_run(tmp_path)["steps"][-1]["message"] != ""


@pytest.mark.slow
def test_texts_are_prepared_with_the_champions_tokenizer_and_compared(tmp_path: Path) -> None:
    words = ("good", "bad", "so", "very", "film", "day", "not")

    def write(numbers: range) -> None:
        rows = [{"text": " ".join(words[(n >> k) % 7] for k in range(9)), "label": "ab"[n % 2]} for n in numbers]
        with (tmp_path / "reviews.jsonl").open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    given = {"source": "reviews.jsonl", "task": "text_classification", "model": "bert-micro", "sequence_length": 16}
    write(range(200))
    retrain(tmp_path, **given, **CHEAP)
    write(range(1000, 1150))
    second = retrain(tmp_path, **given, **CHEAP, start_from_champion=True)
    champion = tmp_path / "registry/reviews/versions/1/tokenizer.json"
    dataset = next(second.record["directory"].glob("artifacts/*/prepare-data/dataset"))
    assert (dataset / "tokenizer/tokenizer.json").read_bytes() == champion.read_bytes()
    evaluation = json.loads(Path(second.record["artifacts"]["best_checkpoint"], "evaluation.json").read_text())
    assert evaluation["champion"]["version"] == 1


@pytest.mark.slow
def test_drift_begins_a_training_and_the_gates_alone_make_champions(tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def write(name: str, rows: int, shift: float = 0.0) -> None:
        numbers = random.normal(size=(rows, 2))
        lines = [f"{a + shift},{b},{3 * a - b}" for a, b in numbers.round(3)]
        head = [] if (tmp_path / name).exists() else ["a,b,label"]
        with (tmp_path / name).open("a") as file:
            file.writelines(line + "\n" for line in [*head, *lines])

    given = {"source": "rows.csv", "task": "regression", "model": "mlp-small", **CHEAP, "gates": "[]"}
    write("rows.csv", 1500)
    write("as_before.csv", 400)
    write("shifted.csv", 400, 0.8)
    assert retrain(tmp_path, **given).outcome["outcome"] == "promoted"
    watched = {**given, "retrain_on": "drift", "gates": "rmse<=0", "drift_source": "shifted.csv"}

    same = retrain(tmp_path, **watched)
    assert same.outcome["outcome"] == "nothing new"
    assert "; drift: shifted.csv is not as the training data of rows version 1" in same.outcome["reason"]

    write("rows.csv", 100)
    quiet = retrain(tmp_path, **{**watched, "drift_source": "as_before.csv"})
    assert [step["name"] for step in quiet.record["steps"]] == LOOKS
    assert quiet.outcome["outcome"] == "no drift"

    drifted = retrain(tmp_path, **watched, min_champion_age_days=30)
    assert [step["name"] for step in drifted.record["steps"]] == STEPS
    assert (drifted.outcome["outcome"], drifted.outcome["version"]) == ("not promoted", 2)
    assert "in standard deviations: a by" in drifted.outcome["reason"]
    aliases = json.loads(gpu_pipelines("models", "list", "--json", cwd=tmp_path).out)[0]["aliases"]
    assert aliases == {"champion": 1, "challenger": 2}
    page = next(drifted.record["directory"].glob("artifacts/*/check-for-new-data/drift_report*"))
    assert "The data has drifted" in page.read_text()
