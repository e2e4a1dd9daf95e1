"""The parameters of `check_for_drift`, checked without reading any data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpu_pipelines.component_interface.default_registry import DEFAULT_REGISTRY, REGISTRIES
from gpu_pipelines.component_interface.parameter import parameter
from gpu_pipelines.data.watch import MOST_DAYS
from gpu_pipelines.prediction.settings import ReadsRows
from gpu_pipelines.registry import registry_problems

#: The columns of logged requests: those of Vertex AI's table, which this project's server also writes.
#: Source: https://cloud.google.com/vertex-ai/docs/predictions/online-prediction-logging, request-response logs.
PAYLOAD, LOGGED_AT = "request_payload", "logging_time"
LOGS = ((PAYLOAD, LOGGED_AT), (PAYLOAD,))
#: Fewer rows show next to nothing.
FEWEST_ROWS = 20


@dataclass(frozen=True)
class DriftSettings(ReadsRows):
    """The parameters of `check_for_drift`."""

    source: str = parameter(
        "sample:digits",
        "The current rows, without labels: everything that predict_batch reads. Or logged requests, which are "
        "recognised by the column request_payload: the table of a Vertex AI endpoint's request-response logging, "
        "bq://PROJECT.DATASET.TABLE, or the folder or gs://… that gpu-pipelines serve --log-requests writes to.",
    )
    registry: str = parameter(DEFAULT_REGISTRY, REGISTRIES)
    model_name: str = parameter("", "Name of the model in the registry; empty for the only one that is there.")
    model_version: str = parameter("champion", "Alias or number of the version to compare with, by its training data.")
    source_format: str = parameter("auto", "As for prepare_data.")
    delimiter: str = parameter("", "As for prepare_data.")
    encoding: str = parameter("auto", "As for prepare_data.")
    row_filter: str = parameter("", "As for prepare_data.")
    billing_project: str = parameter("", "As for prepare_data.")
    image_column: str = parameter("image", "As for predict_batch.")
    image_root: str = parameter("", "As for prepare_data.")
    text_column: str = parameter("text", "As for predict_batch.")
    text_pair_column: str = parameter("", "As for predict_batch.")
    days: float = parameter(0.0, "For logged requests, the number of last days to read; 0 for all.")
    max_rows: int = parameter(
        5000, "Most rows to test; of more, those with the smallest hashes. The first 2,000 of them are predicted."
    )
    min_rows: int = parameter(100, "Fewest rows to judge by; with fewer, the check says nothing.")
    level: float = parameter(0.01, "Share of checks that may raise a false alarm, over all tests of a check together.")
    least_effect: float = parameter(
        0.1,
        "Smallest effect that counts as drift, however certain it is: as the shift of a normal distribution, in "
        "standard deviations.",
    )

    def problems(self) -> list[str]:
        """All problems with the values, each with what to do."""
        if not self.source:
            return ["source is empty. Give the current rows: files, gs://…, bq://…, or logged requests."]
        found = [*self.problems_of_rows(), *registry_problems(self.registry, self.model_name)]
        if not self.model_version:
            found.append("model_version is empty. Give an alias, such as champion, or a number.")
        if not 0 <= self.days <= MOST_DAYS:
            found.append(f"days is {self.days:g}; give 0 to {MOST_DAYS:,} days.")
        if self.min_rows < FEWEST_ROWS:
            found.append(f"min_rows is {self.min_rows}; give {FEWEST_ROWS} or more.")
        if self.max_rows < self.min_rows:
            found.append(f"max_rows is {self.max_rows}; give min_rows ({self.min_rows}) or more.")
        if not 0 < self.level < 1:
            found.append(f"level is {self.level:g}; give a share between 0 and 1, such as 0.01.")
        if not 0 <= self.least_effect < math.inf:
            found.append(f"least_effect is {self.least_effect:g}; give 0 or more.")
        return found
