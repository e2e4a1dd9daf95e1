"""Benchmarks of lm-eval: figures, documents, gates, the champion on the same documents, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_files import DOCUMENTS, FILES, counting_dataset, write_model, write_rows, write_tasks, write_training
from conftest import storage_emulator
from evaluations import settings_in

from gpu_pipelines.artifacts.benchmark_results import (
    GroupMetric,
    MetricResult,
    first_metrics,
    read_results,
)
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.benchmark_request import MISSING
from gpu_pipelines.evaluation.benchmarks.scores import DocumentScores, GroupScores
from gpu_pipelines.evaluation.champion.comparison import Comparison
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.gates import ChampionGate, parse_gate
from gpu_pipelines.evaluation.report import write_report
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.registry.upload import UploadSettings, upload_model
from gpu_pipelines.tracking.facts import facts_of_evaluation

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from benchmark_gates import DOCUMENTS as MANY
from benchmark_gates import GATES, PROMISED, pair, promoted


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return counting_dataset(tmp_path_factory.mktemp("counting") / "data")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    """A training of two checkpoints, of which the later one is better."""
    return write_training(tmp_path_factory.mktemp("trained") / "run", dataset, [3, 25])


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "tasks")


def evaluate(dataset: Dataset, checkpoints: Path, folder: Path, name: str = "best", **given: Any) -> Evaluation:
    """An evaluation whose results of benchmarks are kept beside the checkpoints."""
    settings = settings_in(folder, **given)
    kept = {"": str(checkpoints)}
    return evaluate_checkpoints(
        settings, dataset.directory, checkpoints, folder / name, 1, folder / f"{name}-results", kept
    )


def values(evaluation: Evaluation, checkpoint: int = 0) -> dict[str, float]:
    assert evaluation.benchmarks is not None
    metrics = evaluation.benchmarks["checkpoints"][checkpoint]["metrics"]
    return {name: metric["value"] for name, metric in metrics.items()}


# Figures and documents


def test_every_checkpoint_is_run_and_each_document_is_kept(
    dataset: Dataset,
    trained: Path,
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # What Python compiles beside a task file is no part of the task.
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    checkpoints = shutil.copytree(trained, tmp_path / "run")
    given = {"benchmarks": [str(tasks)], "benchmark_best": 0, "gates": ["written_on.exact_match>=0.5"]}
    evaluation = evaluate(dataset, checkpoints, tmp_path, **given)
    told = evaluation.benchmarks
    assert told is not None
    assert [each["name"] for each in told["checkpoints"]] == ["step-00000025", "step-00000003"], "best on val first"
    assert told["main"] == ["both", "texts", "written-on"], "what a group has is a part of it"
    assert first_metrics(told) == ["both.acc", "texts.word_perplexity", "written_on.exact_match"]
    assert values(evaluation)["texts.word_perplexity"] < values(evaluation, 1)["texts.word_perplexity"]
    for number, name in enumerate(("step-00000025", "step-00000003")):
        folder, found = tmp_path / "best-results" / name, values(evaluation, number)
        logged = {file.stem: [json.loads(line) for line in file.open()] for file in folder.iterdir()}
        assert set(logged) == {"following", "both__rather", "texts", "written_on"}
        right = [sample["acc"] for sample in logged["following"]]
        assert found["following.acc"] == sum(right) / len(right)
        both = right + [sample["acc"] for sample in logged["both__rather"]]
        assert found["both.acc"] == pytest.approx(sum(both) / len(both), rel=1e-12)
        first = [sample for sample in logged["written_on"] if sample["filter"] == "first-word"]
        assert found["written_on.exact_match"] == np.mean([sample["exact_match"] for sample in first])
        assert all(sample["filtered_resps"] and "arguments" not in sample for sample in first)
    found = values(evaluation)
    assert 0 < found["written_on.exact_match"] < found["written_on.starts_alike"] < 1, "a function beside the task file"
    assert evaluation.gates[0]["passed"]
    assert read_results(tmp_path / "best").keys() == {"both", "texts", "written-on"}
    assert "## Benchmarks" in (tmp_path / "best" / "MODEL_CARD.md").read_text()
    capsys.readouterr()

    # What was done is not done again; what was not done, of a step that was killed, is.
    kept = sorted((checkpoints / "benchmarks").iterdir(), key=lambda path: path.stat().st_mtime)
    assert len(kept) == 6
    kept[-1].unlink()
    again = evaluate(dataset, checkpoints, tmp_path, "again", **given)
    assert again.benchmarks == told
    log = capsys.readouterr().out
    assert log.count("(measured before)") == 1, log
    # Documents that have changed make another benchmark.
    write_rows(tasks, seed=5)
    assert (
        values(evaluate(dataset, checkpoints, tmp_path, "new", **given))["both.acc"] != values(evaluation)["both.acc"]
    )


def test_results_of_other_documents_are_not_ranked_together(
    dataset: Dataset, trained: Path, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where the data of a task has changed on the hub between two starts of the step."""
    checkpoints = shutil.copytree(trained, tmp_path / "run")
    given = {"benchmarks": [str(tasks / "following.yaml")], "benchmark_best": 0}
    first = evaluate(dataset, checkpoints, tmp_path, **given)
    one, other = sorted((checkpoints / "benchmarks").iterdir())
    content = json.loads(one.read_text())
    content["result"]["tasks"]["following"]["documents_sha256"] = "0" * 64
    content["result"]["tasks"]["following"]["metrics"]["acc"]["value"] = 0.125
    one.write_text(json.dumps(content))
    other.unlink()
    assert evaluate(dataset, checkpoints, tmp_path, "again", **given).benchmarks == first.benchmarks
    assert "measured again" in capsys.readouterr().out


def test_limit_examples_and_the_best_alone(dataset: Dataset, trained: Path, tasks: Path, tmp_path: Path) -> None:
    given = {"benchmarks": [str(tasks / "written.yaml")], "benchmark_limit": 5, "benchmark_batch_size": 2}
    evaluation = evaluate_checkpoints(settings_in(tmp_path, **given), dataset.directory, trained, tmp_path / "best", 1)
    assert evaluation.benchmarks is not None
    assert [each["name"] for each in evaluation.benchmarks["checkpoints"]] == [evaluation.best]
    assert evaluation.benchmarks["tasks"] == {"written-on": {"version": "2.0", "documents": 5}}
    assert not (trained / "benchmarks").exists(), "nobody said where to keep results"
    facts = facts_of_evaluation(evaluation)
    assert facts.figures["benchmark_written_on_exact_match"] == values(evaluation)["written_on.exact_match"]
    of_best = next(entry for entry in facts.entries if entry["step"] == 25)
    assert of_best["checkpoint_benchmark_written_on_exact_match"] == values(evaluation)["written_on.exact_match"]


@pytest.mark.slow
def test_figures_are_those_of_the_command_of_lm_eval_to_the_last_digit(
    dataset: Dataset, trained: Path, tasks: Path, tmp_path: Path
) -> None:
    evaluation = evaluate(dataset, trained, tmp_path, benchmarks=[str(tasks)])
    found = values(evaluation)
    compared = set()
    for task in ("following", "written-on", "texts", "both"):
        command = [Path(sys.executable).with_name("lm_eval"), "--model", "hf", "--tasks", task, "--batch_size", "8"]
        command += ["--model_args", f"pretrained={tmp_path / 'best'},dtype=float32", "--device", "cpu"]
        command += ["--include_path", tasks, "--output_path", tmp_path / f"theirs-{task}.json"]
        # It looks for data files from where it is started.
        subprocess.run(command, cwd=tasks, check=True, capture_output=True, timeout=300)
        (written,) = tmp_path.glob(f"theirs-{task}*.json")
        for name, theirs in json.loads(written.read_text())["results"].items():
            for key, value in theirs.items():
                metric, comma, kind = key.partition(",")
                if comma and not metric.endswith("_stderr"):
                    of_filter = ".whole" if kind == "whole" else ""
                    name_here = re.sub(r"\W", "_", name) + f".{metric}{of_filter}"
                    assert found[name_here] == value, name_here
                    compared.add(name_here)
    assert compared == set(found)
    assert len(compared) == 11


@pytest.mark.slow
def test_two_processes_find_what_one_finds(dataset: Dataset, trained: Path, tasks: Path, tmp_path: Path) -> None:
    given = {"benchmarks": [str(tasks / name) for name in ("following.yaml", "written.yaml")], "benchmark_best": 0}
    found = [
        evaluate_checkpoints(settings_in(tmp_path, **given), dataset.directory, trained, tmp_path / str(number), number)
        for number in (1, 2)
    ]
    assert found[0].benchmarks == found[1].benchmarks


@pytest.mark.slow
def test_checkpoints_of_several_trainings_are_run_each_with_its_own(
    dataset: Dataset, trained: Path, tasks: Path, tmp_path: Path
) -> None:
    given = {"benchmarks": [str(tasks / "texts.yaml")], "benchmark_best": 0}
    other = write_training(tmp_path / "other" / "run", dataset, [3, 12], seed=1)
    directories = {"one": trained, "two": other}
    settings = settings_in(tmp_path, **given)
    together = evaluate_checkpoints(settings, dataset.directory, directories, tmp_path / "together", 1)
    assert together.benchmarks is not None
    found = {each["name"]: each["metrics"] for each in together.benchmarks["checkpoints"]}
    for name, directory in directories.items():
        alone = evaluate_checkpoints(settings, dataset.directory, directory, tmp_path / name, 1)
        assert alone.benchmarks is not None
        for each in alone.benchmarks["checkpoints"]:
            assert found[f"{name}/{each['name']}"] == each["metrics"]


# Killed once the second checkpoint was measured too, before its result is kept.
KILLED = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parent)]
from evaluations import settings_in
from processes import killing_before
from gpu_pipelines.evaluation.benchmarks.store import ResultStore
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
ResultStore.write = killing_before(2)(ResultStore.write)
folder, data, run, task = map(Path, sys.argv[2:])
settings = settings_in(folder, benchmarks=[str(task)], benchmark_best=0)
evaluate_checkpoints(settings, data, run, folder / "best", 1, None, {"": str(run)})
"""


@pytest.mark.slow
def test_an_evaluation_that_was_killed_goes_on_with_the_checkpoints_that_are_done(
    dataset: Dataset, trained: Path, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Other tests of this file leave their results there.
    checkpoints = shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("benchmarks"))
    arguments = [Path(__file__).parent, tmp_path, dataset.directory, checkpoints, tasks / "written.yaml"]
    command = [sys.executable, "-c", KILLED, *map(str, arguments)]
    killed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (done,) = checkpoints.glob("benchmarks/*.json")
    before = done.stat().st_mtime_ns
    given = {"benchmarks": [str(tasks / "written.yaml")], "benchmark_best": 0}
    continued = evaluate(dataset, checkpoints, tmp_path, **given)
    assert capsys.readouterr().out.count("(measured before)") == 1
    assert done.stat().st_mtime_ns == before
    shutil.rmtree(checkpoints / "benchmarks")
    assert evaluate(dataset, checkpoints, tmp_path, "whole", **given).benchmarks == continued.benchmarks


@pytest.mark.slow
def test_task_files_and_kept_results_may_be_in_a_bucket(
    dataset: Dataset, trained: Path, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with storage_emulator("benchmarks") as uri:
        RemoteFolder(f"{uri}/tasks").upload(tasks, [path.name for path in tasks.iterdir()])
        given = {"benchmarks": [f"{uri}/tasks/written.yaml"], "gates": ["written_on.exact_match>=0.1"]}
        assert settings_in(tmp_path, **given).problems_here() == []
        found = []
        for name in ("first", "second"):
            settings, kept = settings_in(tmp_path, **given), {"": f"{uri}/run"}
            found.append(
                evaluate_checkpoints(settings, dataset.directory, trained, tmp_path / name, 1, stores=kept).benchmarks
            )
        assert capsys.readouterr().out.count("(measured before)") == 1
        assert [name.partition("/")[0] for name in RemoteFolder(f"{uri}/run").names()] == ["benchmarks"]
        here = evaluate(dataset, trained, tmp_path, benchmarks=[str(tasks / "written.yaml")]).benchmarks
        assert found == [here, here]
        (problem,) = EvaluationSettings(benchmarks=[f"{uri}/tasks/gone.yaml"]).problems_here()
        assert "There is no file" in problem


@pytest.mark.slow
def test_the_tasks_of_lm_eval_are_known_by_name() -> None:
    """Without a network: nothing but their files is read."""

    def problems(*benchmarks: str, gate: str = "loss<=9") -> list[str]:
        return EvaluationSettings(gates=[gate], benchmarks=list(benchmarks)).problems_here()

    (problem,) = problems("gsm8kk")
    assert problem == "lm-eval has no task, group or tag 'gsm8kk' (benchmarks). Did you mean 'gsm8k'?"
    for gate in (
        "gsm8k.exact_match better_than_champion by 0.01 at 95%",
        "gsm8k.exact_match.flexible_extract>=0.1",
        "mmlu.acc>=0.3",
        "mmlu_anatomy.acc>=0.3",
        "hellaswag.acc_norm>=0.3",
        "wikitext.word_perplexity<=30",
    ):
        assert problems("gsm8k", "mmlu", "hellaswag", "wikitext", gate=gate) == []
    (problem,) = problems("gsm8k", "wikitext", gate="gsm8k.acc>=0.1")
    assert "it has gsm8k.exact_match, gsm8k.exact_match.flexible_extract" in problem
    (problem,) = problems("humaneval")
    assert "runs the code that the model writes" in problem


# The champion


@pytest.mark.slow
def test_the_champion_is_run_on_the_same_documents_and_its_own_results_are_taken_where_they_are_of_these(
    dataset: Dataset, trained: Path, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = "texts.word_perplexity better_than_champion at 95%"
    given = {"benchmarks": [str(tasks / "texts.yaml"), str(tasks / "following.yaml")], "gates": [gate]}
    worse = write_model(tmp_path / "worse", 3)
    registered = evaluate(dataset, worse, tmp_path, "first", **given)
    assert registered.gates[0]["why"] == "there is no champion yet"
    upload_model(UploadSettings(registry=str(tmp_path / "registry")), tmp_path / "first", registered.passed)
    capsys.readouterr()

    better = evaluate(dataset, trained, tmp_path, "second", **given)
    assert better.benchmarks is not None
    beside = better.benchmarks["champion"]
    assert beside["reused"]
    assert beside["metrics"] == registered.benchmarks["checkpoints"][0]["metrics"]  # type: ignore[index]
    assert "is run on" not in capsys.readouterr().out
    found = next(each for each in better.gates if "texts" in each["gate"])
    assert found["passed"]
    assert f"on the same {DOCUMENTS} documents" in found["why"]
    assert found["low"] > 0, "less perplexity is an improvement"
    write_report(better, dataset.directory, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<h2>Benchmarks</h2>" in page
    assert "by the results that it was registered with" in page
    assert re.search(r"<td[^>]*>texts\.word_perplexity</td>[^\n]*good[^\n]*</tr>", page), "the difference is marked"

    # Another version of a task: its own results say nothing, so it is run again, and on that task alone.
    (tasks / "texts.yaml").write_text(FILES["texts.yaml"].replace("version: 1.0", "version: 1.1"))
    newer = evaluate(dataset, trained, tmp_path, "third", **given)
    assert newer.benchmarks is not None
    assert not newer.benchmarks["champion"]["reused"]
    assert "the champion, version 1, is run on texts\n" in capsys.readouterr().out
    assert newer.benchmarks["champion"]["metrics"] == beside["metrics"]
    assert next(each for each in newer.gates if "texts" in each["gate"])["value"] == found["value"]


# Gates


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ("gsm8k.exact_match better_than_champion by 0.01 at 95%", ChampionGate("gsm8k.exact_match", 0.01, 0.95)),
        ("better_than_champion in mmlu.acc at 90%", ChampionGate("mmlu.acc", 0.0, 0.9)),
        ("loss better_than_champion", ChampionGate("loss")),
    ],
)
def test_a_metric_may_stand_before_the_comparison(text: str, gate: ChampionGate) -> None:
    settings = EvaluationSettings(gates=[text], benchmarks=["gsm8k", "mmlu"])
    assert settings.parsed_gates("causal_lm") == [gate]
    assert parse_gate(str(gate), None, with_benchmarks=True) == gate


@pytest.mark.parametrize(
    ("gate", "benchmarks", "says"),
    [
        ("gsm8k.exact_match>=0.4", [], "Name the benchmark: benchmarks=gsm8k."),
        ("gsm8k.exact_match better_than_champion", [], "Name the benchmark: benchmarks=gsm8k."),
        ("gsm8k.exact_match>=40", ["gsm8k"], "nothing can pass this"),
        ("slices.los.max<=3", ["gsm8k"], "there is no metric"),
        ("gsm8k.exact_match better_than_champion in loss", ["gsm8k"], "in METRIC"),
        ("los better_than_champion", ["gsm8k"], "Did you mean 'loss'?"),
    ],
)
def test_gates_that_cannot_be_are_refused(gate: str, benchmarks: list[str], says: str) -> None:
    (problem,) = EvaluationSettings(gates=[gate], benchmarks=benchmarks).problems("causal_lm")
    assert says in problem


def test_gates_on_what_a_task_has_not_are_refused_before_anything_is_trained(tasks: Path) -> None:
    def problems(gate: str, *files: str) -> list[str]:
        return EvaluationSettings(gates=[gate], benchmarks=[str(tasks / each) for each in files]).problems_here()

    assert problems("following.acc>=0.5", "following.yaml") == []
    assert problems("written_on.exact_match.whole better_than_champion at 95%", "written.yaml") == []
    assert problems("both.acc>=0.5", "group.yaml") == []
    assert problems("both__rather.acc>=0.5", "group.yaml") == [], "it stands in the group alone: lm-eval knows"
    (problem,) = problems("both.f1>=0.5", "group.yaml")
    assert "it has both.acc" in problem
    (problem,) = problems("following.exact_match>=0.5", "following.yaml", "texts.yaml")
    assert "it has following.acc, following.acc_norm" in problem
    (problem,) = problems("folowing.acc>=0.5", "following.yaml")
    assert "Did you mean 'following.acc'?" in problem
    (tasks / "texts.yaml").write_text(FILES["texts.yaml"] + "metric_list: [{metric: bleu, aggregation: bleu}]\n")
    (problem,) = problems("texts.bleu better_than_champion at 95%", "texts.yaml")
    assert "computes texts.bleu from all documents at once" in problem
    assert problems("texts.bleu better_than_champion", "texts.yaml") == []


def test_a_metric_that_only_the_run_shows_to_be_missing_ends_it(
    dataset: Dataset, trained: Path, tasks: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"has not; it has both__rather.acc"):
        evaluate(dataset, trained, tmp_path, benchmarks=[str(tasks / "group.yaml")], gates=["both__rather.f1>=0.5"])


@pytest.mark.slow
def test_equally_good_models_are_hardly_promoted_and_a_better_one_mostly() -> None:
    """The promise of benchmarks/benchmark_gates.py, which prints what happens at lower correlations."""
    assert promoted(GATES[0], 200, MANY, PROMISED, 0.0) <= 0.05
    assert promoted(GATES[0], 200, MANY, PROMISED, 0.02) >= 0.8


def test_a_gain_of_a_handful_of_documents_is_left_to_mcnemar() -> None:
    result = MetricResult(0.9, True, "mean", [1.0] * 45 + [0.0] * 5)
    ours = DocumentScores("t", 50, {"acc": result})
    theirs = DocumentScores("t", 50, {"acc": replace(result, value=0.8, of_documents=[1.0] * 40 + [0.0] * 10)})
    both = Comparison(ours, theirs, 1)
    assert both.ends("t.acc", 0.95)[0] > 0  # type: ignore[index]
    test = both.mcnemar("t.acc")
    assert test is not None
    assert test["p_value"] > 0.05


def test_correlation_is_what_it_says() -> None:
    drawn = pair(3, 200_000, 0.7, 0.0)
    ours, theirs = (each.right_by("gsm8k.exact_match") for each in (drawn.ours, drawn.theirs))
    assert np.corrcoef(ours, theirs)[0, 1] == pytest.approx(0.7, abs=0.01)  # type: ignore[arg-type]


# Intervals


def test_intervals_are_those_of_a_bootstrap_by_hand() -> None:
    generator = np.random.default_rng(0)
    likelihoods, words = generator.normal(-50, 20, 40), generator.integers(5, 60, 40).astype(float)
    items = [[a, b] for a, b in zip(likelihoods.tolist(), words.tolist(), strict=True)]
    value = float(np.exp(-likelihoods.sum() / words.sum()))
    some = [None, *likelihoods[1:].tolist()]
    results = {
        "word_perplexity": MetricResult(value, False, "weighted_perplexity", items),
        "perplexity": MetricResult(float(np.exp(-likelihoods[1:].mean())), False, "perplexity", some),
        "bleu": MetricResult(12.0, True),
    }
    found = DocumentScores("t", 40, results).intervals()
    draws = np.random.default_rng(0).integers(0, 40, (1000, 40))
    by_hand = np.exp(-likelihoods[draws].sum(1) / words[draws].sum(1))
    assert (found["t.word_perplexity"]["low"], found["t.word_perplexity"]["high"]) == pytest.approx(
        tuple(np.percentile(by_hand, [2.5, 97.5])), rel=1e-9
    )
    known = np.where(draws > 0, likelihoods[draws], np.nan)
    assert found["t.perplexity"]["low"] == pytest.approx(np.percentile(np.exp(-np.nanmean(known, 1)), 2.5), rel=1e-9)
    assert found["t.bleu"] == {"value": 12.0, "low": None, "high": None}


def test_a_group_is_the_mean_of_its_tasks_by_size_or_not() -> None:
    one = DocumentScores("one", 30, {"acc": MetricResult(0.5, True, "mean", [0.0, 1.0] * 15)}, 0)
    two = DocumentScores("two", 10, {"acc": MetricResult(1.0, True, "mean", [1.0] * 10)}, 1)
    for by_size, value in ((True, 0.625), (False, 0.75)):
        group = GroupScores("g", (one, two), {"acc": GroupMetric(value, True, by_size)})
        assert group.resampled["g.acc"].mean() == pytest.approx(value, abs=0.01)
        assert (group.right_by("g.acc") is not None) == by_size
    same = GroupScores("g", (one, replace(one, name="same", seed=1)), {"acc": GroupMetric(0.5, True, True)})
    assert same.resampled["g.acc"].std() == pytest.approx(one.resampled["one.acc"].std() / np.sqrt(2), rel=0.1)


# What is refused


@pytest.mark.parametrize(
    ("task", "given", "says"),
    [
        ("image_classification", {"benchmarks": ["gsm8k"]}, "benchmarks are for models that write texts"),
        ("causal_lm", {"benchmarks": ["gsm8k", "gsm8k"]}, "names 'gsm8k' twice"),
        ("causal_lm", {"benchmark_best": -1}, "benchmark_best is -1; give 0 or more"),
        ("causal_lm", {"benchmarks": ["gsm8k"], "scoring_function": "a:b"}, "with a scoring_function it loads none"),
    ],
)
def test_requests_that_cannot_be_are_refused_on_the_desk(task: str, given: dict[str, Any], says: str) -> None:
    assert any(says in problem for problem in EvaluationSettings(**given).problems(task))


def test_what_is_missing_here_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = EvaluationSettings(benchmarks=["./nowhere.yaml"]).problems_here()
    assert "There is no file or folder './nowhere.yaml'" in problem
    (tmp_path / "empty").mkdir()
    (problem,) = EvaluationSettings(benchmarks=[f"{tmp_path}/empty"]).problems_here()
    assert "holds no task for lm-eval" in problem
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert EvaluationSettings(benchmarks=["gsm8k"]).problems_here() == [MISSING]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("unsafe_code: true", "runs the code that the model writes"),
        ("metric_list: [{metric: acc, hf_evaluate: true}]", "downloads the code of a metric"),
        ("doc_to_image: image", "is about images or sounds"),
        ("metric_list: [", "is not a task file for lm-eval"),
    ],
)
def test_tasks_that_run_what_they_should_not_are_refused(tasks: Path, more: str, says: str) -> None:
    (tasks / "following.yaml").write_text(f"{FILES['texts.yaml']}{more}\n")
    (problem,) = EvaluationSettings(benchmarks=[str(tasks / "following.yaml")]).problems_here()
    assert says in problem


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("raise ZeroDivisionError('of the user')", "ZeroDivisionError: of the user"),
        (
            "import evaluate; return evaluate.load('accuracy')",
            "would download and run the code of the metric 'accuracy'",
        ),
    ],
)
def test_a_function_that_fails_or_downloads_code_ends_the_step_with_a_word(
    dataset: Dataset, trained: Path, tasks: Path, tmp_path: Path, function: str, says: str
) -> None:
    (tasks / "functions.py").write_text(f"def starts_alike(references, predictions, **kwargs):\n    {function}\n")
    with pytest.raises(UserError, match=says):
        evaluate(dataset, trained, tmp_path, benchmarks=[str(tasks / "written.yaml")])


def test_a_model_that_is_none_of_transformers_is_refused(tasks: Path, tmp_path: Path) -> None:
    from evaluations import numbers_dataset, write_regressions

    numbers = numbers_dataset(tmp_path / "numbers", task="causal_lm")
    write_regressions(tmp_path / "run", numbers, [0.5])
    with pytest.raises(UserError, match="is a Linear; lm-eval runs models of transformers"):
        evaluate(numbers, tmp_path / "run", tmp_path, benchmarks=[str(tasks / "following.yaml")])
