"""Images as a model takes them: scaled as its own preprocessor says, in training, evaluation, serving and export."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AutoImageProcessor,
    BeitConfig,
    BeitForMaskedImageModeling,
    ConvNextConfig,
    ConvNextForImageClassification,
    Dinov2Config,
    Dinov2ForImageClassification,
    PvtConfig,
    PvtForImageClassification,
    SiglipConfig,
    SiglipModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    ViTModel,
    pipeline,
)

from gpu_pipelines.artifacts.image_features import ImageGeometry, decode
from gpu_pipelines.errors import UserError
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.image_classification import recipe as recipe_module
from gpu_pipelines.tasks.image_classification.predictor import ImageClassifier
from gpu_pipelines.tasks.image_classification.recipe import ImageClassification
from gpu_pipelines.tasks.image_preprocessor import geometry_for

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SIZE, LABELS = 16, ["ant", "bee", "cat"]
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def recipe_for(mode: str) -> ImageClassification:
    geometry = ImageGeometry(SIZE, mode)
    return ImageClassification(LABELS, geometry.preprocessing(), geometry.shape)


def rows(mode: str, number: int = 4) -> dict[str, np.ndarray]:
    shape = (number, 1 if mode == "L" else 3, SIZE, SIZE)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return {"image": images, "label": np.zeros(number, dtype=np.int32)}


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_gpus_get_the_same_rows_in_the_order_that_convolutions_are_fast_in(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = recipe_for(mode).batch(rows(mode), CPU)["pixel_values"]
    monkeypatch.setattr(recipe_module, "on_device", lambda array, device: torch.from_numpy(array))
    found = recipe_for(mode).batch(rows(mode), GPU)["pixel_values"]
    assert torch.equal(found, expected)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert expected.is_contiguous()


def pictures(columns: dict[str, np.ndarray]) -> list[Image.Image]:
    return [Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)) for image in columns["image"]]


def pretrained_model(directory: Path, channels: int = 3, **preprocessor: Any) -> Path:
    """A model of another program with its preprocessor, whose predictions depend strongly on the pixels."""
    torch.manual_seed(1)
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {name: n for n, name in enumerate(LABELS)}}
    model = ViTForImageClassification(ViTConfig(image_size=SIZE, patch_size=4, num_channels=channels, **SMALL, **names))
    with torch.no_grad():
        model.classifier.weight.mul_(20)
    model.save_pretrained(directory)
    if preprocessor:
        size = {"height": SIZE, "width": SIZE}
        ViTImageProcessor(size=size, **preprocessor).save_pretrained(directory)
    return directory


def probabilities(recipe: ImageClassification, model: Any, columns: dict[str, np.ndarray]) -> np.ndarray:
    with torch.no_grad():
        return recipe.predict(model.eval(), recipe.batch(columns, CPU)).numpy()


def as_transformers_predicts(directory: Path, images: list[Image.Image]) -> np.ndarray:
    classify = pipeline("image-classification", model=str(directory), device="cpu")
    found = [{each["label"]: each["score"] for each in classify(image, top_k=None)} for image in images]
    return np.array([[scores[label] for label in LABELS] for scores in found])


def as_served(directory: Path, images: list[Image.Image]) -> np.ndarray:
    predictor = ImageClassifier(directory, ServerSettings(), CPU)
    decoded = []
    for image in images:
        file = io.BytesIO()
        image.save(file, "PNG")
        pending = predictor.read({"b64": base64.b64encode(file.getvalue()).decode()}, len(LABELS))
        decoded.append(pending.row())
    return np.array([[found["scores"][label] for label in LABELS] for found in predictor.predict(decoded)])


SCALINGS = {
    "imagenet": {"image_mean": MEAN, "image_std": DEVIATION},
    "not normalised": {"do_normalize": False},
    "neither": {"do_normalize": False, "do_rescale": False},
    "0 to 2": {"rescale_factor": 2 / 255, "image_mean": MEAN, "image_std": DEVIATION},
}


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_a_pretrained_model_is_given_images_as_its_own_preprocessor_scales_them(
    tmp_path: Path, scaling: dict[str, Any]
) -> None:
    place = pretrained_model(tmp_path / "model", **scaling)
    recipe, columns = recipe_for("RGB"), rows("RGB")
    recipe.build_model(str(place))
    wanted = AutoImageProcessor.from_pretrained(place)(pictures(columns), return_tensors="pt")["pixel_values"]
    wanted = wanted.float()
    torch.testing.assert_close(recipe.batch(columns, CPU)["pixel_values"], wanted, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_an_exported_model_keeps_its_preprocessor_and_everyone_predicts_the_same(
    tmp_path: Path, scaling: dict[str, Any]
) -> None:
    recipe, columns = recipe_for("RGB"), rows("RGB")
    model = recipe.build_model(str(pretrained_model(tmp_path / "model", **scaling)))
    wanted = probabilities(recipe, model, columns)
    assert wanted.std(axis=0).max() > 0.02, "predictions have to depend on the pixels"
    out = tmp_path / "out"
    recipe.export(model, out)
    kept = json.loads((out / "preprocessor_config.json").read_text())
    assert {name: kept[name] for name in scaling} == scaling
    registered = ImageClassification.for_exported(out)
    found = {
        "registered": probabilities(registered, registered.load_exported(out), columns),
        "transformers": as_transformers_predicts(out, pictures(columns)),
        "served": as_served(out, pictures(columns)),
    }
    for who, scores in found.items():
        np.testing.assert_allclose(scores, wanted, atol=1e-5, err_msg=who)


def test_a_model_that_gave_several_classes_to_an_image_gives_one_to_everyone_once_it_is_exported(
    tmp_path: Path,
) -> None:
    place, recipe, columns = pretrained_model(tmp_path / "model"), recipe_for("RGB"), rows("RGB")
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "problem_type": "multi_label_classification"}))
    model = recipe.build_model(str(place))
    recipe.export(model, tmp_path / "out")
    found = as_transformers_predicts(tmp_path / "out", pictures(columns))
    np.testing.assert_allclose(found, probabilities(recipe, model, columns), atol=1e-5)


def test_units_of_sharding_are_layers_also_where_they_are_in_lists_of_lists() -> None:
    """As in a PVT, whose stages are lists; a list cannot be sharded or recomputed, as it has no forward pass."""
    config = PvtConfig(
        image_size=32, hidden_sizes=[8, 16], depths=[2, 1], num_attention_heads=[1, 1], num_encoder_blocks=2,
        patch_sizes=[4, 2], strides=[4, 2], sequence_reduction_ratios=[1, 1], mlp_ratios=[2, 2],
    )  # fmt: skip
    blocks = recipe_for("RGB").blocks(PvtForImageClassification(config))
    assert [type(block).__name__ for block in blocks] == 3 * ["PvtLayer"]


def vit_without_head(directory: Path) -> None:
    """As google/vit-base-patch16-224-in21k has it: the backbone alone, with its pooler."""
    ViTModel(ViTConfig(image_size=SIZE, patch_size=4, **SMALL)).save_pretrained(directory)


def siglip_of_images_and_texts(directory: Path) -> None:
    texts = {"vocab_size": 32, "max_position_embeddings": 8, "bos_token_id": 0, "eos_token_id": 1, **SMALL}
    images = {"image_size": SIZE, "patch_size": 4, **SMALL}
    SiglipModel(SiglipConfig(text_config=texts, vision_config=images)).save_pretrained(directory)


def beit_that_filled_in_patches(directory: Path) -> None:
    config = BeitConfig(image_size=SIZE, patch_size=4, vocab_size=16, use_mask_token=True, **SMALL)
    BeitForMaskedImageModeling(config).save_pretrained(directory)


@pytest.mark.parametrize(
    ("write", "key"),
    [
        (vit_without_head, "encoder.layer.0.intermediate.dense.weight"),
        (siglip_of_images_and_texts, "vision_model.encoder.layers.0.mlp.fc1.weight"),
        (beit_that_filled_in_patches, "beit.encoder.layer.0.intermediate.dense.weight"),
    ],
)
def test_what_only_another_kind_of_model_has_may_be_left_out_and_no_other_weight(
    tmp_path: Path, write: Callable[[Path], None], key: str
) -> None:
    write(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    model = recipe_for("RGB").build_model(str(tmp_path))
    wanted = weights[key]
    assert any(torch.equal(found, wanted) for found in model.parameters() if found.shape == wanted.shape)
    lacking = {name: value for name, value in weights.items() if name != key}
    for changed in (lacking, {**weights, key.replace(".0.", ".9."): wanted.clone()}):
        save_file(changed, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(UserError, match="do not fit its architecture"):
            recipe_for("RGB").build_model(str(tmp_path))


def test_a_model_of_images_and_texts_is_given_grey_images_in_three_channels_by_everyone(tmp_path: Path) -> None:
    siglip_of_images_and_texts(tmp_path / "model")
    recipe, columns = recipe_for("L"), rows("L")
    model: Any = recipe.build_model(str(tmp_path / "model"))
    with torch.no_grad():
        model.classifier.weight.mul_(20)
    wanted = probabilities(recipe, model, columns)
    assert wanted.std(axis=0).max() > 0.01, "predictions have to depend on the pixels"
    recipe.export(model, tmp_path / "out")
    np.testing.assert_allclose(as_transformers_predicts(tmp_path / "out", pictures(columns)), wanted, atol=1e-5)
    np.testing.assert_allclose(as_served(tmp_path / "out", pictures(columns)), wanted, atol=1e-5)


def test_a_model_from_scratch_is_given_the_bits_that_it_was_always_given() -> None:
    recipe, columns = recipe_for("RGB"), rows("RGB")
    recipe.build_model("vit-micro")
    always = torch.from_numpy(columns["image"]).float().div_(127.5).sub_(1.0)
    assert torch.equal(recipe.batch(columns, CPU)["pixel_values"], always)


def test_a_model_of_other_classes_gets_a_new_head_where_it_needs_one_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    geometry, before = ImageGeometry(SIZE, "RGB"), recipe_for("RGB")
    trained = before.build_model("vit-micro")
    before.export(trained, tmp_path)

    def begun(labels: list[str]) -> Any:
        return ImageClassification(labels, geometry.preprocessing(), geometry.shape).build_model(str(tmp_path))

    kept = begun(LABELS)
    assert torch.equal(kept.classifier.weight, trained.classifier.weight)
    assert not capsys.readouterr().out
    turned = begun(["bee", "CAT", "ant"])
    assert torch.equal(turned.classifier.weight, trained.classifier.weight[[1, 2, 0]])
    assert torch.equal(turned.classifier.bias, trained.classifier.bias[[1, 2, 0]])
    assert "has the classes of the data, and is put in their order" in capsys.readouterr().out
    new = begun(["x", "y"])
    assert new.classifier.weight.shape[0] == 2
    backbone = "vit.layers.3.mlp.fc1.weight"
    assert torch.equal(new.get_parameter(backbone), trained.get_parameter(backbone))
    assert "begun anew: classifier.bias, classifier.weight" in capsys.readouterr().out
    assert begun(["x", "y", "z"]).config.id2label == {0: "x", 1: "y", 2: "z"}
    assert "was trained for other classes: ant, bee, cat" in capsys.readouterr().out


def test_a_recipe_forgets_the_preprocessor_of_the_model_that_it_built_before(tmp_path: Path) -> None:
    recipe, columns = recipe_for("RGB"), rows("RGB")
    before = recipe.batch(columns, CPU)["pixel_values"]
    recipe.build_model(str(pretrained_model(tmp_path / "model", **SCALINGS["imagenet"])))
    assert not torch.equal(recipe.batch(columns, CPU)["pixel_values"], before)
    recipe.build_model("vit-micro")
    assert torch.equal(recipe.batch(columns, CPU)["pixel_values"], before)


@pytest.mark.parametrize("name", ["convnext-micro", "resnet-micro", "swin-micro", "vit-micro"])
def test_a_model_of_grey_images_predicts_the_same_in_transformers_for_grey_and_for_colour(
    tmp_path: Path, name: str
) -> None:
    torch.manual_seed(0)
    recipe, columns = recipe_for("L"), rows("L")
    model = recipe.build_model(name).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    wanted = probabilities(recipe, model, columns)
    assert wanted.std(axis=0).max() > 1e-3, "predictions have to depend on the pixels"
    recipe.export(model, tmp_path)
    grey, colour = pictures(columns), [image.convert("RGB") for image in pictures(columns)]
    assert {image.mode for image in (*grey, *colour)} == {"L", "RGB"}
    for images in (grey, colour):
        np.testing.assert_allclose(as_transformers_predicts(tmp_path, images), wanted, atol=1e-5)
        np.testing.assert_array_equal(as_served(tmp_path, images).astype(np.float32), wanted)
    registered = ImageClassification.for_exported(tmp_path)
    loaded = registered.load_exported(tmp_path)
    for (key, weight), same in zip(model.state_dict().items(), loaded.state_dict().values(), strict=True):
        assert torch.equal(weight, same), key
    np.testing.assert_array_equal(probabilities(registered, loaded, columns), wanted)
    np.testing.assert_array_equal(probabilities(recipe, model, columns), wanted, "the export left its mark")


def test_a_model_of_grey_images_looks_at_the_luma_of_colours(tmp_path: Path) -> None:
    torch.manual_seed(0)
    recipe, coloured = recipe_for("L"), pictures(rows("RGB"))
    model = recipe.build_model("vit-micro").eval()
    recipe.export(model, tmp_path)
    grey = {"image": np.stack([np.asarray(image.convert("L"))[None] for image in coloured])}
    wanted = probabilities(recipe, model, {**grey, "label": np.zeros(len(coloured), dtype=np.int32)})
    np.testing.assert_allclose(as_served(tmp_path, coloured), wanted, atol=1e-6)
    # transformers keeps the fractions of a level that Pillow rounds away.
    np.testing.assert_allclose(as_transformers_predicts(tmp_path, coloured), wanted, atol=1e-3)


def test_a_registered_model_of_grey_images_is_trained_on_from_the_same_place(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first, columns = recipe_for("L"), rows("L")
    model = first.build_model("vit-micro").eval()
    first.export(model, tmp_path / "one")
    second = recipe_for("L")
    again = second.build_model(str(tmp_path / "one"))
    np.testing.assert_array_equal(probabilities(second, again, columns), probabilities(first, model, columns))
    optimizer = torch.optim.SGD(again.parameters(), lr=0.1)
    second.loss(again.train(), second.batch(columns, CPU)).backward()
    optimizer.step()
    second.export(again, tmp_path / "two")
    wanted = probabilities(second, again, columns)
    np.testing.assert_allclose(as_transformers_predicts(tmp_path / "two", pictures(columns)), wanted, atol=1e-5)
    np.testing.assert_allclose(as_served(tmp_path / "two", pictures(columns)), wanted, atol=1e-5)


def test_a_model_of_colours_takes_grey_images_as_transformers_gives_them_to_it(tmp_path: Path) -> None:
    place = pretrained_model(tmp_path / "model", **SCALINGS["imagenet"])
    recipe, columns = recipe_for("L"), rows("L")
    model = recipe.build_model(str(place))
    wanted = AutoImageProcessor.from_pretrained(place)(
        [image.convert("RGB") for image in pictures(columns)], return_tensors="pt"
    )["pixel_values"]
    torch.testing.assert_close(recipe.batch(columns, CPU)["pixel_values"], wanted, atol=1e-5, rtol=1e-5)
    recipe.export(model, tmp_path / "out")
    found = probabilities(recipe, model, columns)
    np.testing.assert_allclose(as_transformers_predicts(tmp_path / "out", pictures(columns)), found, atol=1e-5)
    np.testing.assert_allclose(as_served(tmp_path / "out", pictures(columns)), found, atol=1e-5)


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1), ("L", 3)])
def test_a_model_of_a_script_without_a_preprocessor_is_exported_with_that_of_its_rows(
    tmp_path: Path, mode: str, channels: int
) -> None:
    torch.manual_seed(0)
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {name: n for n, name in enumerate(LABELS)}}
    config = ViTConfig(image_size=SIZE, patch_size=4, num_channels=channels, **SMALL, **names)
    model = ViTForImageClassification(config).eval()
    model.classifier.weight.data *= 20
    model.save_pretrained(tmp_path)
    recipe, _ = recipe_for(mode).taking_over(tmp_path, model)
    columns = rows(mode)
    wanted = probabilities(recipe, model, columns)
    recipe.complete(tmp_path)
    np.testing.assert_allclose(as_served(tmp_path, pictures(columns)), wanted, atol=1e-5)
    if channels == 3:  # transformers gives three to any model
        np.testing.assert_allclose(as_transformers_predicts(tmp_path, pictures(columns)), wanted, atol=1e-5)


def test_a_model_of_grey_images_as_earlier_versions_wrote_it_is_served_and_compared(tmp_path: Path) -> None:
    recipe, columns = recipe_for("L"), rows("L")
    model = recipe.build_model("vit-micro").eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(ImageGeometry(SIZE, "L").preprocessing()))
    wanted = probabilities(recipe, model, columns)
    np.testing.assert_allclose(as_served(tmp_path, pictures(columns)), wanted, atol=1e-6)
    registered = ImageClassification.for_exported(tmp_path)
    assert registered.image_shape == (1, SIZE, SIZE)
    np.testing.assert_allclose(
        probabilities(registered, registered.load_exported(tmp_path), columns), wanted, atol=1e-6
    )


def test_a_pretrained_model_of_grey_images_keeps_its_scaling(tmp_path: Path) -> None:
    place = pretrained_model(tmp_path / "model", channels=1, image_mean=[0.3], image_std=[0.2])
    recipe, columns = recipe_for("L"), rows("L")
    model = recipe.build_model(str(place)).eval()
    given = torch.from_numpy((columns["image"] / 255 - 0.3) / 0.2).float()
    torch.testing.assert_close(recipe.batch(columns, CPU)["pixel_values"], given, atol=1e-5, rtol=1e-5)
    wanted = probabilities(recipe, model, columns)
    recipe.export(model, tmp_path / "out")
    registered = ImageClassification.for_exported(tmp_path / "out")
    loaded = registered.load_exported(tmp_path / "out")
    np.testing.assert_allclose(probabilities(registered, loaded, columns), wanted, atol=1e-6)
    other, same = recipe_for("L").taking_over(tmp_path / "out", loaded)
    np.testing.assert_allclose(probabilities(other, same, columns), wanted, atol=1e-6)
    np.testing.assert_allclose(as_served(tmp_path / "out", pictures(columns)), wanted, atol=1e-6)
    np.testing.assert_allclose(as_transformers_predicts(tmp_path / "out", pictures(columns)), wanted, atol=1e-5)


def test_a_pretrained_model_of_grey_images_refuses_colours(tmp_path: Path) -> None:
    place = pretrained_model(tmp_path / "model", channels=1)
    with pytest.raises(UserError, match="takes images of 1 channels; those of the dataset have 3") as refused:
        recipe_for("RGB").build_model(str(place))
    assert "color_mode=L" in refused.value.remedy


GEOMETRIES = {
    "bicubic": ImageGeometry(SIZE, "RGB", resample=3),
    "middle": ImageGeometry(SIZE, "RGB", resample=3, resized=20, keeps_aspect=True),
    "squashed, then cut": ImageGeometry(SIZE, "RGB", resized=20),
}


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
@pytest.mark.parametrize("shape", [(40, 64), (50, 50), (64, 40)], ids=str)
def test_images_are_resized_and_cut_as_transformers_does_it(
    tmp_path: Path, geometry: ImageGeometry, shape: tuple[int, int]
) -> None:
    height, width = shape
    ramp = np.add.outer(np.arange(height) * 2, np.arange(width) * 1.5)
    picture = Image.fromarray(np.stack([ramp, ramp[::-1], 255 - ramp], -1).clip(0, 255).astype(np.uint8))
    file = io.BytesIO()
    picture.save(file, "PNG")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(geometry.preprocessing()))
    theirs = AutoImageProcessor.from_pretrained(tmp_path)(picture, return_tensors="np")["pixel_values"][0]
    assert np.abs(decode(file.getvalue(), geometry) - (theirs + 1) * 127.5).max() < 1.1


def test_a_picture_of_one_row_of_pixels_does_not_become_a_giant_one() -> None:
    file = io.BytesIO()
    Image.new("RGB", (60_000, 1)).save(file, "PNG")
    cut = ImageGeometry(SIZE, "RGB", resized=256, keeps_aspect=True)
    assert decode(file.getvalue(), cut).shape == (3, SIZE, SIZE)


def test_swin_says_how_large_its_images_have_to_be() -> None:
    def build(size: int) -> Any:
        return ImageClassification(LABELS, {}, (1, size, size)).build_model("swin-tiny")

    with pytest.raises(UserError, match=r"swin-tiny needs an image_size of at least 196; it is 8\."):
        build(8)
    with pytest.raises(UserError, match="at least 196; it is 192"):
        build(192)
    with torch.no_grad():
        assert build(198).eval()(pixel_values=torch.zeros(1, 1, 198, 198)).logits.shape == (1, len(LABELS))


_IMAGENET = {"image_mean": MEAN, "image_std": DEVIATION}
_CUT = {"size": {"shortest_edge": SIZE}, "do_center_crop": True, "crop_size": {"height": SIZE, "width": SIZE}}
#: Classes of transformers that read entries in a way of their own, in the form of models on the hub.
OWN_WAYS = {
    "DeiTImageProcessor": {"size": 20, "do_center_crop": True, "crop_size": SIZE, **_IMAGENET},
    "ConvNextImageProcessor": {"size": {"shortest_edge": SIZE}, "crop_pct": 0.8, **_IMAGENET},
    "EfficientNetImageProcessor": {"size": {"height": SIZE, "width": SIZE}, "include_top": True, **_IMAGENET},
    "LevitImageProcessor": {**_CUT, **_IMAGENET},
    "MobileViTImageProcessor": {**_CUT, "size": {"shortest_edge": 20}},
    "PoolFormerImageProcessor": {"size": SIZE, "crop_size": SIZE, "crop_pct": 0.7, **_IMAGENET},
}


@pytest.mark.parametrize("kind", OWN_WAYS)
def test_images_are_prepared_as_the_class_of_a_preprocessor_computes(tmp_path: Path, kind: str) -> None:
    place = pretrained_model(tmp_path / "model")
    said = {"image_processor_type": kind, "resample": 3, **OWN_WAYS[kind]}
    (place / "preprocessor_config.json").write_text(json.dumps(said))
    ramp = np.add.outer(np.arange(48) * 2, np.arange(64) * 2).clip(0, 255).astype(np.uint8)
    picture = Image.fromarray(np.stack([ramp, ramp[::-1], 255 - ramp], -1))
    wanted = as_transformers_predicts(place, [picture])
    np.testing.assert_allclose(as_served(place, [picture]), wanted, atol=2e-3)

    geometry = geometry_for(str(place), "RGB")
    assert geometry is not None
    recipe = ImageClassification(LABELS, geometry.preprocessing(), geometry.shape)
    recipe.export(recipe.build_model(str(place)), tmp_path / "out")
    np.testing.assert_allclose(as_served(tmp_path / "out", [picture]), wanted, atol=2e-3)
    np.testing.assert_allclose(as_transformers_predicts(tmp_path / "out", [picture]), wanted, atol=2e-3)


def test_a_mean_of_0_is_one(tmp_path: Path) -> None:
    place = pretrained_model(tmp_path / "model", image_mean=0.0, image_std=1.0)
    recipe, columns = recipe_for("RGB"), rows("RGB")
    recipe.build_model(str(place))
    wanted = torch.from_numpy(columns["image"]).float() / 255
    torch.testing.assert_close(recipe.batch(columns, CPU)["pixel_values"], wanted)


def test_what_is_cut_out_of_less_is_not_guessed(tmp_path: Path) -> None:
    place = pretrained_model(tmp_path / "model")
    said = {"image_processor_type": "CLIPImageProcessor", **_CUT, "size": {"shortest_edge": SIZE - 4}}
    (place / "preprocessor_config.json").write_text(json.dumps(said))
    assert geometry_for(str(place), "RGB") == ImageGeometry(SIZE, "RGB")  # as its config.json has it


OTHER_SIZE = 3 * SIZE
SMALL_CONVNEXT = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
OF_ANY_SIZE = {
    # As facebook/dinov2-base has it: 518 in its config.json, and 224 in its preprocessor_config.json.
    "dinov2": lambda: Dinov2ForImageClassification(Dinov2Config(image_size=OTHER_SIZE, patch_size=4, **SMALL)),
    "convnext": lambda: ConvNextForImageClassification(ConvNextConfig(image_size=OTHER_SIZE, **SMALL_CONVNEXT)),
}


@pytest.mark.parametrize("kind", OF_ANY_SIZE)
def test_a_model_that_takes_images_of_any_size_is_not_held_to_that_of_its_configuration(
    tmp_path: Path, kind: str
) -> None:
    torch.manual_seed(0)
    OF_ANY_SIZE[kind]().save_pretrained(tmp_path / "model")
    ViTImageProcessor(size={"height": SIZE, "width": SIZE}).save_pretrained(tmp_path / "model")
    recipe, columns = recipe_for("RGB"), rows("RGB")
    model: Any = recipe.build_model(str(tmp_path / "model"))
    with torch.no_grad():
        model.classifier.weight.mul_(20)
    wanted = probabilities(recipe, model, columns)
    assert wanted.std(axis=0).max() > 0.01, "predictions have to depend on the pixels"
    out = tmp_path / "out"
    recipe.export(model, out)
    np.testing.assert_allclose(as_transformers_predicts(out, pictures(columns)), wanted, atol=1e-5)
    np.testing.assert_allclose(as_served(out, pictures(columns)), wanted, atol=1e-5)
    # A script of one's own saves it with its preprocessor or without.
    for entry in ("preprocessor_config.json", None):
        other, same = recipe_for("RGB").taking_over(out, recipe.load_exported(out))
        np.testing.assert_allclose(probabilities(other, same, columns), wanted, atol=1e-5)
        if entry:
            (out / entry).unlink()


def test_a_model_of_one_size_refuses_images_of_another(tmp_path: Path) -> None:
    place = pretrained_model(tmp_path / "model")
    geometry = ImageGeometry(OTHER_SIZE, "RGB")
    with pytest.raises(UserError, match=f"takes images of {SIZE} × {SIZE} pixels") as refused:
        ImageClassification(LABELS, geometry.preprocessing(), geometry.shape).build_model(str(place))
    assert f"image_size={SIZE}" in refused.value.remedy
