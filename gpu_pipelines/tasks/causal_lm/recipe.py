"""Causal language modelling: pre-training on text, and fine-tuning on completions, with Hugging Face decoders.

A row holds several documents behind one another. `position_ids` begin at 0 with each of them; attention is kept within
the document by their lengths, or by the mask that transformers makes of the positions. Padding is a document of its own
that is not scored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.batch_encoding import BatchEncoder
from gpu_pipelines.tasks.causal_lm.chats import ends_of_answers
from gpu_pipelines.tasks.causal_lm.chunked_loss import Scored, in_chunks
from gpu_pipelines.tasks.causal_lm.task import CausalLanguageModelTask
from gpu_pipelines.tasks.model_check import crosses_documents, sees_ahead, takes_positions
from gpu_pipelines.tasks.packed_attention import OFFSETS, by_length, offsets_of
from gpu_pipelines.tasks.recipe import Batch, on_device
from gpu_pipelines.tasks.text_architectures import language_model
from gpu_pipelines.tasks.text_recipe import (
    NOT_SCORED,
    TextRecipe,
    config_of,
    mean_of_scored,
    require_dataset_of,
    trimmed_length,
)
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer

if TYPE_CHECKING:
    from gpu_pipelines.artifacts.dataset import Dataset

# Logits of a document beside other neighbours differ by rounding alone; attention to a neighbour changes them wholly.
SAME_LOGITS = 1e-3
# Logits that are summed up alike differ by less. An encoder that has not learned yet looks ahead by little more.
SAME_SUMS = 1e-4
# The same of weights in bf16, which has 8 bits for a number.
SAME_IN_BF16 = 5e-2


class CausalLanguageModel(TextRecipe):
    """The recipe of the task `causal_lm`.

    Args:
        tokenizer: what the rows were made with.
        sequence_length: tokens of a row.
    """

    models = CausalLanguageModelTask.models
    auto_class = CausalLanguageModelTask.auto_class

    @classmethod
    def for_dataset(cls, dataset: Dataset) -> CausalLanguageModel:
        tokenizer = require_dataset_of(dataset, "causal_lm", ("input_ids", "loss_mask", "position_ids"))
        recipe = cls(tokenizer, dataset.manifest.features["input_ids"].shape[0])
        recipe.has_one_shape = bool(dataset.manifest.preprocessing.get("packing"))
        return recipe

    @classmethod
    def for_exported(cls, directory: Path) -> CausalLanguageModel:
        """The recipe that an exported model was trained with; rows may be as long as the model takes.

        Args:
            directory: the model, in Hugging Face layout.
        """
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(directory, local_files_only=True)
        longest = getattr(config, "max_position_embeddings", None)
        if longest is None:  # Bloom and Mamba have no table of positions; their tokenizer says how long rows were
            said = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
            longest = said.get("model_max_length", 2**31)
        return cls(TextTokenizer.read(directory), longest)

    def untrained(self, name: str) -> nn.Module:
        return language_model(name, self.config(), self.sequence_length)

    def config(self) -> dict[str, Any]:
        # Padding is often the token that ends a text; named as padding, its embedding would never be trained.
        return {**self.tokenizer.config(), "pad_token_id": None}

    def changes(self) -> dict[str, Any]:
        return {}

    @staticmethod
    def may_be_new(model: nn.Module, key: str) -> bool:
        return False

    def build_model(self, name: str) -> nn.Module:
        model = super().build_model(name)
        if name not in self.models:
            _require_causal(name, model)
            if self.has_one_shape:  # in rows that are not packed, nothing stands before a document
                _require_documents_apart(name, model)
        config_of(model).use_cache = False
        return model

    def load_exported(self, directory: Path) -> nn.Module:
        model = super().load_exported(directory)
        config_of(model).use_cache = False
        return model

    def batch(self, columns: dict[str, np.ndarray], device: torch.device) -> Batch:
        """Rows of a dataset as `input_ids`, `position_ids`, `targets`, and `OFFSETS` of their documents.

        A target is the token that follows, or -100 where that is not scored. What stands behind the last target of all
        rows is cut off: in a causal model nothing depends on it. Packed rows, which have little there, keep their
        length, so that all batches have the same one.
        """
        scored, width = _scored(columns), self.sequence_length
        if not self.has_one_shape:
            width = trimmed_length(int(np.flatnonzero(scored.any(axis=0)).max(initial=0)) + 1, width)
        tokens = columns["input_ids"][:, :width].astype(np.int64)
        targets = np.full_like(tokens, NOT_SCORED)
        targets[:, :-1] = np.where(scored[:, 1:width], tokens[:, 1:], NOT_SCORED)
        positions = columns["position_ids"][:, :width].astype(np.int64)
        arrays = {"input_ids": tokens, "position_ids": positions, "targets": targets, OFFSETS: offsets_of(positions)}
        return {name: on_device(array, device) for name, array in arrays.items()}

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy of the scored tokens, in nats, plus the router's loss if the configuration has one."""
        targets, smoothing = batch["targets"], self.smoothing_of(model)
        scored = in_chunks(model, lambda: self._outputs(model, batch), targets, smoothing)
        if scored is None:
            outputs = self._outputs(model, batch)
            loss = mean_of_scored(outputs.logits.float(), targets, smoothing)
        else:
            outputs, loss = scored.outputs, scored.mean(targets)
        router = router_loss(model, outputs)
        # An empty batch weighs nothing.
        return loss if router is None else loss + router * (targets != NOT_SCORED).any()

    def loss_tokens(self, columns: Mapping[str, Any]) -> int:
        """Number of tokens that are scored."""
        return int(np.count_nonzero(_scored(columns)))

    def predict(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Float32 of shape (rows, 3): sum of the losses of a row in nats, scored tokens, those predicted right."""
        scored, found = batch["targets"] != NOT_SCORED, self._of_tokens(model, batch, tells=True)
        right = found.right & scored
        return torch.stack([found.losses.sum(1), scored.sum(1), right.sum(1)], dim=1).float()

    def _of_tokens(self, model: nn.Module, batch: Batch, *, tells: bool = False) -> Scored:
        """The loss of each token, 0 where it is not scored; if it `tells`, whether it is predicted right as well."""
        targets = batch["targets"]
        found = in_chunks(model, lambda: self._outputs(model, batch), targets, tells=tells, each=True)
        if found is not None:
            return found
        outputs = self._outputs(model, batch)
        logits = outputs.logits.float()
        losses = nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=NOT_SCORED, reduction="none"
        )
        return Scored(outputs, losses.view_as(targets), logits.argmax(dim=-1) == targets if tells else None)

    def _outputs(self, model: nn.Module, batch: Batch) -> Any:
        documents = by_length(model, batch, self.attention)
        return model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False, **documents)

    def export(self, model: nn.Module, directory: Path) -> None:
        """Writes config.json, generation_config.json, model.safetensors and the tokenizer.

        What the chat template ends an answer with is named in generation_config.json: a base model that has learned
        from chats knows another end, and other programs would let it write on.
        """
        config = config_of(model)
        config.use_cache = True  # without it those who generate with the model would wait
        try:
            super().export(model, directory)
        finally:
            config.use_cache = False
        _add_ends(directory, ends_of_answers(BatchEncoder(directory)))


def _add_ends(directory: Path, ends: set[int]) -> None:
    """Names tokens that end what is written, besides those that the generation_config.json of a model has."""
    path = directory / "generation_config.json"
    if not path.is_file():
        return
    held = json.loads(path.read_text(encoding="utf-8"))
    named = held.get("eos_token_id")
    known = named if isinstance(named, list) else [] if named is None else [named]
    if missing := sorted(ends - set(known)):
        held["eos_token_id"] = [*known, *missing]
        # transformers would take config.json's own end instead.
        held.pop("_from_model_config", None)
        path.write_text(json.dumps(held, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _scored(columns: Mapping[str, Any]) -> np.ndarray:
    # The first token of a document has nothing to be predicted from but the document before it.
    return (np.asarray(columns["loss_mask"]) != 0) & (np.asarray(columns["position_ids"]) != 0)


def router_loss(model: nn.Module, outputs: Any) -> torch.Tensor | None:
    """The weighted loss of the router of experts; None if there is no router, or the configuration wants no loss.

    Source: Switch Transformer, https://arxiv.org/abs/2101.03961, equations 4 to 6.
    """
    router = getattr(outputs, "aux_loss", None)
    return None if router is None else config_of(model).router_aux_loss_coef * router


def _require_causal(name: str, model: nn.Module) -> None:
    """Tries two texts of one first token: what is said of it may not depend on those that follow.

    Raises:
        UserError: it does, as in encoders.
    """
    if not _are_same(model, [[0, 1, 2, 3, 4, 5], [0, 6, 6, 7, 8, 9]], slice(0, 1), SAME_SUMS):
        raise UserError(*sees_ahead(name))


def _require_documents_apart(name: str, model: nn.Module) -> None:
    """Tries two neighbours of a document: a model that knows no positions, or only one mask, would look at them.

    Raises:
        UserError: it does.
    """
    rows = [[0, 1, 2, 3, 4, 5], [6, 6, 7, 3, 4, 5]]
    if not takes_positions(model) or not _are_same(model, rows, slice(3, 6), SAME_LOGITS, [0, 1, 2, 0, 1, 2]):
        raise UserError(*crosses_documents(name))


def _are_same(
    model: nn.Module, rows: list[list[int]], places: slice, share: float, positions: list[int] | None = None
) -> bool:
    """Whether a model has the same logits for two rows.

    Args:
        model: of transformers. Of one without weights it is not known; the process that has them looks.
        rows: of tokens.
        places: where the logits are compared.
        share: of the largest that they may differ by, in fp32.
        positions: of the tokens of a row; left out, their numbers.
    """
    if next(model.parameters()).is_meta:
        return True
    tokens = torch.tensor(rows) % model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    given = {} if positions is None else {"position_ids": torch.tensor([positions] * len(rows))}
    training = model.training
    with torch.no_grad():
        logits = model.eval()(input_ids=tokens, use_cache=False, **given).logits[:, places]
    model.train(training)
    near = SAME_IN_BF16 if logits.dtype == torch.bfloat16 else share
    return bool((logits[0] - logits[1]).abs().max() <= near * logits.abs().max())
