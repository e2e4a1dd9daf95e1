"""The optimizers of a training, and which weights each changes and decays."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adafactor, AdamW, Muon, Optimizer

from gpu_pipelines.tasks.checkpoint_state import without_wrappers
from gpu_pipelines.training.model.outer_layers import table_and_head
from gpu_pipelines.training.optimization.adamw_8bit import AdamW8bit, is_held_in_8_bits
from gpu_pipelines.training.settings import TrainingSettings

#: Tables that are added to activations rather than multiplied with them: like biases, they are not decayed. The names
#: are those of transformers' and timm's models. Source of the rule: timm, `no_weight_decay` of its models.
_ADDED = re.compile(
    r"(^|[._])(\w*position\w*|pos_embed\w*|wpe|cls_token|mask_token|distillation_token|class_embedding)\b"
)

Groups = list[dict[str, Any]]
Weights = list[tuple[str, nn.Parameter]]
Scales = Mapping[str, float]
#: The entry of a group of weights that says by what the learning rate is multiplied for it; without one, by 1.
SCALE = "lr_scale"


def make_optimizers(model: nn.Module, settings: TrainingSettings, scales: Scales | None = None) -> list[Optimizer]:
    """The optimizers of a training: one, or two if one is only for some weights.

    Args:
        model: its weights are where they are trained.
        settings: `optimizer`, its learning rate, weight decay and momentum.
        scales: by what the learning rate of each weight is multiplied, by its name; None for 1 everywhere. Groups of
            weights have it as `SCALE`.
    """
    weights = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    return _MAKE[settings.optimizer](model, weights, settings, scales or {})


def is_decayed(name: str, weight: torch.Tensor) -> bool:
    """Whether weight decay falls on a weight: on matrices, but not on biases, norms, positions and class tokens.

    Args:
        name: from `named_parameters`.
        weight: only its shape counts.
    """
    return weight.ndim >= 2 and not _ADDED.search(name)


def _groups(weights: Weights, decay: float, scales: Scales) -> Groups:
    decayed = [(name, weight) for name, weight in weights if is_decayed(name, weight)]
    others = [(name, weight) for name, weight in weights if not is_decayed(name, weight)]
    return [*_by_scale(decayed, decay, scales), *_by_scale(others, 0.0, scales)]


def _by_scale(weights: Weights, decay: float, scales: Scales) -> Groups:
    """A group of the weights of each scale; without scales, one of all of them."""
    found: dict[float | None, dict[str, Any]] = {}
    for name, weight in weights:
        scale = scales[without_wrappers(name)] if scales else None
        said = {} if scale is None else {SCALE: scale}
        found.setdefault(scale, {"params": [], "weight_decay": decay, **said})["params"].append(weight)
    return list(found.values())


def _adamw(model: nn.Module, weights: Weights, settings: TrainingSettings, scales: Scales) -> list[Optimizer]:
    """Loshchilov and Hutter, https://arxiv.org/abs/1711.05101; fused into one kernel."""
    groups = _groups(weights, settings.weight_decay, scales)
    return [AdamW(groups, lr=settings.learning_rate, fused=True)] if groups else []


def _adamw_8bit(model: nn.Module, weights: Weights, settings: TrainingSettings, scales: Scales) -> list[Optimizer]:
    """With moments in eight bits, but for embeddings and for weights that are small or of other widths.

    The rows of embeddings get gradients so seldom that their moments need more bits, as transformers' Trainer has it.
    """
    tables = {id(weight) for each in model.modules() if isinstance(each, nn.Embedding) for weight in each.parameters()}
    in_8_bits = [(n, w) for n, w in weights if is_held_in_8_bits(w) and id(w) not in tables]
    chosen = {id(weight) for _, weight in in_8_bits}
    others = [(name, weight) for name, weight in weights if id(weight) not in chosen]
    groups = _groups(in_8_bits, settings.weight_decay, scales)
    made: list[Optimizer] = [AdamW8bit(groups, lr=settings.learning_rate)] if groups else []
    return [*made, *_adamw(model, others, settings, scales)]


def _sgd(model: nn.Module, weights: Weights, settings: TrainingSettings, scales: Scales) -> list[Optimizer]:
    """With momentum: Sutskever et al., https://proceedings.mlr.press/v28/sutskever13.html."""
    return [
        SGD(
            _groups(weights, settings.weight_decay, scales),
            lr=settings.learning_rate,
            momentum=settings.momentum,
            # PyTorch's fused kernel does not take sharded weights.
            fused=not any(isinstance(weight, DTensor) for _, weight in weights),
        )
    ]


def _adafactor(model: nn.Module, weights: Weights, settings: TrainingSettings, scales: Scales) -> list[Optimizer]:
    """Shazeer and Stern, https://arxiv.org/abs/1804.04235: of a matrix it keeps a row and a column."""
    return [Adafactor(_groups(weights, settings.weight_decay, scales), lr=settings.learning_rate)]


def _muon(model: nn.Module, weights: Weights, settings: TrainingSettings, scales: Scales) -> list[Optimizer]:
    """Jordan et al., https://kellerjordan.github.io/posts/muon/: for the matrices of hidden layers; AdamW for the rest.

    Its updates are scaled to the size of AdamW's, so that one learning rate serves for both.
    Source: Liu et al., https://arxiv.org/abs/2502.16982, section 2.2.
    """
    outer = {id(weight) for module in _outer_layers(model) for weight in module.parameters()}
    hidden = [(n, w) for n, w in weights if w.ndim == 2 and is_decayed(n, w) and id(w) not in outer]
    chosen = {id(weight) for _, weight in hidden}
    others = [(name, weight) for name, weight in weights if id(weight) not in chosen]
    muon = (
        Muon(
            _by_scale(hidden, settings.weight_decay, scales),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            momentum=settings.momentum,
            adjust_lr_fn="match_rms_adamw",
        )
        if hidden
        else None
    )
    return [*([muon] if muon else []), *_adamw(model, others, settings, scales)]


def _outer_layers(model: nn.Module) -> list[nn.Module]:
    """Embeddings, the last linear layer, and what a model of transformers says is its head."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    _, head = table_and_head(model)
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return [*embeddings, *linear[-1:], *([head] if head else [])]


_MAKE: dict[str, Callable[[nn.Module, Weights, TrainingSettings, Scales], list[Optimizer]]] = {
    "adamw": _adamw,
    "adamw_8bit": _adamw_8bit,
    "sgd": _sgd,
    "adafactor": _adafactor,
    "muon": _muon,
}
