"""Malformed input of every format: rejected row by row or refused as a whole, no traceback, nothing lost uncounted.

Half of the generated records are good. Of most formats it is known how many records a file has, and so how many must be
read; damage that is done to the bytes of a file is refused as a whole or leaves a dataset that adds up.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from gpu_pipelines.artifacts.dataset import REJECTED, SPLITS, Dataset, Manifest
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import UserError

NASTY_TEXTS = [
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "ünï",
    "\ufeff",
    "\u2028",
    '"',
    "'",
    ",",
    "\r",
    "a\nb",
    "\x1b[31m",
    "<eos>",
]
NASTY_VALUES: list[Any] = [
    None,
    0,
    -1,
    1.5,
    float("nan"),
    float("inf"),
    True,
    [],
    {},
    [1],
    {"a": 1},
    [{"role": 1}],
    10**400,
]
JSON_LINES = [
    b"{", b"}", b"[]", b"null", b'"x"', b"[" * 100_000, b'{"a":' * 50_000, b"1" * 10_000, b"\xff\xfe", b"\x00",
    b'{"text": "\xff", "label": "a"}', b'{"text": "x", "text": "y", "label": "a"}', b'{"text": "x" "label"}', b"NaN",
    b'{"label": "a", "text": "\\ud800"}', b'{"text": ' + b'"' + b"x" * 300_000 + b'", "label": "b"}', b'{"TEXT": "x"}',
]  # fmt: skip
TASKS = {"jsonl": "text_classification", "csv": "text_classification", "parquet": "text_classification",
         "arrow": "text_classification", "text": "causal_lm", "tar": "image_classification",
         "images": "image_classification", "chats": "causal_lm", "prompts": "causal_lm"}  # fmt: skip
FORMATS = {"chats": "jsonl", "prompts": "jsonl"}


def good_text(number: int) -> dict[str, Any]:
    return {"text": f"the text with number {number}", "label": "ab"[number % 2]}


def any_row(generator: random.Random) -> dict[str, Any]:
    values = [generator.choice(NASTY_TEXTS + NASTY_VALUES + ["a", "b"]) for _ in range(2)]
    return dict(zip(generator.choice((("text", "label"), ("text", "x"), ("", "label"))), values, strict=True))


def as_jsonl(records: int, generator: random.Random) -> tuple[bytes, int]:
    lines = [json.dumps(good_text(number)).encode() for number in range(records)]
    for _ in range(records):
        if generator.random() < 0.5:
            lines.append(generator.choice(JSON_LINES))
        else:
            text = json.dumps(any_row(generator), ensure_ascii=generator.random() < 0.5)
            lines.append(text.encode("utf-8", "surrogatepass").replace(b"\n", b" "))
    generator.shuffle(lines)
    return b"\n".join(lines), len(lines)


def as_csv(records: int, generator: random.Random) -> tuple[bytes, int]:
    lines = [f'"{row["text"]}",{row["label"]}\r\n' for row in map(good_text, range(records))]
    for _ in range(records):
        fields = [generator.choice([*NASTY_TEXTS, "a", "b", "x" * 200_000]) for _ in range(generator.randrange(1, 6))]
        quoted = [f'"{field.replace(chr(34), chr(34) * 2)}"' for field in fields]
        lines.append(",".join(quoted) + "\r\n")
    generator.shuffle(lines)
    content = b"text,label\r\n" + "".join(lines).encode("utf-8", "surrogateescape" if records % 2 else "surrogatepass")
    csv.field_size_limit(1 << 20)
    # The parser of the standard library says how many rows that is.
    reader = csv.reader(io.StringIO(content.decode("utf-8", "replace").replace("\0", "0"), newline=""))
    return content, sum(1 for row in reader if row) - 1


def as_table(records: int, generator: random.Random) -> tuple[pa.Table, int]:
    texts: list[bytes | None] = [good_text(number)["text"].encode() for number in range(records)]
    labels: list[bytes | None] = [good_text(number)["label"].encode() for number in range(records)]
    for _ in range(records):
        nasty = [text.encode("utf-8", "surrogatepass") for text in NASTY_TEXTS]
        for column in (texts, labels):
            column.append(generator.choice([*nasty, None, b"\xff", b"caf\xe9", b"a", b"x" * 100_000]))
    order = generator.sample(range(2 * records), 2 * records)
    # A writer that does not look puts any bytes into a column of texts.
    columns = [
        pa.array([column[place] for place in order], pa.binary()).view(pa.string()) for column in (texts, labels)
    ]
    return pa.table(columns, ["text", "label"]), 2 * records


def as_parquet(records: int, generator: random.Random) -> tuple[bytes, int]:
    table, number = as_table(records, generator)
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=97)
    return file.getvalue(), number


def as_arrow(records: int, generator: random.Random) -> tuple[bytes, int]:
    table, number = as_table(records, generator)
    file = io.BytesIO()
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=97)
    return file.getvalue(), number


def as_text(records: int, generator: random.Random) -> tuple[bytes, int]:
    documents = [good_text(number)["text"].encode() for number in range(records)]
    nasty = [
        b"\xff\xfe",
        b"caf\xe9",
        b"\0",
        b"a\0b",
        b"\xed\xa0\x80",
        b"x" * 30_000,
        b"\xef\xbb\xbf",
        b"<eos>",
        b"a\rb",
    ]
    documents += [generator.choice(nasty) + b" %d" % generator.randrange(40) for _ in range(records)]
    generator.shuffle(documents)
    return b"".join(
        document + generator.choice((b"\n\n", b"\r\n \t\r\n", b"\n\n\n")) for document in documents
    ), 2 * records


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (8, 8)).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def as_tar(records: int, generator: random.Random) -> tuple[bytes, int]:
    images = [b"", b"x", b"\xff\xd8\xff", png(0)[:50], png(1) + b"more", b"\0" * 5000]
    labels = [b"", b"a", b"\xff", b"{", b"[" * 100_000, b'{"label": [1]}', b'{"label": "b"}', b"7", b"1" * 10_000]
    samples = [[(".png", png(number + 10)), (".cls", b"ab"[number % 2 : number % 2 + 1])] for number in range(records)]
    for _ in range(records):
        parts = [(generator.choice((".png", ".JPG", ".left.webp", "")), generator.choice(images)),
                 (generator.choice((".cls", ".json", ".txt")), generator.choice(labels))]  # fmt: skip
        samples.append(parts[: generator.randrange(1, 3)])
    generator.shuffle(samples)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for number, parts in enumerate(samples):
            for suffix, content in parts:
                member = tarfile.TarInfo(f"ü/{number:06}{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return file.getvalue(), len(samples)


def as_chats(records: int, generator: random.Random) -> tuple[bytes, int]:
    rows: list[Any] = [
        {"messages": [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": "yes"}]}
        for number in range(records)
    ]
    words = [*NASTY_TEXTS, *NASTY_VALUES, "user", "assistant", "tool", "x" * 5000]
    for _ in range(records):
        keys = generator.choice((("role", "content"), ("role", "content", "tool_calls"), ("content",), ()))
        message = {key: generator.choice(words) for key in keys}
        some = [message] * generator.randrange(3) + [generator.choice(NASTY_VALUES)] * generator.randrange(2)
        rows.append({"messages": generator.choice((some, message, generator.choice(NASTY_VALUES)))})
    return _lines(rows, generator)


def as_prompts(records: int, generator: random.Random) -> tuple[bytes, int]:
    rows = [{"prompt": f"{number}?", "completion": "yes"} for number in range(records)]
    words = [*NASTY_TEXTS, *NASTY_VALUES, "x" * 5000]
    for _ in range(records):
        keys = generator.choice((("prompt", "completion"), ("prompt",), ("completion",), ("prompt", "answer")))
        rows.append({key: generator.choice(words) for key in keys})
    return _lines(rows, generator)


def _lines(rows: list[Any], generator: random.Random) -> tuple[bytes, int]:
    generator.shuffle(rows)
    return b"\n".join(json.dumps(row).encode() for row in rows), len(rows)


MAKERS: dict[str, Callable[[int, random.Random], tuple[bytes, int]]] = {
    "jsonl": as_jsonl, "csv": as_csv, "parquet": as_parquet, "arrow": as_arrow, "text": as_text, "tar": as_tar,
    "chats": as_chats, "prompts": as_prompts,
}  # fmt: skip


def prepare(file: Path, format_name: str, directory: Path) -> Manifest:
    return prepare_data(
        PrepareSettings(
            source=str(file),
            source_format=FORMATS.get(format_name, format_name),
            task=TASKS[format_name],
            val_fraction=0.2,
            test_fraction=0.2,
            sequence_length=64 if format_name == "chats" else 32,
            vocabulary_size=300,
            image_size=8,
            color_mode="L",
            max_rejected="unlimited",
        ),
        directory,
    )


def assert_adds_up(directory: Path, manifest: Manifest) -> None:
    assert manifest.rows_read == manifest.records_kept + manifest.duplicates + manifest.rows_rejected
    lines = [json.loads(line) for line in (directory / REJECTED).read_text(encoding="utf-8").splitlines()]
    assert Counter(line["reason"] for line in lines) == manifest.rejected
    assert all(line["source"] for line in lines)
    dataset = Dataset(directory)
    assert dataset.manifest == manifest
    assert sum(len(dataset.split(split)) for split in SPLITS) == manifest.rows_kept


def check_records(format_name: str, records: int, folder: Path) -> None:
    content, number = MAKERS[format_name](records, random.Random(records))
    file = folder / f"t.{format_name}"
    file.write_bytes(content)
    manifest = prepare(file, format_name, folder / "out")
    assert manifest.rows_read == number
    assert manifest.records_kept >= records
    assert manifest.rows_rejected > records / 20
    assert_adds_up(folder / "out", manifest)


def check_images(records: int, folder: Path) -> None:
    generator = random.Random(records)
    broken = [
        b"",
        b"x",
        b"\xff\xd8\xff",
        b"\0" * 5000,
        b"GIF89a" + b"\xff" * 7,
        b"RIFF\0\0\0\0WEBP",
        b"BM" + b"\xff" * 60,
    ]
    for number in range(records):
        names = (
            f"{number}.png",
            generator.choice((f"bad {number}.jpg", f"{number}.txt", f"\udcff{number}", f"{number}é.GIF")),
        )
        good = png(number + 10)
        bad = generator.choice((*broken, good[: generator.randrange(len(good) - 12)]))
        for name, content in zip(names, (good, bad), strict=True):
            file = folder / "in" / "ab"[number % 2] / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    manifest = prepare(folder / "in", "images", folder / "out")
    assert manifest.rows_read == 2 * records
    assert manifest.records_kept >= records
    assert manifest.rows_rejected > records / 2
    assert_adds_up(folder / "out", manifest)


def test_malformed_images_in_folders_are_rejected_one_by_one_and_the_good_ones_kept(tmp_path: Path) -> None:
    check_images(150, tmp_path)


@pytest.mark.slow
def test_ten_thousand_malformed_images_in_folders_are_rejected_one_by_one(tmp_path: Path) -> None:
    check_images(10_000, tmp_path)


@pytest.mark.parametrize("format_name", MAKERS)
def test_malformed_records_are_rejected_one_by_one_and_the_good_ones_kept(format_name: str, tmp_path: Path) -> None:
    check_records(format_name, 300, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("format_name", MAKERS)
def test_ten_thousand_malformed_records_are_rejected_one_by_one(format_name: str, tmp_path: Path) -> None:
    check_records(format_name, 10_000, tmp_path)


def damaged(content: bytes, generator: random.Random) -> bytes:
    """One of the things that happen to files: cut off, bytes changed, a piece missing, doubled or emptied."""
    place, length = generator.randrange(len(content)), generator.randrange(1, 2000)
    kind = generator.randrange(6)
    if kind == 0:
        return content[:place]
    if kind == 1:
        changed = bytearray(content)
        for _ in range(generator.randrange(1, 20)):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        return bytes(changed)
    middle = [b"", content[place : place + length] * 2, bytes(length), generator.randbytes(length)][kind - 2]
    return content[:place] + middle + content[place + length :]


def check_damage(format_name: str, pack: Callable[[bytes], bytes], times: int, folder: Path) -> Counter[str]:
    generator = random.Random(times)
    content = pack(MAKERS[format_name](40, random.Random(0))[0])
    ends: Counter[str] = Counter()
    for number in range(times):
        file = folder / f"{number}.{format_name}"
        file.write_bytes(damaged(content, generator))
        try:
            manifest = prepare(file, format_name, folder / "out")
        except UserError:
            ends["refused"] += 1
        else:
            assert_adds_up(folder / "out", manifest)
            ends["prepared"] += 1
        file.unlink()
    return ends


def zstd(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


PACKED = [
    *((format_name, bytes) for format_name in MAKERS if format_name not in FORMATS),
    ("jsonl", gzip.compress),
    ("csv", zstd),
    ("tar", gzip.compress),
    ("text", zstd),
]
NAMES = [f"{format_name} {pack.__name__}" for format_name, pack in PACKED]


@pytest.mark.parametrize(("format_name", "pack"), PACKED, ids=NAMES)
def test_a_damaged_file_is_refused_or_adds_up(format_name: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    ends = check_damage(format_name, pack, 12, tmp_path)
    assert sum(ends.values()) == 12


@pytest.mark.slow
@pytest.mark.parametrize(("format_name", "pack"), PACKED, ids=NAMES)
def test_hundreds_of_damaged_files_are_refused_or_add_up(
    format_name: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    ends = check_damage(format_name, pack, 400, tmp_path)
    assert sum(ends.values()) == 400


def test_a_line_without_end_is_one_rejected_row_and_the_rest_is_read(tmp_path: Path) -> None:
    good = [json.dumps(good_text(number)).encode() for number in range(60)]
    (tmp_path / "t.jsonl").write_bytes(b"\n".join([*good[:30], b'{"text": "' + b"x" * (17 << 20), *good[30:]]))
    manifest = prepare(tmp_path / "t.jsonl", "jsonl", tmp_path / "out")
    assert (manifest.rows_read, manifest.records_kept, manifest.rejected) == (61, 60, {"malformed row": 1})


def test_rows_below_a_thousand_malformed_lines_are_read(tmp_path: Path) -> None:
    good = [json.dumps(good_text(number)) for number in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join(good[:30]))
    (tmp_path / "b.jsonl").write_text("\n".join(["no JSON"] * 1200 + good[30:]))
    manifest = prepare(tmp_path, "jsonl", tmp_path / "out")
    assert (manifest.rows_read, manifest.records_kept, manifest.rejected) == (1260, 60, {"malformed row": 1200})
