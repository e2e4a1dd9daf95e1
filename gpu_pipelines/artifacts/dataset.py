"""The dataset artifact: `dataset.json`, Arrow IPC shards by split, and lists of special rows.

`rejected.jsonl` has the rows that cannot be used, `near_duplicates.jsonl` those nearly the same as another one, and
`label_conflicts.jsonl` those in the dataset whose content is also in another class.

A shard holds one record batch, so that it can be mapped into memory; a batch of rows of fixed-size features is a slice
of it. `dataset.json` is written last: a directory without it is not a dataset.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpu_pipelines.artifacts.documents import fields_in, read_as
from gpu_pipelines.artifacts.moments import Moments, joined_moments
from gpu_pipelines.errors import UserError

MANIFEST = "dataset.json"
# A text column beside the features, on which no model is trained.
SLICE = "slice"
# The feature of rows that may have several classes: 1 for each of them. `preprocessing` has their names under it.
CLASSES = "classes"
REJECTED = "rejected.jsonl"
NEAR_DUPLICATES = "near_duplicates.jsonl"
LABEL_CONFLICTS = "label_conflicts.jsonl"
SPLITS = ("train", "val", "test")
# A run that reuses the results of another one takes the folder as it is.
_AGAIN = "Prepare the dataset again; --cache and --resume take this one until its folder is deleted."
# Most numbers of a feature whose moments are kept: a feature with more is pixels or an embedding.
_MOST_NUMBERS = 1024
# Elements of a list, as assumed for the number of rows in a shard.
_USUAL_LENGTH = 256


@dataclass(frozen=True)
class Feature:
    """One column: `dtype` is numpy's name of the element type, `shape` the shape of one row's value.

    The shape `(-1,)` is a list of any length. Readers get the lists of some rows padded with 0 to the longest of these,
    and beside them their lengths, int32, under the name with `_length` appended.

    With `encoded`, the file of an image is stored, and readers get its pixels: `encoded` has the fields of the
    `ImageGeometry` by which they are made.
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
        """Elements of a row's value: a guess for lists, an upper bound for encoded images."""
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
        features_sha256: of the features alone, without the sources of the rows.
    """

    path: str
    rows: int
    sha256: str
    features_sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of `dataset.json`.

    Attributes:
        task: task of the rows, such as `image_classification`.
        source: where the rows came from, as the user named it.
        features: columns by name.
        labels: class names; a row's label is an index into them.
        splits: shards by split.
        rows_read: records of the source; always records kept + duplicates + rows rejected.
        rejected: number of rejected rows by reason.
        class_rows: rows by split and class, in the order of `labels`; empty lists without classes.
        moments: by split and feature, for features of few floating-point numbers; empty for a dataset that was prepared
            before they were kept.
        preprocessing: how raw records became features, for servers of the model.
        tokenizer: directory of the tokenizer relative to the dataset, if the task has one.
        tokenizer_files: hex SHA-256 of its files by name.
        records: source records by split, if a row holds several of them or parts of one; else empty.
        source_fingerprint: hex SHA-256 of the names and states of the source's files; empty if not known.
        slice_by: column of the source whose value is kept with each row; empty for none.
        duplicates: records left out because an earlier one is the same or nearly the same.
        near_duplicates: how many of these are near-duplicates; each is in `near_duplicates.jsonl`.
        in_test_source: how many of these were left out because they are in the test source.
        label_conflicts: rows kept although the same content came before in another class; each is in
            `label_conflicts.jsonl`.
        test_source: where the rows of the test split came from, if not from `source`: as the user named it
            (`source`), and hex SHA-256 of the names and states of its files (`fingerprint`).
        files_read: files of the source and of the test source; 0 where there are none.
        files_passed_over: by the reason, number of entries of their folders that are not read (`files`), and some names
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
        """Hex SHA-256 of what a model can learn from: shards, labels, preprocessing, tokenizer; no names or times."""
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
        # Only the parts that readers go through are rebuilt here: a damaged document would give something else.
        made = {
            "features": {
                n: Feature(f["dtype"], tuple(f["shape"]), f.get("encoded")) for n, f in content["features"].items()
            },
            "labels": list(content["labels"]),
            "splits": {
                split: [DataFile(**fields_in(DataFile, file)) for file in files]
                for split, files in content["splits"].items()
            },
            "rejected": dict(content["rejected"]),
            "class_rows": {split: list(rows) for split, rows in content["class_rows"].items()},
            "moments": {
                split: {name: Moments.from_json(moments) for name, moments in found.items()}
                for split, found in content.get("moments", {}).items()
            },
            "preprocessing": dict(content["preprocessing"]),
        }
        return cls(**fields_in(cls, content) | made)


class _Lists:
    """A column of lists, mapped into memory."""

    def __init__(self, column: pa.ListArray) -> None:
        self._ends = np.from_dlpack(column.offsets)
        self._values = np.from_dlpack(column.values)

    def __getitem__(self, rows: slice | np.ndarray) -> list[np.ndarray]:
        starts, ends = self._ends[:-1][rows], self._ends[1:][rows]
        return [self._values[start:end] for start, end in zip(starts, ends, strict=True)]


class _Files:
    """A column of image files, mapped into memory."""

    def __init__(self, column: pa.BinaryArray) -> None:
        self._column = column

    def __getitem__(self, rows: slice | np.ndarray) -> list[bytes]:
        if isinstance(rows, slice):
            return list(self._column[rows].to_pylist())
        return [self._column[row].as_py() for row in rows.tolist()]


def _as_arrays(features: Mapping[str, Feature], columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Columns as arrays: encoded images as pixels, and lists with their lengths beside them; see `Feature`."""
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
        rows: expected number of rows.
        features: columns by name.

    Attributes:
        table: all its columns.
        arrays: its features, zero-copy arrays (rows, *shape); lists and encoded images as they are stored.

    Raises:
        UserError: it cannot be read, or is another shard.
    """

    def __init__(self, path: Path, rows: int, features: Mapping[str, Feature]) -> None:
        try:
            self.table = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        except FileNotFoundError:
            raise UserError(
                f"There is no shard {path}.",
                f"{_AGAIN} Of a dataset larger than half of the free disk, an evaluation copies only val and test; if "
                "it needs train, use a larger disk.",
            ) from None
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"The shard {path} cannot be read: {error}.", _AGAIN) from None
        types = {field.name: field.type for field in self.table.schema}
        if self.table.num_rows != rows or any(types.get(n) != f.arrow_type for n, f in features.items()):
            raise UserError(f"The shard {path} is not the one that dataset.json names.", _AGAIN)
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

        Features of fixed size are not copied.

        Args:
            start: the first row.
            stop: the row after the last.
            names: the wanted features; left out, all.
        """
        for index in self._touched(start, stop):
            first, end = self._starts[index : index + 2]
            low, high = max(start - first, 0), min(stop, end) - first
            arrays = self._shard(index).arrays
            yield _as_arrays(self._features, {name: arrays[name][low:high] for name in names or arrays})

    def column(self, name: str) -> np.ndarray:
        """A feature of fixed size for all rows, (rows, *shape)."""
        return np.concatenate([columns[name] for columns in self.columns(0, len(self), [name])])

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
        """The sources of the given rows."""
        shard = np.searchsorted(self._starts, np.asarray(rows), side="right") - 1
        return [
            self._shard(index).table.column("source")[int(row - self._starts[index])].as_py()
            for row, index in zip(rows, shard.tolist(), strict=True)
        ]

    def slice_values(self) -> list[str]:
        """The value of the column `slice_by` for each row, in a dataset that was prepared with one."""
        shards = range(len(self.shard_rows))
        return [value for index in shards for value in self._shard(index).table.column(SLICE).to_pylist()]


class Dataset:
    """A dataset directory, opened for reading.

    Args:
        directory: the dataset artifact.

    Raises:
        UserError: the directory is not a dataset, or a damaged one.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.manifest = read_as(directory / MANIFEST, "dataset", Manifest.from_json)

    @property
    def tokenizer(self) -> Path | None:
        """The directory of the tokenizer that its texts were prepared with; None for other data."""
        return self.directory / self.manifest.tokenizer if self.manifest.tokenizer else None

    def split(self, name: str) -> Split:
        """Opens one split.

        Args:
            name: train, val or test.

        Raises:
            UserError: a shard is missing or damaged.
        """
        return Split(self.directory, self.manifest, name)

    def moments(self, split: str, name: str) -> Moments:
        """The moments of a feature over a split; computed from its rows if the manifest does not have them.

        Args:
            split: `train`, `val` or `test`; with one row or more.
            name: of the feature.

        Raises:
            UserError: the rows must be read, and a shard is missing or damaged.
        """
        kept = self.manifest.moments.get(split, {}).get(name)
        # Rows of an earlier version have no moments.
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
                f"The dataset {self.directory} was prepared without the column {column!r} for slices; {has}.",
                f"Prepare it with slice_by={column}.",
            )
        return self.split(split).slice_values()
