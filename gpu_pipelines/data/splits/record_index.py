"""What is known of every record of a shard before any of them is prepared: hashes, and signatures of texts."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from gpu_pipelines.data.splits.duplicates import label_number, record_number
from gpu_pipelines.data.splits.near_duplicates import SIGNATURE_LENGTH
from gpu_pipelines.data.units.unfinished_work import UnfinishedWork

_INDEX, _SOURCES, _SIGNATURES = "index.npy", "sources.arrow", "signatures.u32"
_COLUMNS = ("position", "content", "number", "label", "split")
_SOURCE = pa.schema([pa.field("source", pa.string())])
_ENTRIES_AT_ONCE = 10_000


class Entry(NamedTuple):
    """A usable record.

    Attributes:
        position: its place among the records of its shard.
        content: its `content_number`.
        label: its class; empty where there are none.
        source: where it is, for people.
        split: its `split_number`.
        signature: of near-duplicates; None where they are not looked for.
    """

    position: int
    content: int
    label: str
    source: str
    split: int
    signature: np.ndarray | None = None


class RecordIndex:
    """The usable records of a shard, mapped into memory; the arrays have one length and are sorted by `content`.

    Args:
        folder: as `write_index` wrote it.

    Attributes:
        position: place among the records of the shard, usable or not.
        content: `content_number`.
        number: `record_number`.
        label: a hash of the class.
        split: `split_number`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        columns = np.load(folder / _INDEX, mmap_mode="r")
        self.position, self.content, self.number, self.label, self.split = columns

    def __len__(self) -> int:
        return len(self.position)

    def signatures(self) -> np.ndarray:
        """The signatures in the order of the records: (records, SIGNATURE_LENGTH)."""
        if not len(self):  # nothing cannot be mapped into memory
            return np.zeros((0, SIGNATURE_LENGTH), np.uint32)
        return np.memmap(self._folder / _SIGNATURES, np.uint32, "r").reshape(-1, SIGNATURE_LENGTH)

    def sources(self) -> pa.ChunkedArray:
        """Where the records are, for people, in their order; only with signatures."""
        return pa.ipc.open_file(pa.memory_map(str(self._folder / _SOURCES))).read_all()["source"]


def write_index(folder: Path, entries: Iterator[Entry]) -> int:
    """Writes the index of a shard and returns how many records it has.

    Args:
        folder: gets the files.
        entries: its usable records in order; all or none have a signature.
    """
    columns = [array("Q") for _ in _COLUMNS]
    with (
        (folder / _SIGNATURES).open("wb") as signatures,
        pa.OSFile(str(folder / _SOURCES), "wb") as sink,
        pa.ipc.new_file(sink, _SOURCE) as sources,
    ):
        while some := list(islice(entries, _ENTRIES_AT_ONCE)):
            for entry in some:
                number = record_number(entry.content, entry.label)
                row = (entry.position, entry.content, number, label_number(entry.label), entry.split)
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
                if entry.signature is not None:
                    signatures.write(entry.signature.tobytes())
            if some[0].signature is not None:
                sources.write_batch(pa.record_batch([pa.array([e.source for e in some], pa.string())], schema=_SOURCE))
    arrays = [np.array(column, dtype=np.uint64) for column in columns]
    order = np.argsort(arrays[_COLUMNS.index("content")], kind="stable")
    np.save(folder / _INDEX, np.stack([values[order] for values in arrays]))
    return len(order)


def index_name(shard: int) -> str:
    """The name of the part with the index of a shard."""
    return f"index/{shard:05d}"


def index_in(work: UnfinishedWork, shard: int) -> RecordIndex:
    """The index of a shard, which is part of the unfinished work."""
    work.require(index_name(shard))
    return RecordIndex(work.path(index_name(shard)))
