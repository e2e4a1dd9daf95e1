"""The port of tasks whose models write text: prompts and references of the rows, and how text is written."""

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
    """A prompt of a dataset, and the reference for what a model writes after it.

    Attributes:
        number: its row in the scores of the split.
        row: its row in the split.
        source: where the row is from, for people.
        prompt: its tokens, int32.
        reference: the tokens after the prompt, without the end token.
    """

    number: int
    row: int
    source: str
    prompt: np.ndarray
    reference: np.ndarray


@dataclass(frozen=True)
class Written:
    """What a model wrote after a prompt.

    Attributes:
        tokens: without the end token.
        ended: whether the model ended the text itself, and not the limit.
    """

    tokens: tuple[int, ...]
    ended: bool


class TextTask(ABC):
    """Prompts, references and text of a dataset. Each process that writes has one.

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
        """Continues each prompt with the most probable token, again and again.

        The result depends only on the model and these prompts, not on earlier calls.

        Args:
            loaded: a `gpu_pipelines.evaluation.models.loading.Loaded`, on its device, in evaluation mode.
            prompts: tokens of each prompt.
            most: most tokens to write for each; fewer if the model has no more room.

        Raises:
            UserError: the model cannot write text.
        """

    @abstractmethod
    def write_with_vllm(self, model: Path, prompts: Sequence[np.ndarray], most: int) -> list[Written]:
        """The same with vLLM, which rounds differently.

        Args:
            model: directory in Hugging Face layout.
            prompts: tokens of each prompt.
            most: most tokens to write for each.
        """
