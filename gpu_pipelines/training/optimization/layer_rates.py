"""Learning rates that fall from the head of a model to its embeddings, layer by layer."""

from __future__ import annotations

from torch import nn

from gpu_pipelines.tasks.recipe import require_blocks


def layer_scales(model: nn.Module, blocks: list[nn.Module], decay: float) -> dict[str, float]:
    """The factor of each weight's learning rate: decay to the power of its distance from the head.

    Weights before the first layer, such as embeddings, are one below it; weights after the last one, such as
    the head, are one above it and have the whole learning rate; weights between two layers belong to the first.
    Source: Bao et al., BEiT, https://arxiv.org/abs/2106.08254, after Clark et al., https://arxiv.org/abs/2003.10555.

    Args:
        model: as built, before it is placed.
        blocks: its layers, in the order in which they are called.
        decay: the share of the rate of the layer above; more than 0.

    Returns:
        The factor of each weight, by its name.

    Raises:
        UserError: the model has no layers, or shares one, as ALBERT does.
    """
    require_blocks(model, blocks, decay)
    number_of = {id(weight): number for number, block in enumerate(blocks, 1) for weight in block.parameters()}
    head, reached, scales = len(blocks) + 1, 0, {}
    for name, weight in model.named_parameters():
        number = number_of.get(id(weight))
        reached = reached if number is None else number
        at = reached if number is not None or reached < len(blocks) else head
        scales[name] = decay ** (head - at)
    return scales
