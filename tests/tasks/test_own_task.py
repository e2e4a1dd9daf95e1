"""The task of docs/tasks.md, a package of its own, goes through the whole pipeline; what is no task is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import gpu_pipelines, newest_run, run_pipeline

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.dag.advanced import is_of
from gpu_pipelines.dag.train_evaluate_upload import problems
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.source_check import problems_here
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.serving.comparison import differences
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks import tasks
from gpu_pipelines.tasks.task import Task
from gpu_pipelines.tasks.tasks import TASKS, defaults_of_task, task_named, task_problems

sys.path.insert(0, str(Path(__file__).parents[1] / "exporting"))
from exported import evaluated

DOCUMENT = Path(__file__).parents[2] / "docs/tasks.md"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package `counts` of the document."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "counts").mkdir()
    (folder / "counts/__init__.py").touch()
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, code in re.findall(r'```python\n("""counts/(\w+)\.py.*?)```', text, re.DOTALL):
        (folder / f"counts/{code}.py").write_text(name, encoding="utf-8")
    return folder


@pytest.fixture
def importable(package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(package))
    return package


def test_a_task_of_a_package_of_its_own_is_prepared_trained_scored_and_served(importable: Path, tmp_path: Path) -> None:
    manifest = prepare_data(PrepareSettings(task="counts.task:Counts", source="sample:counts"), tmp_path / "data")
    assert manifest.records_kept == 400, "rows of the sample are the same and were left out"
    best = evaluated(tmp_path / "data", tmp_path, "linear", learning_rate=0.1, max_steps=20, global_batch_size=32)
    evaluation = Evaluation.load(best)
    assert evaluation.task == "counts.task:Counts"
    assert evaluation.test["metrics"]["mean_error"]["value"] < 4
    predictor, examples = load_predictor(best, ServerSettings(), 1), Examples.load(best)
    rows = [predictor.read(each, predictor.checked({})).row() for each in examples.instances]
    assert rows
    assert differences(examples, predictor.predict(rows)) == []


def test_a_task_is_found_where_the_command_runs_behind_all_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "meadow.py").write_text("from gpu_pipelines.tasks.regression.task import RegressionTask as Flowers")
    (tmp_path / "wave.py").write_text("raise RuntimeError('not the one of the standard library')")
    assert isinstance(task_named("meadow:Flowers"), Task)
    assert "is not a subclass" in " ".join(task_problems("wave:Wave_read"))
    assert "No module named 'forest'" in " ".join(task_problems("forest:Flowers"))


@pytest.mark.slow
def test_the_whole_pipeline_takes_a_task_of_a_package_of_its_own_and_compares_with_its_champion(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(package))
    given = {"task": "counts.task:Counts", "learning_rate": 0.1, "max_steps": 40, "gates": "mean_error<=2.5"}
    given |= {"checkpoint_every_steps": 20, "smoke_test": True, "global_batch_size": 32}
    done = run_pipeline(tmp_path, apart=True, **given)
    assert done.status == 0, done.out + done.err
    assert "examples served as evaluated" in done.out
    run = newest_run(tmp_path)
    assert run["status"] == "succeeded"
    exported = next(tmp_path.glob("registry/*/versions/1"))
    evaluation = Evaluation.load(exported)
    assert (evaluation.task, evaluation.select_by, evaluation.more_is_better) == (
        "counts.task:Counts",
        "deviance",
        False,
    )
    found = evaluation.test["metrics"]["deviance"]
    assert found["low"] <= found["value"] <= found["high"]
    assert len(evaluation.checkpoints) == 2
    # The champion is of the same task: it is loaded, scored on the same rows and compared with.
    dataset = next(run["directory"].rglob("dataset.json")).parent
    checkpoints = next(tmp_path.rglob("step-00000020/checkpoint.json")).parents[1]
    settings = EvaluationSettings(registry=str(tmp_path / "registry"), model_name=evaluation.model_name)
    monkeypatch.syspath_prepend(str(package))
    compared = evaluate_checkpoints(settings, dataset, checkpoints, tmp_path / "again")
    assert compared.champion is not None
    assert set(compared.champion["differences"]) == {"deviance", "mean_error"}
    assert compared.champion["differences"]["deviance"]["value"] == 0


def test_its_defaults_columns_and_metrics_are_checked_before_anything_is_run(importable: Path) -> None:
    name = "counts.task:Counts"
    assert task_problems(name) == []
    assert defaults_of_task(name) == {"task": name, "source": "sample:counts", "model": "linear"}
    assert PrepareSettings(task=name, source="sample:counts").problems() == []
    wrong = PrepareSettings(task=name, source="sample:digits", source_format="images").problems()
    assert [problem.partition(". ")[0] for problem in wrong] == [
        "source_format is 'images'; counts.task:Counts reads auto, csv, jsonl, parquet, arrow.",
        "There is no 'sample:digits' for counts.task:Counts",
    ]


def test_its_rows_are_grouped_and_sliced_by_columns_that_it_does_not_name(importable: Path, tmp_path: Path) -> None:
    source = tmp_path / "events.csv"
    source.write_text("x,y,label,site\n" + "".join(f"{n % 7},{n % 9},{n % 5},{n // 30}\n" for n in range(300)))
    settings = PrepareSettings(task="counts.task:Counts", source=str(source), group_by="site", slice_by="site")
    prepare_data(settings, tmp_path / "data")
    dataset = Dataset(tmp_path / "data")
    sites = [set(dataset.split(split).slice_values()) for split in ("train", "val", "test")]
    assert set.union(*sites) == {str(number) for number in range(10)}
    assert sum(map(len, sites)) == 10, "a site is in several splits"
    (problem,) = problems_here(replace(settings, group_by="place"))
    assert "has no column 'place'; it has x, y, label, site. Name the column with -p group_by=…" in problem


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:A", "The task no_such_module:A cannot be imported: ModuleNotFoundError"),
        ("counts.task:Missing", "cannot be imported: AttributeError"),
        ("counts.task:write_sample", "counts.task:write_sample is not a subclass of gpu_pipelines.tasks.task.Task"),
        ("gpu_pipelines.tasks.task:Task", "prepares no data"),
        ("text_clasification", "Did you mean 'text_classification'"),
    ],
)
def test_what_is_no_task_is_refused(importable: Path, name: str, message: str) -> None:
    assert len(task_problems(name)) == 1
    assert message in task_problems(name)[0]
    assert any(message in problem for problem in PrepareSettings(task=name).problems())


def test_the_command_line_refuses_a_task_that_cannot_be_imported(tmp_path: Path) -> None:
    done = gpu_pipelines("run", "train_evaluate_upload", "-p", "task=no_such_module:A", cwd=tmp_path)
    assert done.status == 2
    assert "The task no_such_module:A cannot be imported" in done.err
    assert "Traceback" not in done.err


@pytest.fixture
def installed(importable: Path) -> Iterator[None]:
    """The package with its metadata, in which tasks that are none stand beside its own."""
    metadata = importable / "counts-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: counts\nVersion: 1.0\n")
    entries = ["counts = counts.task:Counts", "regression = counts.task:Counts", "sample = counts.task:write_sample"]
    (metadata / "entry_points.txt").write_text("\n".join(["[gpu_pipelines.tasks]", *entries, ""]))
    tasks._installed.cache_clear()
    yield
    for path in metadata.iterdir():
        path.unlink()
    metadata.rmdir()
    tasks._installed.cache_clear()


def test_an_installed_package_may_name_its_tasks(installed: None) -> None:
    assert "counts" in TASKS
    assert task_named("counts").metrics.keys() == {"deviance", "mean_error"}
    assert json.dumps([*TASKS]).count("counts") == 1


def test_a_task_of_a_package_that_is_none_does_not_keep_others_from_working(
    installed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks._is_usable.cache_clear()
    assert [task.name for task in TASKS.values()][:1] == ["counts"]
    assert [*TASKS].count("regression") == 1
    assert "rmse" in TASKS["regression"].metrics
    told = capsys.readouterr().err
    assert "warning: the task regression of counts is left out: the name is taken" in told
    assert told.count("warning: the task sample is left out: counts.task:write_sample is not a subclass") == 1
    assert "counts.task:write_sample is not a subclass" in task_problems("sample")[0]


def test_an_installed_task_changes_nothing_of_the_others(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(task_named("counts")), "parameters", ("epochs",))
    assert is_of("epochs", "regression")


def test_a_task_that_cannot_be_made_is_refused(importable: Path) -> None:
    (importable / "raising.py").write_text(
        "from counts.task import Counts\n\nclass Raising(Counts):\n    def __init__(self):\n        pass\n"
    )
    assert (
        "The task raising:Raising cannot be made by raising:Raising: TypeError" in task_problems("raising:Raising")[0]
    )


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("metrics = {}", "metrics is empty"),
        ("metrics = {'deviance': False}", "metrics is not a mapping with a gpu_pipelines.tasks.metric.Metric for each"),
        ("models = 'linear'", "models is not a tuple of texts"),
        ("formats = None", "formats is not a tuple of texts"),
        ("from_scratch = {'epochs': 3}", "from_scratch is not of the class"),
        ("defaults = ('model',)", "defaults is not a mapping"),
        ("defaults = {'modle': 'linear'}", "has 'modle' in defaults, which is no parameter. Did you mean 'model'?"),
        ("parameters = ('packin',)", "has 'packin' in parameters, which is no parameter. Did you mean 'packing'?"),
        ("column_parameters = ('label',)", "has label in column_parameters, which prepare_data has not."),
    ],
)
def test_a_task_with_an_attribute_of_another_form_is_refused_before_anything_is_run(
    importable: Path, attribute: str, message: str
) -> None:
    module = f"formless_{attribute.split()[0]}{len(message)}"
    (importable / f"{module}.py").write_text(
        f"from counts.task import Counts\n\nclass Formless(Counts):\n    {attribute}\n"
    )
    assert message in " ".join(problems({"task": f"{module}:Formless"}))


def test_parts_and_gates_that_are_needed_after_the_training_are_checked_before_it(
    importable: Path, tmp_path: Path
) -> None:
    (importable / "late.py").write_text(
        "from counts.task import Counts\nfrom gpu_pipelines.evaluation.scoring import Scoring\n\n"
        "class NoScores(Scoring):\n    pass\n\nclass Unscored(Counts):\n    scoring = 'late:NoScores'\n\n"
        "class Unserved(Counts):\n    predictor = 'late:Predictor'\n    gates = ('deviancy<=1',)\n"
    )
    for task, message in (
        ("late:Unscored", "The scoring late:NoScores of the task late:Unscored does not define scores, shape, width."),
        ("late:Unserved", "The predictor late:Predictor of the task late:Unserved cannot be imported: AttributeError"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            prepare_data(PrepareSettings(task=task, source="sample:counts"), tmp_path / "data")
    assert "there is no metric 'deviancy'" in " ".join(EvaluationSettings().problems("late:Unserved"))


def test_a_task_that_cannot_say_what_is_wrong_is_refused(importable: Path) -> None:
    (importable / "careless.py").write_text(
        "from counts.task import Counts\n\nclass Careless(Counts):\n"
        "    def problems(self, settings):\n        return None\n"
    )
    (problem,) = PrepareSettings(source="rows.csv", task="careless:Careless").problems()
    assert problem == (
        "The task careless:Careless cannot say what is wrong: its problems failed (careless.py: TypeError). "
        "See docs/tasks.md."
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("{'input': [1.0, 2.0], 'target': 3.0}", "'inputs' of counts.csv:2: KeyError: 'inputs'."),
        ("{'inputs': [row['x'], 'y'], 'target': 3.0}", "'inputs' of counts.csv:2: ValueError: could not convert"),
        ("{'inputs': [1.0], 'target': 3.0}", "'inputs' of counts.csv:2: it has the shape (1,), not (2,)."),
        ("None", "'inputs' of counts.csv:2: TypeError: "),
    ],
)
def test_a_row_that_is_not_made_into_the_features_is_named(
    importable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, told: str
) -> None:
    from counts.parts import Table  # type: ignore[import-not-found]

    monkeypatch.setattr(Table, "values", lambda self, row: eval(given, {"row": row}))
    with pytest.raises(UserError) as refused:
        prepare_data(PrepareSettings(task="counts.task:Counts", source="sample:counts"), tmp_path / "data")
    assert f"values of Table is wrong about the feature {told}" in str(refused.value)
