"""What `prepare_data` is asked to do, checked without reading any data."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from gpu_pipelines.artifacts.remote_files import problems_of_place
from gpu_pipelines.component_interface.parameter import parameter
from gpu_pipelines.data.sources.files import Dialect
from gpu_pipelines.data.sources.sources import problems_of_source, source_of
from gpu_pipelines.distributed.ray_address import problems_of_ray_address
from gpu_pipelines.numbers import LARGEST_WHOLE_NUMBER
from gpu_pipelines.own_class import said_by_own
from gpu_pipelines.tasks.tasks import TASKS, task_named, task_problems

if TYPE_CHECKING:
    from gpu_pipelines.artifacts.dataset import Feature
    from gpu_pipelines.tasks.task import Task

COLOR_MODES = ("auto", "L", "RGB")
IMAGE_STORAGES = ("auto", "pixels", "compressed")
MAX_IMAGE_SIZE = 1024
# A byte-level vocabulary has 256 bytes and three special tokens at least.
MIN_VOCABULARY_SIZE = 259
MAX_VOCABULARY_SIZE = 1_000_000
MAX_SEQUENCE_LENGTH = 131_072
MAX_SHARD_MEGABYTES = 1024
UNLIMITED = "unlimited"
#: Labels that stand for a missing one. Source: `STR_NA_VALUES` of pandas/_libs/parsers.pyx, pandas 2.3.
MISSING_LABELS = (
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL",
    "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
#: What becomes of records whose content is in several classes.
LABEL_CONFLICTS = ("keep", "reject")
#: What a tab is called, because forms and shells have their own ideas of the character.
_TABS = {"tab": "\t", "\\t": "\t"}


@dataclass(frozen=True)
class PrepareSettings:
    """The parameters of `prepare_data`.

    Attributes:
        has_labels: whether there is something to learn from each row: of images in files, that folders name classes.
    """

    has_labels: ClassVar[bool] = True

    source: str = parameter(
        "sample:digits",
        "A file, a folder or a pattern such as data/*.jsonl.gz, on this machine or in Cloud Storage (gs://…). "
        "Images: a folder with one sub-folder per class, tables with a column of image paths or bytes and a column of "
        "labels, or tar shards in WebDataset's layout. Texts: tables, for causal_lm also text with blank lines "
        "between the documents. A table in BigQuery, bq://PROJECT.DATASET.TABLE, or a file with a query for it, "
        "NAME.sql. A data set of the Hugging Face hub, hf://OWNER/NAME, where datasets is installed. Or a sample: "
        "sample:digits, the UCI handwritten digits; sample:several_digits for multi_label_classification; "
        "sample:diabetes for regression; sample:docstrings for "
        "text_classification, sample:manual for token_classification, "
        "sample:documentation for causal_lm and sample:explanations for preference, from Python itself.",
        common=True,
    )
    test_source: str = parameter(
        "",
        "Another source of the same kind, whose rows alone are the test split, the same for every version of a model; "
        "test_fraction is then not used. Rows of source that are in it too are left out and counted. Empty to take "
        "the test split from source.",
    )
    source_format: str = parameter(
        "auto",
        "csv, jsonl, parquet, arrow, text, tar, images, or auto to recognise it by the suffix, and by the content if "
        "there is none. gzip, Zstandard, bzip2, xz and zip archives of one file are recognised by the content.",
    )
    delimiter: str = parameter(
        "",
        "For CSV, the character between two fields, such as ; or tab. Empty for tabs in .tsv and .tab, else for "
        "whichever of comma, semicolon, tab and bar splits the header into the columns.",
    )
    encoding: str = parameter(
        "auto",
        "For CSV, JSON lines and text, the encoding, such as latin-1 or cp1252. auto is UTF-8, or what a byte order "
        "mark says (UTF-16, UTF-32).",
    )
    row_filter: str = parameter(
        "",
        "For a table in BigQuery, the rows to read: the WHERE clause of a query, without aggregates and "
        "sub-queries, such as lang = 'en'; empty for all.",
    )
    billing_project: str = parameter(
        "",
        "Project that pays for reading from BigQuery; empty for the project of the environment (GOOGLE_CLOUD_PROJECT) "
        "or of the credentials.",
    )
    task: str = parameter(
        "image_classification",
        "What the rows are for: image_classification, text_classification, multi_label_classification, "
        "regression, token_classification, causal_lm, preference, or a class of your own, package.module:Class.",
        common=True,
    )
    image_column: str = parameter(
        "image",
        "For a table, the column with the image: a path relative to the table, gs://…, or its bytes.",
    )
    image_root: str = parameter(
        "",
        "For a table, the folder or gs://… that paths of images are relative to; all images must be in it. Empty "
        "for the folder of the table; images on this machine must then be in the folder of the source.",
    )
    label_column: str = parameter(
        "label",
        "For a table, the column with the class name. For multi_label_classification, the column with all classes of "
        "a row, or one column of 0 and 1 for each class, separated by commas; for regression, the column with the "
        "number, or several; for token_classification, the column with the tags.",
        common=True,
    )
    missing_labels: str = parameter(
        "auto",
        "Labels of a table that stand for a missing label, separated by commas; such rows are rejected. auto for "
        "those that pandas treats as missing (NaN, NULL, N/A, None and the like); empty if these are all names of "
        "classes.",
    )
    label_conflicts: str = parameter(
        "keep",
        "What happens to records with the same content in several classes: keep leaves them in, all in one split, and "
        "counts them in the report; reject rejects all of them, because no class is certain.",
    )
    text_column: str = parameter(
        "text",
        "For a table, the column with the text, or with a list of chat messages. If causal_lm finds no such column, it "
        "reads prompt and completion, messages, conversations, or instruction and output.",
        common=True,
    )
    text_pair_column: str = parameter(
        "",
        "For text_classification, and regression from texts, the column of a table with the second text of each pair, "
        "such as the hypothesis for the premise in text_column. Empty for single texts.",
    )
    feature_columns: str = parameter(
        "",
        "For regression from numbers, the columns of a table to learn from, separated by commas. Empty for the image "
        "or the text of a table that has one, else for all columns but label_column, slice_by and group_by.",
    )
    image_size: int = parameter(
        0,
        "Pixels per side that every image is resized to, 8 to 1024. 0 takes the size of image_processor, else chooses "
        "by the images, at most 224.",
        common=True,
    )
    image_processor: str = parameter(
        "",
        "A pretrained model whose preprocessor_config.json says how images are resized and cut if image_size is 0: a "
        "directory in Hugging Face layout, local or gs://, or a hub id. The pipelines give model if it is pretrained. "
        "Empty to choose by the images.",
    )
    color_mode: str = parameter("auto", "L for grey, RGB for colour, auto for grey if the images are.")
    image_storage: str = parameter(
        "auto",
        "pixels keeps images as they are trained on; compressed keeps their files, which are decoded while they are "
        "read, with the same results; auto takes compressed if pixels would need more than 50 GB.",
    )
    tokenizer: str = parameter(
        "train",
        "For texts, a local directory in Hugging Face layout, a hub id, or train for a byte-level BPE made from the "
        "training split. In place of train, the pipelines give the tokenizer of model if that is pretrained, else the "
        "champion's.",
        common=True,
    )
    vocabulary_size: int = parameter(
        0,
        "Tokens of the tokenizer to train, 259 to 1,000,000; 0 chooses by the size of the data, 512 to 8,000.",
    )
    sequence_length: int = parameter(
        0,
        "Tokens of a row, 8 to 131,072; 0 is 128 for text_classification and 512 for causal_lm and preference.",
        common=True,
    )
    packing: bool = parameter(
        True,
        "For causal_lm, whether a row may hold several documents; attention never goes from one to another.",
    )
    val_fraction: float = parameter(0.1, "Share of the rows that rank the checkpoints, between 0 and 1.")
    test_fraction: float = parameter(
        0.1,
        "Share of the rows that only the best checkpoint is scored on, between 0 and 1; not used if there is a "
        "test_source.",
    )
    split_seed: int = parameter(
        0,
        "Seed of the splits. Do not change it for retraining, or the new model is tested on rows that the champion was "
        "trained on.",
    )
    stratify: bool = parameter(
        False,
        "Whether each class has its shares of val and test exactly, not only on average. Rows may then change splits "
        "when the data grows.",
    )
    remove_duplicates: bool = parameter(
        True,
        "Whether to leave out a record with the same content and label as an earlier one.",
    )
    near_duplicates: float = parameter(
        0.0,
        "For texts, the Jaccard similarity of words to an earlier text from which a text is left out, 0.3 to less than "
        "1, such as 0.8; 0 looks for none. near_duplicates.jsonl of the dataset lists those left out.",
    )
    max_rejected: str = parameter(
        "10%",
        "Rejected rows above which the step fails: a share such as 5%, a number, or unlimited.",
    )
    shard_megabytes: int = parameter(
        0,
        "Size of the files of the dataset in MiB, 1 to 1,024; 0 for 64, and at most 8,192 rows.",
    )
    ray_address: str = parameter(
        "",
        "A Ray cluster that prepares the data if one machine is not enough: HOST:PORT of its head if the step runs on "
        "a machine of the cluster, else ray://HOST:10001. All machines need the same gpu-pipelines, and the step needs "
        "the cluster's token in RAY_AUTH_TOKEN. Empty for this machine, or for the machines of --data-nodes.",
    )
    slice_by: str = parameter(
        "",
        "For a table, a column whose values are kept with the rows, so that the evaluation can score each value "
        "separately; it is not trained on. Not for causal_lm, whose rows hold several records. Empty for none.",
    )
    group_by: str = parameter(
        "",
        "For a table, a column whose equal values stay in one split, such as the patient, the user or the prompt of "
        "several rows. Otherwise test rows of a patient in the training are easier than those of a new one. Empty to "
        "split by the content of the rows alone. A row without a value is split by its content.",
    )

    def problems(self) -> list[str]:
        """Everything that is wrong with the values, each with what to do."""
        found = task_problems(self.task)
        found += self._problems_for(TASKS.values() if found else [task_named(self.task)])
        if not self.source:
            found.append("source is empty. Give files, a folder, a pattern, gs://… or sample:digits.")
        found += problems_of_source(self)
        found += [problem for problem in self._problems_of_test_source() if problem not in found]
        found += self._text_problems()
        found += self.problems_of_dialect()
        if self.label_conflicts not in LABEL_CONFLICTS:
            found.append(f"label_conflicts is {self.label_conflicts!r}; give {' or '.join(LABEL_CONFLICTS)}.")
        if abs(self.split_seed) > LARGEST_WHOLE_NUMBER:
            found.append(f"split_seed is {self.split_seed}; give a whole number of at most 2^53 either way.")
        found += self._likeness_problems()
        found += self._problems_of_groups()
        if self.image_size != 0 and not 8 <= self.image_size <= MAX_IMAGE_SIZE:
            found.append(f"image_size is {self.image_size}; give 8 to {MAX_IMAGE_SIZE} pixels, or 0 to choose it.")
        found += problems_of_place("image_processor", self.image_processor)
        if self.color_mode not in COLOR_MODES:
            found.append(f"color_mode is {self.color_mode!r}; give one of {', '.join(COLOR_MODES)}.")
        if self.image_storage not in IMAGE_STORAGES:
            found.append(f"image_storage is {self.image_storage!r}; give one of {', '.join(IMAGE_STORAGES)}.")
        found += problems_of_limit(self.max_rejected)
        found += problems_of_ray_address(self.ray_address)
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

    def _problems_of_groups(self) -> list[str]:
        if self.group_by and self.stratify:
            return ["stratify and group_by both decide on the splits. Leave one of them out."]
        if self.group_by in self.label_columns and "label_column" in task_named(self.task).parameters:
            return [f"group_by is {self.group_by!r}, which is learned: each class would be in one split alone."]
        return []

    def column_choices(self) -> list[tuple[str, ...]]:
        """The choices of columns that are read, the first one first; a table needs all columns of one choice."""
        return [tuple(dict.fromkeys((*c, *self.columns_beside))) for c in task_named(self.task).columns(self)]

    def columns_of(self, has: Sequence[str]) -> tuple[str, ...]:
        """The columns that are read, of those that a table has.

        Raises:
            UserError: one is missing.
        """
        task = task_named(self.task)
        found = tuple(dict.fromkeys((*task.columns_of(self, has), *self.columns_beside)))
        if missing := [column for column in self.columns_beside if column not in has]:
            raise task.lacks(self, has, missing)
        return found

    @property
    def classified_columns(self) -> tuple[str, ...]:
        """The columns of the texts that are classified: one, or two for pairs."""
        return (self.text_column, self.text_pair_column) if self.text_pair_column else (self.text_column,)

    @property
    def columns_beside(self) -> tuple[str, ...]:
        """The columns that are read and neither learned nor learned from."""
        return tuple(dict.fromkeys(filter(None, (self.slice_by, self.group_by))))

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns with what is learned, of tasks that take several."""
        return _names_in(self.label_column)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The columns of numbers to learn from that the user names."""
        return _names_in(self.feature_columns)

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

    def by_source(self) -> list[PrepareSettings]:
        """How the source is read, and the test source, of those that are given."""
        found = [self] if self.source else []
        return [*found, self.of_test_source()] if self.test_source else found

    def _problems_for(self, tasks: Collection[Task]) -> list[str]:
        """What is wrong for the task; of one that does not exist, what is wrong for all of those that do."""
        found = []
        read = tuple(dict.fromkeys(("auto", *(name for task in tasks for name in task.formats))))
        if self.source_format not in read:
            found.append(f"source_format is {self.source_format!r}; {self.task} reads {', '.join(read)}.")
        if len(tasks) > 1:
            return found
        if self.text_pair_column and not any("text_pair_column" in task.parameters for task in tasks):
            found.append(f"text_pair_column is given, but {self.task} takes no pairs of texts. Leave it out.")
        for task in tasks:
            if unknown := [name for name in task.column_parameters if not hasattr(self, name)]:
                told = f"The task {task.name} has {', '.join(unknown)} in column_parameters"
                return [*found, f"{told}, which prepare_data has not. See docs/tasks.md."]
            found += task.column_problems(self)
            found += said_by_own(f"The task {task.name}", task.problems, self, see="See docs/tasks.md.")
        return found

    def problems_on(self, nodes: int) -> list[str]:
        """What is wrong with preparing on so many machines together."""
        alone = [source for source in self.sources.values() if not source_of(source).is_repeatable]
        return [
            f"The source {source} is read by one machine. Leave out ray_address and --data-nodes, or export the table "
            "to Parquet files in a bucket and give these."
            for source in alone[: nodes - 1][:1]
        ]

    def problems_on_nodes(self, nodes: int) -> list[str]:
        """What is wrong with preparing on so many machines of the step, or on the cluster of `ray_address`."""
        if self.ray_address and nodes > 1:
            return [
                f"The data is to be prepared by {nodes} machines of the step, and by the Ray cluster "
                f"{self.ray_address[:200]}. Leave out ray_address or --data-nodes."
            ]
        return self.problems_on(2 if self.ray_address else nodes)

    def problems_of_dialect(self) -> list[str]:
        """What is wrong with how the text of files is to be read."""
        found = []
        if self.delimiter and (len(self.dialect.delimiter) != 1 or self.dialect.delimiter in '"\r\n\0'):
            found.append(f"delimiter is {self.delimiter!r}; give one character such as ; or tab, or leave it empty.")
        try:
            io.TextIOWrapper(io.BytesIO(), encoding=self.dialect.encoding or "utf-8")
        except (LookupError, ValueError):
            found.append(
                f"encoding is {self.encoding!r}; give one that Python knows, such as latin-1 or cp1252, or auto."
            )
        return found

    def _problems_of_test_source(self) -> list[str]:
        if not self.test_source:
            return []
        if self.test_source == self.source:
            return ["test_source is the source itself. Give other rows, or leave it out for a share of the source."]
        test = replace(self.of_test_source(), source_format="auto")
        return [problem.replace("source is", "test_source is", 1) for problem in problems_of_source(test)]

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

    def rows_per_shard(self, features: Mapping[str, Feature]) -> int | None:
        """Rows of a shard of the size that was asked for; None where that is left open."""
        # Compiling a pipeline needs this file, but none of the packages of the steps.
        from gpu_pipelines.artifacts.dataset_writer import rows_of_shard

        return rows_of_shard(features, self.shard_megabytes << 20) if self.shard_megabytes else None


def _names_in(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def problems_of_limit(max_rejected: str) -> list[str]:
    """What is wrong with a limit of rejected rows."""
    try:
        limit_of(max_rejected)
    except ValueError:
        return [f"max_rejected is {max_rejected!r}; give a share such as 5%, a number of rows, or unlimited."]
    return []


def limit_of(max_rejected: str) -> tuple[float, float]:
    """The share and the number of rows that may be rejected; infinite where there is no limit.

    Raises:
        ValueError: it is neither a share such as `5%`, up to `100%`, nor a whole number, nor `unlimited`.
    """
    text = max_rejected.strip()
    if text in ("", UNLIMITED):
        return math.inf, math.inf
    if not re.fullmatch(r"[0-9]{1,15}|[0-9]{1,3}(\.[0-9]+)? ?%", text):
        raise ValueError(text)
    if not text.endswith("%"):
        return math.inf, int(text)
    share = float(text[:-1]) / 100
    if share > 1:
        raise ValueError(text)
    return share, math.inf
