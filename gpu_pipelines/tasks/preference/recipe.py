"""The recipe of preference tuning: causal language models that learn which completions people chose.

A row is two sequences. Of a pair they are the prompt with the chosen completion and with the rejected one, and go
through the model together. Of a row that was judged (KTO) the second has the completion of another row; it goes through
the model for itself and without a gradient, before the loss of any row of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel, router_loss
from gpu_pipelines.tasks.packed_attention import OFFSETS, offsets_of
from gpu_pipelines.tasks.preference.losses import KTO, ORPO, SIGMOID, Said, drift_of, judged_losses, pair_losses
from gpu_pipelines.tasks.recipe import REFERENCE, SUMS, Batch, on_device
from gpu_pipelines.tasks.text_recipe import NOT_SCORED, require_dataset_of, trimmed_length

if TYPE_CHECKING:
    from gpu_pipelines.artifacts.dataset import Dataset

PAIR, JUDGED = ("chosen", "rejected"), ("completion", "other")
#: Before the names of tensors of sequences that go through the model for themselves.
_OTHER = "other."
#: In the batches of judged rows, which of them were judged good.
GOOD = "good"
#: Columns of what `predict` gives.
FIRST, SECOND, FIRST_TOKENS, SECOND_TOKENS, WHOLE, PREDICTED = range(6)


class Preference(CausalLanguageModel):
    """The recipe of the task `preference`.

    Args:
        tokenizer: what the rows were made with.
        sequence_length: tokens of the longest row.

    Attributes:
        preference_loss, beta: the parameters of the training.
        has_pairs: whether the rows of the dataset are pairs; None without one.
    """

    preference_loss: str = SIGMOID
    beta: float = 0.1
    has_pairs: bool | None = None

    @classmethod
    def for_dataset(cls, dataset: Dataset) -> Preference:
        names = _names_of(dataset.manifest.features)
        tokenizer = require_dataset_of(dataset, "preference", ("prompt", *names))
        recipe = cls(tokenizer, dataset.manifest.preprocessing["sequence_length"])
        recipe.has_pairs = names == PAIR
        return recipe

    def trained_with(self, settings: Mapping[str, Any]) -> None:
        # A training of another program may not say.
        self.preference_loss = settings.get("preference_loss", KTO if self.has_pairs is False else SIGMOID)
        self.beta = settings.get("beta", self.beta)
        if self.has_pairs is None or (self.preference_loss == KTO) != self.has_pairs:
            return
        if not self.has_pairs:
            raise UserError(
                f"preference_loss is {self.preference_loss}, which needs pairs of completions, and the rows of the "
                "dataset have one completion each.",
                "Give preference_loss=kto.",
            )
        raise UserError(
            "preference_loss is kto, which needs completions that were judged one by one, and the rows of the dataset "
            "are pairs.",
            "Give sigmoid, ipo or orpo, or prepare rows of prompt, completion and label.",
        )

    def build_model(self, name: str) -> nn.Module:
        """Builds the model to train, without dropout.

        What is compared are probabilities by two states of one model, which dropout would blur. TRL leaves it out too.
        """
        model = super().build_model(name)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            elif isinstance(getattr(module, "attention_dropout", None), float):
                module.attention_dropout = 0.0  # type: ignore[assignment]
        return model

    @property
    def has_reference(self) -> bool:
        return self.preference_loss != ORPO

    @property
    def has_sums(self) -> bool:
        return self.preference_loss == KTO

    def batch(self, columns: dict[str, np.ndarray], device: torch.device) -> Batch:
        """Rows of a dataset as `input_ids`, `position_ids`, `targets` and `OFFSETS`, see `CausalLanguageModel`.

        Of pairs the rejected ones follow the chosen ones; of judged rows the others are apart, with `other.` before
        their names. `completion` tells which targets are of the completion, and `good` which rows were judged good.

        Raises:
            UserError: a row is longer than the model takes; a completion behind the prompt of another row is cut.
        """
        names = _names_of(columns)
        first, second = (self._sequences(columns, name) for name in names)
        longest = max(len(tokens) for tokens, _ in [*first, *(second if names == PAIR else ())])
        if longest > self.sequence_length:
            raise UserError(f"The model takes at most {self.sequence_length:,} tokens; a row has {longest:,}.")
        if names == PAIR:
            arrays = self._together(first, second)
        else:
            arrays = self._together(first)
            arrays |= {f"{_OTHER}{name}": array for name, array in self._together(second).items()}
            arrays[GOOD] = columns["label"] != 0
        if REFERENCE in columns:
            arrays[REFERENCE] = columns[REFERENCE]
        return {name: on_device(array, device) for name, array in arrays.items()}

    def _sequences(self, columns: Mapping[str, np.ndarray], name: str) -> list[tuple[np.ndarray, int]]:
        """The tokens of each row with one of its completions, and how many of them are the prompt."""
        prompts, given = columns["prompt"], columns["prompt_length"]
        completions, lengths = columns[name], columns[f"{name}_length"]
        return [
            (np.concatenate([prompts[row, : given[row]], completions[row, : lengths[row]]]), int(given[row]))
            for row in range(len(given))
        ]

    def _together(self, *sequences: list[tuple[np.ndarray, int]]) -> dict[str, np.ndarray]:
        every = [(tokens[: self.sequence_length], given) for part in sequences for tokens, given in part]
        width = trimmed_length(max(len(tokens) for tokens, _ in every), self.sequence_length)
        found = np.full((len(every), width), self.tokenizer.padding, dtype=np.int64)
        targets = np.full((len(every), width), NOT_SCORED, dtype=np.int64)
        completion = np.zeros((len(every), width), dtype=bool)
        for row, (tokens, given) in enumerate(every):
            found[row, : len(tokens)] = tokens
            # The first token of all has nothing that it could be predicted from.
            completion[row, max(given - 1, 0) : max(len(tokens) - 1, 0)] = True
            # ORPO learns the prompt of the chosen one as well.
            begins = 0 if row < len(sequences[0]) else max(given - 1, 0)
            targets[row, begins : max(len(tokens) - 1, 0)] = tokens[begins + 1 :]
        # What is behind the last token is seen by none before it, so it needs no mask.
        positions = np.tile(np.arange(width), (len(every), 1))
        arrays = {"input_ids": found, "position_ids": positions, "targets": targets, "completion": completion}
        return {**arrays, OFFSETS: offsets_of(positions)}

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean of the losses of the rows, plus the router's loss if the configuration has one."""
        said, router = self._said(model, batch, batch[REFERENCE] if self.has_reference else None)
        if self.preference_loss == KTO:
            total = batch.get(SUMS, torch.zeros(2, device=said.sums.device))
            found = judged_losses(said, batch[GOOD], self.beta, drift_of(total[0], total[1]))
        else:
            found = pair_losses(said, self.preference_loss, self.beta, self.smoothing_of(model))
        return found.mean() if router is None else found.mean() + router

    def reference(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Log-probabilities of the two completions of each row, float32 (rows, 2)."""
        return self.predict(model, batch)[:, [FIRST, SECOND]]

    def sums(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Sum of the log ratios of completions of other rows, and how many they are, float32 (2,)."""
        others = self._others(batch)
        sums, tokens, _, _ = self._of_sequences(model, others)
        ratios = torch.where(tokens > 0, sums - batch[REFERENCE][:, 1], 0.0)
        return torch.stack([ratios.sum(), (tokens > 0).sum().float()])

    def predict(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Float32 (rows, 6): log-probabilities of both completions, their tokens, the sum of the losses of the prompt
        and the first completion, and the number of their predicted tokens."""
        sums, tokens, whole, _ = self._of_sequences(model, batch)
        counted = (batch["targets"] != NOT_SCORED).sum(dim=1)
        if GOOD not in batch:
            rows = self.rows_of(batch)
            parts = [sums[:rows], sums[rows:], tokens[:rows], tokens[rows:], whole[:rows], counted[:rows]]
        else:
            others, of_others, _, _ = self._of_sequences(model, self._others(batch))
            parts = [sums, others, tokens, of_others, whole, counted]
        return torch.stack([part.float() for part in parts], dim=1)

    def loss_tokens(self, columns: Mapping[str, Any]) -> None:  # type: ignore[override]
        """None: the loss is a mean over the rows."""

    def rows_of(self, batch: Batch) -> int:
        return len(batch["input_ids"]) // (1 if GOOD in batch else 2)

    @staticmethod
    def _others(batch: Batch) -> Batch:
        return {name.removeprefix(_OTHER): each for name, each in batch.items() if name.startswith(_OTHER)}

    def _said(self, model: nn.Module, batch: Batch, reference: torch.Tensor | None) -> tuple[Said, torch.Tensor | None]:
        sums, tokens, whole, router = self._of_sequences(model, batch)
        whole = whole / (batch["targets"] != NOT_SCORED).sum(dim=1).clamp(min=1)
        if GOOD not in batch:
            rows = self.rows_of(batch)
            sums, tokens, whole = (torch.stack(part.split(rows), dim=1) for part in (sums, tokens, whole))
            whole = whole[:, 0]
        else:
            sums, tokens = (torch.stack([part, torch.zeros_like(part)], dim=1) for part in (sums, tokens))
        return Said(sums, torch.zeros_like(sums) if reference is None else reference, tokens, whole), router

    def _of_sequences(
        self, model: nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Of each sequence the log-probability of its completion, the tokens of that, the sum of the losses of all
        targets; and the weighted loss of the router, where the configuration has one."""
        found, completion = self._of_tokens(model, batch), batch["completion"]
        sums = -(found.losses * completion).sum(dim=1), completion.sum(dim=1), found.losses.sum(dim=1)
        return *sums, router_loss(model, found.outputs)


def _names_of(columns: Iterable[str]) -> tuple[str, str]:
    """The columns of the two completions of a row."""
    return JUDGED if JUDGED[0] in columns else PAIR
