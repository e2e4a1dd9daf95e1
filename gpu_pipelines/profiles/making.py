"""Makes profiles of a dataset and the model trained on it, and of later rows with the same code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import SPLITS, Dataset, Split
from gpu_pipelines.artifacts.exported_model import PROFILE
from gpu_pipelines.errors import UserError, named
from gpu_pipelines.profiles.profile import Profile
from gpu_pipelines.profiles.values import Values, Vectors, as_codes, joined
from gpu_pipelines.profiles.watched import Watched
from gpu_pipelines.serving.embedding import predicted_with_embeddings
from gpu_pipelines.serving.predictor import Predictor
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.served_models import task_of
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.tasks import task_named

#: Rows of a profile: those whose inputs are profiled, and those of them that are predicted.
INPUT_ROWS, PREDICTED_ROWS = 5000, 2000
#: Bytes of a model above which the evaluation, which then shards it, makes no profile.
LARGEST_MODEL = 8 << 30
EMBEDDING = "embedding of the champion"
#: Directions of a random projection that keeps the distances of embeddings.
#: Source: Johnson and Lindenstrauss, Contemporary Mathematics 26 (1984).
_DIRECTIONS = 32
_AT_ONCE = 64
_TRAINED_ON = "train"


def keep_profile(model: Path, dataset: Dataset) -> None:
    """Makes the profile of an exported model and puts it beside its files; if that fails, says why.

    A completed evaluation does not fail for it.

    Args:
        model: the exported model, with its evaluation.
        dataset: its training and evaluation data.
    """
    try:
        if sum(path.stat().st_size for path in model.glob("*.safetensors")) > LARGEST_MODEL:
            raise UserError(f"the model has more than {LARGEST_MODEL >> 30} GiB")
        profile_of(model, dataset).save(model / PROFILE)
    except UserError as error:
        print(f"no reference profile for later drift checks: {error.problem}", flush=True)
    except Exception as error:  # any error of a user's own task, or full memory
        told = named(error)
        print(f"no reference profile for later drift checks: {told}", flush=True)


def profile_of(model: Path, dataset: Dataset, input_rows: int = INPUT_ROWS) -> Profile:
    """The profile of a model.

    The predictions are on val and test: on rows of its training, a model predicts differently from new ones.

    Args:
        model: the exported model, with its evaluation.
        dataset: its training and evaluation data.
        input_rows: rows whose inputs are profiled.

    Raises:
        UserError: the task has nothing to watch, or the model cannot be loaded.
    """
    manifest = dataset.manifest
    task, predictor = task_named(task_of(model)), load_predictor(model, ServerSettings())
    watched, random = task.load_watched(), np.random.default_rng(0)
    # A fixed test set is a deliberate choice, and need not look like the data.
    names = [name for name in SPLITS if not (name == "test" and manifest.test_source)]
    splits = {name: found for name in names if (found := _opened(dataset, name)) is not None}
    inputs, outputs = Gathered(watched, predictor), Gathered(watched, predictor)
    for rows in _sampled(list(splits.values()), predictor, input_rows, random):
        inputs.look_at(rows)
    held_out = [split for name, split in splits.items() if name != _TRAINED_ON]
    for rows in _sampled(held_out, predictor, PREDICTED_ROWS, random):
        outputs.predict(rows)
    if not inputs.rows:
        raise UserError(f"nothing of the task {task.name} is watched: its predictor reads no rows of a dataset.")
    return Profile(
        task.name,
        manifest.fingerprint,
        manifest.rows_read,
        dict(manifest.rejected),
        {name: as_codes(values) for name, values in inputs.values().items()},
        {name: as_codes(values) for name, values in outputs.values().items()},
    )


class Gathered:
    """Values gathered from rows, some at a time.

    Args:
        watched: what to watch.
        predictor: the model.

    Attributes:
        rows: the rows so far.
    """

    def __init__(self, watched: Watched, predictor: Predictor) -> None:
        self._watched, self._predictor = watched, predictor
        self._parts: list[dict[str, Values]] = []
        self.rows = 0

    def look_at(self, rows: Sequence[Any]) -> None:
        """Adds the inputs of the model."""
        for some in _some(rows):
            self._parts.append(self._watched.inputs(self._predictor.columns(some)))
            self.rows += len(some)

    def predict(self, rows: Sequence[Any]) -> None:
        """Adds the predictions of the model, and its embeddings."""
        for some in _some(rows):
            predictions, embeddings = predicted_with_embeddings(self._predictor, some)
            found = self._watched.predictions(predictions)
            if embeddings is not None:
                found[EMBEDDING] = Vectors(_projected(embeddings))
            self._parts.append(found)
            self.rows += len(some)

    def values(self) -> dict[str, Values]:
        """All values that every group of rows had."""
        if not self._parts:
            return {}
        names = [name for name in self._parts[0] if all(name in part for part in self._parts)]
        return {name: joined([part[name] for part in self._parts]) for name in names}


def _some(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(rows), _AT_ONCE):
        yield rows[start : start + _AT_ONCE]


def _opened(dataset: Dataset, name: str) -> Split | None:
    """A split; None for one that was left in a bucket, such as a large `train` where models are evaluated."""
    try:
        return dataset.split(name)
    except UserError:
        return None


def _sampled(
    splits: Sequence[Split], predictor: Predictor, most: int, random: np.random.Generator
) -> Iterator[list[Any]]:
    """A random sample of the rows of splits, as the model takes them.

    An input counts once, as in a drift check: a prompt that was learned with several answers, or numbers that came with
    several results.
    """
    sizes = np.array([len(split) for split in splits], dtype=np.int64)
    chosen = np.sort(random.choice(sizes.sum(), min(most, int(sizes.sum())), replace=False))
    starts = np.concatenate([[0], np.cumsum(sizes)])
    found, seen = 0, set[bytes]()
    for number, split in enumerate(splits):
        own = chosen[(chosen >= starts[number]) & (chosen < starts[number + 1])] - starts[number]
        for start in range(0, len(own), _AT_ONCE):
            rows = predictor.rows_of_dataset(split.take(own[start : start + _AT_ONCE]))
            fresh = _new(rows, predictor, seen)[: most - found]
            found += len(fresh)
            yield fresh


def _new(rows: Sequence[Any], predictor: Predictor, seen: set[bytes]) -> list[Any]:
    """The rows whose inputs are not in `seen`, to which they are added."""
    found = []
    for row in rows:
        content = hashlib.sha256(b"".join(values.tobytes() for values in predictor.columns([row]).values())).digest()
        if content not in seen:
            seen.add(content)
            found.append(row)
    return found


def _projected(embeddings: np.ndarray) -> np.ndarray:
    if embeddings.shape[1] <= _DIRECTIONS:
        return embeddings.astype(np.float32)
    directions = np.random.default_rng(embeddings.shape[1]).standard_normal((embeddings.shape[1], _DIRECTIONS))
    found: np.ndarray = (embeddings @ directions / np.sqrt(_DIRECTIONS)).astype(np.float32)
    return found
