"""Pairs of texts: prepared, learned from, and predicted as transformers predicts them; one text alone is not enough."""

from __future__ import annotations

import json
import random
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pair_models import FAMILIES, pretrained
from starlette.testclient import TestClient
from tokenizers import Tokenizer

from gpu_pipelines.artifacts.dataset import SPLITS, Dataset
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.report import write_report as write_data_report
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.drift.check import DriftCheck, check_for_drift
from gpu_pipelines.drift.settings import DriftSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.models.hugging_face import copy_model
from gpu_pipelines.evaluation.models.loading import ModelSource, load_champion
from gpu_pipelines.evaluation.report import write_report
from gpu_pipelines.prediction.model import model_in
from gpu_pipelines.serving.app import Serving
from gpu_pipelines.serving.comparison import differences
from gpu_pipelines.serving.openapi import openapi_document
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.request_body import WrongRequest
from gpu_pipelines.serving.settings import Contract, ServerSettings
from gpu_pipelines.tasks.batch_encoding import TYPE_IDS, BatchEncoder
from gpu_pipelines.tasks.regression.recipe import Regression
from gpu_pipelines.tasks.text_classification.recipe import TextClassification
from gpu_pipelines.tasks.text_encoding import TextEncoder
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("exporting", "serving")]
from exported import evaluated  # noqa: E402 (they lie beside the tests of what they make)
from predicting import predicted, rejected, written  # noqa: E402

CPU = torch.device("cpu")
COLUMNS = {"text_column": "premise", "text_pair_column": "hypothesis"}
ANIMALS = ("ant", "bee", "cat", "dog", "elk", "fox")
LARGER, SMALLER = "larger", "smaller"
#: Of lengths that are cut at the first, at the second and at both texts.
PAIRS = [
    ("A man plays the guitar.", "A person makes music."),
    ("It's 5 o'clock, isn't it? " * 9, "No."),
    ("No!", "the cat and the dog and the fox " * 9),
    ("the cat sees the dog " * 12, "the dog sees the cat " * 11),
]


def sizes() -> list[dict[str, str]]:
    """Of two animals whether the first is larger; which two, or either alone, does not tell it."""
    generator, rows = random.Random(0), []
    for first, second in permutations(ANIMALS, 2):
        label = LARGER if first > second else SMALLER
        for number in range(12):
            where, when = (generator.choice(["here", "there", "outside", "inside"]) for _ in range(2))
            rows.append(
                {"premise": f"an {first} {where} {number}", "hypothesis": f"the {second} {when}", "label": label}
            )
    generator.shuffle(rows)
    return rows


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def prepared(directory: Path, rows: list[Any], **changes: Any) -> Dataset:
    source = write(directory.with_suffix(".jsonl"), rows)
    given = {"task": "text_classification", "sequence_length": 32, **COLUMNS, **changes}
    prepare_data(PrepareSettings(source=str(source), **given), directory)
    return Dataset(directory)


def rows_of(dataset: Dataset) -> list[dict[str, np.ndarray]]:
    splits = (dataset.split(name) for name in SPLITS)
    return [split.take(np.array([row])) for split in splits for row in range(len(split))]


def check(model: Path, source: Path, **given: Any) -> DriftCheck:
    return check_for_drift(DriftSettings(source=str(source), **given), model_in(model, str(model)))


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return prepared(tmp_path_factory.mktemp("animals") / "data", sizes())


@pytest.fixture(scope="module")
def model(animals: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained until it tells which of two animals is larger, and evaluated."""
    training = {"max_steps": 60, "checkpoint_every_steps": 60, "global_batch_size": 64}
    return evaluated(animals.directory, tmp_path_factory.mktemp("model"), "bert-micro", **training)


def test_a_row_has_both_texts_and_a_row_without_one_of_them_says_so(tmp_path: Path) -> None:
    rows = [
        {"premise": f"premise {number}", "hypothesis": f"hypothesis {number}", "label": "ab"[number % 2]}
        for number in range(40)
    ]
    wrong = [
        {**rows[0], "hypothesis": " "},
        {**rows[0], "hypothesis": None},
        {**rows[0], "premise": ""},
        {**rows[0], "hypothesis": ["in", "words"]},
    ]
    swapped = {**rows[0], "premise": rows[0]["hypothesis"], "hypothesis": rows[0]["premise"]}
    other = {**rows[0], "hypothesis": "hypothesis 1"}
    dataset = prepared(tmp_path / "data", [*rows, *wrong, swapped, other, rows[0]])
    manifest = dataset.manifest
    assert manifest.rejected["no text"] == 4
    told = (dataset.directory / "rejected.jsonl").read_text(encoding="utf-8")
    assert "'hypothesis' is empty or no text" in told
    assert "'premise' is empty or no text" in told
    assert "'hypothesis' holds a nested value (list)" in told
    assert manifest.features[TYPE_IDS].shape == (32,)
    tokenizer = Tokenizer.from_file(str(dataset.directory / "tokenizer/tokenizer.json"))
    found = {
        tokenizer.decode(row["input_ids"][0, : row["length"][0]].tolist(), skip_special_tokens=False)
        for row in rows_of(dataset)
    }
    texts = [(row["premise"], row["hypothesis"]) for row in (*rows, swapped, other)]
    assert found == {f"<bos>{first}<eos>{second}<eos>" for first, second in texts}
    for row in rows_of(dataset):
        second = row["input_ids"][0][row[TYPE_IDS][0] == 1]
        assert tokenizer.decode(second.tolist()).startswith(("hypothesis", "premise"))
    assert len(tokenizer.encode("hypothesis", add_special_tokens=False)) == 1, "it was trained on both texts"
    write_data_report(dataset.directory, tmp_path / "report.html")
    assert "&lt;eos&gt;hypothesis" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_single_texts_have_nothing_of_pairs(tmp_path: Path) -> None:
    dataset = prepared(tmp_path / "data", sizes(), text_pair_column="")
    assert dataset.manifest.features.keys() == {"input_ids", "length", "label"}
    assert "text_pair" not in (dataset.directory / "tokenizer/tokenizer_config.json").read_text()
    assert "Sequence" in (dataset.directory / "tokenizer/tokenizer.json").read_text()
    # Nor has a preparation with a tokenizer that was for pairs.
    pairs = prepared(tmp_path / "pairs", sizes()).directory / "tokenizer"
    again = prepared(tmp_path / "again", sizes(), text_pair_column="", tokenizer=str(pairs))
    assert not TextTokenizer.read(again.directory / "tokenizer").takes_pairs


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"text_pair_column": "premise"}, "text_column and text_pair_column both name 'premise'"),
        ({"text_pair_column": "label"}, "text_pair_column and label_column both name 'label'"),
        ({"task": "causal_lm"}, "text_pair_column is given, but causal_lm takes no pairs of texts. Leave it out."),
        ({"task": "regression", "feature_columns": "a"}, "text_pair_column is of texts"),
        ({"task": "regression", "text_pair_column": "label"}, "Name one of its own."),
    ],
)
def test_columns_that_cannot_be_pairs_are_refused(changes: dict[str, Any], told: str) -> None:
    settings = PrepareSettings(**{"source": "rows.jsonl", "task": "text_classification", **COLUMNS, **changes})
    assert any(told in problem for problem in settings.problems()), settings.problems()


@pytest.mark.parametrize("task", ["text_classification", "regression"])
def test_a_table_without_the_second_text_is_refused(task: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no column 'second'; it has premise, hypothesis, label"):
        prepared(tmp_path / "data", sizes(), task=task, text_pair_column="second")


@pytest.mark.parametrize("family", [*FAMILIES, "bert-micro"])
def test_predictions_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """Of its tokenizer and model, and of its pipeline, on the exported folder."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

    texts = [text for pair in PAIRS for text in pair]
    if family == "bert-micro":
        name, encoder = family, TextEncoder.train(texts, 300, ends=True)
    else:
        name = str(pretrained(family, texts, tmp_path / "pretrained"))
        encoder = TextEncoder.load(name)
    assert encoder.add_pair_template() is (family in ("bert-micro", "gpt2"))
    encoder.save(tmp_path / "tokenizer", 32, takes_pairs=True)
    recipe = TextClassification(["a", "b", "c"], TextTokenizer.read(tmp_path / "tokenizer"), 32)
    built: Any = recipe.build_model(name)
    for weights in built.parameters():  # at first the types of tokens are next to nothing
        weights.data += 0.3 * torch.randn_like(weights)
    recipe.export(built.eval(), tmp_path / "model")
    predictor: Any = load_predictor(tmp_path / "model", ServerSettings())
    rows = predictor.rows_of(PAIRS, 3)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    asked = pipeline("text-classification", model=str(tmp_path / "model"), top_k=None)
    for (first, second), row, found in zip(PAIRS, rows, predictor.predict(rows), strict=True):
        given = tokenizer(first, second, truncation=True, return_tensors="pt")
        assert row.encoded.tokens.tolist() == given["input_ids"][0].tolist()
        with torch.inference_mode():
            wanted = theirs(**given).logits.softmax(-1)[0].tolist()
        assert [found["scores"][name] for name in "abc"] == pytest.approx(wanted, abs=1e-5)
        answer = asked({"text": first, "text_pair": second}, truncation=True)
        assert found["scores"] == pytest.approx({each["label"]: each["score"] for each in answer}, abs=1e-5)
    gets_types = family in ("bert", "electra", "albert", "bert-micro")
    assert (TYPE_IDS in tokenizer.model_input_names) is gets_types


def test_the_types_of_tokens_tell_the_texts_apart(tmp_path: Path) -> None:
    encoder = TextEncoder.load(str(pretrained("bert", ["the cat", "the dog"], tmp_path / "pretrained")))
    encoder.save(tmp_path / "tokenizer", 8, takes_pairs=True)
    [row] = BatchEncoder(tmp_path / "tokenizer").rows([("the cat", "the dog")], 8)
    assert row.types is not None
    assert row.types.tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_a_model_learns_from_the_order_of_two_texts(animals: Dataset, model: Path, tmp_path: Path) -> None:
    evaluation = Evaluation.load(model)
    assert evaluation.test["metrics"]["accuracy"]["value"] > 0.95
    predictor: Any = load_predictor(model, ServerSettings())
    asked = [(f"an {first} here 3", f"the {second} there") for first, second in permutations(ANIMALS, 2)]
    labels = [each["label"] for each in predictor.predict(predictor.rows_of(asked, 2))]
    assert labels == [LARGER if first > second else SMALLER for first, second in permutations(ANIMALS, 2)]
    examples = Examples.load(model)
    assert len(examples.instances) >= 4
    assert examples.instances[0].keys() == {"text", "text_pair"}
    given = {(row["premise"], row["hypothesis"]) for row in sizes()}
    assert {(each["text"], each["text_pair"]) for each in examples.instances} <= given
    rows = [predictor.read(each, 2).row() for each in examples.instances]
    assert differences(examples, predictor.predict(rows)) == []
    write_report(evaluation, animals.directory, tmp_path / "report.html")


def test_both_protocols_take_both_texts_and_tell_what_is_missing(model: Path) -> None:
    serving = Serving(ServerSettings(), Contract())
    predictor = load_predictor(model, ServerSettings())
    serving.start(predictor, "animals")
    pairs = [("an ant here 1", "the fox there"), ("an fox here 1", "the ant there")]
    instances = [{"text": first, "text_pair": second} for first, second in pairs]
    with TestClient(serving) as client:
        answer = client.post("/predict", json={"instances": instances}).json()
        assert [each["label"] for each in answer["predictions"]] == [SMALLER, LARGER]

        def infer(**data: list[str]) -> Any:
            tensors = [{"name": n, "datatype": "BYTES", "shape": [len(d)], "data": d} for n, d in data.items()]
            return client.post("/v2/models/animals/infer", json={"inputs": tensors})

        first, second = (list(column) for column in zip(*pairs, strict=True))
        for tensors in ({"text": first, "text_pair": second}, {"text_pair": second, "text": first}):
            assert infer(**tensors).json()["outputs"][0]["data"] == [SMALLER, LARGER]
        assert 'Send {"inputs": [{"name": "text"' in infer(text=first).json()["error"]
        assert "inputs has 2 of text and 1 of text_pair" in infer(text=first, text_pair=["a"]).json()["error"]
        for wrong, told in (
            ({"text": "a"}, 'has no text_pair. Send {"text": "…", "text_pair": "…"}.'),
            ({"text_pair": "a"}, 'has no text. Send {"text": "…", "text_pair": "…"}.'),
            ({"text": "a", "text_pair": ""}, "text_pair is empty"),
            ({"text": "a", "text_pair": 1}, "text_pair is a number, not a text"),
        ):
            refused = client.post("/predict", json={"instances": [wrong]})
            assert refused.status_code == 400
            assert told in refused.json()["error"]
        told = client.get("/v2/models/animals").json()
        assert [each["name"] for each in told["inputs"]] == ["text", "text_pair"]
    schema = openapi_document(Contract(), predictor, "animals", False)["components"]["schemas"]["PredictRequest"]
    assert schema["properties"]["instances"]["items"]["required"] == ["text", "text_pair"]
    assert schema["examples"][0]["instances"][0].keys() == {"text", "text_pair"}


def test_a_source_is_predicted_by_the_names_of_its_columns(model: Path, tmp_path: Path) -> None:
    rows = [*sizes()[:20], {"premise": "an ant", "hypothesis": None}]
    source = write(tmp_path / "rows.jsonl", rows)
    predicted(model, source, tmp_path / "out", **COLUMNS)
    found = written(tmp_path / "out")
    assert [each["prediction"]["label"] for each in found] == [row["label"] for row in rows[:20]]
    assert found[0]["instance"] == {"text": rows[0]["premise"], "text_pair": rows[0]["hypothesis"]}
    assert rejected(tmp_path / "out")[0]["detail"] == "'hypothesis' is empty or no text"
    named = write(tmp_path / "named.jsonl", [each["instance"] for each in found])
    predicted(model, named, tmp_path / "again")
    assert [each["prediction"] for each in written(tmp_path / "again")] == [each["prediction"] for each in found]
    with pytest.raises(UserError, match="has no column 'text' and no column 'text_pair'"):
        predicted(model, source, tmp_path / "none")


def test_the_data_that_it_learned_from_is_no_drift_and_swapped_texts_are(model: Path, tmp_path: Path) -> None:
    rows = sizes()
    found = check(model, write(tmp_path / "rows.jsonl", rows), **COLUMNS)
    assert not found.has_drift, found.reason
    assert found.rows_used == len(rows)
    instances = [{"text": row["premise"], "text_pair": row["hypothesis"]} for row in rows]
    log = [{"request_payload": [json.dumps(each)], "logging_time": "2026-01-01T00:00:00Z"} for each in instances]
    assert not check(model, write(tmp_path / "log.jsonl", log)).has_drift
    swapped = {"text_column": "hypothesis", "text_pair_column": "premise"}
    assert check(model, tmp_path / "rows.jsonl", **swapped).has_drift


def test_models_of_pairs_and_of_single_texts_are_not_compared(animals: Dataset, model: Path, tmp_path: Path) -> None:
    champion = ModelSource("champion", model, "the champion")
    assert load_champion(champion, animals).recipe.tokenizer.takes_pairs
    tokenizer = str(animals.directory / "tokenizer")
    single = prepared(tmp_path / "single", sizes(), text_pair_column="", tokenizer=tokenizer)
    with pytest.raises(UserError, match="the champion takes pairs of texts, and this dataset has single texts"):
        load_champion(champion, single)
    alone = evaluated(single.directory, tmp_path, "bert-micro")
    with pytest.raises(UserError, match="the champion takes single texts, and this dataset has pairs of texts"):
        load_champion(ModelSource("champion", alone, "the champion"), animals)


def test_a_model_of_another_program_takes_pairs_as_its_data_does(animals: Dataset, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in model.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    config = json.loads((other / "tokenizer_config.json").read_text())
    del config["text_pair"], config["model_input_names"]
    (other / "tokenizer_config.json").write_text(json.dumps(config))
    # It need not say either what is the default of its kind.
    settings = json.loads((other / "config.json").read_text())
    assert settings.pop("type_vocab_size") == 2
    (other / "config.json").write_text(json.dumps(settings))
    (tmp_path / "copy").mkdir()
    copy_model(other, tmp_path / "copy", animals)
    ours = json.loads((model / "tokenizer_config.json").read_text())
    assert json.loads((tmp_path / "copy/tokenizer_config.json").read_text()) == ours


def test_numbers_are_learned_from_pairs(tmp_path: Path) -> None:
    """Here how alike two texts are, as in STS-B."""
    words = [f"{first} {second}" for first, second in permutations(ANIMALS, 2)]
    rows = [
        {"premise": one, "hypothesis": other, "label": len(set(one.split()) & set(other.split()))}
        for one in words
        for other in words[::3]
    ]
    dataset = prepared(tmp_path / "data", rows, task="regression")
    recipe = Regression.for_dataset(dataset)
    assert TYPE_IDS in dataset.manifest.features
    best = evaluated(dataset.directory, tmp_path, "bert-micro", max_steps=6, checkpoint_every_steps=6)
    predictor: Any = load_predictor(best, ServerSettings())
    assert predictor.example == {"text": "a text", "text_pair": "another text"}
    pairs = [("ant bee", "bee cat"), ("bee cat", "ant bee")]
    rows_read = predictor.rows_of(pairs, None)
    one, other = (each["values"]["label"] for each in predictor.predict(rows_read))
    assert one != other
    loaded = recipe.load_exported(best).eval()
    columns = {**predictor.columns(rows_read), "target": np.zeros((2, 1), np.float32)}
    with torch.inference_mode():
        wanted = recipe.predict(loaded, recipe.batch(columns, CPU))[:, 0].tolist()
    assert [one, other] == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(WrongRequest, match="has no text_pair"):
        predictor.read({"text": "a"}, None)
