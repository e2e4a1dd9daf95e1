"""The evaluation document: how every checkpoint did, which is best, and whether it may become the champion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.documents import read_as, write_document

EVALUATION = "evaluation.json"


@dataclass(frozen=True)
class Evaluation:
    """What `evaluation.json` says.

    Attributes:
        model_name: name of the model in the registry.
        task: what the model is for.
        labels: class names; empty where there are no classes.
        dataset_fingerprint: dataset evaluated on.
        configuration: how the checkpoints were trained, `settings` and `devices`; both empty if that is not known.
        select_by: metric on `val` that chose the best checkpoint.
        checkpoints: for each, `name`, `step`, `epoch` (None if not known) and its metrics on `val`. Here and below, a
            metric that is not a finite number is None.
        best: name of the checkpoint chosen.
        test: the best one on `test`: `rows`, `metrics` (each value, low, high; the latter None where no interval is
            known), and of a classifier `per_class` and `confusion`, of a model that is scored by its loss `terms`.
        champion: the registry's champion on the same rows: `version` and `metrics`, or None if there is none.
        gates: each gate with its value, threshold, `passed` and `why`.
        passed: all gates passed.
        mistakes: rows of `test` that the best one gets wrong: `source`, `label`, `predicted`, `probability`.
        scoring_function: the user's function that scored the checkpoints; empty if their recipe did.
        rehearsal: the best one was trained on CPU processes in place of the GPUs that were chosen.
        source_fingerprint: of the files that the dataset was prepared from; empty if not known.
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

    def save(self, directory: Path) -> None:
        write_document(directory / EVALUATION, asdict(self))

    @classmethod
    def load(cls, directory: Path) -> Evaluation:
        """Reads the document of an exported model.

        Raises:
            UserError: there is none, or it is damaged.
        """
        return read_as(directory / EVALUATION, "evaluated model", cls._from_json)

    @classmethod
    def _from_json(cls, content: Mapping[str, Any]) -> Evaluation:
        known = cls.__dataclass_fields__
        required = {name: content[name] for name, field in known.items() if field.default is MISSING}
        return cls(**{**{name: value for name, value in content.items() if name in known}, **required})

    @property
    def champion_version(self) -> int | None:
        """Version of the champion that was compared with, or None."""
        return self.champion["version"] if self.champion else None
