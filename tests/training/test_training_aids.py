"""The aids to training: what each does to images, targets, weights and rates, and that all continue to the bit."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from started_training import tensors, weights_digest
from torch import nn
from trainings import entries, numbers_dataset, train_here

from gpu_pipelines.artifacts.checkpoint import MARKER
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.documents import sha256_of_tree
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.report import write_report
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.tasks.building import load_recipe
from gpu_pipelines.tasks.frozen import freeze
from gpu_pipelines.tasks.recipe import OTHER_LABEL, OTHER_SHARE
from gpu_pipelines.training.model.recomputing import recompute_activations
from gpu_pipelines.training.model.weight_average import WeightAverage
from gpu_pipelines.training.optimization.layer_rates import layer_scales
from gpu_pipelines.training.optimization.optimizer import SCALE, make_optimizers
from gpu_pipelines.training.rows.row_changes import RowChanges, adopt
from gpu_pipelines.training.settings import OFF, TrainingSettings
from gpu_pipelines.training.train import train_model

SETTINGS = TrainingSettings(
    model="vit-micro", max_steps=6, checkpoint_every_steps=3, global_batch_size=16, learning_rate=0.004, epochs=1,
    weight_decay=0.05,
)  # fmt: skip
ALL = {
    "augmentation": "randaugment",
    "mixup_alpha": 0.4,
    "cutmix_alpha": 1.0,
    "label_smoothing": 0.1,
    "ema_decay": 0.9,
    "freeze": "embeddings.patch_embeddings.*",
    "layer_decay": 0.75,
}
LAST = "step-00000006"


def rows(number: int = 16, size: int = 16, channels: int = 3) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (number, channels, size, size), dtype=np.uint8)
    return {"image": images, "label": generator.integers(0, 5, number, dtype=np.int32)}


def changed(step: int = 3, rank: int = 0, world: int = 1, size: int = 16, channels: int = 3, **aids: Any) -> dict:
    settings = TrainingSettings(global_batch_size=16, seed=7, **aids)
    columns, share = rows(size=size, channels=channels), 16 // world
    own = {name: values[rank * share : (rank + 1) * share].copy() for name, values in columns.items()}
    return RowChanges(settings, rank, world).of(own, step)


@pytest.mark.parametrize("size", [16, 96])
@pytest.mark.parametrize(
    "aids",
    [
        {"augmentation": "flip"},
        {"augmentation": "crop-flip"},
        {"augmentation": "randaugment"},
        {"mixup_alpha": 0.4},
        {"cutmix_alpha": 1.0},
        {"augmentation": "crop-flip", "mixup_alpha": 0.4, "cutmix_alpha": 1.0},
    ],
)
def test_images_change_by_seed_step_and_place_alone(aids: dict[str, Any], size: int) -> None:
    whole = changed(size=size, **aids)
    assert whole["image"].shape == rows(size=size)["image"].shape
    assert whole["image"].dtype == np.uint8
    halves = [changed(rank=rank, world=2, size=size, **aids) for rank in (0, 1)]
    for name, values in whole.items():
        np.testing.assert_array_equal(np.concatenate([half[name] for half in halves]), values)
    assert (whole["image"] != rows(size=size)["image"]).any()
    assert (whole["image"] != changed(step=4, size=size, **aids)["image"]).any(), "each epoch is another"


def test_a_flip_mirrors_about_half_of_the_images_and_leaves_the_others() -> None:
    before, after = rows()["image"], changed(augmentation="flip")["image"]
    same = [(a == b).all() for a, b in zip(before, after, strict=True)]
    mirrored = [(a[:, :, ::-1] == b).all() for a, b in zip(before, after, strict=True)]
    assert all(s != m for s, m in zip(same, mirrored, strict=True))
    assert 2 < sum(mirrored) < 14


def test_a_small_image_is_moved_by_at_most_an_eighth() -> None:
    ramp = {"image": np.tile(np.arange(16, dtype=np.uint8), (16, 1, 16, 1)), "label": np.zeros(16, np.int32)}
    made = RowChanges(TrainingSettings(global_batch_size=16, augmentation="crop-flip"), 0, 1).of(ramp, 0)["image"]
    middle = made[:, 0, 8, 7:9].astype(int)
    slopes = middle[:, 1] - middle[:, 0]
    assert set(slopes) == {-1, 1}, "mirrored or not, its pixels are those of the image"
    moved = np.where(slopes == 1, middle[:, 0] - 7, middle[:, 1] - 7)
    assert moved.min() < 0 < moved.max()
    assert np.abs(moved).max() <= 2


def test_a_grey_image_stays_grey() -> None:
    assert changed(augmentation="randaugment", channels=1)["image"].shape == (16, 1, 16, 16)


@pytest.mark.parametrize("aids", [{"mixup_alpha": 0.4}, {"cutmix_alpha": 1.0}])
def test_the_share_of_a_mixed_image_is_that_of_its_other_class(aids: dict[str, float]) -> None:
    before, after = rows(), changed(**aids)
    others = before["image"].reshape(8, 2, 3, 16, 16)[:, ::-1].reshape(16, 3, 16, 16).astype(float)
    np.testing.assert_array_equal(after[OTHER_LABEL], before["label"].reshape(8, 2)[:, ::-1].ravel())
    shares = after[OTHER_SHARE]
    np.testing.assert_array_equal(shares[::2], shares[1::2])
    assert ((shares >= 0) & (shares <= 1)).all()
    assert len(set(shares.tolist())) > 4
    if "mixup_alpha" in aids:
        share = shares[:, None, None, None]
        assert np.abs((1 - share) * before["image"] + share * others - after["image"]).max() <= 0.51
    else:
        from_other = (after["image"] == others).all(axis=1).mean(axis=(1, 2))
        np.testing.assert_allclose(from_other, shares, atol=0.01)


def test_a_mixed_batch_has_the_loss_of_soft_targets_and_smoothing_is_for_training_alone(photos: Path) -> None:
    dataset = Dataset(photos)
    recipe = load_recipe("", "image_classification").for_dataset(dataset)
    adopt(recipe, dataset, TrainingSettings(mixup_alpha=1.0, label_smoothing=0.2))
    torch.manual_seed(0)
    model, classes = recipe.build_model("vit-micro").train(), len(dataset.manifest.labels)
    columns = dataset.split("train").take(np.random.default_rng(0).permutation(len(dataset.split("train")))[:8])
    mixed = RowChanges(TrainingSettings(global_batch_size=8, mixup_alpha=1.0), 0, 1).of(columns, 0)
    batch = recipe.batch(mixed, torch.device("cpu"))
    assert (batch["labels"] != batch[OTHER_LABEL]).any()
    hot = nn.functional.one_hot(torch.stack([batch["labels"], batch[OTHER_LABEL]]), classes).float()
    share = batch[OTHER_SHARE][:, None]
    soft = (1 - share) * hot[0] + share * hot[1]
    for training, smoothing in ((True, 0.2), (False, 0.0)):
        model.train(training)
        logits = model(pixel_values=batch["pixel_values"]).logits
        expected = nn.functional.cross_entropy(logits, (1 - smoothing) * soft + smoothing / classes)
        torch.testing.assert_close(recipe.loss(model, batch), expected)


@pytest.mark.parametrize(
    ("task", "aids", "says"),
    [
        ("regression", {"label_smoothing": 0.1}, "label_smoothing is 0.1, which is for tasks that predict classes"),
        ("text_classification", {"augmentation": "flip"}, "augmentation is 'flip', which changes images"),
        ("causal_lm", {"mixup_alpha": 0.1}, "mixup_alpha is 0.1, which mixes images"),
        ("image_classification", {"cutmix_alpha": -1.0}, "cutmix_alpha is -1.0; give 0 to 100"),
        ("image_classification", {"label_smoothing": 1.0}, "label_smoothing is 1.0; give at least 0 and less than 1"),
        ("image_classification", {"ema_decay": 1.0}, "ema_decay is 1.0; give at least 0 and less than 1"),
        ("image_classification", {"layer_decay": 1.5}, "layer_decay is 1.5; give 0 to 1"),
        ("image_classification", {"augmentation": "flipp"}, "Did you mean 'flip'"),
        ("image_classification", {"freeze": "a.*", "lora_rank": 4}, "adapters freeze the model anyway"),
    ],
)
def test_an_aid_that_means_nothing_is_refused(task: str, aids: dict[str, Any], says: str) -> None:
    (problem, *_) = TrainingSettings(model="org/name", **aids).problems(task)
    assert says in problem


@pytest.mark.parametrize("changes", [{"freeze": "embeddings.*, layers.[0-1].*"}, {"lora_rank": 2}])
def test_what_is_frozen_is_in_no_checkpoint_where_activations_are_recomputed_either(
    photos: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    settings = replace(SETTINGS, max_steps=2, checkpoint_every_steps=1, **changes)
    train_here(settings, photos, str(tmp_path))
    held = tensors(tmp_path / "step-00000001").keys()
    (tmp_path / "step-00000002" / "checkpoint.json").unlink()
    train_here(replace(settings, activation_checkpointing=True), photos, str(tmp_path))
    assert tensors(tmp_path / "step-00000002").keys() == held
    base = {"model.vit.layers.0.mlp.fc1.weight", "model.vit.layers.0.attention.q_proj.base_layer.weight"}
    assert not base & held


def test_pairs_are_not_torn_apart_by_processes() -> None:
    settings = TrainingSettings(global_batch_size=12, mixup_alpha=0.2)
    assert not settings.problems_on(2)
    assert "an odd number of images" in settings.problems_on(4)[0]


def test_a_recipe_that_does_not_go_by_an_aid_is_refused(tmp_path: Path) -> None:
    settings = replace(SETTINGS, model="linear", label_smoothing=0.1)
    dataset = numbers_dataset(tmp_path)
    with pytest.raises(UserError, match=r"label_smoothing is 0\.1, which the recipe Regression does not use"):
        train_here(settings, dataset, str(tmp_path / "checkpoints"))
    with pytest.raises(UserError, match="change images, and the dataset"):
        train_here(replace(settings, label_smoothing=0.0, augmentation="flip"), dataset, str(tmp_path / "checkpoints"))


def test_aids_that_are_off_leave_the_checkpoints_of_before_valid() -> None:
    settings = TrainingSettings(learning_rate=0.1, epochs=1, weight_decay=0)
    assert settings.configuration_hash() == replace(settings, **OFF).configuration_hash()
    for name, value in ALL.items():
        assert replace(settings, **{name: value}).configuration_hash() != settings.configuration_hash(), name
    before = {name: value for name, value in settings.shaping().items() if name not in OFF}
    assert settings.configuration_hash() == hashlib.sha256(json.dumps(before, sort_keys=True).encode()).hexdigest()


def test_a_pattern_freezes_the_weights_that_it_names_with_or_without_the_backbone(photos: Path) -> None:
    recipe = load_recipe("", "image_classification").for_dataset(Dataset(photos))
    model = recipe.build_model("vit-micro")
    freeze(model, "embeddings.*, vit.layers.[0-1].*")
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if "embeddings" in name or _number(name) in (0, 1)}
    with pytest.raises(UserError, match=r"freeze names 'encodr\.\*', but no weight of the model has such a name"):
        freeze(recipe.build_model("vit-micro"), "encodr.*")
    with pytest.raises(UserError, match="which are all weights of the model"):
        freeze(recipe.build_model("vit-micro"), "classifier.*,*")


def _number(name: str) -> int | None:
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adafactor", "muon"])
def test_the_rate_of_a_layer_is_a_share_of_that_of_the_one_above(photos: Path, optimizer: str) -> None:
    recipe = load_recipe("", "image_classification").for_dataset(Dataset(photos))
    model = recipe.build_model("vit-micro")
    scales = layer_scales(model, recipe.blocks(model), 0.5)
    for name, scale in scales.items():
        number = _number(name)
        depth = 0 if "embeddings" in name else 5 if number is None else number + 1
        assert scale == 0.5 ** (5 - depth), name
    names = {id(weight): name for name, weight in model.named_parameters()}
    groups = [
        group
        for each in make_optimizers(model, TrainingSettings(optimizer=optimizer, weight_decay=0.1), scales)
        for group in each.param_groups
    ]
    found = {names[id(weight)]: group[SCALE] for group in groups for weight in group["params"]}
    assert found == scales
    with pytest.raises(UserError, match="Linear has no repeated layers with weights of their own"):
        layer_scales(nn.Linear(2, 2), [], 0.5)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adafactor", "muon"])
def test_lower_layers_move_less(photos: Path, tmp_path: Path, optimizer: str) -> None:
    """With a share of almost 0, all but the head stays where it was."""
    settings = replace(SETTINGS, optimizer=optimizer, layer_decay=1e-6, weight_decay=0.0, activation_checkpointing=True)
    train_here(replace(settings, max_steps=2, checkpoint_every_steps=1), photos, str(tmp_path))
    before, after = (tensors(tmp_path / f"step-0000000{step}") for step in (1, 2))
    moved = {name: float((after[name] - before[name]).abs().max()) for name in after if name.startswith("model.")}
    assert moved["model.classifier.weight"] > 1e-5
    below = [value for name, value in moved.items() if _number(name) is not None or "embeddings" in name]
    assert max(below) < 1e-3 * moved["model.classifier.weight"]


def test_an_average_follows_the_weights_and_is_not_one_of_frozen_ones(photos: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, max_steps=3, checkpoint_every_steps=1, ema_decay=0.2, freeze="embeddings.*")
    train_here(settings, photos, str(tmp_path))
    held = [tensors(tmp_path / f"step-0000000{step}") for step in (1, 2, 3)]
    names = [name.removeprefix("ema.") for name in held[0] if name.startswith("ema.")]
    assert names
    assert not any("embeddings" in name for name in names)
    for before, after, steps in ((held[0], held[1], 1), (held[1], held[2], 2)):
        stays = min(0.2, (1 + steps) / (10 + steps))
        for name in names:
            expected = stays * before[f"ema.{name}"] + (1 - stays) * after[f"model.{name}"]
            np.testing.assert_allclose(after[f"ema.{name}"], expected, rtol=1e-4, atol=1e-6)


def test_averages_of_statistics_in_recomputed_layers_are_those_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of shards, any process may write them."""
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.BatchNorm1d(4))
    recompute_activations(model, [model[0]])
    average, sent = WeightAverage(model, 0.9), []
    monkeypatch.setattr(dist, "broadcast", lambda tensor, src: sent.append(tensor.data_ptr()))
    average.take_statistics_of_rank_0()
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    assert sent == [average.tensors[f"{norm}.{name}"].data_ptr() for norm in ("0.1", "1") for name in statistics]


def test_an_average_is_evaluated_beside_its_checkpoint_and_exported_where_it_is_better(tmp_path: Path) -> None:
    numbers = numbers_dataset(tmp_path)
    settings = replace(SETTINGS, model="linear", max_steps=4, checkpoint_every_steps=2, ema_decay=0.5)
    trained = tmp_path / "trained"
    train_here(settings, numbers, str(trained))
    last = trained / "step-00000004"
    held = {name: value for name, value in tensors(last).items() if name.startswith(("model.", "ema."))}
    for name in list(held):  # the weights alone become worse
        if name.startswith("model."):
            held[name] = held[name] + 100.0
    save_file(held, next(last.glob("*-model-00001-of-*")), metadata={"format": "pt"})
    marker = json.loads((last / "checkpoint.json").read_text())
    (last / "checkpoint.json").write_text(json.dumps({**marker, "files": sha256_of_tree(last, leave_out=(MARKER,))}))
    asked = EvaluationSettings(registry=str(tmp_path / "registry"), model_name="mine", average_last=2)
    found = evaluate_checkpoints(asked, numbers, trained, tmp_path / "best", processes=1)
    assert [(scored["name"], scored.get("ema", False)) for scored in found.checkpoints] == [
        ("step-00000002", False),
        ("step-00000002 (ema)", True),
        ("step-00000004", False),
        ("step-00000004 (ema)", True),
        ("average-of-last-2", False),
    ]
    assert found.checkpoints[-1]["averages"] == ["step-00000002", "step-00000004"]
    assert found.best == "step-00000004 (ema)"
    exported = load_file(tmp_path / "best" / "model.safetensors")
    averages = {name.removeprefix("ema."): values for name, values in held.items() if name.startswith("ema.")}
    assert exported.keys() == averages.keys()
    assert all(torch.equal(exported[name], averages[name]) for name in exported)
    write_report(found, numbers, tmp_path / "report.html")
    assert "(ema)" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("name", ["augmentation", "mixup_alpha", "cutmix_alpha", "label_smoothing"])
def test_an_aid_changes_what_is_trained_on_and_not_what_is_watched(photos: Path, tmp_path: Path, name: str) -> None:
    """With a rate of almost 0 the weights stay, so that the losses differ by rows and targets alone."""
    settings = replace(SETTINGS, learning_rate=1e-12, max_steps=1, checkpoint_every_steps=1)
    found = []
    for number, each in enumerate((settings, replace(settings, **{name: ALL[name]}))):
        train_here(each, photos, str(tmp_path / str(number)))
        found.append((entries(tmp_path / str(number), "loss"), entries(tmp_path / str(number), "val_loss")))
    assert abs(found[0][0][0] - found[1][0][0]) > 1e-4
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-6)


@pytest.mark.slow_but_for("adamw")
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_training_with_all_aids_learns_and_continues_to_the_bit(photos: Path, tmp_path: Path, optimizer: str) -> None:
    settings = replace(SETTINGS, optimizer=optimizer, **ALL)
    train_here(settings, photos, str(tmp_path))
    whole, losses = weights_digest(tmp_path / LAST), entries(tmp_path, "loss")
    (tmp_path / LAST / "checkpoint.json").unlink()
    train_here(settings, photos, str(tmp_path))
    assert weights_digest(tmp_path / LAST) == whole
    assert entries(tmp_path, "loss") == losses
    assert losses[-1] < losses[0]
    with pytest.raises(UserError, match="with other parameters"):
        train_here(replace(settings, mixup_alpha=0.3), photos, str(tmp_path))


@pytest.mark.slow
def test_processes_train_on_the_same_images_and_shards_continue_to_the_bit(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {}
    for processes, parallelism in ((1, "ddp"), (2, "ddp"), (2, "fsdp")):
        monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", f"cpu:{processes}")
        settings, folder = replace(SETTINGS, **ALL, parallelism=parallelism), tmp_path / f"{parallelism}-{processes}"
        train_model(settings, photos, str(folder))
        losses[folder.name] = [*entries(folder, "loss"), *entries(folder, "val_loss")]
    assert losses["ddp-2"] == pytest.approx(losses["ddp-1"], rel=1e-4)
    assert losses["fsdp-2"] == pytest.approx(losses["ddp-1"], rel=1e-4)
    sharded = tmp_path / "fsdp-2"
    whole = weights_digest(sharded / LAST)
    (sharded / LAST / "checkpoint.json").unlink()
    train_model(settings, photos, str(sharded))
    assert weights_digest(sharded / LAST) == whole
