"""How large images become where nobody says it: as a pretrained model wants them, else by the images themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import CLIPImageProcessor, ViTConfig, ViTForImageClassification, ViTImageProcessor

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.dag.check import check
from gpu_pipelines.dag.request import Request
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.watch import WatchSettings, check_for_new_data
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.image_classification.recipe import ImageClassification


def write_images(folder: Path, side: int, mode: str = "RGB") -> Path:
    generator = np.random.default_rng(0)
    for label in ("dark", "light"):
        (folder / label).mkdir(parents=True)
        for number in range(12):
            pixels = generator.integers(0, 256, (side, side * 3 // 2, 3), dtype=np.uint8)
            Image.fromarray(pixels).convert(mode).save(folder / label / f"{number}.png")
    return folder


def write_model(directory: Path, processor: Any = None, size: int = 48) -> Path:
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ViTForImageClassification(ViTConfig(image_size=size, patch_size=16, **shape)).save_pretrained(directory)
    if processor:
        processor.save_pretrained(directory)
    return directory


def prepared(tmp_path: Path, side: int = 60, mode: str = "RGB", **given: Any) -> Dataset:
    source = write_images(tmp_path / "source", side, mode)
    shares = {"val_fraction": 0.2, "test_fraction": 0.2}
    prepare_data(PrepareSettings(source=str(source), **shares, **given), tmp_path / "data")
    return Dataset(tmp_path / "data")


def test_images_become_as_large_as_the_preprocessor_of_a_pretrained_model_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    processor = ViTImageProcessor(size={"height": 48, "width": 48}, resample=3)
    model = write_model(tmp_path / "model", processor)
    dataset = prepared(tmp_path, image_processor=str(model))
    assert dataset.manifest.features["image"].shape == (3, 48, 48)
    assert dataset.manifest.preprocessing["resample"] == 3
    assert (
        "images become 48 × 48 pixels, in colour; half of their shorter sides have 60 pixels" in capsys.readouterr().out
    )
    recipe = ImageClassification.for_dataset(dataset)
    out = tmp_path / "out"
    recipe.export(recipe.build_model(str(model)), out)
    assert ViTImageProcessor.from_pretrained(out).size.height == 48
    assert ViTImageProcessor.from_pretrained(out).resample == 3


def test_the_middle_is_cut_out_where_the_preprocessor_does_that(tmp_path: Path) -> None:
    processor = CLIPImageProcessor(size={"shortest_edge": 54}, crop_size={"height": 48, "width": 48})
    dataset = prepared(tmp_path, image_processor=str(write_model(tmp_path / "model", processor)))
    said = dataset.manifest.preprocessing
    assert (said["size"], said["crop_size"]) == ({"shortest_edge": 54}, {"height": 48, "width": 48})
    image = next(iter((tmp_path / "source").rglob("*.png")))
    theirs = processor(Image.open(image), return_tensors="np", do_normalize=False)["pixel_values"][0] * 255
    rows = [split.take(np.arange(len(split)))["image"] for split in map(dataset.split, ("train", "val", "test"))]
    assert min(np.abs(row - theirs).mean() for row in np.concatenate(rows)) < 0.5


def test_without_a_preprocessor_the_configuration_of_the_model_says_the_size(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", size=32)
    assert prepared(tmp_path, image_processor=str(model)).manifest.features["image"].shape == (3, 32, 32)


def test_a_size_that_is_given_wins_and_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", size=32)
    given = prepared(tmp_path, image_processor=str(model), image_size=16)
    assert given.manifest.features["image"].shape == (3, 16, 16)
    with pytest.raises(UserError, match=r"which has no preprocessor_config\.json and no config\.json"):
        prepared(tmp_path / "other", image_processor=str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("side", "size", "warns"), [(60, 64, False), (200, 200, False), (400, 224, False), (600, 224, True)]
)
def test_without_a_model_the_images_say_it_and_a_warning_tells_what_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], side: int, size: int, warns: bool
) -> None:
    assert prepared(tmp_path, side, "L").manifest.features["image"].shape == (1, size, size)
    said = capsys.readouterr().out
    assert f"images become {size} × {size} pixels, grey; half of their shorter sides have {side} pixels or more" in said
    assert ("warning: images become" in said) is warns


def test_the_first_step_of_a_run_hands_a_pretrained_model_on_to_the_preparation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source, model = write_images(tmp_path / "source", 60), str(write_model(tmp_path / "model"))
    common = {"source": str(source), "task": "image_classification", "registry": "./registry", "model_name": "mine"}
    common |= {"model": model, "image_size": 0, "label_column": "label", "tokenizer": "train", "gates": []}

    def handed_on(changes: dict[str, Any], pipeline: str = "train_evaluate_upload", **advanced: Any) -> Any:
        found = check({**common, **changes}, Request(pipeline=pipeline), advanced)
        return found.parameters["prepare"].get("image_processor")

    assert handed_on({}) == model
    assert handed_on({}, image_processor="given/model") == "given/model"
    assert handed_on({"model": "vit-micro"}) is None
    (tmp_path / "model/model.safetensors").unlink()
    assert handed_on({}) is None, "a configuration alone is trained from scratch"


def test_a_pipeline_that_watches_data_prepares_images_for_the_champion_that_it_trains_on(tmp_path: Path) -> None:
    source, model = write_images(tmp_path / "source", 60), str(write_model(tmp_path / "model"))
    settings = WatchSettings(source=str(source), model=model, registry=str(tmp_path / "registry"))
    assert check_for_new_data(settings).image_processor == model
    other = WatchSettings(source=str(source), registry=str(tmp_path / "registry"))
    assert check_for_new_data(other).image_processor == ""


def test_a_training_on_images_of_another_size_than_the_model_knows_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import ConvNextImageProcessor, ResNetConfig, ResNetForImageClassification

    shape = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "layer_type": "basic"}
    ResNetForImageClassification(ResNetConfig(**shape)).save_pretrained(tmp_path / "model")
    ConvNextImageProcessor(size={"shortest_edge": 224}).save_pretrained(tmp_path / "model")
    dataset = prepared(tmp_path, image_size=32)
    ImageClassification.for_dataset(dataset).build_model(str(tmp_path / "model"))
    said = capsys.readouterr().out
    assert "was trained on images of 224 × 224 pixels, and those of the dataset have 32 × 32" in said
    assert f"image_processor={tmp_path / 'model'}" in said
