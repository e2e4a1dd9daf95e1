"""Preparing in batches and on all cores: the same dataset, every record accounted for, bounded memory."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import printed_by, write_photos
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gpu_pipelines.artifacts.dataset import MANIFEST, SPLITS, Dataset, Feature, Manifest
from gpu_pipelines.artifacts.dataset_writer import DatasetWriter
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.splits.duplicates import SeenRecords, record_number
from gpu_pipelines.data.text.survey import TrainingTexts
from gpu_pipelines.data.units.parallel import batches, in_order
from gpu_pipelines.distributed import process_executor
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.batch_encoding import BatchEncoder
from gpu_pipelines.tasks.text_encoding import TextEncoder

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu"]


def texts(number: int, seed: int = 0) -> Iterator[str]:
    generator = random.Random(seed)
    for n in range(number):
        yield f"document {n}: " + " ".join(generator.choices(WORDS, k=generator.randrange(1, 40)))


def write_texts(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prepare(source: Path, directory: Path, **changes: Any) -> Manifest:
    given = {"task": "causal_lm", "val_fraction": 0.2, "test_fraction": 0.2, "sequence_length": 64, **changes}
    return prepare_data(PrepareSettings(source=str(source), **given), directory)


def decoded(directory: Path, split: str) -> list[str]:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer/tokenizer.json"))
    rows = Dataset(directory).split(split)
    return tokenizer.decode_batch(rows.take(np.arange(len(rows)))["input_ids"].tolist(), skip_special_tokens=True)


# All cores


@pytest.mark.slow_but_for("text_classification")
@pytest.mark.parametrize("task", ["causal_lm", "text_classification"])
def test_several_processes_write_the_dataset_that_one_writes(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": text, "label": text[-1]} for text in texts(12_500)]
    for part in range(3):
        write_texts(tmp_path / f"data/{part}.jsonl", [*rows[part::3], {"text": ""}])
    manifests = []
    # Without a core to spare all is done in this process.
    for name, cores in (("several", 2), ("one", 1)):
        monkeypatch.setattr(process_executor, "cores", lambda cores=cores: cores)
        manifests.append(prepare(tmp_path / "data", tmp_path / name, task=task))
    assert manifests[0] == manifests[1]
    assert (manifests[0].rows_read, manifests[0].records_kept, manifests[0].rejected) == (
        12_503,
        12_500,
        {"no text": 3},
    )
    if task == "causal_lm":
        whole = "".join(text for split in SPLITS for text in decoded(tmp_path / "several", split))
        found = Counter(int(piece.partition(":")[0]) for piece in whole.split("document ")[1:])
        assert found == Counter(range(12_500))
        used = sum(len(Dataset(tmp_path / "several").split(split)) for split in SPLITS) * 64
        tokens = sum(map(len, Tokenizer.from_file(str(tmp_path / "several/tokenizer/tokenizer.json")).encode_batch(
            [row["text"] for row in rows])))  # fmt: skip
        assert tokens / used > 0.9, "what does not fill a row of one batch is packed with that of others"


def test_results_come_in_order_and_no_more_is_taken_than_is_wanted() -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    with ThreadPoolExecutor(4) as pool:
        results = in_order(pool, lambda number: number * 2, items(), ahead=5)
        assert [next(results) for _ in range(3)] == [0, 2, 4]
        assert len(taken) <= 3 + 5 + 1
        assert list(results) == list(range(6, 200, 2))


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(0, 30)), st.integers(1, 5), st.integers(1, 40))
def test_batches_are_whole_and_no_larger_than_they_may_be(weights: list[int], most: int, most_weight: int) -> None:
    made = list(batches(weights, most, most_weight, lambda weight: weight))
    assert [weight for batch in made for weight in batch] == weights
    assert all(0 < len(batch) <= most and (sum(batch) <= most_weight or len(batch) == 1) for batch in made)


# Duplicates


@pytest.mark.parametrize("in_memory", [1, 7, 1000])
def test_what_was_seen_is_known_again_from_memory_and_from_files(in_memory: int, tmp_path: Path) -> None:
    generator = random.Random(in_memory)
    seen, known = SeenRecords(tmp_path, in_memory), set()
    for _ in range(60):
        numbers = [generator.choice((0, 2**64 - 1, generator.randrange(500))) for _ in range(generator.randrange(20))]
        for number, is_new in zip(numbers, seen.add(numbers), strict=True):
            assert is_new == (number not in known)
            known.add(number)


def test_a_record_is_the_same_only_with_the_same_label() -> None:
    assert record_number(5, "cat") == record_number(5, "cat")
    assert len({record_number(5, ""), record_number(5, "cat"), record_number(5, "dog"), record_number(6, "cat")}) == 4


def test_duplicates_are_left_out_and_counted_unless_they_are_wanted(tmp_path: Path) -> None:
    rows = [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(texts(80))]
    again = [*rows[:30], {**rows[0], "label": "b"}, {"text": "x"}]
    one = write_texts(tmp_path / "one.jsonl", rows)
    both = write_texts(tmp_path / "both.jsonl", rows + again)
    for task, kept in (("text_classification", 81), ("causal_lm", 81)):
        manifest = prepare(both, tmp_path / "out", task=task)
        told = (manifest.rows_read, manifest.records_kept, manifest.duplicates, manifest.rows_rejected)
        assert told == ((112, kept, 30, 1) if task == "text_classification" else (112, kept, 31, 0))
        assert Dataset(tmp_path / "out").manifest == manifest
    assert prepare(both, tmp_path / "out", remove_duplicates=False).records_kept == 112
    plain = write_texts(tmp_path / "plain.jsonl", rows + rows[::-1])
    assert prepare(plain, tmp_path / "a").fingerprint == prepare(one, tmp_path / "b").fingerprint


def test_copies_of_images_are_left_out(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", per_class=30)
    for path in sorted((photos / "red").iterdir())[:10]:
        shutil.copy(path, photos / "red" / f"copy-{path.name}")
        shutil.copy(path, photos / "blue" / f"copy-{path.name}")
    manifest = prepare(photos, tmp_path / "out", task="image_classification")
    assert (manifest.rows_read, manifest.rows_kept, manifest.duplicates) == (80, 70, 10)


# Splits


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from("ab")), max_size=60), st.integers(0, 3))
def test_no_text_is_in_two_splits_whatever_its_labels(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("leak")
    more = [{"text": text, "label": label} for text, label in rows]
    more += [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(texts(60))]
    table = write_texts(folder / "t.jsonl", more)
    manifest = prepare(table, folder / "out", task="text_classification", split_seed=seed)
    places: dict[str, set[str]] = {}
    for split in SPLITS:
        for text in decoded(folder / "out", split):
            places.setdefault(text, set()).add(split)
    assert places.keys() == {str(row["text"]) for row in more}
    assert all(len(splits) == 1 for splits in places.values())
    assert manifest.records_kept == len({(row["text"], row["label"]) for row in more})


# Limits


@pytest.mark.parametrize(
    ("limit", "passes"), [("", True), ("10", True), ("9", False), ("10%", True), ("9.9 %", False), ("0", False)]
)
def test_more_rejected_rows_than_may_be_fail_the_step_with_the_reasons(
    limit: str, passes: bool, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [{"text": text} for text in texts(90)]
    table = write_texts(tmp_path / "t.jsonl", rows + [{"text": None}] * 7 + [{"text": "\ud800"}] * 3)
    if passes:
        assert prepare(table, tmp_path / "out", max_rejected=limit).rows_rejected == 10
        return
    with pytest.raises(UserError, match=r"10 of 100 rows .* were rejected, .*: ") as caught:
        prepare(table, tmp_path / "out", max_rejected=limit)
    assert (
        "7 × no text (first: t.jsonl:91: 'text' is empty or no text), 3 × not Unicode (first: t.jsonl:98: the lone"
        in caught.value.problem
    )
    assert limit in caught.value.problem
    assert not (tmp_path / "out" / MANIFEST).exists()


@pytest.mark.parametrize("limit", ["x", "-1", "1.5", "%", "1e3", "nan"])
def test_a_limit_that_is_neither_share_nor_number_is_refused(limit: str) -> None:
    assert "max_rejected" in PrepareSettings(max_rejected=limit).problems()[0]


def test_shards_have_the_size_that_is_asked_for(tmp_path: Path) -> None:
    table = write_texts(tmp_path / "t.jsonl", [{"text": text * 20} for text in texts(2000)])
    manifest = prepare(table, tmp_path / "out", shard_megabytes=1, sequence_length=512)
    sizes = [(tmp_path / "out" / file.path).stat().st_size for file in manifest.splits["train"]]
    assert len(sizes) > 2
    assert all(0.9 * 2**20 < size < 1.1 * 2**20 for size in sizes[:-1])
    assert "shard_megabytes" in PrepareSettings(shard_megabytes=-1).problems()[0]


def test_a_row_that_is_not_accounted_for_is_a_fault_of_the_program(tmp_path: Path) -> None:
    features = {"x": Feature("int32")}
    with DatasetWriter(tmp_path, task="t", source="s", features=features, labels=[], preprocessing={}) as writer:
        writer.add("train", "a", {"x": 1})
        writer.leave_out_duplicate()
        with pytest.raises(RuntimeError, match="Of 3 rows read 2"):
            writer.finish(rows_read=3)


# Tokenizers


def test_the_texts_a_tokenizer_is_trained_on_are_chosen_by_their_content() -> None:
    rows = [(random.Random(text).getrandbits(64), text) for text in texts(2000)]
    chosen = []
    for order in (rows, rows[::-1], rows * 2):
        found = TrainingTexts(most=20_000)
        for number, text in order:
            found.add(number, [text])
        chosen.append(sorted(found))
        assert not found.is_all
    assert chosen[0] == chosen[1] == chosen[2]
    assert 8_000 < sum(map(len, chosen[0])) <= 20_000


@pytest.mark.parametrize("ends", [True, False])
def test_a_batch_is_encoded_as_transformers_encodes_each_text(ends: bool, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    TextEncoder.train(list(texts(200)), 400, ends=ends).save(tmp_path, 32)
    usual, encoder = AutoTokenizer.from_pretrained(tmp_path), BatchEncoder(tmp_path)
    given = [*texts(50, seed=1), "", "ünï <eos> <pad>", "x" * 500]
    end = usual.eos_token_id
    documents = encoder.documents(given)
    for text, document in zip(given, documents, strict=True):
        tokens = usual(text, split_special_tokens=True)["input_ids"]
        assert document.tokens.tolist() == (tokens if ends else [*tokens, end])
        assert document.targets.tolist() == [1] * len(document.tokens)
    pairs = list(zip(given, given[::-1], strict=True))
    for (prompt, answer), pair in zip(pairs, encoder.completions(pairs), strict=True):
        opening = usual(prompt, split_special_tokens=True)["input_ids"][: -1 if ends else None]
        rest = usual(answer, split_special_tokens=True, add_special_tokens=False)["input_ids"]
        assert pair.tokens.tolist() == [*opening, *rest, end]
        assert pair.targets.tolist() == [0] * len(opening) + [1] * (len(rest) + 1)
    cut = usual(given, truncation=True, max_length=32, split_special_tokens=True)["input_ids"]
    assert [tokens.tolist() for tokens in encoder.classified(given, 32)] == cut


def test_a_process_that_encodes_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    code = (
        "import sys, gpu_pipelines.data.text.work\n"
        "print([name for name in ('torch', 'transformers', 'kfp', 'PIL') if name in sys.modules])"
    )
    assert printed_by(code, tmp_path).strip() == "[]"
