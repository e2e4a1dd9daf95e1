"""Tables of random rows, in every format, become the dataset that a few lines of plain Python make of the same rows."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import json
import lzma
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from gpu_pipelines.artifacts.dataset import SPLITS, Dataset
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings

TEXTS = [
    "plain", "", "  ", "\u00a0", "café", "cafe\u0301", "\U0001f469\u200d\U0001f52c", "\u202eשלום\u202c", "\u200b",
    "two\nlines", "two\r\nlines", "a\ttab", "line\u2028end", "\x0b\x1c\x85", 'a "quote"', '"quoted"', '"', "'", ",",
    "a;b|c", "\\n", "{}", "[1]", "#", "=1+1", "null", "NaN", "1.0", "text", "\ufeff", "x" * 3000,
]  # fmt: skip
LABELS = ["a", "b", " a", "b ", "é", "e\u0301", "x,y", 'q"q', "0", "1.0", "-", "", "NULL", "nan", "None"]
MISSING = {"", "NULL", "nan", "None"}
PACKED: dict[str, Any] = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def random_rows(generator: random.Random) -> list[dict[str, Any]]:
    def row() -> dict[str, Any]:
        text = "".join(generator.choices([*TEXTS, str(generator.randrange(100))], k=generator.randint(1, 3)))
        return {"text": text, "label": generator.choice([*LABELS[:2] * 8, *LABELS]), "other": generator.random()}

    rows = [row() for _ in range(120)]
    return generator.sample([*rows, *generator.choices(rows, k=10)], 130)


def as_csv(rows: list[dict[str, Any]], generator: random.Random, delimiter: str) -> bytes:
    out, end = io.StringIO(), generator.choice(["\n", "\r\n"])
    writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode(generator.choice(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))


def written(kind: str, rows: list[dict[str, Any]], generator: random.Random) -> bytes:
    """A file of rows, whose columns stand in any order."""
    names = generator.sample(list(rows[0]), 3)
    rows = [{name: row[name] for name in names} for row in rows]
    if kind in (".csv", ".tsv"):
        return as_csv(rows, generator, "\t" if kind == ".tsv" else generator.choice(",;|"))
    is_ascii = generator.random() < 0.5
    if kind == ".jsonl":  # with blank lines
        lines = [json.dumps(row, ensure_ascii=is_ascii) + "\n" * generator.randint(1, 2) for row in rows]
        return "".join(lines).encode()
    if kind == ".json":
        return json.dumps(rows, ensure_ascii=is_ascii, indent=generator.choice([None, 1])).encode()
    table, out = pa.Table.from_pylist(rows), io.BytesIO()
    if kind == ".parquet":
        pq.write_table(table, out, row_group_size=generator.choice([3, 1000]), use_dictionary=is_ascii)
        return out.getvalue()
    with (pa.ipc.new_file if is_ascii else pa.ipc.new_stream)(out, table.schema) as file:
        file.write_table(table, max_chunksize=generator.choice([3, 1000]))
    return out.getvalue()


def split_of(text: str, seed: int) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=seed.to_bytes(8, "big", signed=True)).digest()
    place = int.from_bytes(digest, "big") / 2**64
    return "test" if place < 0.25 else "val" if place < 0.5 else "train"


def wanted(rows: list[dict[str, Any]], seed: int) -> tuple[dict[str, list[tuple[str, str]]], Counter[str]]:
    kept: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    left: Counter[str] = Counter()
    for row in rows:
        record = (row["text"], row["label"].strip())
        if not row["text"].strip():
            left["no text"] += 1
        elif record[1] in MISSING:
            left["no label"] += 1
        elif record in kept[split := split_of(row["text"], seed)]:
            left["duplicate"] += 1
        else:
            kept[split].append(record)
    return kept, left


@pytest.mark.parametrize("number", [*range(6), *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 120))])
def test_the_dataset_is_that_of_the_rows_in_every_format(number: int, tmp_path: Path) -> None:
    generator = random.Random(number)
    rows, seed = random_rows(generator), generator.choice([0, 7, -3])
    kind = [".csv", ".tsv", ".jsonl", ".json", ".parquet", ".arrow"][number % 6]
    packing = generator.choice(list(PACKED)) if kind not in (".parquet", ".arrow") else ""
    (tmp_path / "rows").mkdir()
    for place, part in enumerate((rows[:50], rows[50:])):
        content = PACKED[packing](written(kind, part, generator))
        (tmp_path / "rows" / f"part-{place}{kind}{packing}").write_bytes(content)
    settings = PrepareSettings(
        task="text_classification",
        source=f"{tmp_path}/rows/*",
        split_seed=seed,
        val_fraction=0.25,
        test_fraction=0.25,
        max_rejected="unlimited",
        sequence_length=8192,
        vocabulary_size=300,
    )
    manifest = prepare_data(settings, tmp_path / "out")
    kept, left = wanted(rows, seed)
    assert manifest.rows_read == len(rows)
    assert manifest.duplicates == left.pop("duplicate", 0)
    assert manifest.rejected == left
    assert len((tmp_path / "out/rejected.jsonl").read_text().splitlines()) == left.total()
    tokenizer = Tokenizer.from_file(str(tmp_path / "out/tokenizer/tokenizer.json"))
    for split in SPLITS:
        columns = Dataset(tmp_path / "out").split(split)
        found = zip(*(columns.column(name) for name in ("input_ids", "length", "label")), strict=True)
        texts = [(tokenizer.decode(ids[:length].tolist()), manifest.labels[label]) for ids, length, label in found]
        assert texts == kept[split]
