"""The dataset artifact: `dataset.json`, Arrow IPC shards by split, and what became of other rows.

`rejected.jsonl` has the rows that cannot be used, `near_duplicates.jsonl` those that are nearly as another one, and
`label_conflicts.jsonl` those that are in the dataset though the same content is in another class.

A shard holds one record batch, so that it can be mapped into memory; a batch of rows of fixed-size features is a slice
of it. `dataset.json` is written last: a directory without it is not a dataset.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from gpu_pipelines.artifacts.documents import read_as, sha256_of_tree, write_document
from gpu_pipelines.artifacts.moments import Moments, joined_moments
from gpu_pipelines.errors import UserError

MANIFEST = "dataset.json"
# A column of text beside the features, which no model is trained on.
SLICE = "slice"
REJECTED = "rejected.jsonl"
NEAR_DUPLICATES = "near_duplicates.jsonl"
LABEL_CONFLICTS = "label_conflicts.jsonl"
SPLITS = ("train", "val", "test")
SHARD_BYTES = 64 << 20
# Numbers of a feature whose moments are kept, at most: more of them are pixels or an embedding.
_MOST_NUMBERS = 1024
# Elements of a list that are reckoned with where it is decided how many rows fill a shard.
_USUAL_LENGTH = 256


@dataclass(frozen=True)
class Feature:
    """One column: `dtype` is numpy's name of the element type, `shape` the shape of one row's value.

    The shape `(-1,)` is a list of any length. Whoever takes rows gets the lists filled up with 0 to the longest of
    these rows, and beside them their lengths, int32, under the name with `_length` behind it.

    With `encoded`, what is stored is the file of an image, and whoever takes rows gets its pixels: it has the fields of
    `ImageGeometry`, by which they are made.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    encoded: Mapping[str, Any] | None = None

    @property
    def is_list(self) -> bool:
        """Whether its values are lists of any length."""
        return self.shape == (-1,)

    @property
    def elements(self) -> int:
        """Elements of a row's value; of lists a guess, of encoded images the most that they take."""
        return _USUAL_LENGTH if self.is_list else int(np.prod(self.shape))

    @property
    def has_moments(self) -> bool:
        """Whether the mean and the spread of its numbers are kept in the manifest."""
        is_float = not self.encoded and np.issubdtype(np.dtype(self.dtype), np.floating)
        return is_float and not self.is_list and self.elements <= _MOST_NUMBERS

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of its column in the shards."""
        if self.encoded:
            return pa.binary()
        element = pa.from_numpy_dtype(np.dtype(self.dtype))
        if self.is_list:
            return pa.list_(element)
        return pa.list_(element, self.elements) if self.shape else element


@dataclass(frozen=True)
class DataFile:
    """One shard.

    Attributes:
        path: relative to the dataset.
        rows: number of rows.
        sha256: of the file's bytes.
        features_sha256: of the features alone, without where the rows came from.
    """

    path: str
    rows: int
    sha256: str
    features_sha256: str


@dataclass(frozen=True)
class Manifest:
    """What `dataset.json` says.

    Attributes:
        task: recipe the rows are meant for, such as `image_classification`.
        source: where the rows came from, as the user named it.
        features: columns by name.
        labels: class names; a row's label is an index into them.
        splits: shards by split.
        rows_read: records of the source; always records kept + duplicates + rows rejected.
        rejected: number of rejected rows by reason.
        class_rows: rows by split and class, in the order of `labels`; empty lists without classes.
        moments: by split and feature, of features of few floating-point numbers; none of a dataset that was prepared
            before they were kept.
        preprocessing: how raw records became features, for whoever serves the model.
        tokenizer: directory of the tokenizer relative to the dataset, where the task has one.
        tokenizer_files: hex SHA-256 of its files by name.
        records: source records by split, where a row holds several of them or parts of one; else empty.
        source_fingerprint: hex SHA-256 of the names and states of the source's files; empty if not known.
        slice_by: column of the source whose value is kept with each row; empty for none.
        duplicates: records left out because the same one, or a near-duplicate of it, was there before.
        near_duplicates: how many of these were near-duplicates; each is in `near_duplicates.jsonl`.
        in_test_source: how many of these were left out because they are in the test source.
        label_conflicts: rows kept though the same content came before in another class; each is in
            `label_conflicts.jsonl`.
        test_source: where the rows of the test split came from, if not from `source`: as the user named it
            (`source`), and hex SHA-256 of the names and states of its files (`fingerprint`).
        files_read: files of the source and of the test source; 0 where there are none.
        files_passed_over: by the reason, how many things in their folders are not read (`files`), and some names
            (`examples`).
    """

    task: str
    source: str
    features: dict[str, Feature]
    labels: list[str]
    splits: dict[str, list[DataFile]]
    rows_read: int
    rejected: dict[str, int]
    class_rows: dict[str, list[int]]
    moments: dict[str, dict[str, Moments]] = field(default_factory=dict)
    preprocessing: dict[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    tokenizer_files: dict[str, str] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    source_fingerprint: str = ""
    slice_by: str = ""
    near_duplicates: int = 0
    in_test_source: int = 0
    label_conflicts: int = 0
    test_source: dict[str, str] | None = None
    files_read: int = 0
    files_passed_over: dict[str, dict[str, Any]] = field(default_factory=dict)

    def rows(self, split: str) -> int:
        return sum(file.rows for file in self.splits[split])

    @property
    def rows_kept(self) -> int:
        return sum(self.rows(split) for split in self.splits)

    @property
    def records_kept(self) -> int:
        """Records of the source that were kept: the rows, unless a row holds several."""
        return sum(self.records.values()) if self.records else self.rows_kept

    @property
    def rows_rejected(self) -> int:
        return sum(self.rejected.values())

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of what a model can learn from: shards, labels, preprocessing, tokenizer; not names or times."""
        parts: dict[str, Any] = {
            "task": self.task,
            "labels": self.labels,
            "preprocessing": self.preprocessing,
            "shards": {split: [file.features_sha256 for file in files] for split, files in self.splits.items()},
        }
        if self.tokenizer is not None:
            parts["tokenizer"] = self.tokenizer_files
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "rows_kept": self.rows_kept,
            "rows_rejected": self.rows_rejected,
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Manifest:
        return cls(
            task=content["task"],
            source=content["source"],
            features={
                n: Feature(f["dtype"], tuple(f["shape"]), f.get("encoded")) for n, f in content["features"].items()
            },
            labels=list(content["labels"]),
            splits={split: [DataFile(**file) for file in files] for split, files in content["splits"].items()},
            rows_read=content["rows_read"],
            rejected=dict(content["rejected"]),
            class_rows={split: list(rows) for split, rows in content["class_rows"].items()},
            moments={
                split: {name: Moments.from_json(moments) for name, moments in found.items()}
                for split, found in content.get("moments", {}).items()
            },
            preprocessing=dict(content["preprocessing"]),
            tokenizer=content["tokenizer"],
            tokenizer_files=dict(content.get("tokenizer_files", {})),
            records=dict(content.get("records", {})),
            duplicates=content.get("duplicates", 0),
            source_fingerprint=content.get("source_fingerprint", ""),
            slice_by=content.get("slice_by", ""),
            near_duplicates=content.get("near_duplicates", 0),
            in_test_source=content.get("in_test_source", 0),
            label_conflicts=content.get("label_conflicts", 0),
            test_source=content.get("test_source"),
            files_read=content.get("files_read", 0),
            files_passed_over=dict(content.get("files_passed_over", {})),
        )


def rows_of_shard(features: Mapping[str, Feature], size: int) -> int:
    """How many rows fill a shard of so many bytes; at least one."""
    return max(1, size // sum(np.dtype(f.dtype).itemsize * f.elements for f in features.values()))


class DatasetWriter:
    """Writes a dataset row by row; `finish` writes the manifest, without which it is no dataset.

    Args:
        directory: where the dataset goes; made if it does not exist.
        task: recipe the rows are meant for.
        source: where the rows come from, as the user named it.
        features: columns by name; a column `label` holds indices into `labels`.
        labels: class names; none where the rows have no classes.
        preprocessing: how raw records become features.
        tokenizer: directory of the tokenizer below `directory`, already written; None without one.
        packed: whether a row holds several records, each counted by `add`.
        slice_by: column of the source whose value `add` gets for each row; empty for none.
        rows_per_shard: rows after which a new shard is begun; left out, as many as fill 64 MiB, at most 8,192.
        source_fingerprint: of the source's files, taken before they were read.
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
        # What an earlier attempt left is no dataset any more once its shards are written over.
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
            source: where it came from, for people.
            row: a numpy array or number for each feature; of an encoded one the bytes of its file.
            records: of a packed dataset, how many records begin in this row.
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
            sources: where each came from, for people.
            columns: for each feature an array (rows, *shape); of lists and encoded images, a sequence of them.
            records: how many records begin in these rows; without packing, as many as there are rows.
            slice_values: their values of the column `slice_by`, where there is one.

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
            for label, rows in enumerate(np.bincount(columns["label"], minlength=len(self._labels)).tolist()):
                self._class_rows[split][label] += rows
        if self._records:
            self._records[split] += records
        self._kept += records
        start = 0
        while start < len(sources):
            start += self._pending[split].take(sources, columns, start, slice_values)
            if self._pending[split].is_full:
                self._write_shard(split)

    def leave_out_duplicates(self, records: int = 1) -> None:
        """Counts records that are left out because the same ones were there before."""
        self._duplicates += records

    def leave_out_test_rows(self, records: int = 1) -> None:
        """Counts records that are left out because the same content is in the test source."""
        self._duplicates += records
        self._in_test_source += records

    def note_label_conflict(self, source: str, label: str, other: str) -> None:
        """Keeps note of a record that is kept though the same content came before in another class.

        Args:
            source: where it came from.
            label: its class.
            other: the class that the content was in before.
        """
        self._label_conflicts += 1
        self._conflicts_file.write(json.dumps({"source": source, "label": label, "other_label": other}) + "\n")

    def leave_out_near_duplicate(self, source: str, duplicate_of: str, similarity: float) -> None:
        """Keeps note of a record that is left out because one much like it is in the dataset.

        Args:
            source: where it came from.
            duplicate_of: where the one came from that is kept.
            similarity: estimated Jaccard similarity of the two, between 0 and 1.
        """
        self._duplicates += 1
        self._near_duplicates += 1
        told = {"source": source, "duplicate_of": duplicate_of, "similarity": similarity}
        self._near_file.write(json.dumps(told) + "\n")

    def reject(self, source: str, reason: str, detail: str = "") -> None:
        """Keeps note of a row that cannot be used. `reason` is one of a few, `detail` says more about this row."""
        self._rejected[reason] += 1
        self._rejected_file.write(json.dumps({"source": source, "reason": reason, "detail": detail}) + "\n")

    def finish(
        self, check: Callable[[Manifest], None] = lambda manifest: None, rows_read: int | None = None
    ) -> Manifest:
        """Writes what is left and, last, the manifest, and returns it.

        Args:
            check: is given the manifest before it is written; if it raises, none is.
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
        check(manifest)
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
    """A file whose bytes are hashed as they are written, so that it need not be read again."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.digest.update(content)
        return self._file.write(content)


class _Pending:
    """The rows of a shard that is not yet written, in memory that is used again for the next one."""

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
        """Takes as many rows from `start` on as it has room for, and returns how many."""
        stop = min(len(sources), start + self._most - self.rows)
        end = self.rows + stop - start
        for name, array in self.columns.items():
            # Of a list, which grows, this is its end.
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


class _Lists:
    """A column of lists, mapped into memory."""

    def __init__(self, column: pa.ListArray) -> None:
        self._ends = np.from_dlpack(column.offsets)
        self._values = np.from_dlpack(column.values)

    def __getitem__(self, rows: slice | np.ndarray) -> list[np.ndarray]:
        starts, ends = self._ends[:-1][rows], self._ends[1:][rows]
        return [self._values[start:end] for start, end in zip(starts, ends, strict=True)]


class _Files:
    """A column of files of images, mapped into memory."""

    def __init__(self, column: pa.BinaryArray) -> None:
        self._column = column

    def __getitem__(self, rows: slice | np.ndarray) -> list[bytes]:
        if isinstance(rows, slice):
            return list(self._column[rows].to_pylist())
        return [self._column[row].as_py() for row in rows.tolist()]


def _as_arrays(features: Mapping[str, Feature], columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Columns with the pixels of encoded images, and with lists as arrays beside their lengths; see `Feature`."""
    found: dict[str, np.ndarray] = {}
    for name, values in columns.items():
        if (encoded := features[name].encoded) is not None:
            from gpu_pipelines.artifacts.image_features import decode_all

            found[name] = decode_all(values, encoded)
            continue
        if not features[name].is_list:
            found[name] = values
            continue
        lengths = np.array([len(value) for value in values], dtype=np.int32)
        array = np.zeros((len(values), lengths.max(initial=0)), dtype=features[name].dtype)
        for row, value in zip(array, values, strict=True):
            row[: len(value)] = value
        found |= {name: array, f"{name}_length": lengths}
    return found


class Shard:
    """One shard, mapped into memory.

    Args:
        path: its file.
        rows: how many it is to have.
        features: columns by name.

    Attributes:
        table: all its columns.
        arrays: its features, zero-copy arrays (rows, *shape); lists and encoded images as they are stored.

    Raises:
        UserError: it cannot be read, or is another one.
    """

    def __init__(self, path: Path, rows: int, features: Mapping[str, Feature]) -> None:
        try:
            self.table = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        except FileNotFoundError:
            raise UserError(
                f"There is no shard {path}.",
                "Prepare the dataset again. Of one larger than half of the free disk, an evaluation has val and test "
                "alone; if it needs train, take a larger disk.",
            ) from None
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"The shard {path} cannot be read: {error}.", "Prepare the dataset again.") from None
        types = {field.name: field.type for field in self.table.schema}
        if self.table.num_rows != rows or any(types.get(n) != f.arrow_type for n, f in features.items()):
            raise UserError(f"The shard {path} is not the one that dataset.json names.", "Prepare the dataset again.")
        self.arrays: dict[str, Any] = {name: self._array(name, feature) for name, feature in features.items()}

    def _array(self, name: str, feature: Feature) -> Any:
        column = self.table.column(name)
        if feature.encoded:
            return _Files(column)
        if feature.is_list:
            return _Lists(column)
        if feature.shape:
            column = column.flatten()
        # to_numpy would import pandas, in every process that trains.
        return np.from_dlpack(column).reshape(self.table.num_rows, *feature.shape)


class Split:
    """The rows of one split, mapped into memory.

    Args:
        directory: the dataset.
        manifest: its manifest.
        name: `train`, `val` or `test`.

    Attributes:
        shard_rows: number of rows of each shard.
    """

    def __init__(self, directory: Path, manifest: Manifest, name: str) -> None:
        self.name = name
        self._features = manifest.features
        self.shard_rows = [file.rows for file in manifest.splits[name]]
        self._starts = np.cumsum([0, *self.shard_rows])
        self._shards = self._opened(directory, manifest.splits[name])

    def _opened(self, directory: Path, files: Sequence[DataFile]) -> list[Shard]:
        return [Shard(directory / file.path, file.rows, self._features) for file in files]

    def _shard(self, index: int) -> Shard:
        return self._shards[index]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def columns(self, start: int, stop: int, names: Sequence[str] = ()) -> Iterable[dict[str, np.ndarray]]:
        """Rows `start` to `stop` in order: for each shard touched, a dict of arrays (rows, *shape).

        Those of features of fixed size are not copied.

        Args:
            start: the first row.
            stop: the row behind the last.
            names: of the features that are wanted; left out, all.
        """
        for index in self._touched(start, stop):
            first, end = self._starts[index : index + 2]
            low, high = max(start - first, 0), min(stop, end) - first
            arrays = self._shard(index).arrays
            yield _as_arrays(self._features, {name: arrays[name][low:high] for name in names or arrays})

    def _touched(self, start: int, stop: int) -> range:
        """The shards that have rows `start` to `stop`."""
        if start >= min(stop, len(self)):
            return range(0)
        first, last = np.searchsorted(self._starts, [start, min(stop, len(self)) - 1], side="right") - 1
        return range(int(first), int(last) + 1)

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Copies the given rows, in the given order: a dict of arrays (len(rows), *shape)."""
        if len(self.shard_rows) == 1:
            return _as_arrays(self._features, {name: array[rows] for name, array in self._shard(0).arrays.items()})
        shard = np.searchsorted(self._starts, rows, side="right") - 1
        taken: dict[str, Any] = {
            n: [None] * len(rows) if f.is_list or f.encoded else np.empty((len(rows), *f.shape), dtype=f.dtype)
            for n, f in self._features.items()
        }
        for index in np.unique(shard):
            here = np.flatnonzero(shard == index)
            local = rows[here] - self._starts[index]
            arrays = self._shard(int(index)).arrays
            for name, array in taken.items():
                found = arrays[name][local]
                if isinstance(array, list):
                    for place, value in zip(here, found, strict=True):
                        array[place] = value
                else:
                    array[here] = found
        return _as_arrays(self._features, taken)

    def sources(self, rows: Sequence[int]) -> list[str]:
        """Where the given rows came from."""
        shard = np.searchsorted(self._starts, np.asarray(rows), side="right") - 1
        return [
            self._shard(index).table.column("source")[int(row - self._starts[index])].as_py()
            for row, index in zip(rows, shard.tolist(), strict=True)
        ]

    def slice_values(self) -> list[str]:
        """The value of the column `slice_by` of each row, in a dataset that was prepared with one."""
        shards = range(len(self.shard_rows))
        return [value for index in shards for value in self._shard(index).table.column(SLICE).to_pylist()]


class Dataset:
    """A dataset directory, opened for reading.

    Args:
        directory: the dataset artifact.

    Raises:
        UserError: the directory is no dataset or a damaged one.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.manifest = read_as(directory / MANIFEST, "dataset", Manifest.from_json)

    def split(self, name: str) -> Split:
        """Opens one split.

        Args:
            name: train, val or test.

        Raises:
            UserError: a shard is missing or damaged.
        """
        return Split(self.directory, self.manifest, name)

    def moments(self, split: str, name: str) -> Moments:
        """How the numbers of a feature spread over a split; read from its rows where the manifest does not say.

        Args:
            split: `train`, `val` or `test`; with one row or more.
            name: of the feature.

        Raises:
            UserError: the rows are to be read, and a shard is missing or damaged.
        """
        kept = self.manifest.moments.get(split, {}).get(name)
        # An earlier version may have prepared some of the rows, and kept none of them.
        if kept is not None and kept.rows == self.manifest.rows(split):
            return kept
        rows = self.split(split)
        parts = ({name: Moments.of(columns[name])} for columns in rows.columns(0, len(rows), [name]))
        return joined_moments(parts)[name]

    def slice_values(self, split: str, column: str) -> list[str]:
        """The value of a column of the source for each row of a split.

        Args:
            split: `train`, `val` or `test`.
            column: the one that the dataset was prepared with.

        Raises:
            UserError: the dataset was not prepared with this column.
        """
        if self.manifest.slice_by != column:
            has = f"it keeps {self.manifest.slice_by!r}" if self.manifest.slice_by else "it keeps none"
            raise UserError(
                f"The dataset {self.directory} does not keep the column {column!r} to slice by; {has}.",
                f"Prepare it with slice_by={column}.",
            )
        return self.split(split).slice_values()
