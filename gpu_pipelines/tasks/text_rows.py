"""What text recipes ask of a dataset and of a model, and how rows are trimmed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from gpu_pipelines.errors import UserError, some_of
from gpu_pipelines.tasks.text_tokenizer import TOKENIZER, TextTokenizer, rules_of

if TYPE_CHECKING:
    from gpu_pipelines.artifacts.dataset import Dataset

# Matrix multiplications on tensor cores want lengths that are multiples of this.
LENGTH_STEP = 8


def require_dataset_of(dataset: Dataset, task: str, features: tuple[str, ...]) -> TextTokenizer:
    """The tokenizer of a dataset that has the features of a task.

    Raises:
        UserError: the dataset was prepared for something else.
    """
    manifest = dataset.manifest
    missing = set(features) - set(manifest.features)
    if missing or not manifest.tokenizer:
        raise UserError(
            f"The dataset {dataset.directory} was prepared for {manifest.task}; {task} needs the features "
            f"{some_of(features, most=5)} and a tokenizer.",
            f"Prepare it with task={task}.",
        )
    return TextTokenizer.read(dataset.directory / manifest.tokenizer)


def require_text_fits(name: str, model: Any, tokenizer: TextTokenizer, length: int) -> None:
    """Refuses a model that lacks tokens or positions; it would fail in the middle of the data, or on a GPU not at all.

    Raises:
        UserError: the vocabulary or the longest text of the model is smaller than that of the data.
    """
    embedding: nn.Embedding = model.get_input_embeddings()
    if embedding.num_embeddings < tokenizer.vocabulary_size:
        raise UserError(
            f"The model {name!r} knows {embedding.num_embeddings:,} tokens; the tokenizer of the dataset has "
            f"{tokenizer.vocabulary_size:,}.",
            f"Prepare the data with the model's own tokenizer (-p tokenizer={name}).",
        )
    positions = getattr(model.config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions < length:
        raise UserError(
            f"The model {name!r} takes at most {positions:,} tokens; the rows of the dataset have {length:,}.",
            f"Prepare the data with -p sequence_length={positions}.",
        )


def require_taken_over(directory: Path, model: Any, tokenizer: TextTokenizer, length: int) -> None:
    """Refuses a model of another program that has another tokenizer, or lacks tokens or positions.

    Without a tokenizer of its own, a model is taken to be for that of the dataset.

    Raises:
        UserError: it is such a model.
    """
    if (directory / TOKENIZER).is_file() and rules_of(directory) != rules_of(tokenizer.directory):
        raise UserError(
            f"The model in {directory} has another tokenizer than the dataset.",
            f"Prepare the data with -p tokenizer={directory}.",
        )
    require_text_fits(str(directory), model, tokenizer, length)


def trimmed_length(longest: int, sequence_length: int) -> int:
    """How many columns of a batch are needed: its longest row, rounded up to a multiple of 8."""
    return min(-(-max(longest, 1) // LENGTH_STEP) * LENGTH_STEP, sequence_length)
