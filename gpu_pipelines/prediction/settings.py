"""The parameters of `predict_batch`, checked without reading any data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gpu_pipelines.artifacts.remote_files import problems_of_place
from gpu_pipelines.component_interface.default_registry import DEFAULT_REGISTRY, REGISTRIES
from gpu_pipelines.component_interface.parameter import parameter
from gpu_pipelines.data.settings import PrepareSettings, problems_of_limit
from gpu_pipelines.data.sources.listing import is_listed_in
from gpu_pipelines.data.sources.sources import problems_of_source
from gpu_pipelines.distributed.ray_address import problems_of_ray_address
from gpu_pipelines.errors import UserError, columns_in_words
from gpu_pipelines.registry import registry_problems
from gpu_pipelines.tasks.formats import BESIDE_CHATS, FORMATS

#: The devices of a worker.
AUTO, CPU, GPU = "auto", "cpu", "gpu"
DEVICES = (AUTO, CPU, GPU)
#: The name of a table in BigQuery, as a source and as an output.
BIGQUERY = "bq://"
JSON_LINES, PARQUET = "jsonl", "parquet"
OUTPUT_FORMATS = (JSON_LINES, PARQUET)
#: Stand for the start of the prediction in an output, UTC.
DATE, TIME = "{date}", "{time}"
#: The parameters that say where predictions go and how the work is shared, not what the predictions are.
NOT_SHAPING = ("output", "max_rejected", "ray_address", "device", "registry", "model_name", "model_version")
_TABLE = re.compile(r"bq://([a-z0-9.-]+:)?[a-z0-9-]+\.\w+\.[^./:*$@`]+")


@dataclass(frozen=True)
class RowsToPredict(PrepareSettings):
    """How to read the rows to predict.

    Attributes:
        choices: the columns to read from a table, the first choice that it has; see `PrepareSettings.column_choices`.
    """

    has_labels: ClassVar[bool] = False
    choices: tuple[tuple[str, ...], ...] = ()

    def column_choices(self) -> list[tuple[str, ...]]:
        return list(self.choices)

    def columns_of(self, has: Sequence[str]) -> tuple[str, ...]:
        found = next((choice for choice in self.choices if set(choice) <= set(has)), None)
        if found is not None:
            return found
        missing = [column for column in self.choices[0] if column not in has and column not in BESIDE_CHATS]
        raise UserError(
            f"The source {self.source} has no column {' and no column '.join(map(repr, missing))}; it has "
            f"{columns_in_words(has)}.",
            "Name the columns with image_column, text_column, text_pair_column and key_column; numbers need the names "
            "that they had in training, and chats are in messages or conversations.",
        )


class ReadsRows:
    """Settings of a step that reads rows for a model."""

    def rows(self, task: str, choices: tuple[tuple[str, ...], ...] = ()) -> RowsToPredict:
        """How to read the rows.

        Args:
            task: the task of the model, whose formats are read.
            choices: the columns to read from a table, the first choice that it has.
        """
        names = ("source", "source_format", "delimiter", "encoding", "row_filter", "billing_project")
        columns = ("image_column", "image_root", "text_column", "text_pair_column")
        given = {name: getattr(self, name) for name in (*names, *columns)}
        return RowsToPredict(**given, task=task, label_column="", choices=choices)

    def problems_of_rows(self) -> list[str]:
        """What is wrong with the source and with how it is to be read, each with what to do."""
        rows = self.rows("any task")
        found = problems_of_source(rows)
        if rows.source_format != "auto" and rows.source_format not in FORMATS:
            found.append(f"source_format is {rows.source_format!r}; give auto, {', '.join(FORMATS)}.")
        return [*found, *rows.problems_of_dialect()]


@dataclass(frozen=True)
class PredictSettings(ReadsRows):
    """The parameters of `predict_batch`."""

    source: str = parameter(
        "sample:digits",
        "Rows to predict: everything that prepare_data reads, without labels. A file, a folder or a pattern, on this "
        "machine or in Cloud Storage (gs://…): images, at any depth of a folder; tables with a column of image paths "
        "or bytes, of texts, or the columns of numbers that the model was trained with; tar shards; for causal_lm also "
        "text. A table in BigQuery, bq://PROJECT.DATASET.TABLE, a file with a query for it, NAME.sql, a data set of "
        "the Hugging Face hub, hf://OWNER/NAME, or a sample.",
        common=True,
    )
    output: str = parameter(
        "",
        "Where the predictions go: a folder, gs://…, or a table in BigQuery, bq://PROJECT.DATASET.TABLE, whose rows "
        "are replaced. {date} and {time} in it become the time at which the step begins, UTC, as in 20261122 and "
        "174205. Empty for the place of the output predictions.",
        common=True,
    )
    output_format: str = parameter(
        "jsonl",
        "jsonl, a JSON object in each line with key, instance and prediction, as Vertex AI's batch prediction writes "
        "it, or parquet. A table in BigQuery has the columns of parquet.",
        choices=OUTPUT_FORMATS,
        common=True,
    )
    key_column: str = parameter(
        "",
        "For a table, the column whose values are the keys of the predictions, in place of the instances. Empty for "
        "the place of each row in the source, such as rows.csv:17.",
        common=True,
    )
    registry: str = parameter(DEFAULT_REGISTRY, REGISTRIES, common=True)
    model_name: str = parameter(
        "",
        "Name of the model in the registry; empty for the only one that is there. Not used with an input model.",
        common=True,
    )
    model_version: str = parameter("champion", "Alias or number of the version.", common=True)
    source_format: str = parameter("auto", "As for prepare_data.")
    delimiter: str = parameter("", "As for prepare_data.")
    encoding: str = parameter("auto", "As for prepare_data.")
    row_filter: str = parameter("", "As for prepare_data.", common=True)
    billing_project: str = parameter(
        "", "Project that pays for reading from and writing to BigQuery; as for prepare_data."
    )
    image_column: str = parameter(
        "image", "As for prepare_data. Without such a column, b64 is read, as base64.", common=True
    )
    image_root: str = parameter("", "As for prepare_data.")
    text_column: str = parameter(
        "text",
        "For a table, the column with the text. If causal_lm finds no such column, it reads the column prompt.",
        common=True,
    )
    text_pair_column: str = parameter(
        "", "For a table, and a model for pairs of texts, the column with the second text. Empty for text_pair."
    )
    top_k: int = parameter(
        0, "For classifiers, number of scores to write for each row, the greatest first; 0 for all.", common=True
    )
    max_new_tokens: int = parameter(0, "For causal_lm, most tokens to write for each prompt.")
    rows_at_once: int = parameter(
        0, "Rows that the model gets at once; 0 for 32 on a CPU and 128 on a GPU. Fewer if memory runs out."
    )
    rows_per_file: int = parameter(1_000_000, "Fewest rows of an output file, in steps of a few thousand.")
    max_rejected: str = parameter(
        "10%",
        "Rejected rows above which the step fails: a share such as 5%, a number, or unlimited.",
        common=True,
    )
    ray_address: str = parameter(
        "",
        "A Ray cluster that predicts if one machine is not enough: HOST:PORT of its head if the step runs on a "
        "machine of the cluster, else ray://HOST:10001. All machines need the same gpu-pipelines, and a model in a "
        "place that all of them can read. Empty for this machine, one process for each GPU.",
        common=True,
    )
    device: str = parameter(
        "auto",
        "gpu, cpu, or auto for GPUs if there are any. Give gpu for a Ray cluster that adds its GPUs later.",
        choices=DEVICES,
    )

    def problems(self) -> list[str]:
        """All problems with the values, each with what to do."""
        found = [] if self.source else ["source is empty. Give files, a folder, a pattern, gs://… or bq://…."]
        found += self.problems_of_rows() if self.source else []
        found += self._problems_of_output()
        found += registry_problems(self.registry, self.model_name)
        if self.output_format not in OUTPUT_FORMATS:
            found.append(f"output_format is {self.output_format!r}; give {' or '.join(OUTPUT_FORMATS)}.")
        found += problems_of_ray_address(self.ray_address)
        if self.device not in DEVICES:
            found.append(f"device is {self.device!r}; give {', '.join(DEVICES)}.")
        if not self.model_version:
            found.append("model_version is empty. Give an alias, such as champion, or a number.")
        for name in ("top_k", "max_new_tokens", "rows_at_once"):
            if getattr(self, name) < 0:
                found.append(f"{name} is {getattr(self, name)}; give 0 or more.")
        if self.rows_per_file < 1:
            found.append(f"rows_per_file is {self.rows_per_file}; give 1 or more.")
        return [*found, *problems_of_limit(self.max_rejected)]

    def _problems_of_output(self) -> list[str]:
        place = self.output.replace(DATE, "0").replace(TIME, "0")
        if "{" in place or "}" in place:
            return [f"output is {self.output[:200]!r}; {DATE} and {TIME} alone may stand in braces."]
        if self.is_table and not _TABLE.fullmatch(place):
            return [f"output is {self.output[:200]!r}; a table is bq://PROJECT.DATASET.TABLE."]
        if self.is_table:
            return []
        if self.source and place and is_listed_in(self.source, place):  # the next prediction would read this one
            lies = f"output is {self.output}, which lies in the data {self.source}"
            return [f"{lies}: it would be read as well. Give another folder."]
        return problems_of_place("output", place)

    @property
    def is_table(self) -> bool:
        """Whether the predictions become a table in BigQuery."""
        return self.output.startswith(BIGQUERY)
