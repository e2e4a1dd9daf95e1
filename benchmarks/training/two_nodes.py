"""Makes the processes of one machine shard a model like those of two nodes; imported as a recipe."""

from __future__ import annotations

import os

from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel

RECIPE = "two_nodes:Text"
NODES = 2


class Text(CausalLanguageModel):
    """Causal language modelling."""


# The training processes import it before they place the model.
if "LOCAL_WORLD_SIZE" in os.environ:
    os.environ["LOCAL_WORLD_SIZE"] = str(int(os.environ["WORLD_SIZE"]) // NODES)
