"""The evaluation document: the scores of every checkpoint, the best one, and whether it may become the champion."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.documents import document_in, fields_in, made_of, read_as, write_document
from gpu_pipelines.errors import InvalidRequestError, NotFoundError
from gpu_pipelines.numbers import figure, whole

EVALUATION = "evaluation.json"
_KIND = "evaluated model"
#: What the model wrote for rows of test, one per line; see docs/evaluation.md.
GENERATED = "generated.jsonl"
#: Most classes for a confusion matrix in the document, and for one in the metadata of an artifact and in Vertex AI: as
#: many as GCPC's own importer sends. A matrix of a thousand would be 11 MB, and gRPC takes 4 MB by default.
MATRIX_CLASSES, MATRIX_CLASSES_SENT = 1000, 100
#: A table has up to so many checkpoints; of more, it shows those best on val.
MOST_CHECKPOINTS, CHECKPOINTS_SHOWN = 40, 20
#: Why a model that passed its gates may still not be the champion.
OVERTAKEN = "the champion has changed since the evaluation, or is damaged; the log of upload-model says which"
#: Most values that a representation shows.
_METRICS_SHOWN, _GATES_SHOWN = 6, 8


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The content of `evaluation.json`.

    Attributes:
        model_name: name of the model in the registry.
        task: task of the model.
        labels: class names; empty where there are no classes.
        dataset_fingerprint: dataset evaluated on.
        configuration: how the best checkpoint was trained, `settings` and `devices`; both empty if that is not known.
        select_by: metric on `val` that chose the best checkpoint.
        checkpoints: for each, `name`, `step`, `epoch` (None if not known), its metrics on `val` (those of written
            text only where one of them chose the best), and `averages`, the
            checkpoints that it is the mean of, where it is one, `training`, where there are several, and `ema`, where
            it is the moving average of the weights. Here and below, a metric that is not a finite number is None.
        best: name of the checkpoint chosen.
        test: the best one on `test`: `rows`, `metrics` (each value, low, high; the latter None where no interval is
            known), `one_answer` (metrics of a model that answers the same for every row, of tasks that know it), of a
            classifier `per_class`, `confusion` (rows by true and predicted class; empty where there are more than
            `MATRIX_CLASSES`), `confused` (the pairs that are mixed up most: numbers of the true and the predicted
            class, rows) and `calibration` (bins with range, rows, mean confidence and accuracy), of a model that is
            scored by its loss `loss_tokens`, of others that have them `parts` (a `name` and figures of each), and
            `slices`: for each value of the column `slice_by` its rows, metrics, and the `champion`'s values.
        champion: the registry's champion on the same rows, or None if there is none: `version`, `digest`
            (of the model's files), `metrics`, `differences` (of the model to it: value, low, high at `confidence`, by
            paired bootstrap), of classifiers and preferences `mcnemar`, and with a fixed test set `same_test_set`:
            whether it was registered with a score on the same one. A champion that could not be scored has
            `not_compared`, the reason, and no metrics.
        gates: each gate with its value, threshold, `passed`, `why`, and `low` and `high` of an interval it looked at.
        passed: all gates passed.
        mistakes: rows of `test` that the best one does worst on: of a classifier `row`, `source`, `label`,
            `predicted`, `probability`; of a language model `row`, `source`, `loss`, `loss_tokens`, and `start` and
            `stop`, tokens of the row, where it holds several documents.
        scoring_function: the user's function that scored the checkpoints; empty if their recipe did.
        rehearsal: the best one was trained on CPU processes in place of the GPUs that were chosen.
        source_fingerprint: of the files that the dataset was prepared from; empty if not known.
        more_is_better: direction of `select_by`.
        slice_by: column of the slices; empty if there are none.
        latency: of one row: `p50_ms`, `p95_ms`, `calls` and `device`; None if no gate asked for it.
        data: of the dataset: `features` (their names) and `class_rows` (rows of train and val by class), for comparison
            with those of a later one; None if it was not recorded.
        shift: whether the data is like what the champion was evaluated on: `checks`, the `level` of their tests, and
            whether the user has `accepted` that it is not; None without a champion.
        test_source: the fixed test set, `source` and `fingerprint`; None if test is a split of the data.
        trainings: if the checkpoints are from several, the `name` of each, `settings` and `devices`.
        benchmarks: what lm-eval gave, None if it was not used: `lm_eval` (its version), `options`, `main` (the
            requested tasks and groups), `tasks` (of each `version`, `documents`, and of a group its `tasks`),
            `more_is_better` by metric, `checkpoints` (best on val first, each `name` and `metrics`), and `champion`:
            `version`, `metrics`, `differences`, `reused` (whether its results are those it was registered with), or
            `not_compared`. Metrics are called TASK.METRIC.
        texts: of text that was written for rows of test: its `metrics`, the `rows` that it was written for `of` so
            many, `max_new_tokens`, what it was `written_by`, how many answers were `cut` off, `examples` of the worst
            and the best, and of a `judge` its `address`, `model`, and how many answers it `failed` to judge; None where
            none was written.
    """

    model_name: str
    task: str
    labels: list[str]
    dataset_fingerprint: str
    configuration: dict[str, Any]
    select_by: str
    checkpoints: list[dict[str, Any]]
    best: str
    test: dict[str, Any]
    champion: dict[str, Any] | None
    gates: list[dict[str, Any]]
    passed: bool
    mistakes: list[dict[str, Any]]
    scoring_function: str = ""
    rehearsal: bool = False
    source_fingerprint: str = ""
    more_is_better: bool = True
    slice_by: str = ""
    latency: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    shift: dict[str, Any] | None = None
    test_source: dict[str, Any] | None = None
    trainings: list[dict[str, Any]] = field(default_factory=list)
    benchmarks: dict[str, Any] | None = None
    texts: dict[str, Any] | None = None

    def with_names_of(self, labels: Collection[str]) -> Evaluation:
        """This evaluation with a dataset's names for the same classes.

        Versions before 0.2 kept the zeros of numbers: `1.0` of floats, `1.500000000` and `0E-9` of decimals.

        Args:
            labels: the classes of the dataset.
        """

        def name_of(label: str) -> str:
            is_number = re.fullmatch(r"-?\d+\.\d+|0E-\d+", label)
            shorter = str(whole(Decimal(label))) if is_number else label
            return label if label in labels or shorter in self.labels or shorter not in labels else shorter

        data = self.data
        if data and data.get("class_rows"):
            data = {**data, "class_rows": {name_of(label): rows for label, rows in data["class_rows"].items()}}
        return replace(self, labels=[name_of(label) for label in self.labels], data=data)

    def save(self, directory: Path) -> None:
        """Writes the document.

        Args:
            directory: the folder of the model.
        """
        write_document(directory / EVALUATION, {each.name: getattr(self, each.name) for each in fields(self)})

    @classmethod
    def load(cls, place: str | PathLike[str]) -> Evaluation:
        """Reads the document of an exported model.

        Args:
            place: the model's directory, or the document itself; a path or `gs://…`.

        Raises:
            UserError: there is no such document, or it is damaged.
        """
        if not isinstance(place, str | PathLike):
            raise InvalidRequestError(f"place takes text or a path; got {place!r:.80}.", "Give the folder of a model.")
        if "://" in (uri := fspath(place)):
            return cls._at(uri.rstrip("/").removesuffix(f"/{EVALUATION}"))
        path = Path(place)
        return read_as(path if path.name == EVALUATION else path / EVALUATION, _KIND, cls.from_json)

    @classmethod
    def _at(cls, folder: str) -> Evaluation:
        """The document in a folder of object storage; errors as those of `load`."""
        from gpu_pipelines.artifacts.remote_files import read_remote

        uri = f"{folder}/{EVALUATION}"
        try:
            return made_of(document_in(read_remote(uri), uri), uri, _KIND, cls.from_json)
        except FileNotFoundError:
            raise NotFoundError(f"{folder} is no {_KIND}: it has no {EVALUATION}.") from None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Evaluation:
        """From the JSON of the document; raises KeyError if a field of an evaluation is missing.

        Args:
            content: the document.
        """
        return cls(**fields_in(cls, content))

    def __repr__(self) -> str:
        shown = list(self.test["metrics"].items())[:_METRICS_SHOWN]
        metrics = ", ".join(f"{name}={figure(metric['value'])}" for name, metric in shown)
        more = len(self.test["metrics"]) - len(shown)
        gates = [f"{'passed' if gate['passed'] else 'failed'}: {gate['gate']}" for gate in self.gates]
        lines = [
            f"Evaluation of {self.model_name} ({self.task}): {'passed' if self.passed else 'not passed'}",
            f"best of {len(self.checkpoints)} checkpoints by {self.select_by}: {self.best}",
            f"test: {metrics}{f' and {more} more' if more else ''}",
            *gates[:_GATES_SHOWN],
        ]
        return "\n  ".join(lines)

    def _repr_html_(self) -> str:
        """For a notebook: the metrics with their intervals beside the champion's, the gates, and all checkpoints."""
        from gpu_pipelines.notebook_html import curve, table, text

        beside = (self.champion or {}).get("metrics", {})
        metrics = [
            [name, *(figure(each.get(part)) for part in ("value", "low", "high")), figure(_value_of(beside.get(name)))]
            for name, each in self.test["metrics"].items()
        ]
        gates = [["✓" if gate["passed"] else "✗", gate["gate"], gate["why"]] for gate in self.gates]
        said = f"{self.model_name} ({self.task}): {'passed' if self.passed else 'not passed'}"
        chosen = f"best of {len(self.checkpoints)} checkpoints by {self.select_by} on val: {self.best}"
        scores = [each["val"].get(self.select_by) for each in self.checkpoints]
        names = [each["name"] for each in self.checkpoints]
        return "".join(
            [
                text(said, "h4"),
                table(("metric", "test", "low", "high", "champion"), metrics, f"{self.test['rows']:,} rows of test"),
                table(("", "gate", "why"), gates) if gates else "",
                text(chosen),
                curve(f"{self.select_by} on val", scores, names.index(self.best) if self.best in names else None),
            ]
        )

    @property
    def gates_not_passed(self) -> list[str]:
        """The gates that were not passed, each with the reason."""
        return [f"{gate['gate']}: {gate['why']}" for gate in self.gates if not gate["passed"]]

    @property
    def checkpoints_shown(self) -> list[dict[str, Any]]:
        """The checkpoints for a table: all of them, or if there are many those best on `val`, the best first."""
        if len(self.checkpoints) <= MOST_CHECKPOINTS:
            return self.checkpoints
        sign = -1 if self.more_is_better else 1
        known = (scored for scored in self.checkpoints if scored["val"][self.select_by] is not None)
        ranked = sorted(known, key=lambda scored: (scored["name"] != self.best, sign * scored["val"][self.select_by]))
        return ranked[:CHECKPOINTS_SHOWN]

    @property
    def trained_checkpoints(self) -> list[dict[str, Any]]:
        """The checkpoints without the means of weights, which have no place of their own in time, or not one alone."""
        return [scored for scored in self.checkpoints if not (scored.get("averages") or scored.get("ema"))]

    @property
    def champion_version(self) -> int | None:
        """Version of the champion in the comparison, or None."""
        return self.champion["version"] if self.champion else None


def _value_of(metric: Any) -> float | None:
    """The value of a metric, which may have an interval; None if it is not known."""
    return metric.get("value") if isinstance(metric, dict) else metric
