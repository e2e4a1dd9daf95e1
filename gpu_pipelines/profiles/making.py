"""Makes profiles: of a dataset and the model that learned from it, and of rows of later days by the same code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import SPLITS, Dataset, Split
from gpu_pipelines.artifacts.exported_model import PROFILE
from gpu_pipelines.errors import UserError, first_line
from gpu_pipelines.profiles.profile import Profile
from gpu_pipelines.profiles.values import Values, Vectors, as_codes, joined
from gpu_pipelines.profiles.watched import Watched
from gpu_pipelines.serving.embedding import predicted_with_embeddings
from gpu_pipelines.serving.predictor import Predictor
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.served_models import task_of
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.tasks import task_named

#: Rows of a profile: those whose inputs are looked at, and those of them that are predicted.
INPUT_ROWS, PREDICTED_ROWS = 5000, 2000
#: Bytes of a model above which the evaluation, which holds it in pieces, makes no profile.
LARGEST_MODEL = 8 << 30
EMBEDDING = "embedding of the champion"
#: Directions of an embedding that are kept: as many as tell its points apart, by sums at random.
#: Source: Johnson and Lindenstrauss, Contemporary Mathematics 26 (1984).
_DIRECTIONS = 32
_AT_ONCE = 64
_TRAINED_ON = "train"


def keep_profile(model: Path, dataset: Dataset) -> None:
    """Makes the profile of an exported model and puts it beside its files; says why, where there can be none.

    An evaluation that has come to an end does not fail for it.

    Args:
        model: the exported model, with its evaluation.
        dataset: what it was trained and evaluated on.
    """
    try:
        if sum(path.stat().st_size for path in model.glob("*.safetensors")) > LARGEST_MODEL:
            raise UserError(f"the model has more than {LARGEST_MODEL >> 30} GiB")
        profile_of(model, dataset).save(model / PROFILE)
    except UserError as error:
        print(f"no reference profile for a later look at drift: {error.problem}", flush=True)
    except Exception as error:  # whatever a user's own task, or a memory that is full, raises
        told = f"{type(error).__name__}: {first_line(error)}"
        print(f"no reference profile for a later look at drift: {told}", flush=True)


def profile_of(model: Path, dataset: Dataset, input_rows: int = INPUT_ROWS) -> Profile:
    """The profile of a model.

    What it gives is taken of val and test: to rows that it was trained on it says something else than to new ones.

    Args:
        model: exported, with its evaluation.
        dataset: what it was trained and evaluated on.
        input_rows: rows whose inputs are looked at.

    Raises:
        UserError: nothing of the task is watched, or the model cannot be loaded.
    """
    manifest = dataset.manifest
    task, predictor = task_named(task_of(model)), load_predictor(model, ServerSettings())
    watched, random = task.load_watched(), np.random.default_rng(0)
    # A fixed test set is somebody's choice, and need not look like the data.
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
    """Values that are gathered of rows, some of them at a time.

    Args:
        watched: what is watched.
        predictor: the model.

    Attributes:
        rows: how many were looked at.
    """

    def __init__(self, watched: Watched, predictor: Predictor) -> None:
        self._watched, self._predictor = watched, predictor
        self._parts: list[dict[str, Values]] = []
        self.rows = 0

    def look_at(self, rows: Sequence[Any]) -> None:
        """Takes what the model gets."""
        for some in _some(rows):
            self._parts.append(self._watched.inputs(self._predictor.columns(some)))
            self.rows += len(some)

    def predict(self, rows: Sequence[Any]) -> None:
        """Takes what the model gives, and its embedding."""
        for some in _some(rows):
            predictions, embeddings = predicted_with_embeddings(self._predictor, some)
            found = self._watched.predictions(predictions)
            if embeddings is not None:
                found[EMBEDDING] = Vectors(_projected(embeddings))
            self._parts.append(found)
            self.rows += len(some)

    def values(self) -> dict[str, Values]:
        """All of them, of what every group of rows had."""
        if not self._parts:
            return {}
        names = [name for name in self._parts[0] if all(name in part for part in self._parts)]
        return {name: joined([part[name] for part in self._parts]) for name in names}


def _some(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(rows), _AT_ONCE):
        yield rows[start : start + _AT_ONCE]


def _opened(dataset: Dataset, name: str) -> Split | None:
    """A split; None for one that was left in a bucket, as a large `train` is where models are evaluated."""
    try:
        return dataset.split(name)
    except UserError:
        return None


def _sampled(
    splits: Sequence[Split], predictor: Predictor, most: int, random: np.random.Generator
) -> Iterator[list[Any]]:
    """Some rows of splits, each as likely as any other, as the model takes them.

    What the model gets counts once, as among the rows of now: a prompt that was learned with several answers, or
    numbers that came with several results.
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
    """The rows that the model gets for the first time; what it gets is noted."""
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
