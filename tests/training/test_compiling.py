"""Which trainings are compiled where the user has not said, and what is said where PyTorch cannot compile."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SmallDatasets
from torch import nn
from trainings import train_here

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.building import load_recipe
from gpu_pipelines.training.model import compiling, placed_model
from gpu_pipelines.training.model.compiling import (
    MOST_KINDS,
    WORTH_SECONDS,
    compile_layer,
    compile_layers,
    compiles,
    not_compiled,
)
from gpu_pipelines.training.settings import TrainingSettings

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
    """Each is compiled for itself, and takes seconds."""
    kinds: list[nn.Module] = [nn.Linear(4, width) for width in range(1, MOST_KINDS + 2)]
    assert compiles("auto", kinds[:MOST_KINDS] * 3, True, LONG, PEAK)
    assert not compiles("auto", kinds, True, LONG, PEAK)
    assert not compiles("auto", [], True, LONG, PEAK), "a model as a whole took longer than its layers"


def test_layers_of_which_each_is_there_once_are_not() -> None:
    """As the stages of a Swin: to compile them is to compile the model."""
    stages: list[nn.Module] = [nn.Linear(4, width) for width in range(1, 5)]
    assert not compiles("auto", stages, True, LONG, PEAK)
    assert compiles("auto", [*stages, *stages], True, LONG, PEAK)


@pytest.mark.parametrize(("given", "taken"), [(True, "on"), (False, "off")])
def test_a_pipeline_that_an_earlier_version_compiled_gives_a_truth_value(given: Any, taken: str) -> None:
    assert TrainingSettings(compile_model=given).compile_model == taken


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
    shapes, has_one_shape = shapes_of(Path(datasets[data]), task)
    assert has_one_shape is one is (len(shapes) == 1)


def test_rows_of_one_document_each_have_many_shapes(tmp_path: Path) -> None:
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(f'{{"text": "{"so many words " * (n % 9 + 1)} {n}"}}\n' for n in range(60)))
    settings = PrepareSettings(task="causal_lm", source=str(source), sequence_length=64, packing=False)
    prepare_data(settings, tmp_path / "dataset")
    shapes, has_one_shape = shapes_of(tmp_path / "dataset", "causal_lm")
    assert len(shapes) > 1
    assert not has_one_shape


def shapes_of(place: Path, task: str) -> tuple[set[torch.Size], bool]:
    """Those of the batches of a row each, and whether the recipe says that they are one."""
    dataset = Dataset(place)
    recipe = load_recipe("", task).for_dataset(dataset)
    rows = dataset.split("train")
    name = "pixel_values" if task == "image_classification" else "input_ids"
    batches = [recipe.batch(rows.take(np.array([row])), torch.device("cpu")) for row in range(len(rows))]
    return {batch[name].shape for batch in batches}, recipe.has_one_shape


@pytest.mark.parametrize(("micro_batch_size", "one"), [(0, True), (4, True), (5, False)])
def test_pieces_of_a_batch_of_two_sizes_are_two_shapes(
    datasets: SmallDatasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, micro_batch_size: int, one: bool
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(placed_model, "compiles", lambda asked, layers, has_one_shape, *of: told.append(has_one_shape))
    settings = TrainingSettings(max_steps=1, global_batch_size=12, micro_batch_size=micro_batch_size)
    train_here(settings, datasets["images"], str(tmp_path))
    assert told == [one]


@pytest.fixture
def dynamo() -> Iterator[None]:
    """Dynamo without what this process has compiled, and afterwards as it was."""
    import torch._dynamo

    torch._dynamo.reset()
    logger = logging.getLogger("torch._dynamo.convert_frame")
    before = list(logger.filters)
    with torch._dynamo.config.patch(suppress_errors=False):
        yield
    logger.filters = before
    torch._dynamo.reset()


@pytest.fixture
def no_compiler(dynamo: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import torch._inductor.config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with torch._inductor.config.patch({"cpp.cxx": "/nowhere/g++"}):
        yield


def test_without_a_compiler_on_is_refused(no_compiler: None, numbers: Path, tmp_path: Path) -> None:
    settings = TrainingSettings(model="mlp-small", max_steps=2, global_batch_size=8, compile_model="on")
    with pytest.raises(UserError, match=r"cannot compile here: .*No working C\+\+ compiler") as refused:
        train_here(settings, numbers, str(tmp_path / "checkpoints"))
    assert "g++" in refused.value.remedy


def test_without_a_compiler_auto_says_so_in_a_line_and_goes_on(
    no_compiler: None, numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(placed_model, "compiles", lambda *of: True)  # as on a GPU
    settings = TrainingSettings(model="mlp-small", max_steps=2, global_batch_size=8)
    assert train_here(settings, numbers, str(tmp_path / "checkpoints"))
    printed = capfd.readouterr()
    assert [line for line in printed.out.splitlines() if "compil" in line] == [
        "warning: the layers run as they are, as PyTorch cannot compile here: "
        "InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: /nowhere/g++"
    ]
    assert "Traceback" not in printed.err


def test_what_auto_cannot_compile_runs_as_it_is_and_is_a_line(dynamo: None, capfd: pytest.CaptureFixture[str]) -> None:
    def backend(*of: object) -> None:
        raise RuntimeError("there is no such kernel\nand so on")

    compile_layers([], has_one_shape=True, must=False)
    for layer in (nn.GELU(), nn.Tanh()):
        compiled = torch.compile(layer, backend=backend)
        assert torch.equal(compiled(torch.ones(3)), layer(torch.ones(3)))
    printed = capfd.readouterr()
    (line,) = printed.out.splitlines()
    assert line.startswith("warning: what cannot be compiled runs as it is: ")
    assert line.endswith("there is no such kernel")
    assert not printed.err


def test_a_layer_that_on_cannot_compile_is_a_line(
    no_compiler: None, numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "why_not", lambda device: "")  # it fails at the layers alone
    settings = TrainingSettings(model="mlp-small", max_steps=2, global_batch_size=8, compile_model="on")
    with pytest.raises(RuntimeError) as failed:
        train_here(settings, numbers, str(tmp_path / "checkpoints"))
    told = not_compiled(failed.value)
    assert told is not None
    assert str(told).startswith("PyTorch cannot compile the model's layers: InvalidCxxCompiler: No working C++")
    assert "compile_model=off" in told.remedy
    assert not_compiled(RuntimeError("of something else")) is None


class OwnLayer(nn.Linear):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows).relu()


@pytest.mark.parametrize(
    "layer",
    [nn.TransformerEncoderLayer(8, 2, 8), nn.Sequential(nn.Linear(8, 8), nn.GELU()), OwnLayer(8, 8)],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_of_pytorch_are_compiled_as_others_are(no_compiler: None, layer: nn.Module) -> None:
    compile_layer(layer)
    with pytest.raises(RuntimeError, match="No working C"):
        layer(torch.ones(2, 8))


def test_a_validation_compiles_nothing(
    dynamo: None, numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last batch is smaller: what is compiled after it, as in a training that continues, would be of any size."""
    compiled: list[bool] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        compiled.append(torch.is_grad_enabled())
        return graph.forward

    def compile_with(layer: nn.Module, **how: object) -> None:
        layer.forward = torch.compile(layer.forward, backend=backend)

    monkeypatch.setattr(compiling, "why_not", lambda device: "")
    monkeypatch.setattr(compiling, "compile_layer", compile_with)
    settings = TrainingSettings(
        model="mlp-small", max_steps=4, checkpoint_every_steps=2, global_batch_size=12, compile_model="on"
    )
    assert train_here(settings, numbers, str(tmp_path))
    assert compiled == [True]
