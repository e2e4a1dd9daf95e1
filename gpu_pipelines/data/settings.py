"""What `prepare_data` is asked to do, checked without reading any data."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.data.class_names import MISSING_LABELS
from gpu_pipelines.data.sources.files import Dialect
from gpu_pipelines.data.sources.listing import class_folders, has_files
from gpu_pipelines.data.sources.names import (
    SAMPLE,
    TABLE_SCHEME,
    is_bigquery,
    is_hub_id,
    problems_of_name,
    problems_of_place,
)
from gpu_pipelines.data.sources.source_files import find_source
from gpu_pipelines.errors import UserError
from gpu_pipelines.numbers import LARGEST_WHOLE_NUMBER
from gpu_pipelines.tasks.tasks import task_named, task_problems

if TYPE_CHECKING:
    from gpu_pipelines.artifacts.dataset import Feature

COLOR_MODES = ("auto", "L", "RGB")
MAX_IMAGE_SIZE = 1024
# A byte-level vocabulary has 256 bytes and three special tokens at least.
MIN_VOCABULARY_SIZE = 259
MAX_VOCABULARY_SIZE = 1_000_000
MAX_SEQUENCE_LENGTH = 131_072
MAX_SHARD_MEGABYTES = 1024
UNLIMITED = "unlimited"
#: What becomes of records whose content is in several classes.
LABEL_CONFLICTS = ("keep", "reject")
#: What a tab is called, because forms and shells have their own ideas of the character.
_TABS = {"tab": "\t", "\\t": "\t"}


@dataclass(frozen=True)
class PrepareSettings:
    """The parameters of `prepare_data`; see the component for what each means."""

    source: str = "sample:digits"
    test_source: str = ""
    source_format: str = "auto"
    delimiter: str = ""
    encoding: str = "auto"
    row_filter: str = ""
    billing_project: str = ""
    task: str = "image_classification"
    image_column: str = "image"
    image_root: str = ""
    label_column: str = "label"
    missing_labels: str = "auto"
    label_conflicts: str = "keep"
    text_column: str = "text"
    image_size: int = 0
    color_mode: str = "auto"
    tokenizer: str = "train"
    vocabulary_size: int = 0
    sequence_length: int = 0
    packing: bool = True
    val_fraction: float = 0.1
    test_fraction: float = 0.1
    split_seed: int = 0
    stratify: bool = False
    remove_duplicates: bool = True
    near_duplicates: float = 0.0
    max_rejected: str = "10%"
    shard_megabytes: int = 0
    slice_by: str = ""

    def problems(self) -> list[str]:
        """Everything that is wrong with the values, each with what to do."""
        # Of a task that does not exist nothing more is known.
        found = task_problems(self.task) or self._problems_for_task()
        if not self.source:
            found.append("source is empty. Give files, a folder, a pattern, gs://… or sample:digits.")
        found += self._problems_of_source()
        found += self._problems_of_test_source()
        found += self._text_problems()
        found += self._problems_of_rows()
        if self.slice_by and self.source.startswith(SAMPLE):
            found.append(f"slice_by is {self.slice_by!r}, but samples have no more columns. Leave it out.")
        if abs(self.split_seed) > LARGEST_WHOLE_NUMBER:
            found.append(f"split_seed is {self.split_seed}; give a whole number of at most 2^53 either way.")
        found += self._likeness_problems()
        if self.image_size != 0 and not 8 <= self.image_size <= MAX_IMAGE_SIZE:
            found.append(f"image_size is {self.image_size}; give 8 to {MAX_IMAGE_SIZE} pixels, or 0 to choose it.")
        if self.color_mode not in COLOR_MODES:
            found.append(f"color_mode is {self.color_mode!r}; give one of {', '.join(COLOR_MODES)}.")
        try:
            limit_of(self.max_rejected)
        except ValueError:
            found.append(
                f"max_rejected is {self.max_rejected!r}; give a share such as 5%, a number of rows, or unlimited."
            )
        if not 0 <= self.shard_megabytes <= MAX_SHARD_MEGABYTES:
            found.append(
                f"shard_megabytes is {self.shard_megabytes}; give 1 to {MAX_SHARD_MEGABYTES:,} MiB, or 0 to choose it."
            )
        for name in ("val_fraction", "test_fraction"):
            value = getattr(self, name)
            if not 0 < value < 1:
                found.append(f"{name} is {value}; give a share between 0 and 1, such as 0.1.")
        if not self.test_source and self.val_fraction + self.test_fraction >= 1:
            found.append(
                f"val_fraction + test_fraction is {self.val_fraction + self.test_fraction:g}; "
                "less than 1 must be left for training."
            )
        return found

    @property
    def dialect(self) -> Dialect:
        """How the text of files is to be read."""
        encoding = "" if self.encoding == "auto" else self.encoding
        return Dialect(_TABS.get(self.delimiter.lower(), self.delimiter), encoding)

    @property
    def names_of_no_class(self) -> frozenset[str]:
        """Labels that stand for a missing one."""
        if self.missing_labels == "auto":
            return frozenset(MISSING_LABELS)
        return frozenset(name.strip() for name in self.missing_labels.split(","))

    @property
    def sources(self) -> dict[str, str]:
        """The sources of rows, by the name of the parameter."""
        return {"source": self.source, **({"test_source": self.test_source} if self.test_source else {})}

    @property
    def places(self) -> dict[str, str]:
        """All places that data is read from, by the name of the parameter."""
        return {**self.sources, **({"image_root": self.image_root} if self.image_root else {})}

    @property
    def needs_judgement(self) -> bool:
        """Whether all records have to be known before the first is assigned to a split."""
        return bool(self.stratify or self.near_duplicates or self.test_source or self.label_conflicts == "reject")

    def of_test_source(self) -> PrepareSettings:
        """How the test source is read: as the source, but for `row_filter`."""
        return replace(self, source=self.test_source, test_source="", row_filter="")

    def _problems_for_task(self) -> list[str]:
        task, found = task_named(self.task), []
        for source in self.sources.values():
            if source.startswith(SAMPLE) and source.removeprefix(SAMPLE) not in task.samples:
                names = ", ".join(f"{SAMPLE}{name}" for name in task.samples) or "none"
                found.append(f"There is no {source!r} for {self.task}. Samples: {names}.")
        read = ("auto", *task.formats)
        if self.source_format not in read:
            found.append(f"source_format is {self.source_format!r}; {self.task} reads {', '.join(read)}.")
        return found + task.problems(self)

    def problems_on(self, nodes: int) -> list[str]:
        """What is wrong with preparing on so many machines together."""
        streams = [source for source in (self.source, self.test_source) if is_bigquery(source)]
        if nodes == 1 or not streams:
            return []
        return [
            f"The source {streams[0]} is read by one machine, and there are {nodes}. Leave out --data-nodes, or "
            "export the table to Parquet files in a bucket and give these."
        ]

    def _problems_of_rows(self) -> list[str]:
        found = []
        if self.delimiter and (len(self.dialect.delimiter) != 1 or self.dialect.delimiter in '"\r\n\0'):
            found.append(f"delimiter is {self.delimiter!r}; give one character such as ; or tab, or leave it empty.")
        try:
            io.TextIOWrapper(io.BytesIO(), encoding=self.dialect.encoding or "utf-8")
        except (LookupError, ValueError):
            found.append(
                f"encoding is {self.encoding!r}; give one that Python knows, such as latin-1 or cp1252, or auto."
            )
        if self.label_conflicts not in LABEL_CONFLICTS:
            found.append(f"label_conflicts is {self.label_conflicts!r}; give {' or '.join(LABEL_CONFLICTS)}.")
        return found

    def _problems_of_source(self) -> list[str]:
        found = problems_of_name(self.source)
        if self.row_filter and not self.source.startswith(TABLE_SCHEME):
            where = "write it into the WHERE of the query" if is_bigquery(self.source) else "filter the files before"
            found.append(f"row_filter is for a table in BigQuery (bq://…), not for {self.source}; {where}.")
        if self.source_format != "auto" and (is_bigquery(self.source) or is_hub_id(self.source)):
            found.append(f"source_format is {self.source_format!r}, but {self.source} is no file; leave it at auto.")
        return found

    def _problems_of_test_source(self) -> list[str]:
        if not self.test_source:
            return []
        if self.test_source == self.source:
            return ["test_source is the source itself. Give other rows, or leave it out for a share of the source."]
        test = replace(self.of_test_source(), source_format="auto")
        found = test._problems_of_source()
        return [problem.replace("source is", "test_source is", 1) for problem in found]

    def _likeness_problems(self) -> list[str]:
        found = []
        if self.near_duplicates and not 0.3 <= self.near_duplicates < 1:
            found.append(
                f"near_duplicates is {self.near_duplicates:g}; give a similarity from 0.3 to less than 1, such as 0.8, "
                "or 0 to look for none."
            )
        return found

    def _text_problems(self) -> list[str]:
        found = []
        if not self.tokenizer:
            found.append("tokenizer is empty. Give a local directory, a hub id, or train.")
        found += problems_of_place("tokenizer", self.tokenizer)
        if self.vocabulary_size and not MIN_VOCABULARY_SIZE <= self.vocabulary_size <= MAX_VOCABULARY_SIZE:
            found.append(
                f"vocabulary_size is {self.vocabulary_size}; give {MIN_VOCABULARY_SIZE} to {MAX_VOCABULARY_SIZE:,} "
                "tokens, or 0 to choose it."
            )
        if self.sequence_length and not 8 <= self.sequence_length <= MAX_SEQUENCE_LENGTH:
            found.append(
                f"sequence_length is {self.sequence_length}; give 8 to {MAX_SEQUENCE_LENGTH:,} tokens, "
                "or 0 to choose it."
            )
        return found

    def problems_here(self) -> list[str]:
        """What is wrong with the sources as seen from this machine: names, columns, the classes of what is small."""
        found = self._problems_of_source_here()
        if self.test_source:
            found += self.of_test_source()._problems_of_source_here()
        return found

    def _problems_of_source_here(self) -> list[str]:
        if not self.source or self.source.startswith(SAMPLE):
            return []
        try:
            if is_bigquery(self.source):
                from gpu_pipelines.data.sources.bigquery_source import require_readable

                require_readable(self)
                return []
            if is_hub_id(self.source):
                from gpu_pipelines.data.sources.hub_source import require_datasets

                require_datasets()
                return []
            # All files of a folder by class can take a minute to list; its sub-folders do not.
            if not self._has_classes_in_folders():
                from gpu_pipelines.data.source_check import require_usable_source

                require_usable_source(find_source(self), self)
        except UserError as error:
            return [f"{error.problem} {error.remedy}".strip()]
        return []

    def rows_per_shard(self, features: Mapping[str, Feature]) -> int | None:
        """Rows of a shard of the size that was asked for; None where that is left open."""
        # Compiling a pipeline needs this file, but none of the packages of the steps.
        from gpu_pipelines.artifacts.dataset import rows_of_shard

        return rows_of_shard(features, self.shard_megabytes << 20) if self.shard_megabytes else None

    def _has_classes_in_folders(self) -> bool:
        reads_images = "images" in task_named(self.task).formats
        if not reads_images or self.source_format != "auto" or is_remote(self.source):
            return False
        try:
            path = Path(self.source).expanduser()
            return path.is_dir() and len(list(islice(filter(has_files, class_folders(path)), 2))) == 2
        except (OSError, RuntimeError, ValueError):
            return False


def limit_of(max_rejected: str) -> tuple[float, float]:
    """The share and the number of rows that may be rejected; infinite where there is no limit.

    Raises:
        ValueError: it is neither a share such as `5%`, nor a whole number, nor `unlimited`.
    """
    text = max_rejected.strip()
    if text in ("", UNLIMITED):
        return math.inf, math.inf
    if not re.fullmatch(r"[0-9]{1,15}|[0-9]{1,3}(\.[0-9]+)? ?%", text):
        raise ValueError(text)
    return (float(text[:-1]) / 100, math.inf) if text.endswith("%") else (math.inf, int(text))
