"""The task regression: what it prepares, learns, scores, resumes and serves, from numbers, texts and images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from cut_off import require_same_bits
from PIL import Image
from sklearn import metrics as sklearn_metrics

from gpu_pipelines.artifacts.dataset import MANIFEST, Dataset
from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.data import row_preparation
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.report import write_report as write_data_report
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.champion.comparison import Comparison
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.report import write_report
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.serving.comparison import differences
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.request_body import WrongRequest
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.regression.predictor import Regressor
from gpu_pipelines.tasks.regression.recipe import Regression
from gpu_pipelines.tasks.regression.scoring import RegressionScores, RegressionScoring
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model

CPU = torch.device("cpu")
SETTINGS = TrainingSettings(model="mlp-small", max_steps=30, checkpoint_every_steps=10, global_batch_size=64)
LAST = "step-00000030"


def prepared(directory: Path, source: Path | str, **changes: Any) -> Dataset:
    prepare_data(PrepareSettings(task="regression", source=str(source), **changes), directory)
    return Dataset(directory)


@pytest.fixture(scope="module")
def diabetes(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return prepared(tmp_path_factory.mktemp("diabetes") / "data", "sample:diabetes")


@pytest.fixture(scope="module")
def trained(diabetes: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trained")
    train_model(SETTINGS, diabetes.directory, str(directory))
    return directory


def test_metrics_are_those_of_scikit_learn_and_differences_are_of_pairs() -> None:
    generator = np.random.default_rng(0)
    true = generator.normal(5, 3, (200, 2)) * [1, 100]
    half = np.array([1, 50])
    value = true + generator.normal(0, 1, (200, 2)) * half
    predicted = np.concatenate([value, value - half, value + half], axis=1)
    scores = RegressionScores.of(predicted, true, ("a", "b"))
    found = scores.metrics()
    assert found["mae"] == pytest.approx(sklearn_metrics.mean_absolute_error(true, value), rel=1e-12)
    roots = np.sqrt(sklearn_metrics.mean_squared_error(true, value, multioutput="raw_values"))
    assert found["rmse"] == pytest.approx(roots.mean(), rel=1e-12)
    assert found["r2"] == pytest.approx(sklearn_metrics.r2_score(true, value), rel=1e-9)
    assert found["coverage"] == pytest.approx((abs(true - value) <= half).mean())
    assert [each["name"] for each in scores.details()["parts"]] == ["a", "b"]
    part = scores.subset(np.arange(50)).metrics()
    assert part["r2"] == pytest.approx(sklearn_metrics.r2_score(true[:50], value[:50]), rel=1e-9)
    better = predicted * 0.5 + np.concatenate([true] * 3, axis=1) * 0.5
    comparison = Comparison(RegressionScores.of(better, true, ("a", "b")), scores, 1)
    low, high = comparison.ends("rmse", 0.95) or (0.0, 0.0)
    assert low < comparison.difference("rmse") < high < 0
    assert comparison.mcnemar() is None
    diverged = RegressionScores.of(np.full((200, 6), np.nan), true, ("a", "b")).metrics()
    assert all(np.isnan(each) for each in diverged.values())


def test_a_number_that_is_the_same_in_all_rows_has_no_r2_beside_another_one() -> None:
    true = np.column_stack([np.arange(9.0), np.full(9, 3.0)])
    scores = RegressionScores.of(np.concatenate([true + 1, true, true + 2], axis=1), true, ("a", "b"))
    assert [each["r2"] for each in scores.details()["parts"]] == [pytest.approx(0.85), None]


def test_the_worst_rows_are_shown_with_what_was_predicted(diabetes: Dataset) -> None:
    test = diabetes.split("test")
    true = test.column("target")
    predicted = np.concatenate([true, true - 1, true + 1], axis=1)
    predicted[7, 0] -= 100
    scoring = RegressionScoring(diabetes)
    worst = scoring.worst(scoring.scores(predicted, "test"))[0]
    assert (worst["row"], worst["true"]) == (7, f"{true[7, 0]:,.4f}")
    assert worst["predicted"] == f"{true[7, 0] - 100:,.4f}"
    assert worst["error in deviations"] == f"{100 / true.std():.2f}"


def test_rows_of_one_number_have_no_r2_among_others_that_vary() -> None:
    generator = np.random.default_rng(0)
    for rows in range(1, 20):
        true = np.concatenate([np.full((rows, 1), 2.7), generator.normal(size=(40, 1))]).astype(np.float32)
        value = true + generator.normal(size=true.shape) / 10
        scores = RegressionScores.of(np.concatenate([value] * 3, axis=1), true, ("y",))
        assert np.isnan(scores.subset(np.arange(rows)).metrics()["r2"])
        others = scores.subset(np.arange(rows, len(true))).metrics()
        assert others["r2"] == pytest.approx(sklearn_metrics.r2_score(true[rows:], value[rows:]), rel=1e-9)


def test_a_metric_that_some_resamples_lack_has_no_interval_in_place_of_one_without_a_width() -> None:
    true = np.array([[1.0], [1.0], [1.0], [1.0], [1.0], [1.0], [2.0]])
    value = true + np.linspace(-0.3, 0.3, len(true))[:, None]
    scores = RegressionScores.of(np.concatenate([value] * 3, axis=1), true, ("y",))
    found = scores.intervals()["r2"]
    assert found == {"value": pytest.approx(sklearn_metrics.r2_score(true, value)), "low": None, "high": None}
    assert scores.intervals()["rmse"]["low"] is not None


def test_the_sample_is_that_of_scikit_learn(diabetes: Dataset) -> None:
    from sklearn.datasets import load_diabetes

    manifest = diabetes.manifest
    assert manifest.rows_kept == manifest.rows_read == 442
    assert manifest.preprocessing["inputs"] == load_diabetes().feature_names
    every = [diabetes.split(name).take(np.arange(manifest.rows(name))) for name in manifest.splits]
    targets = np.sort(np.concatenate([columns["target"][:, 0] for columns in every]))
    np.testing.assert_allclose(targets, np.sort(load_diabetes().target))


@pytest.mark.slow
def test_checkpoints_are_scored_shown_exported_and_served_as_evaluated(
    diabetes: Dataset, trained: Path, tmp_path: Path
) -> None:
    settings = EvaluationSettings(
        gates=["rmse<=1000", "r2>=-100", "coverage>=0.1"], registry=str(tmp_path / "registry")
    )
    model = tmp_path / "model"
    evaluation = evaluate_checkpoints(settings, diabetes.directory, trained, model)
    assert evaluation.passed
    assert len(evaluation.checkpoints) == 3
    assert evaluation.test["metrics"]["r2"]["value"] > 0.2
    assert 0.7 <= evaluation.test["metrics"]["coverage"]["value"] <= 1.0
    assert (evaluation.select_by, evaluation.more_is_better) == ("rmse", False)
    found = evaluation.test["metrics"]
    assert all(each["low"] <= each["value"] <= each["high"] for each in found.values())
    assert len(evaluation.mistakes) == 24
    write_data_report(diabetes.directory, tmp_path / "data.html")
    write_report(evaluation, diabetes.directory, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "predicted worst" in page
    assert evaluation.mistakes[0]["true"] in page
    predictor = load_predictor(model, ServerSettings())
    examples = Examples.load(model)
    rows = [predictor.read(each, predictor.checked({})).row() for each in examples.instances]
    assert differences(examples, predictor.predict(rows)) == []
    sent = {"values": json.dumps(examples.instances[0]["values"])}
    np.testing.assert_array_equal(predictor.read(sent, None).row(), rows[0])
    first = predictor.predict(rows)[0]
    assert first["low"]["label"] < first["values"]["label"] < first["high"]["label"]
    for instance in (
        {},
        {"values": {"age": 1}},
        {"values": {**examples.instances[0]["values"], "bmi": "thin"}},
        {"x": 1},
    ):
        with pytest.raises(WrongRequest, match="values"):
            predictor.read(instance, None)


@pytest.mark.slow
def test_what_the_numbers_are_measured_by_is_told_by_dataset_json_alone(diabetes: Dataset, tmp_path: Path) -> None:
    """An evaluation of a dataset larger than the disk has no train, and a training that streams would read it whole."""
    (tmp_path / MANIFEST).write_bytes((diabetes.directory / MANIFEST).read_bytes())
    form = Regression.for_dataset(Dataset(tmp_path)).form
    train = diabetes.split("train")
    (columns,) = train.columns(0, len(train))
    inputs = [columns[f"input.{name}"].astype(np.float64) for name in form.inputs]
    assert form.mean == pytest.approx(columns["target"].mean(axis=0, dtype=np.float64))
    assert form.deviation == pytest.approx(columns["target"].std(axis=0, dtype=np.float64))
    assert form.inputs_mean == pytest.approx([values.mean() for values in inputs])
    assert form.inputs_deviation == pytest.approx([values.std() for values in inputs])


@pytest.mark.slow
def test_a_training_cut_off_and_continued_ends_with_the_same_bits(
    diabetes: Dataset, trained: Path, tmp_path: Path
) -> None:
    require_same_bits(SETTINGS, diabetes.directory, trained, LAST, tmp_path)


def texts(folder: Path) -> Path:
    generator = np.random.default_rng(1)
    rows = [
        {"text": "very " * int(n) + "good", "stars": int(n), "weight": float(n) / 7}
        for n in generator.integers(0, 9, 60)
    ]
    for number, row in enumerate(rows):
        row["text"] += f" {number}"
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "rows.jsonl"


def images(folder: Path) -> Path:
    generator = np.random.default_rng(1)
    lines = ["image,stars,weight"]
    for number in range(60):
        level = int(generator.integers(0, 200))
        pixels = generator.integers(0, 50, (16, 16)) + level
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{level},{level / 7}")
    (folder / "rows.csv").write_text("\n".join(lines))
    return folder / "rows.csv"


@pytest.mark.parametrize(("write", "model"), [(texts, "bert-micro"), (images, "convnext-micro")])
def test_texts_and_images_are_learned_from_and_exported_models_predict_the_same(
    tmp_path: Path, write: Any, model: str
) -> None:
    source = write(tmp_path)
    dataset = prepared(tmp_path / "data", source, label_column="stars, weight", sequence_length=16, max_rejected="0")
    recipe = Regression.for_dataset(dataset)
    assert recipe.form.targets == ["stars", "weight"]
    rows = dataset.split("train").take(np.arange(8))
    np.testing.assert_allclose(rows["target"][:, 0] / 7, rows["target"][:, 1], rtol=1e-6)
    torch.manual_seed(0)
    built = recipe.build_model(model).eval()
    batch = recipe.batch(rows, CPU)
    assert recipe.loss(built, batch).item() > 0
    (tmp_path / "model").mkdir()
    recipe.export(built, tmp_path / "model")
    again = Regression.for_exported(tmp_path / "model")
    assert again.form == recipe.form
    loaded = again.load_exported(tmp_path / "model").eval()
    with torch.no_grad():
        before, after = recipe.predict(built, batch), again.predict(loaded, again.batch(rows, CPU))
    assert before.shape == (8, 6)
    torch.testing.assert_close(before, after)
    predictor = Regressor(tmp_path / "model", ServerSettings(), CPU)
    answer = predictor.predict([predictor.read(predictor.example, predictor.checked({})).row()])[0]
    assert set(answer["values"]) == {"stars", "weight"}
    with pytest.raises(UserError, match="cannot learn from"):
        recipe.build_model("linear")


@pytest.mark.parametrize("model", ["linear", "mlp-small"])
def test_a_model_of_numbers_goes_on_with_other_rows_and_with_no_other_columns(tmp_path: Path, model: str) -> None:
    generator = np.random.default_rng(2)
    sets = []
    for number, (names, shift) in enumerate((("a,b", 0), ("a,b", 4), ("a,c", 0))):
        lines = [f"{names},label,weight"]
        for x, y in generator.normal(shift, 3 + shift, (60, 2)):
            lines.append(f"{x},{y},{x - 2 * y},{shift - x}")
        (tmp_path / f"{number}.csv").write_text("\n".join(lines))
        sets.append(prepared(tmp_path / str(number), tmp_path / f"{number}.csv", label_column="label, weight"))
    first, second, other = (Regression.for_dataset(dataset) for dataset in sets)
    torch.manual_seed(0)
    built = first.build_model(model).eval()
    directory = tmp_path / "model"
    directory.mkdir()
    first.export(built, directory)
    continued = second.build_model(str(directory)).eval()
    rows = sets[1].split("train").take(np.arange(8))
    with torch.no_grad():
        before, after = first.predict(built, first.batch(rows, CPU)), second.predict(continued, second.batch(rows, CPU))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-3)
    with pytest.raises(UserError, match="does not fit this dataset: it is a, b → label, weight, and the data is a, c"):
        other.build_model(str(directory))
    with torch.device("meta"):
        assert [p.shape for p in second.build_model(str(directory)).parameters()] == [
            p.shape for p in built.parameters()
        ]


def test_named_columns_alone_are_learned_from_though_there_are_texts_names_and_identifiers(tmp_path: Path) -> None:
    rows = ["text,id,size,city,rooms,label", *(f"a flat,{n},{n % 13},Lyon,{n % 5},{n % 13 * 9}" for n in range(300))]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    dataset = prepared(tmp_path / "data", tmp_path / "rows.csv", feature_columns="size, rooms", slice_by="city")
    assert dataset.manifest.preprocessing["inputs"] == ["size", "rooms"]
    assert set(dataset.manifest.features) == {"input.size", "input.rooms", "target"}
    assert not dataset.manifest.rows_rejected


def test_the_numbers_of_rows_that_pandas_writes_are_not_learned_from(tmp_path: Path) -> None:
    table = pandas.DataFrame({"x": np.arange(200.0) ** 2, "label": np.arange(200.0)})
    table.to_csv(tmp_path / "plain.csv")
    # Read and written again, its numbers have a name.
    pandas.read_csv(tmp_path / "plain.csv").to_csv(tmp_path / "twice.csv")
    table[table.x > 0].to_parquet(tmp_path / "some.parquet")
    for name in ("plain.csv", "twice.csv", "some.parquet"):
        prepare_data(PrepareSettings(task="regression", source=str(tmp_path / name)), tmp_path / f"of {name}")
        assert Dataset(tmp_path / f"of {name}").manifest.preprocessing["inputs"] == ["x"], name


def test_truth_values_are_numbers_in_every_table(tmp_path: Path) -> None:
    rows = pandas.DataFrame({"x": np.arange(200.0), "new": np.arange(200) % 3 == 0, "label": np.arange(200.0) ** 2})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    rows.to_parquet(tmp_path / "rows.parquet")
    csv, parquet = (prepared(tmp_path / kind, tmp_path / f"rows.{kind}").manifest for kind in ("csv", "parquet"))
    assert csv.fingerprint == parquet.fingerprint
    assert csv.rejected == {}


def test_rows_without_a_number_are_rejected_with_the_reason_and_wrong_requests_refused(tmp_path: Path) -> None:
    rows = [
        "a,b,label",
        *(f"{n},{n * n % 17},{n / 2}" for n in range(60)),
        "1,,2",
        "1,2,inf",
        "1,2,much",
        "1,1e39,2",
        '1,2,"1,234"',
        "1,2,1_000",
        "1,2,１２",
    ]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    dataset = prepared(tmp_path / "data", tmp_path / "rows.csv", max_rejected="20%")
    assert dataset.manifest.rejected == {"no number in 'b'": 2, "no number in 'label'": 5}
    details = [json.loads(line)["detail"] for line in (tmp_path / "data/rejected.jsonl").read_text().splitlines()]
    assert details == [
        "the column 'b' is empty; feature_columns can leave it out",
        "the column 'label' holds 'inf'",
        "the column 'label' holds 'much'",
        "the column 'b' holds 1e39, and numbers are at most 3.4e+38; feature_columns can leave it out",
        "the column 'label' holds '1,234', and numbers are written as 1234.5",
        "the column 'label' holds '1_000', and numbers are written as 1234.5",
        "the column 'label' holds '１２', and numbers are written as 1234.5",
    ]
    in_pandas = pandas.read_csv(tmp_path / "rows.csv", dtype=str)["label"].tail(3)
    assert pandas.to_numeric(in_pandas, errors="coerce").isna().all()
    with pytest.raises(UserError, match="has no column 'price'"):
        prepared(tmp_path / "none", tmp_path / "rows.csv", label_column="price")
    with pytest.raises(UserError, match="among texts only"):
        prepared(tmp_path / "none", tmp_path / "rows.csv", near_duplicates=0.8)
    with pytest.raises(UserError, match="has no column 'floor'; it has a, b, label"):
        prepared(tmp_path / "none", tmp_path / "rows.csv", feature_columns="a, floor")
    both = PrepareSettings(task="regression", source="sample:diabetes", feature_columns="age,label").problems()
    assert both == ["feature_columns and label_column both name 'label'. Learn it, or learn from it."]
    wrong = PrepareSettings(task="regression", source="sample:diabetes", label_column=" ,", stratify=True).problems()
    assert [problem.partition(". ")[0] for problem in wrong] == [
        "label_column is empty",
        "stratify needs a class for each row, which regression has not",
    ]


def test_a_table_with_few_values_in_each_column_is_warned_of_the_rows_that_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{number % 7},{number % 11},{number % 3}\n" for number in range(1000)]
    (tmp_path / "rows.csv").write_text("rooms,floor,label\n" + "".join(rows))
    assert prepared(tmp_path / "data", tmp_path / "rows.csv").manifest.records_kept == 231
    said = "warning: 769 of 1,000 rows are equal to an earlier one and were left out; if they are not copies"
    assert said in capsys.readouterr().out
    kept = prepared(tmp_path / "all", tmp_path / "rows.csv", remove_duplicates=False)
    assert kept.manifest.records_kept == 1000
    assert "warning" not in capsys.readouterr().out


def test_rows_of_many_numbers_are_not_all_held_until_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [f"x{number}" for number in range(600)]
    lines = [",".join([str(row), *["0.5"] * 599, "1"]) for row in range(700)]
    (tmp_path / "wide.csv").write_text("\n".join([",".join([*columns, "y"]), *lines]))
    held: list[int] = []
    write_group = row_preparation.write_group

    def counted(group: Any, *others: Any) -> None:
        held.append(len(group.items))
        write_group(group, *others)

    monkeypatch.setattr(row_preparation, "write_group", counted)
    found = prepared(tmp_path / "dataset", tmp_path / "wide.csv", label_column="y")
    assert found.manifest.rows_read == sum(held) == 700
    assert len(held) > 1
