"""What is known of every record of a portion before any of them is prepared: hashes, and signatures of texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from gpu_pipelines.components.data_prep.duplicates import record_number
from gpu_pipelines.components.data_prep.near_duplicates import SIGNATURE_LENGTH

INDEX = "index.arrow"
_COLUMNS = {"position": np.uint32, "content": np.uint64, "number": np.uint64, "label": np.uint64}


class Entry(NamedTuple):
    """A usable record.

    Attributes:
        position: its place among the records of its portion.
        content: its `content_number`.
        label: its class; empty where there are none.
        source: where it is, for people.
        signature: of near-duplicates; None where they are not looked for.
    """

    position: int
    content: int
    label: str
    source: str
    signature: np.ndarray | None = None


class RecordIndex(NamedTuple):
    """The records of a portion as arrays of one length, sorted by `content`.

    Attributes:
        position: place among the records of the portion.
        content: `content_number`.
        number: `record_number`.
        label: a hash of the class.
        source: where each is, for people; empty without signatures.
        signature: (records, SIGNATURE_LENGTH); None without.
    """

    position: np.ndarray
    content: np.ndarray
    number: np.ndarray
    label: np.ndarray
    source: pa.StringArray
    signature: np.ndarray | None


def write_index(folder: Path, entries: Iterator[Entry]) -> int:
    """Writes the index of a portion and returns how many records it has.

    Args:
        folder: gets one file.
        entries: its usable records; all or none have a signature.
    """
    rows: list[tuple[int, int, int, int]] = []
    sources: list[str] = []
    signatures: list[np.ndarray] = []
    for entry in entries:
        number = record_number(entry.content, entry.label)
        rows.append((entry.position, entry.content, number, _label_number(entry.label)))
        if entry.signature is not None:
            sources.append(entry.source)
            signatures.append(entry.signature)
    order = np.argsort(np.array([row[1] for row in rows], dtype=np.uint64), kind="stable")
    columns = {
        name: pa.array(np.array([row[place] for row in rows], dtype=kind)[order])
        for place, (name, kind) in enumerate(_COLUMNS.items())
    }
    if signatures:
        flat = pa.array(np.stack(signatures)[order].ravel())
        columns["signature"] = pa.FixedSizeListArray.from_arrays(flat, SIGNATURE_LENGTH)
        columns["source"] = pa.array(sources, pa.string()).take(pa.array(order))
    batch = pa.record_batch(columns)
    with pa.OSFile(str(folder / INDEX), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return len(rows)


def read_index(folder: Path) -> RecordIndex:
    """Maps an index into memory."""
    batch = pa.ipc.open_file(pa.memory_map(str(folder / INDEX))).get_batch(0)
    signature = None
    if "signature" in batch.schema.names:
        flat = batch.column("signature").flatten().to_numpy(zero_copy_only=True)
        signature = flat.reshape(batch.num_rows, SIGNATURE_LENGTH)
    source = batch.column("source") if signature is not None else pa.array([], pa.string())
    position, content, number, label = (batch.column(name).to_numpy(zero_copy_only=True) for name in _COLUMNS)
    return RecordIndex(position, content, number, label, source, signature)


def index_name(portion: int) -> str:
    """The name of the part with the index of a portion."""
    return f"index/{portion:05d}"


def _label_number(label: str) -> int:
    digest = hashlib.blake2b(label.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
