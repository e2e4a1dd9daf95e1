"""The task token_classification: what it prepares, learns, scores, resumes and serves; its metrics are seqeval's."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from cut_off import require_same_bits
from seqeval import metrics as seqeval
from seqeval.metrics.sequence_labeling import get_entities
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import BertConfig, BertForTokenClassification, BertTokenizerFast

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.report import write_report as write_data_report
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.report import write_report
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.serving.comparison import differences
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer
from gpu_pipelines.tasks.token_classification.recipe import TokenClassification
from gpu_pipelines.tasks.token_classification.sample import write_manual
from gpu_pipelines.tasks.token_classification.scoring import EntityScores, EntityScoring
from gpu_pipelines.tasks.token_classification.words import entities_in, words_in
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model

KINDS = ("LOC", "ORG", "PER")
TAGS = ["O", *(f"{prefix}-{kind}" for kind in KINDS for prefix in "BI")]
LAST = "step-00000060"
SETTINGS = TrainingSettings(
    model="bert-micro", max_steps=60, checkpoint_every_steps=30, global_batch_size=16, learning_rate=5e-3
)
SMALL = {"vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
NAMES = ("Ada", "Grace", "Alan", "Edsger", "Barbara")
PLACES = ("Paris", "Oslo", "Rome", "Lima")


def sentences(count: int) -> list[dict[str, list[str]]]:
    """Who went where: a person of one or two words, and a place."""
    drawn = random.Random(0)
    rows = []
    for number in range(count):
        name = drawn.sample(NAMES, drawn.randint(1, 2))
        words = [*name, "went", "to", drawn.choice(PLACES), "on", "day", str(number)]
        tags = ["B-PER", *["I-PER"] * (len(name) - 1), "O", "O", "B-LOC", "O", "O", "O"]
        rows.append({"text": words, "label": tags})
    return rows


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prepared(directory: Path, source: Path | str, **changes: Any) -> Dataset:
    prepare_data(PrepareSettings(task="token_classification", source=str(source), **changes), directory)
    return Dataset(directory)


@pytest.fixture(scope="module")
def travels(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("travels")
    return prepared(folder / "data", write(folder / "rows.jsonl", sentences(160)), sequence_length=32)


@pytest.fixture(scope="module")
def trained(travels: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trained")
    train_model(SETTINGS, travels.directory, str(directory))
    return directory


@pytest.mark.parametrize("seed", range(20))
def test_metrics_are_those_of_seqeval(seed: int) -> None:
    drawn = random.Random(seed)
    # Tags at random begin with I- as often as not, and change their type in an entity.
    true = [[drawn.choice(TAGS) for _ in range(drawn.randint(1, 12))] for _ in range(drawn.randint(1, 30))]
    found = [[tag if drawn.random() < 0.6 else drawn.choice(TAGS) for tag in row] for row in true]
    for row in true:
        assert [tuple(entity) for entity in entities_in(row)] == get_entities(row)
    scores = EntityScores.of(found, true, KINDS)
    metrics = scores.metrics()
    assert metrics["f1"] == pytest.approx(seqeval.f1_score(true, found), abs=1e-9)
    assert metrics["precision"] == pytest.approx(seqeval.precision_score(true, found), abs=1e-9)
    assert metrics["recall"] == pytest.approx(seqeval.recall_score(true, found), abs=1e-9)
    assert metrics["macro_f1"] == pytest.approx(seqeval.f1_score(true, found, average="macro"), abs=1e-9)
    assert metrics["token_accuracy"] == pytest.approx(seqeval.accuracy_score(true, found), abs=1e-9)
    of_kinds = seqeval.classification_report(true, found, output_dict=True)
    for part in scores.details()["parts"]:
        if part["name"] in of_kinds:
            assert part["f1"] == pytest.approx(of_kinds[part["name"]]["f1-score"], abs=1e-9)
            assert part["entities"] == of_kinds[part["name"]]["support"]
    some = np.arange(0, len(true), 2)
    subset = scores.subset(some).metrics()["f1"]
    assert subset == pytest.approx(seqeval.f1_score([true[n] for n in some], [found[n] for n in some]), abs=1e-9)


def test_of_a_model_that_has_diverged_no_word_is_right(travels: Dataset) -> None:
    scoring, test = EntityScoring(travels), travels.split("test")
    tags = test.take(np.arange(len(test)))["tags"].astype(np.float32)
    assert scoring.scores(scoring.aligned(tags, [], None), "test").metrics()["token_accuracy"] == 1
    lost = np.where(np.arange(len(tags))[:, None] % 2, tags, np.nan)
    metrics = scoring.scores(scoring.aligned(lost, [], None), "test").metrics()
    words = (tags > 0).sum(axis=1)
    assert metrics["token_accuracy"] == pytest.approx(words[1::2].sum() / words.sum())
    assert metrics["f1"] < 1


def test_rows_are_as_long_as_their_texts_and_keep_words_and_tags(travels: Dataset) -> None:
    manifest = travels.manifest
    assert manifest.features["tokens"].shape == (-1,)
    assert manifest.preprocessing["tags"] == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    train = travels.split("train")
    rows = train.take(np.arange(len(train)))
    assert len(set(rows["tokens_length"].tolist())) > 1
    texts = {int(row["text"][-1]): row for row in sentences(160)}
    numbers = [int(source.rpartition(":")[2]) - 1 for source in train.sources(range(len(train)))]
    for number, tags in zip(numbers, rows["tags"], strict=True):
        said = [manifest.preprocessing["tags"][tag - 1] for tag in tags if tag]
        assert said == texts[number]["label"]


def test_data_sets_of_the_hub_are_read_as_datasets_writes_them(travels: Dataset, tmp_path: Path) -> None:
    rows = sentences(160)
    kind = datasets.List(datasets.ClassLabel(names=TAGS))
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "ner_tags": kind})
    numbered = [{"tokens": row["text"], "ner_tags": [TAGS.index(tag) for tag in row["label"]]} for row in rows]
    table = datasets.Dataset.from_list(numbered, features=features)
    table.to_parquet(tmp_path / "new.parquet")
    # Earlier versions of it called a list a sequence.
    written = pq.read_table(tmp_path / "new.parquet")
    earlier = written.schema.metadata[b"huggingface"].replace(b'"List"', b'"Sequence"')
    pq.write_table(written.replace_schema_metadata({b"huggingface": earlier}), tmp_path / "old.parquet")
    for name in ("new", "old"):
        found = prepared(tmp_path / name, tmp_path / f"{name}.parquet", sequence_length=32)
        assert found.manifest.fingerprint == travels.manifest.fingerprint
    write(tmp_path / "unnamed.jsonl", numbered)
    with pytest.raises(UserError, match="'5' is not one of O, B-TYPE and I-TYPE, or of IOBES or BILOU"):
        prepared(tmp_path / "unnamed", tmp_path / "unnamed.jsonl")


@pytest.mark.parametrize(("single", "last"), ["SE", "UL"])
def test_tags_that_say_the_end_of_an_entity_become_iob2(
    travels: Dataset, tmp_path: Path, single: str, last: str
) -> None:
    rows = sentences(160)
    for row in rows:
        tags = [*row["label"], "O"]
        for place, (tag, then) in enumerate(itertools.pairwise(tags)):
            if tag != "O" and not then.startswith("I-"):
                row["label"][place] = f"{single if tag.startswith('B-') else last}{tag[1:]}"
    assert any(tag.startswith(last) for row in rows for tag in row["label"])
    found = prepared(tmp_path / "data", write(tmp_path / "rows.jsonl", rows), sequence_length=32)
    assert found.manifest.fingerprint == travels.manifest.fingerprint


@pytest.mark.slow
def test_checkpoints_are_scored_shown_exported_and_served_as_evaluated(
    travels: Dataset, trained: Path, tmp_path: Path
) -> None:
    settings = EvaluationSettings(gates=["f1>=0.8", "macro_f1>=0.5"], registry=str(tmp_path / "registry"))
    evaluation = evaluate_checkpoints(settings, travels.directory, trained, tmp_path / "model")
    assert evaluation.passed, evaluation.gates
    found = evaluation.test["metrics"]
    assert all(each["low"] <= each["value"] <= each["high"] for each in found.values())
    assert [part["name"] for part in evaluation.test["parts"]] == ["LOC", "PER"]
    write_data_report(travels.directory, tmp_path / "data.html")
    write_report(evaluation, travels.directory, tmp_path / "report.html")
    assert "PER" in (tmp_path / "report.html").read_text(encoding="utf-8")
    predictor = load_predictor(tmp_path / "model", ServerSettings())
    examples = Examples.load(tmp_path / "model")
    rows = [predictor.read(each, predictor.checked({})).row() for each in examples.instances]
    assert differences(examples, predictor.predict(rows)) == []
    text = "Barbara Ada went to Lima on day 7"
    entities = predictor.predict([predictor.read({"text": text}, None).row()])[0]["entities"]
    assert [(e["entity_group"], e["word"]) for e in entities] == [("PER", "Barbara Ada"), ("LOC", "Lima")]
    assert all(text[e["start"] : e["end"]] == e["word"] and 0 < e["score"] <= 1 for e in entities)


@pytest.mark.parametrize(
    "text",
    ["वह हिन्दी बोलता है।", "เขาอยู่ที่ กรุงเทพ", "שָׁלוֹם, עולם", "من می\u200cخواهم", "cafe\u0301 in İzmir", "U.S. (didn't)"],
)
def test_a_text_is_cut_where_bert_cuts_it(text: str) -> None:
    theirs = [(word, start) for word, (start, _) in BertPreTokenizer().pre_tokenize_str(text)]
    assert words_in(text) == theirs


def test_a_word_that_the_tokenizer_leaves_out_does_not_move_the_entities_after_it(tmp_path: Path) -> None:
    """As those of BERT do with the mark that makes an emoji coloured."""
    known = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "in", "berlin"])}
    tokenizer = Tokenizer(WordPiece(known, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(lowercase=True), BertPreTokenizer()
    BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=32).save_pretrained(tmp_path / "tokenizer")
    recipe = TokenClassification(["O", "B-LOC"], TextTokenizer.read(tmp_path / "tokenizer"), 32)
    model: Any = recipe.build_model("bert-micro")
    model.classifier.bias.data.copy_(torch.tensor([0.0, 100.0]))  # every word is an entity
    recipe.export(model.eval(), tmp_path / "model")
    predictor = load_predictor(tmp_path / "model", ServerSettings())
    text = "in \u2764\ufe0f Berlin"
    [found] = predictor.predict([predictor.read({"text": text}, None).row()])
    assert [entity["word"] for entity in found["entities"]] == ["in", "\u2764", "Berlin"]


@pytest.mark.slow  # the engine is the same; that of regression is in the normal run
def test_a_training_cut_off_and_continued_ends_with_the_same_bits(
    travels: Dataset, trained: Path, tmp_path: Path
) -> None:
    require_same_bits(SETTINGS, travels.directory, trained, LAST, tmp_path)


def test_rows_whose_tags_do_not_fit_their_words_are_rejected_with_the_reason(tmp_path: Path) -> None:
    rows = [
        *sentences(60),
        {"text": ["one", "two"], "label": ["O"]},
        {"text": ["one"], "label": ["PER"]},
        {"text": ["one two"], "label": ["O"]},
        {"text": [], "label": []},
    ]
    dataset = prepared(tmp_path / "data", write(tmp_path / "rows.jsonl", rows))
    assert dataset.manifest.rejected == {"malformed tags": 2, "malformed words": 1, "no text": 1}
    plain = [{"text": " ".join(row["text"]), "label": " ".join(row["label"])} for row in sentences(60)]
    same = prepared(tmp_path / "plain", write(tmp_path / "plain.jsonl", plain))
    assert same.manifest.fingerprint == dataset.manifest.fingerprint
    nothing = [{"text": f"word {number}", "label": "O O"} for number in range(40)]
    with pytest.raises(UserError, match="has no entity"):
        prepared(tmp_path / "none", write(tmp_path / "none.jsonl", nothing))


def test_the_sample_is_of_the_manual_that_ships_with_python(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in write_manual(tmp_path).read_text(encoding="utf-8").splitlines()]
    assert len(rows) > 1000
    assert all(len(row["text"]) == len(row["label"]) for row in rows)
    kinds = {tag[2:] for row in rows for tag in row["label"]} - {""}
    assert kinds == {"CODE", "PEP", "TERM"}
    assert PrepareSettings(task="token_classification", source="sample:manual").problems() == []


def test_a_model_whose_tags_are_counted_from_1_is_refused(tmp_path: Path) -> None:
    model = BertForTokenClassification(BertConfig(**SMALL, id2label={1: "O", 2: "B-PER"}))
    with pytest.raises(UserError, match=r"names 2 classes \(id2label\), and none has the number 0"):
        TokenClassification(["O", "B-PER"], None, 8).taking_over(tmp_path, model)  # type: ignore[arg-type]
