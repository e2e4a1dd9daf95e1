"""Writes the dataset artifact, whose format `dataset` describes."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from gpu_pipelines.artifacts.dataset import (
    LABEL_CONFLICTS,
    MANIFEST,
    NEAR_DUPLICATES,
    REJECTED,
    SLICE,
    SPLITS,
    DataFile,
    Feature,
    Manifest,
)
from gpu_pipelines.artifacts.documents import sha256_of_tree, write_document
from gpu_pipelines.artifacts.moments import Moments, joined_moments

SHARD_BYTES = 64 << 20


def rows_of_shard(features: Mapping[str, Feature], size: int) -> int:
    """Number of rows that fill a shard of a size in bytes; at least one."""
    return max(1, size // sum(np.dtype(f.dtype).itemsize * f.elements for f in features.values()))


class DatasetWriter:
    """Writes a dataset row by row; `finish` writes the manifest, without which it is not a dataset.

    Args:
        directory: where the dataset goes; created if it does not exist.
        task: task of the rows.
        source: where the rows come from, as the user named it.
        features: columns by name; a column `label` holds indices into `labels`.
        labels: class names; empty if the rows have no classes.
        preprocessing: how raw records become features.
        tokenizer: directory of the tokenizer below `directory`, already written; None without one.
        packed: whether a row holds several records, each counted by `add`.
        slice_by: column of the source whose value `add` gets for each row; empty for none.
        rows_per_shard: rows of a full shard; left out, as many as fill 64 MiB, at most 8,192.
        source_fingerprint: fingerprint of the source's files, taken before they were read.
        test_source: where the test split comes from, and its fingerprint; None if from the source.
    """

    def __init__(
        self,
        directory: Path,
        *,
        task: str,
        source: str,
        features: Mapping[str, Feature],
        labels: Sequence[str],
        preprocessing: Mapping[str, Any],
        tokenizer: str | None = None,
        packed: bool = False,
        slice_by: str = "",
        rows_per_shard: int | None = None,
        source_fingerprint: str = "",
        test_source: dict[str, str] | None = None,
    ) -> None:
        self._directory = directory
        self._identity: dict[str, Any] = {
            "task": task,
            "source": source,
            "tokenizer": tokenizer,
            "source_fingerprint": source_fingerprint,
            "slice_by": slice_by,
            "test_source": test_source,
        }
        if tokenizer is not None:
            self._identity["tokenizer_files"] = sha256_of_tree(directory / tokenizer)
        self._records = dict.fromkeys(SPLITS, 0) if packed else {}
        self._features = dict(features)
        self._labels = list(labels)
        self._preprocessing = dict(preprocessing)
        self._rows_per_shard = rows_per_shard or min(8192, rows_of_shard(features, SHARD_BYTES))
        self._schema = pa.schema(
            [pa.field(name, feature.arrow_type, nullable=False) for name, feature in self._features.items()]
            + [pa.field(name, pa.string(), nullable=False) for name in ("source", *([SLICE] if slice_by else []))]
        )
        self._pending = {split: _Pending(self._features, self._rows_per_shard) for split in SPLITS}
        self._files: dict[str, list[DataFile]] = {split: [] for split in SPLITS}
        self._class_rows = {split: [0] * len(self._labels) for split in SPLITS}
        self._moments: dict[str, dict[str, Moments]] = {split: {} for split in SPLITS}
        self._rejected: Counter[str] = Counter()
        self._kept = self._duplicates = self._near_duplicates = self._in_test_source = self._label_conflicts = 0
        # The dataset of an earlier attempt is no longer valid once its shards are overwritten.
        (directory / MANIFEST).unlink(missing_ok=True)
        for split in SPLITS:
            (directory / split).mkdir(parents=True, exist_ok=True)
        self._rejected_file = (directory / REJECTED).open("w", encoding="utf-8")
        self._near_file = (directory / NEAR_DUPLICATES).open("w", encoding="utf-8")
        self._conflicts_file = (directory / LABEL_CONFLICTS).open("w", encoding="utf-8")

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self._rejected_file, self._near_file, self._conflicts_file):
            file.close()

    def add(self, split: str, source: str, row: Mapping[str, Any], records: int = 1, slice_value: str = "") -> None:
        """Adds a row.

        Args:
            split: `train`, `val` or `test`.
            source: its source, for people.
            row: a numpy array or number for each feature; the bytes of the file for an encoded one.
            records: for a packed dataset, number of records that begin in this row.
            slice_value: its value of the column `slice_by`.

        Raises:
            ValueError: a value does not have its feature's shape.
        """
        columns: dict[str, Any] = {
            name: [row[name]] if feature.is_list or feature.encoded else np.asarray(row[name])[None]
            for name, feature in self._features.items()
        }
        self.add_rows(split, [source], columns, records, [slice_value])

    def add_rows(
        self,
        split: str,
        sources: Sequence[str],
        columns: Mapping[str, Any],
        records: int,
        slice_values: Sequence[str] = (),
    ) -> None:
        """Adds several rows.

        Args:
            split: `train`, `val` or `test`.
            sources: the source of each, for people.
            columns: for each feature an array (rows, *shape); for lists and encoded images, a sequence of them.
            records: number of records that begin in these rows; without packing, the number of rows.
            slice_values: their values of the column `slice_by`, if there is one.

        Raises:
            ValueError: an array does not have the shape of its feature.
        """
        for name, feature in self._features.items():
            if feature.is_list or feature.encoded:
                if len(columns[name]) != len(sources):
                    raise ValueError(f"{name} has {len(columns[name])} values for {len(sources)} rows.")
            elif np.shape(columns[name]) != (len(sources), *feature.shape):
                raise ValueError(f"{name} has the shape {np.shape(columns[name])[1:]}, not {feature.shape}.")
        if self._labels:
            # Not a loop over all classes: a row that is added alone has only one.
            for label in np.asarray(columns["label"]).tolist():
                self._class_rows[split][label] += 1
        if self._records:
            self._records[split] += records
        self._kept += records
        start = 0
        while start < len(sources):
            start += self._pending[split].take(sources, columns, start, slice_values)
            if self._pending[split].is_full:
                self._write_shard(split)

    def leave_out_duplicate(self) -> None:
        """Counts a record that is left out because an earlier one is the same."""
        self._duplicates += 1

    def leave_out_test_row(self) -> None:
        """Counts a record that is left out because the test source has the same content."""
        self._duplicates += 1
        self._in_test_source += 1

    def note_label_conflict(self, source: str, label: str, other: str) -> None:
        """Notes a record that is kept although the same content came before in another class.

        Args:
            source: its source.
            label: its class.
            other: the earlier class of the content.
        """
        self._label_conflicts += 1
        self._conflicts_file.write(json.dumps({"source": source, "label": label, "other_label": other}) + "\n")

    def leave_out_near_duplicate(self, source: str, duplicate_of: str, similarity: float) -> None:
        """Notes a record that is left out because a similar one is in the dataset.

        Args:
            source: its source.
            duplicate_of: source of the one that is kept.
            similarity: estimated Jaccard similarity of the two, between 0 and 1.
        """
        self._duplicates += 1
        self._near_duplicates += 1
        told = {"source": source, "duplicate_of": duplicate_of, "similarity": similarity}
        self._near_file.write(json.dumps(told) + "\n")

    def reject(self, source: str, reason: str, detail: str = "") -> None:
        """Notes a row that cannot be used. `reason` is one of a few, `detail` is about this row."""
        self._rejected[reason] += 1
        self._rejected_file.write(json.dumps({"source": source, "reason": reason, "detail": detail}) + "\n")

    def finish(self, rows_read: int | None = None) -> Manifest:
        """Writes the remaining rows and, last, the manifest, and returns it.

        Args:
            rows_read: records that the source has, as the reader counted them.

        Raises:
            RuntimeError: a record was neither kept nor counted as rejected or duplicate; a fault of the program.
        """
        for file in (self._rejected_file, self._near_file, self._conflicts_file):
            file.flush()
        for split in SPLITS:
            if self._pending[split].rows:
                self._write_shard(split)
        told = self._kept + self._duplicates + sum(self._rejected.values())
        if rows_read is not None and rows_read != told:
            raise RuntimeError(f"Of {rows_read:,} rows read {told:,} are accounted for.")
        manifest = Manifest(
            **self._identity,
            features=self._features,
            labels=self._labels,
            splits=self._files,
            rows_read=told,
            rejected=dict(sorted(self._rejected.items())),
            class_rows=self._class_rows,
            moments=self._moments,
            preprocessing=self._preprocessing,
            records=self._records,
            duplicates=self._duplicates,
            near_duplicates=self._near_duplicates,
            in_test_source=self._in_test_source,
            label_conflicts=self._label_conflicts,
        )
        write_document(self._directory / MANIFEST, manifest.to_json())
        return manifest

    def _write_shard(self, split: str) -> None:
        pending = self._pending[split]
        found = {n: Moments.of(pending.columns[n][: pending.rows]) for n, f in self._features.items() if f.has_moments}
        self._moments[split] = joined_moments([self._moments[split], found])
        columns = [_column(feature, pending.columns[name][: pending.rows]) for name, feature in self._features.items()]
        columns.append(pa.array(pending.sources, pa.string()))
        if self._identity["slice_by"]:
            columns.append(pa.array(pending.slice_values, pa.string()))
        name = f"{split}/part-{len(self._files[split]):05d}.arrow"
        path = self._directory / name
        with path.open("wb") as file:
            sink = _HashedSink(file)
            with pa.ipc.new_file(pa.PythonFile(sink, "w"), self._schema) as writer:
                writer.write_batch(pa.record_batch(columns, schema=self._schema))
        digest = hashlib.sha256()
        for column in columns[: len(self._features)]:
            for buffer in column.buffers():
                digest.update(buffer or b"")
        self._files[split].append(DataFile(name, pending.rows, sink.digest.hexdigest(), digest.hexdigest()))
        pending.clear()


class _HashedSink(io.RawIOBase):
    """A file whose bytes are hashed as they are written, so that it is not read again."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.digest.update(content)
        return self._file.write(content)


class _Pending:
    """The rows of the next shard, in memory that is reused for the one after it."""

    def __init__(self, features: Mapping[str, Feature], most: int) -> None:
        self._most = most
        self.columns: dict[str, Any] = {
            name: [] if f.is_list or f.encoded else np.empty((most, *f.shape), dtype=f.dtype)
            for name, f in features.items()
        }
        self.clear()

    def clear(self) -> None:
        self.rows = 0
        for values in self.columns.values():
            if isinstance(values, list):
                values.clear()
        self.sources: list[str] = []
        self.slice_values: list[str] = []

    @property
    def is_full(self) -> bool:
        return self.rows == self._most

    def take(self, sources: Sequence[str], columns: Mapping[str, Any], start: int, slice_values: Sequence[str]) -> int:
        """Takes as many rows from `start` on as fit, and returns their number."""
        stop = min(len(sources), start + self._most - self.rows)
        end = self.rows + stop - start
        for name, array in self.columns.items():
            # A list grows, so this is its end.
            array[self.rows : end] = columns[name][start:stop]
        self.sources += sources[start:stop]
        self.slice_values += slice_values[start:stop]
        self.rows = end
        return stop - start


def _column(feature: Feature, values: Any) -> pa.Array:
    if feature.encoded:
        return pa.array(values, pa.binary())
    if feature.is_list:
        lists = [np.asarray(value, dtype=feature.dtype).ravel() for value in values]
        ends = np.cumsum([0, *map(len, lists)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(ends), pa.array(np.concatenate(lists)))
    flat = pa.array(values.ravel())
    return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(feature.shape))) if feature.shape else flat
