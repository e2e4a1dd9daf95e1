"""Rows of several classes, or of none: prepared, learned, scored as by scikit-learn, served as by transformers."""

from __future__ import annotations

import base64
import csv
import io
import json
import random
import re
import shutil
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from safetensors.torch import load_file, save_file
from sklearn import metrics as sklearn_metrics
from transformers import ViTConfig, ViTForImageClassification

from gpu_pipelines.artifacts.dataset import SPLITS, Dataset
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.report import write_report as write_data_report
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.row_streams import Problem
from gpu_pipelines.drift.check import check_for_drift
from gpu_pipelines.drift.settings import DriftSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.models.hugging_face import open_model
from gpu_pipelines.evaluation.models.loading import Loaded
from gpu_pipelines.evaluation.report import write_report
from gpu_pipelines.evaluation.scorers.examples import examples_of
from gpu_pipelines.prediction.model import model_in
from gpu_pipelines.registry.endpoint_forms import HuggingFaceForm
from gpu_pipelines.serving.comparison import differences
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.request_body import WrongRequest
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.multi_label_classification import scoring
from gpu_pipelines.tasks.multi_label_classification.labels import classes_of_row
from gpu_pipelines.tasks.multi_label_classification.recipe import MultiLabelClassification, is_of_images
from gpu_pipelines.tasks.multi_label_classification.scoring import MultiLabelScores, MultiLabelScoring
from gpu_pipelines.tasks.tasks import TASKS

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("exporting", "serving")]
from exported import evaluated  # noqa: E402 (they lie beside the tests of what they make)
from predicting import predicted, written  # noqa: E402

CPU = torch.device("cpu")
ANIMALS = ("cat", "dog", "fox")
OTHERS = ("tree", "house", "lake", "sees", "the", "a", "near", "old", "red", "big", "under", "by", "walks", "sun")


def texts(seed: int = 0) -> list[dict[str, Any]]:
    """Which animals a text speaks of: none to all of them."""
    generator, rows = random.Random(seed), {}
    while len(rows) < 400:
        there = [name for name in ANIMALS if generator.random() < 0.4]
        words = [*there, *generator.sample(OTHERS, 4)]
        generator.shuffle(words)
        rows[" ".join(words)] = there
    return [{"text": text, "label": there} for text, there in rows.items()]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prepared(directory: Path, source: Path, **changes: Any) -> Dataset:
    given = {"sequence_length": 16, **changes}
    prepare_data(PrepareSettings(task="multi_label_classification", source=str(source), **given), directory)
    return Dataset(directory)


def classes_by_source(dataset: Dataset) -> dict[str, list[str]]:
    """The classes of each row, by where it comes from."""
    found = {}
    for name in SPLITS:
        split = dataset.split(name)
        rows = range(len(split))
        marks = split.take(np.array(rows))["classes"]
        classes = dataset.manifest.preprocessing["classes"]
        for source, row in zip(split.sources(rows), marks, strict=True):
            found[source] = [classes[place] for place in np.flatnonzero(row)]
    return found


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("animals")
    return prepared(folder / "data", write(folder / "animals.jsonl", texts()))


@pytest.fixture(scope="module")
def model(animals: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained until it tells the animals, and evaluated."""
    training = {"max_steps": 60, "checkpoint_every_steps": 60, "global_batch_size": 64}
    return evaluated(animals.directory, tmp_path_factory.mktemp("model"), "bert-micro", **training)


def require_same(predictor: Any, model: Path) -> None:
    """The examples that are kept with a model are served as they were evaluated."""
    examples = Examples.load(model)
    assert examples.instances
    rows = [predictor.read(each, predictor.checked({})).row() for each in examples.instances]
    assert differences(examples, predictor.predict(rows)) == []


def test_classes_are_those_of_the_rows_in_every_form_that_tables_have_them(tmp_path: Path) -> None:
    rows = texts()
    wanted = [row["label"] for row in rows]
    forms = {
        "list": lambda names: names,
        "JSON": json.dumps,
        "Python": repr,
        "bars": "|".join,
        "semicolons": "; ".join,
    }
    for name, form in forms.items():
        changed = [{**row, "label": form(row["label"]) or "[]"} for row in rows]
        if name == "list":
            changed = rows
        source = write(tmp_path / f"{name}.jsonl", changed)
        dataset = prepared(tmp_path / name, source)
        assert dataset.manifest.preprocessing["classes"] == list(ANIMALS)
        assert dataset.manifest.rows_rejected == 0
        found = classes_by_source(dataset)
        assert [found[f"{source.name}:{number}"] for number in range(1, len(rows) + 1)] == wanted, name


def test_a_column_of_0_and_1_for_each_class(tmp_path: Path) -> None:
    rows = texts()
    with (tmp_path / "marks.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", *ANIMALS, "bird"])
        for number, row in enumerate(rows):
            writer.writerow(
                [row["text"], *(int(name in row["label"]) for name in ANIMALS), "-1" if number < 3 else "0.0"]
            )
    dataset = prepared(tmp_path / "data", tmp_path / "marks.csv", label_column="dog,cat,fox,bird")
    # In the order in which they were named, and those too of which there is no row.
    assert dataset.manifest.preprocessing["classes"] == ["dog", "cat", "fox", "bird"]
    assert dataset.manifest.rejected == {"no label": 3}
    reasons = (dataset.directory / "rejected.jsonl").read_text()
    assert "the column 'bird' holds '-1', neither 0 nor 1" in reasons
    found = classes_by_source(dataset)
    for number, row in list(enumerate(rows))[3:]:
        assert sorted(found[f"marks.csv:{number + 2}"]) == sorted(row["label"])


def test_a_row_that_says_nothing_is_no_row_of_no_class(tmp_path: Path) -> None:
    rows = [*texts(), {"text": "silent"}, {"text": "empty", "label": ""}, {"text": "missing", "label": ["cat", None]}]
    rows += [{"text": "pandas", "label": "NaN"}, {"text": "nested", "label": [["cat"]]}, {"text": "none", "label": []}]
    dataset = prepared(tmp_path / "data", write(tmp_path / "rows.jsonl", rows))
    assert dataset.manifest.rejected == {"no label": 4, "malformed row": 1}
    assert classes_by_source(dataset)["rows.jsonl:406"] == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"label_column": " ,"}, "label_column is empty"),
        ({"text_pair_column": "label"}, "Name one of its own"),
        ({"stratify": True}, "stratify needs a class for each row"),
        ({"label_conflicts": "remove"}, "label_conflicts are of classes"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_read(given: dict[str, Any], message: str) -> None:
    settings = PrepareSettings(task="multi_label_classification", source="rows.jsonl", **given)
    assert message in "\n".join(settings.problems())


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("('sky', 'sea')", ["sea", "sky"]),
        ("{'sky', 'sea'}", ["sea", "sky"]),
        ("{2, 11}", ["11", "2"]),
        ("['sky' 'sea']", ["sea", "sky"]),
        ("['sky'\n 'deep sea' \"dog's\"]", ["deep sea", "dog's", "sky"]),
        ("set()", []),
        ("()", []),
    ],
)
def test_cells_that_pandas_writes_of_tuples_sets_and_arrays(cell: str, names: list[str]) -> None:
    settings = PrepareSettings(task="multi_label_classification", source="rows.csv")
    assert classes_of_row({"label": cell}, settings) == json.dumps(names)


@pytest.mark.parametrize("cell", ["[sky, sea]", "[1 2 3]", "{'sky': 1}", "['sky']]"])
def test_a_cell_in_brackets_that_is_no_list_is_no_class(cell: str) -> None:
    found = classes_of_row({"label": cell}, PrepareSettings(task="multi_label_classification", source="rows.csv"))
    assert isinstance(found, Problem)
    assert "is no list as JSON or Python writes it" in found.detail


@pytest.mark.parametrize("form", [lambda marks: marks, lambda marks: [float(mark) for mark in marks], str])
def test_0_and_1_in_one_column_are_no_names_of_classes(form: Any, tmp_path: Path) -> None:
    rows = [{**row, "label": form([int(name in row["label"]) for name in ANIMALS])} for row in texts()]
    with pytest.raises(UserError, match="'label' has nothing but 0 and 1, which are not names") as raised:
        prepared(tmp_path / "data", write(tmp_path / "rows.jsonl", rows))
    assert "a column of 0 and 1 for each class" in str(raised.value.remedy)


def test_a_test_source_of_other_classes_and_a_table_without_columns_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "rows.jsonl", texts())
    other = write(tmp_path / "other.jsonl", [{"text": "a bird", "label": ["bird"]}])
    with pytest.raises(UserError, match=r"has classes that .* does not have: 'bird'"):
        prepared(tmp_path / "a", source, test_source=str(other))
    with pytest.raises(UserError, match="has no column 'tags'"):
        prepared(tmp_path / "b", source, label_column="tags")
    task = TASKS["multi_label_classification"]
    settings = PrepareSettings(task="multi_label_classification", source=str(source))
    assert "Give bert-micro, bert-base" in task.model_problems(settings, ("text", "label"), "vit-micro")[0]
    assert task.model_problems(settings, ("image", "label"), "vit-micro") == []


def test_metrics_are_those_of_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    true = (generator.random((300, 5)) < [0.5, 0.3, 0.1, 0.05, 0.0]).astype(np.uint8)
    probabilities = np.clip(0.6 * true + generator.normal(0.2, 0.25, true.shape), 0.01, 0.99).astype(np.float32)
    probabilities[:, 4] = 0.01
    found = (probabilities >= 0.5).astype(int)
    scores = MultiLabelScores.of(probabilities, true, "abcde")
    metrics = scores.metrics()
    for name, function in (
        ("f1", sklearn_metrics.f1_score),
        ("precision", sklearn_metrics.precision_score),
        ("recall", sklearn_metrics.recall_score),
    ):
        assert metrics[name] == pytest.approx(function(true, found, average="micro"), abs=1e-12)
    # The last class is in no row and found in none.
    macro = sklearn_metrics.f1_score(true[:, :4], found[:, :4], average="macro")
    assert metrics["macro_f1"] == pytest.approx(macro, abs=1e-12)
    assert metrics["exact_match"] == pytest.approx(sklearn_metrics.accuracy_score(true, found), abs=1e-12)
    losses = [sklearn_metrics.log_loss(true[:, n], probabilities[:, n], labels=[0, 1]) for n in range(5)]
    assert metrics["log_loss"] == pytest.approx(np.mean(losses), abs=1e-6)
    part = scores.subset(np.arange(100))
    assert part.metrics()["f1"] == pytest.approx(sklearn_metrics.f1_score(true[:100], found[:100], average="micro"))
    assert scores.details()["parts"][1]["rows"] == int(true[:, 1].sum())
    low, high = scores.intervals()["f1"]["low"], scores.intervals()["f1"]["high"]
    assert low < metrics["f1"] < high
    diverged = MultiLabelScores.of(np.full(true.shape, np.nan, np.float32), true, "abcde").metrics()
    assert diverged["f1"] == diverged["exact_match"] == 0
    assert np.isnan(diverged["log_loss"])


def test_rows_of_many_classes_take_little_more_memory_than_their_probabilities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true = np.zeros((400, 500), np.uint8)
    true[np.arange(400), np.arange(400)] = 1
    probabilities = np.random.default_rng(0).random(true.shape, np.float32)
    at_once = MultiLabelScores.of(probabilities, true, [str(number) for number in range(500)])
    monkeypatch.setattr(scoring, "_CELLS_AT_ONCE", 7000)
    tracemalloc.start()
    scores = MultiLabelScores.of(probabilities, true, at_once.classes)
    totals = scores.totals(np.ones((1, 400)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * true.size
    assert totals[0, :-3].reshape(500, 3)[:, 2].tolist() == true.sum(axis=0).tolist()
    assert scores.intervals() == at_once.intervals()


def test_a_champion_of_other_classes_is_put_in_their_order(animals: Dataset) -> None:
    class Theirs:
        classes = ["fox", "bird", "cat"]  # noqa: RUF012 (read only)

    found = MultiLabelScoring(animals).aligned(np.array([[0.1, 0.2, 0.3]], np.float32), [], Theirs())
    assert found.tolist() == [[np.float32(0.3), 0.0, np.float32(0.1)]]


def test_the_loss_is_binary_cross_entropy(animals: Dataset) -> None:
    recipe = MultiLabelClassification.for_dataset(animals)
    torch.manual_seed(0)
    network = recipe.build_model("bert-micro").eval()
    rows = animals.split("train").take(np.arange(8))
    batch = recipe.batch(rows, CPU)
    with torch.no_grad():
        loss, given = recipe.loss(network, batch), recipe.predict(network, batch).double().numpy()
    true = rows["classes"]
    assert loss.item() == pytest.approx(-np.log(np.where(true, given, 1 - given)).mean(), rel=1e-5)


def test_what_was_learned_is_served_as_it_was_evaluated_and_as_transformers_predicts(
    animals: Dataset, model: Path, tmp_path: Path
) -> None:
    from transformers import pipeline

    evaluation = Evaluation.load(model)
    assert evaluation.test["metrics"]["f1"]["value"] > 0.8
    assert [each["name"] for each in evaluation.test["parts"]] == list(ANIMALS)
    write_report(evaluation, animals.directory, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "In parts" in page
    assert "missed or wrong" in page or evaluation.test["metrics"]["exact_match"]["value"] == 1
    predictor = load_predictor(model, ServerSettings(), 1)
    require_same(predictor, model)
    sent = ["the fox near a cat lake", "a house by the tree", "dog cat fox under sun"]
    rows = [predictor.read({"text": text}, predictor.checked({})).row() for text in sent]
    answers = predictor.predict(rows)
    assert [each["labels"] for each in answers[1:]] == [[], ["cat", "dog", "fox"]]
    for answer in answers:
        assert answer["labels"] == sorted(name for name, score in answer["scores"].items() if score >= 0.5)
    theirs = pipeline("text-classification", model=str(model), top_k=None)(sent)
    for answer, of_row in zip(answers, theirs, strict=True):
        assert answer["scores"] == pytest.approx({each["label"]: each["score"] for each in of_row}, abs=1e-5)
    few = predictor.predict([predictor.read({"text": sent[0]}, predictor.checked({"top_k": 1})).row()])
    assert len(few[0]["scores"]) == 1
    with pytest.raises(WrongRequest):
        predictor.checked({"threshold": 0.3})


def test_tables_are_predicted_and_watched(animals: Dataset, model: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "rows.jsonl", [{"text": row["text"]} for row in texts()[:40]])
    said = predicted(model, source, tmp_path / "out").labels
    lines = [line["prediction"] for line in written(tmp_path / "out")]
    assert said == Counter(name for line in lines for name in line["labels"])
    predicted(model, source, tmp_path / "table", output_format="parquet")
    (file,) = (tmp_path / "table").glob("*.parquet")
    assert [row["labels"] for row in parquet.read_table(file)["prediction"].to_pylist()] == [
        line["labels"] for line in lines
    ]
    many = write(tmp_path / "many.jsonl", [{"text": f"{row['text']} cat dog fox"} for row in texts()[:150]])
    same = write(tmp_path / "same.jsonl", [{"text": row["text"]} for row in texts(seed=1)])
    named = model_in(model, str(model))
    found = check_for_drift(DriftSettings(source=str(many)), named)
    assert found.drifted, found.reason
    assert "classes found" in [each.name for each in found.findings]
    assert not check_for_drift(DriftSettings(source=str(same)), named).drifted


@pytest.mark.slow
def test_images_of_several_classes(tmp_path: Path) -> None:
    """Three fields, each white or not."""
    from transformers import pipeline

    generator, rows = np.random.default_rng(0), []
    for number in range(200):
        marks = generator.random(3) < 0.5
        pixels = generator.integers(0, 60, (16, 16), dtype=np.uint8)
        for place in np.flatnonzero(marks):
            pixels[8 * (place // 2) : 8 * (place // 2) + 8, 8 * (place % 2) : 8 * (place % 2) + 8] += 180
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        rows.append({"image": f"{number}.png", "label": ["abc"[place] for place in np.flatnonzero(marks)]})
    dataset = prepared(tmp_path / "data", write(tmp_path / "rows.jsonl", rows))
    assert dataset.manifest.preprocessing["classes"] == ["a", "b", "c"]
    write_data_report(dataset.directory, tmp_path / "data.html")
    page = (tmp_path / "data.html").read_text()
    in_train = sum(source in page for source in ("a, b, c", "a, c", "no class"))
    assert in_train >= 2, "the examples name the classes of each image"
    assert "A row may be of several classes, or of none." in page
    marks = dataset.split("train").take(np.arange(dataset.manifest.rows("train")))["classes"]
    assert re.search(rf">a</td><td[^>]*>{marks[:, 0].sum()}</td>", page)
    training = {"max_steps": 40, "checkpoint_every_steps": 40, "global_batch_size": 64}
    model = evaluated(dataset.directory, tmp_path / "model", "vit-micro", **training)
    assert Evaluation.load(model).test["metrics"]["f1"]["value"] > 0.7
    predictor = load_predictor(model, ServerSettings(), 1)
    require_same(predictor, model)
    encoded = (tmp_path / "7.png").read_bytes()
    instance = {"b64": base64.b64encode(encoded).decode()}
    (answer,) = predictor.predict([predictor.read(instance, predictor.checked({})).row()])
    theirs: Any = pipeline("image-classification", model=str(model), top_k=3)(Image.open(io.BytesIO(encoded)))
    assert answer["scores"] == pytest.approx({each["label"]: each["score"] for each in theirs}, abs=1e-5)


def test_a_model_of_another_program_is_kept_with_its_own_classes(animals: Dataset, model: Path, tmp_path: Path) -> None:
    """Their head has the classes in another order, and one more, as the model of a script may have."""
    theirs = [*reversed(ANIMALS), "bird"]
    shutil.copytree(model, tmp_path / "theirs")
    config = json.loads((model / "config.json").read_text())
    config |= {"id2label": dict(enumerate(theirs)), "label2id": {name: n for n, name in enumerate(theirs)}}
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(config))
    weights = load_file(model / "model.safetensors")
    for name in ("classifier.weight", "classifier.bias"):
        weights[name] = torch.cat([weights[name].flip(0), -torch.ones_like(weights[name][:1])])
    save_file(weights, tmp_path / "theirs" / "model.safetensors", {"format": "pt"})
    loaded = Loaded(*open_model(tmp_path / "theirs", animals))
    loaded.model.eval()
    kept = examples_of(loaded, animals, MultiLabelScoring(animals), CPU)
    assert kept is not None
    assert set(kept.predictions[0]["scores"]) == set(theirs)
    predictor = load_predictor(tmp_path / "theirs", ServerSettings(), 1)
    rows = [predictor.read(each, predictor.checked({})).row() for each in kept.instances]
    assert differences(kept, predictor.predict(rows)) == []


def test_a_model_of_a_script_that_does_not_say_how_images_are_prepared_is_one_of_images(tmp_path: Path) -> None:
    config = ViTConfig(image_size=16, patch_size=4, num_hidden_layers=1, id2label=dict(enumerate(ANIMALS)))
    ViTForImageClassification(config).save_pretrained(tmp_path)
    assert is_of_images(tmp_path)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "does not name its classes"),
        ({"id2label": dict(enumerate(("LABEL_0", "LABEL_1", "LABEL_2")))}, "knows none of the classes of this dataset"),
    ],
)
def test_a_model_of_another_program_without_names_is_refused(
    animals: Dataset, model: Path, tmp_path: Path, entries: dict[str, Any], message: str
) -> None:
    shutil.copytree(model, tmp_path / "theirs")
    config = json.loads((model / "config.json").read_text())
    kept = {name: value for name, value in config.items() if name not in ("id2label", "label2id")}
    # transformers does not write the names of two classes that have none.
    if not entries:
        weights = load_file(model / "model.safetensors")
        save_file(
            {name: each[:2] if name.startswith("classifier.") else each for name, each in weights.items()},
            tmp_path / "theirs" / "model.safetensors",
            {"format": "pt"},
        )
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({**kept, **entries}))
    with pytest.raises(UserError, match=message) as refused:
        open_model(tmp_path / "theirs", animals)
    assert "id2label=dict(enumerate(labels))" in refused.value.remedy


def test_what_containers_of_hugging_face_answer_is_compared_with_the_evaluation(model: Path) -> None:
    from transformers import pipeline

    examples, form = Examples.load(model), HuggingFaceForm()
    network = pipeline("text-classification", model=str(model))
    answers = []
    for instance, expected in zip(examples.instances, examples.predictions, strict=True):
        text, parameters = form.question(instance, expected)
        answers.append(form.prediction(network(text, **parameters), expected))
    assert differences(examples, answers) == []
