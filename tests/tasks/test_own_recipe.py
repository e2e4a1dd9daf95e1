"""The example of docs/recipes.md works as it stands, and what is no recipe is refused with the reason."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from gpu_pipelines.artifacts.dataset import Dataset, Feature
from gpu_pipelines.artifacts.dataset_writer import DatasetWriter
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.building import build_model, load_recipe
from gpu_pipelines.tasks.image_classification.recipe import ImageClassification

DOCUMENT = Path(__file__).parents[2] / "docs/recipes.md"


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules can be imported, for the test alone."""
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def write_bright_and_dark(directory: Path) -> Dataset:
    generator = np.random.default_rng(0)
    with DatasetWriter(
        directory,
        task="image_classification",
        source="x",
        features={"image": Feature("uint8", (1, 8, 8)), "label": Feature("int32")},
        labels=["dark", "bright"],
        preprocessing={},
    ) as writer:
        for number in range(64):
            image = generator.integers(0, 128, (1, 8, 8)) + 100 * (number % 2)
            writer.add("train", str(number), {"image": image.astype(np.uint8), "label": number % 2})
        writer.finish()
    return Dataset(directory)


@pytest.mark.parametrize("rank", [0, 2])
def test_the_example_of_the_document_is_trained_and_exported(importable: Path, rank: int) -> None:
    code = re.search(r"```python\n(\"\"\"brightness\.py.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    (importable / "brightness.py").write_text(code[1], encoding="utf-8")
    dataset = write_bright_and_dark(importable / "data")
    recipe = load_recipe("brightness:BrightnessRecipe", "image_classification").for_dataset(dataset)
    torch.manual_seed(0)
    model = build_model(recipe, {"model": "grid-4", "lora_rank": rank, "lora_alpha": 4.0})
    columns = dataset.split("train").take(np.arange(64))
    batch = recipe.batch(columns, torch.device("cpu"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for _ in range(30):
        loss = recipe.loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = recipe.predict(model, batch).argmax(dim=1).numpy() == columns["label"]
    assert right.mean() > 0.95
    assert recipe.loss_tokens(columns) is None
    (importable / "out").mkdir()
    recipe.export(model, importable / "out")
    assert load_file(importable / "out/model.safetensors")
    assert json.loads((importable / "out/config.json").read_text())["id2label"] == {"0": "dark", "1": "bright"}
    with pytest.raises(UserError, match="grid-4 or grid-8"):
        recipe.build_model("grid-5")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:A", "cannot be imported"),
        ("flawed:Missing", "cannot be imported"),
        ("broken:A", "ZeroDivisionError"),
        ("flawed:Plain", "not a subclass"),
        ("flawed:number", "not a subclass"),
        ("flawed:Half", "does not define batch, build_model, export"),
        ("flawed:Old", "defines loss_terms, which is now named loss_tokens"),
    ],
)
def test_what_is_no_recipe_is_refused(importable: Path, path: str, message: str) -> None:
    (importable / "broken.py").write_text("1 / 0\n")
    (importable / "flawed.py").write_text(
        "from gpu_pipelines.tasks.recipe import Recipe\nnumber = 3\nclass Plain: pass\nclass Half(Recipe): pass\n"
        "from gpu_pipelines.tasks.image_classification.recipe import ImageClassification\n"
        "class Old(ImageClassification):\n    def loss_terms(self, columns): return 1\n"
    )
    with pytest.raises(UserError) as caught:
        load_recipe(path, "image_classification")
    assert message in str(caught.value)


def test_without_a_path_it_is_the_recipe_of_the_task() -> None:
    assert load_recipe("", "image_classification") is ImageClassification
