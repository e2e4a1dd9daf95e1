"""Scores checkpoints of any format with a function of the user's."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.checkpoint import CHECKPOINT_NAME, CONFIGURATION, read_configuration
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.artifacts.exported_model import MODEL_CARD
from gpu_pipelines.errors import NotFoundError, UserError, some_of
from gpu_pipelines.evaluation.models.candidates import Candidate, NoComparisonError, left_in
from gpu_pipelines.evaluation.scores import Scores
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.evaluation.user_function import UserFunction, load_function
from gpu_pipelines.registry import RegisteredVersion
from gpu_pipelines.registry.directory import VERSION

CHECKPOINT_PATTERNS = ("step[-_=]*", "checkpoint[-_=]*", "epoch[-_=]*")
#: What is written beside the files of a model, so that it cannot be among them.
WRITTEN_BESIDE = (EVALUATION, MODEL_CARD, VERSION)


@dataclass(frozen=True)
class GivenScores(Scores):
    """Metrics that were computed elsewhere; only the number of rows is known. See `Scores`."""

    size: int
    values: dict[str, float]

    @property
    def rows(self) -> int:
        return self.size

    @property
    def resampled(self) -> None:
        return None

    def metrics(self) -> dict[str, float]:
        return self.values

    def subset(self, rows: np.ndarray) -> GivenScores:
        raise NotImplementedError("only the number of rows is known")


class FunctionScorer:
    """Calls `function(checkpoint, dataset, split)` for each checkpoint; see `Scorer`.

    Args:
        settings: `scoring_function` names the function.
        dataset: its directory is given to the function.
        directories: by the names of the trainings, of which one alone may be empty; each folder or file `step-*`,
            `checkpoint-*` or `epoch-*` in them is a checkpoint.

    Raises:
        UserError: there is no checkpoint, or the function cannot be imported.
    """

    def __init__(self, settings: EvaluationSettings, dataset: Dataset, directories: Mapping[str, Path]) -> None:
        for directory in directories.values():
            if not directory.is_dir():
                raise NotFoundError(f"There is no checkpoint directory {directory}.")
        self._name = settings.scoring_function
        self._dataset = dataset
        self.candidates = [found for name, directory in directories.items() for found in _candidates(directory, name)]
        self._configurations = {name: _configuration(directory) for name, directory in directories.items()}
        self._function: UserFunction = load_function(settings.scoring_function, "scoring function")
        self._metrics: list[str] = []

    def configuration_of(self, candidate: Candidate) -> dict[str, Any]:
        return self._configurations[candidate.training]

    def on_val(self, done: Callable[[int, Scores], None]) -> None:
        for number, candidate in enumerate(self.candidates):
            done(number, self._call(candidate.path, "val", candidate.name))

    def on_test(self, candidate: Candidate) -> Scores:
        return self._call(candidate.path, "test", candidate.name)

    def latency(self, candidate: Candidate) -> dict[str, Any]:
        raise NotImplementedError("how the model of a function is called is not known")

    def worst(self, scores: Scores) -> list[dict[str, Any]]:
        return []

    def slice_values(self, column: str) -> list[str]:
        raise NotImplementedError("a function scores all rows at once")

    def close(self) -> None:
        """Nothing was started."""

    def champion_on_test(self, champion: RegisteredVersion) -> Scores:
        is_evaluated = (champion.path / EVALUATION).is_file()
        path = _evaluated_file(champion.path) if is_evaluated else _only_file(champion.path)
        try:
            return self._call(path, "test", f"the champion, {champion.name} version {champion.number}")
        except UserError as error:  # it need not be one that the function reads
            why = "" if is_evaluated else "it was registered without an evaluation: "
            raise NoComparisonError(f"{why}{error.problem}", error.remedy) from None

    def export(self, candidate: Candidate, directory: Path) -> None:
        """Copies the checkpoint: the files of a folder, or the one file that it is."""
        files = list(candidate.path.iterdir()) if candidate.path.is_dir() else [candidate.path]
        if taken := {file.name for file in files} & set(WRITTEN_BESIDE):
            raise UserError(
                f"The checkpoint {candidate.path} has files named {some_of(taken, most=3)}, which this step "
                "writes itself.",
                "Let the training give them other names.",
            )
        if candidate.path.is_dir():
            shutil.copytree(candidate.path, directory, dirs_exist_ok=True)
        else:
            shutil.copy2(candidate.path, directory)

    def _call(self, checkpoint: Path, split: str, what: str) -> GivenScores:
        returned = self._function.call(what, checkpoint, self._dataset.directory, split)
        values = self._checked(returned, what)
        self._metrics = self._metrics or list(values)
        if set(values) != set(self._metrics):
            raise UserError(
                f"{self._name} returned {some_of(values, most=8)} for {what}, before that "
                f"{some_of(self._metrics, most=8)}.",
                "Let it return the same metrics for every checkpoint and split.",
            )
        return GivenScores(self._dataset.manifest.rows(split), values)

    def _checked(self, returned: Any, what: str) -> dict[str, float]:
        if isinstance(returned, Mapping) and returned and all(isinstance(name, str) for name in returned):
            try:
                # Tensors and numpy's numbers serve as well; an overflow is as little a figure as NaN.
                return {name: _number(value) for name, value in returned.items()}
            except (TypeError, ValueError):
                pass
        raise UserError(
            f"{self._name} returned {str(returned)[:100]!r} for {what}.",
            'Let it return a dict of numbers by metric, such as {"accuracy": 0.9}.',
        )


def _number(value: Any) -> float:
    if isinstance(value, (str, bytes, bool)):
        raise TypeError
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _evaluated_file(directory: Path) -> Path:
    """What a function scored of a registered model: a checkpoint that was a single file is a file in it."""
    evaluation = Evaluation.load(directory)
    file = directory / evaluation.best.rpartition("/")[2]
    return file if evaluation.scoring_function and file.is_file() else directory


def _only_file(directory: Path) -> Path:
    files = [path for path in directory.iterdir() if path.name != VERSION]
    return files[0] if len(files) == 1 and files[0].is_file() else directory


def _candidates(directory: Path, training: str) -> list[Candidate]:
    found = []
    for path in sorted({path for pattern in CHECKPOINT_PATTERNS for path in directory.glob(pattern)}):
        if match := CHECKPOINT_NAME.fullmatch(path.name):
            found.append(Candidate(path, step=int(match["number"]), training=training))
        else:
            print(f"warning: passing over {path.name}: its name does not end in a number", flush=True)
    if not found:
        raise UserError(
            f"{directory} has no checkpoints: the training left {left_in(directory)} there.",
            "They are the folders or files named step-NUMBER, checkpoint-NUMBER or epoch-NUMBER. Rename them; with "
            "run --resume the training is not repeated.",
        )
    return sorted(found, key=lambda candidate: candidate.step)


def _configuration(directory: Path) -> dict[str, Any]:
    known = read_configuration(directory) if (directory / CONFIGURATION).is_file() else {}
    return {key: known.get(key, {}) for key in ("settings", "devices")}
