"""A test source: the test split is the same for every version of a model, and none of it is trained on."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import write_photos
from preparing import prepare_alone, write_texts

from gpu_pipelines.artifacts.dataset import Dataset, Manifest
from gpu_pipelines.components.request.component import check_request
from gpu_pipelines.dag.train_evaluate_upload import places
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.report import write_report
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.source_check import problems_here
from gpu_pipelines.data.sources.fingerprint import source_fingerprint
from gpu_pipelines.data.splits.content_split import content_number, split_at
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.vertex.vertex import Vertex

UNIT = 30_000


def sources_in(directory: Path, split: str) -> list[str]:
    rows = Dataset(directory).split(split)
    return rows.sources(range(len(rows)))


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_test_split_of_images_is_the_test_source_alone(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", per_class=40)
    fixed = write_photos(tmp_path / "fixed", per_class=10, seed=1)
    # The same image in both, under its own class and under another one.
    shutil.copy(fixed / "blue/000.png", photos / "blue/leak.png")
    shutil.copy(fixed / "blue/001.png", photos / "red/leak.png")
    settings = PrepareSettings(source=str(photos), test_source=str(fixed), val_fraction=0.25, image_size=16)
    manifest = prepare_data(settings, tmp_path / "out")
    assert sources_in(tmp_path / "out", "test") == [f"{kind}/{n:03}.png" for kind in ("blue", "red") for n in range(10)]
    assert manifest.rows("train") + manifest.rows("val") == 80
    assert (manifest.rows_read, manifest.duplicates, manifest.in_test_source) == (102, 2, 2)
    images = [path.read_bytes() for path in photos.rglob("[0-9]*.png")]
    assert manifest.rows("val") == sum(split_at(content_number(image), 0.25, 0.0) == "val" for image in images)
    wanted = {"source": str(fixed), "fingerprint": source_fingerprint(str(fixed))}
    assert manifest.test_source == wanted
    assert json.loads((tmp_path / "out/dataset.json").read_text())["test_source"] == wanted
    write_report(tmp_path / "out", tmp_path / "report.html")
    assert f"test from <code>{fixed}</code>" in (tmp_path / "report.html").read_text()
    # More data: the same test split, byte for byte.
    write_photos(tmp_path / "more", per_class=15, seed=2)
    for kind in ("blue", "red"):
        (tmp_path / f"more/{kind}").rename(photos / kind / "later")
    grown = prepare_data(settings, tmp_path / "grown")
    assert grown.splits["test"] == manifest.splits["test"]
    assert grown.rows("train") > manifest.rows("train")
    # Without a test source nothing is said of one.
    plain = prepare_data(PrepareSettings(source=str(photos), image_size=16), tmp_path / "plain")
    assert (plain.test_source, plain.in_test_source) == (None, 0)


def test_texts_that_are_in_the_test_source_or_nearly_so_are_left_out(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "source", files=4, rows=200)
    fixed = write_texts(tmp_path / "fixed", files=2, rows=60, seed=5)
    rows = [json.loads(line) for line in (fixed / "0.jsonl").read_text().splitlines()]
    # One row of test as it is, one with another class, and one that is nearly the same.
    leaks = [rows[0], {**rows[1], "label": "vine"}, {**rows[2], "text": f"{rows[2]['text']} and"}]
    write_rows(source / "leaks.jsonl", [*leaks, {"text": "a vine", "label": "vine"}])
    settings = PrepareSettings(
        source=str(source), test_source=str(fixed), task="text_classification", vocabulary_size=400, val_fraction=0.2,
        near_duplicates=0.8,
    )  # fmt: skip
    prepare_alone(settings, tmp_path / "alone", UNIT)
    manifest = Manifest.from_json(json.loads((tmp_path / "alone/dataset.json").read_text()))
    assert manifest.in_test_source == 2
    near = [json.loads(line) for line in (tmp_path / "alone/near_duplicates.jsonl").read_text().splitlines()]
    assert ("leaks.jsonl:3", "0.jsonl:3") in [(line["source"], line["duplicate_of"]) for line in near]
    texts = {row["text"] for path in fixed.glob("*.jsonl") for row in map(json.loads, path.read_text().splitlines())}
    assert manifest.rows("test") <= len(texts - {""})
    assert manifest.records_kept + manifest.duplicates + manifest.rows_rejected == manifest.rows_read == 924


def test_a_tokenizer_is_trained_on_the_training_rows_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, fixed = tmp_path / "source.jsonl", tmp_path / "fixed.jsonl"
    held_out = [{"text": f"quokka quokka quokka {number}", "label": "ab"[number % 2]} for number in range(60)]
    rows = [{"text": f"a plain row {number}", "label": "ab"[number % 2]} for number in range(200)]
    fixed.write_text("".join(json.dumps(row) + "\n" for row in held_out))
    source.write_text("".join(json.dumps(row) + "\n" for row in (*rows, *held_out)))
    settings = PrepareSettings(source=str(source), test_source=str(fixed), task="text_classification")
    manifest = prepare_data(settings, tmp_path / "out")
    assert f"training a tokenizer on {manifest.rows('train'):,} texts" in capsys.readouterr().out
    vocabulary = json.loads((tmp_path / "out/tokenizer/tokenizer.json").read_text())["model"]["vocab"]
    assert any("plain" in token for token in vocabulary)
    assert not any("quok" in token for token in vocabulary)


def test_an_empty_split_is_told_with_what_was_left_out(tmp_path: Path) -> None:
    rows = [{"text": f"row {number % 3}", "label": "ab"[number % 2]} for number in range(60)]
    source = write_rows(tmp_path / "source.jsonl", [*rows, {"text": "seen", "label": "a"}])
    fixed = write_rows(tmp_path / "fixed.jsonl", [*rows[:1], {"text": "seen", "label": "a"}, rows[1]])
    settings = PrepareSettings(source=str(source), task="text_classification", vocabulary_size=300, val_fraction=0.01)
    with pytest.raises(UserError) as caught:
        prepare_data(settings, tmp_path / "out")
    assert f"'val' is empty: 7 of the 61 rows of {source} are left, too few to give val_fraction=0.01 and" in str(
        caught.value
    )
    assert "Left out: 54 duplicates." in str(caught.value)
    with pytest.raises(UserError) as caught:
        prepare_data(replace(settings, test_source=str(fixed)), tmp_path / "out")
    both = f"the 64 rows of {source} and {fixed}"
    assert f"is empty: 2 of {both} are left, too few to give val_fraction=0.01." in str(caught.value)
    assert "Left out: 18 duplicates, 41 rows that are in the test_source too." in str(caught.value)
    photos = write_photos(tmp_path / "photos", per_class=10)
    shutil.copytree(photos, tmp_path / "copied")
    with pytest.raises(
        UserError, match=r"None of the 40 rows .* is left to learn from: 20 rows that are in the test_s"
    ):
        prepare_data(PrepareSettings(source=str(photos), test_source=str(tmp_path / "copied")), tmp_path / "out")


def test_documents_of_a_language_model_with_a_test_source(tmp_path: Path) -> None:
    texts = [f"document {number} about {number * number}" for number in range(80)]
    source = write_rows(tmp_path / "source.jsonl", [{"text": text} for text in texts])
    fixed = write_rows(tmp_path / "fixed.jsonl", [{"text": text} for text in (*texts[:2], *map(str.upper, texts[:9]))])
    settings = PrepareSettings(
        source=str(source), test_source=str(fixed), task="causal_lm", sequence_length=16, vocabulary_size=300,
        stratify=False,
    )  # fmt: skip
    manifest = prepare_data(settings, tmp_path / "out")
    assert manifest.records["test"] == 11
    assert (manifest.in_test_source, manifest.records["train"] + manifest.records["val"]) == (2, 78)
    assert {place.partition(":")[0] for place in sources_in(tmp_path / "out", "test")} == {"fixed.jsonl"}
    prompts = write_rows(tmp_path / "prompts.jsonl", [{"prompt": "x", "completion": "y"}])
    with pytest.raises(UserError, match="test_source has the texts in prompt, completion, and source in text"):
        prepare_data(PrepareSettings(source=str(source), test_source=str(prompts), task="causal_lm"), tmp_path / "out")


def test_the_columns_of_numbers_may_stand_in_another_order_in_the_test_source(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", [{"a": n, "b": -n, "label": n} for n in range(40)])
    test = write_rows(tmp_path / "test.jsonl", [{"label": n, "b": -n, "a": n} for n in range(40, 50)])
    prepare_data(PrepareSettings(task="regression", source=str(train), test_source=str(test)), tmp_path / "out")
    test_split = Dataset(tmp_path / "out").split("test")
    assert test_split.column("input.a").tolist() == list(range(40, 50))
    assert test_split.column("input.b").tolist() == list(range(-40, -50, -1))


def test_a_stratified_split_leaves_nothing_for_test(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", per_class=20)
    fixed = write_photos(tmp_path / "fixed", per_class=5, seed=1)
    settings = PrepareSettings(
        source=str(photos), test_source=str(fixed), val_fraction=0.25, image_size=8, stratify=True
    )
    manifest = prepare_data(settings, tmp_path / "out")
    assert manifest.class_rows == {"train": [15, 15], "val": [5, 5], "test": [5, 5]}


def test_a_test_source_of_other_classes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = write_photos(tmp_path / "photos", per_class=20, classes=("blue", "red", "green"))
    fixed = write_photos(tmp_path / "fixed", per_class=5, seed=1)
    settings = PrepareSettings(source=str(photos), test_source=str(fixed), image_size=8)
    prepare_data(settings, tmp_path / "out")
    assert "warning: test_source has no rows of 'green'" in capsys.readouterr().out
    (fixed / "red").rename(fixed / "violet")
    with pytest.raises(UserError, match=r"test_source .*fixed has classes that .*photos does not have: 'violet'"):
        prepare_data(settings, tmp_path / "out")
    shutil.rmtree(fixed)
    assert "fixed does not exist" in problems_here(settings)[0]


def test_a_test_source_must_be_where_the_steps_are_and_counts_for_the_cache(tmp_path: Path) -> None:
    arguments = {"source": "gs://bucket/photos", "registry": "vertex://", "test_source": "fixed"}
    assert "The test_source fixed is not where Vertex AI can read it" in Vertex().unreachable(places(arguments))[0]
    assert (
        Vertex().unreachable(places({**arguments, "test_source": "gs://bucket/fixed", "image_root": "gs://bucket"}))
        == []
    )
    assert (
        "The image_root photos is"
        in Vertex().unreachable(places({**arguments, "test_source": "", "image_root": "photos"}))[0]
    )
    rows = [{"text": "x", "label": "a"}, {"text": "y", "label": "b"}]
    fixed = write_rows(tmp_path / "fixed.jsonl", rows)
    of_texts = {"task": "text_classification", "source": "sample:docstrings", "model": "bert-micro"}
    given = {**of_texts, "registry": str(tmp_path / "r"), "advanced": {"test_source": str(fixed)}}

    def of_prepare() -> Any:
        return check_request.python_func(**given)[list(check_request.component_spec.outputs).index("prepare")]

    before = of_prepare()
    assert before["test_source_fingerprint"]
    assert before == of_prepare()
    write_rows(fixed, [*rows, {"text": "z", "label": "b"}])
    assert before != of_prepare()


def test_test_sources_that_cannot_be_one_are_refused() -> None:
    assert "the source itself" in PrepareSettings(source="x", test_source="x").problems()[0]
    assert "There is no 'sample:docstrings'" in PrepareSettings(test_source="sample:docstrings").problems()[0]
    assert "bq://PROJECT.DATASET.TABLE" in PrepareSettings(source="x", test_source="bq://x").problems()[0]
    alone = PrepareSettings(source="gs://bucket/x", test_source="bq://p-1.d.t")
    assert "read by one machine" in alone.problems_on(2)[0]
    # What is kept for test of the source does not matter.
    assert not PrepareSettings(source="x", test_source="y", val_fraction=0.5, test_fraction=0.5).problems()


def test_folders_of_splits_are_not_taken_for_classes(tmp_path: Path) -> None:
    """As torchvision and the hub have images: train/blue, test/blue."""
    source = tmp_path / "photos"
    for number, split in enumerate(("train", "Test", "val")):
        write_photos(source / split, per_class=8, seed=number)
    (problem,) = problems_here(PrepareSettings(source=str(source)))
    assert problem == (
        f"The folders of {source} are splits, not classes: Test, train, val. "
        f"Give -p source={source}/train -p test_source={source}/Test; val is drawn from the source."
    )
    settings = PrepareSettings(source=f"{source}/train", test_source=f"{source}/Test", val_fraction=0.25, image_size=8)
    manifest = prepare_data(settings, tmp_path / "out")
    assert (manifest.labels, manifest.rows("test")) == (["blue", "red"], 16)
    # A class may have such a name, beside others that have not.
    (source / "train/blue").rename(source / "train/train")
    assert problems_here(PrepareSettings(source=f"{source}/train")) == []


def test_files_of_train_and_test_are_not_mixed_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train-00000", "train-00001", "test-00000"):
        write_rows(
            tmp_path / f"rows/data/{name}.jsonl",
            [{"text": f"{name} {number}", "label": "ab"[number % 2]} for number in range(40)],
        )
    settings = PrepareSettings(source=str(tmp_path / "rows"), task="text_classification", vocabulary_size=300)
    prepare_data(settings, tmp_path / "out")
    said = "has files of train (data/train-00000.jsonl) and of test (data/test-00000.jsonl), and all of its rows are"
    assert f"warning: {tmp_path}/rows {said} divided anew" in capsys.readouterr().out
    given = {"source": f"{tmp_path}/rows/data/train*", "test_source": f"{tmp_path}/rows/data/test*"}
    manifest = prepare_data(replace(settings, **given), tmp_path / "kept")
    assert (manifest.rows("test"), "divided anew" in capsys.readouterr().out) == (40, False)
