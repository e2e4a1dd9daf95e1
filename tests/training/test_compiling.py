"""Which trainings are compiled where the user has not said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SmallDatasets
from torch import nn

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.tasks.building import load_recipe
from gpu_pipelines.training.compiling import MOST_KINDS, WORTH_SECONDS, compiles

PEAK = 1e15
LONG, SHORT = 2 * WORTH_SECONDS * PEAK, WORTH_SECONDS * PEAK / 2
ALIKE: list[nn.Module] = [nn.Linear(4, 4) for _ in range(24)]


def test_long_trainings_on_gpus_are_compiled() -> None:
    assert compiles("auto", ALIKE, True, LONG, PEAK)
    assert not compiles("auto", ALIKE, True, SHORT, PEAK)
    assert not compiles("auto", ALIKE, True, LONG, None), "on CPUs, or on a GPU that the catalog does not know"


def test_batches_of_many_shapes_are_not() -> None:
    assert not compiles("auto", ALIKE, False, LONG, PEAK)


def test_layers_of_many_kinds_are_not() -> None:
    """Each is compiled for itself, and after so many PyTorch gives up."""
    kinds: list[nn.Module] = [nn.Linear(4, width) for width in range(1, MOST_KINDS + 2)]
    assert compiles("auto", kinds[:MOST_KINDS] * 3, True, LONG, PEAK)
    assert not compiles("auto", kinds, True, LONG, PEAK)
    assert not compiles("auto", [], True, LONG, PEAK), "a model as a whole took longer than its layers"


def test_what_was_asked_for_is_done() -> None:
    assert compiles("on", [], False, SHORT, None)
    assert not compiles("off", ALIKE, True, LONG, PEAK)


@pytest.mark.parametrize(
    ("task", "data", "one"),
    [
        ("image_classification", "images", True),
        ("causal_lm", "lm", True),
        ("text_classification", "texts", False),
    ],
)
def test_images_and_packed_rows_have_one_shape(datasets: SmallDatasets, task: str, data: str, one: bool) -> None:
    dataset = Dataset(Path(datasets[data]))
    recipe = load_recipe("", task).for_dataset(dataset)
    assert recipe.has_one_shape is one
    rows = dataset.split("train")
    batches = [recipe.batch(rows.take(np.arange(first, first + 4)), torch.device("cpu")) for first in (0, 4, 8)]
    name = "pixel_values" if task == "image_classification" else "input_ids"
    assert not one or len({batch[name].shape for batch in batches}) == 1
