"""What a task whose models write text says of it: the prompts and references of its rows, and how text is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Dataset


@dataclass(frozen=True)
class Pair:
    """A prompt of a dataset, and what is to be written behind it.

    Attributes:
        number: which of the rows of the split's scores it is.
        row: of the split.
        source: where the row is from, for people.
        prompt: its tokens, int32.
        reference: those that the row has behind it, without what ends a text.
    """

    number: int
    row: int
    source: str
    prompt: np.ndarray
    reference: np.ndarray


@dataclass(frozen=True)
class Written:
    """What a model wrote behind a prompt.

    Attributes:
        tokens: without the one that ended it.
        ended: whether the model ended it, and not the limit.
    """

    tokens: tuple[int, ...]
    ended: bool


class TextTask(ABC):
    """One is made in each process that writes.

    Args:
        dataset: the rows whose prompts are answered.

    Raises:
        UserError: its rows have no references.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    @abstractmethod
    def pairs(self, split: str) -> list[Pair]:
        """The prompts of a split with their references, in the order of its scores."""

    @abstractmethod
    def text(self, tokens: Sequence[int], *, whole: bool = False) -> str:
        """Tokens as text; if `whole`, with the special tokens in it."""

    @abstractmethod
    def write(self, loaded: Any, prompts: Sequence[np.ndarray], most: int) -> list[Written]:
        """Writes the most probable token behind each prompt, again and again.

        What is written depends on the model and on these prompts alone, however often it is called.

        Args:
            loaded: a `gpu_pipelines.evaluation.models.Loaded`, on its device, in evaluation mode.
            prompts: tokens of each.
            most: tokens that are written for each at most; fewer where the model has no more room.

        Raises:
            UserError: the model cannot write text.
        """

    @abstractmethod
    def write_with_vllm(self, model: Path, prompts: Sequence[np.ndarray], most: int) -> list[Written]:
        """The same with vLLM, whose rounding is another.

        Args:
            model: directory in Hugging Face layout.
            prompts: tokens of each.
            most: tokens that are written for each at most.
        """
