"""Datasets that keep the files of their images: the same pixels, the same weights, less space."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import storage_emulator
from PIL import ExifTags, Image
from started_training import weights_digest
from trainings import train_here

from gpu_pipelines.artifacts import dataset_writer
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.image_features import decode_all
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.data.images import prepare as images
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.training.settings import TrainingSettings

SIZE, PHOTOS = 32, 120
SETTINGS = TrainingSettings(model="vit-micro", max_steps=6, checkpoint_every_steps=3, global_batch_size=16)
LAST = "step-00000006"


def photo(number: int) -> Image.Image:
    """A smooth picture, which takes a few hundred bytes as JPEG; each tenth is noise, larger than its pixels."""
    generator = np.random.default_rng(number)
    if number % 10 == 0:
        return Image.fromarray(generator.integers(0, 256, (96, 80, 3)).astype(np.uint8))
    corners = generator.integers(0, 256, (2, 2, 3)).astype(np.uint8)
    return Image.fromarray(corners).resize((48, 40 + number % 3), Image.Resampling.BILINEAR)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for number in range(PHOTOS):
        place = folder / ("a", "b")[number % 2]
        place.mkdir(exist_ok=True)
        turned = Image.Exif()
        turned[ExifTags.Base.Orientation] = 1 + number % 8
        kind = ("jpg", "png", "webp")[number % 3]
        photo(number).save(place / f"{number:03d}.{kind}", quality=80, exif=turned)
    (folder / "a" / "broken.jpg").write_bytes((folder / "a" / "006.jpg").read_bytes()[:120])
    return folder


@pytest.fixture(scope="module")
def prepared(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same images in both forms, in shards of 16 rows."""
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset_writer, "SHARD_BYTES", 16 * (3 * SIZE * SIZE + 4))
        for form in ("pixels", "compressed"):
            prepare_data(settings_of(source, image_storage=form), folder / form)
    return {form: folder / form for form in ("pixels", "compressed")}


def settings_of(source: Path, **changes: Any) -> PrepareSettings:
    return PrepareSettings(source=str(source), image_size=SIZE, color_mode="RGB", max_rejected="1", **changes)


def bytes_of(dataset: Path) -> int:
    return sum(path.stat().st_size for path in dataset.rglob("*.arrow"))


def test_the_benchmark_ends_with_its_result() -> None:
    program = Path(__file__).parents[2] / "benchmarks" / "data_prep" / "compressed_images.py"
    command = [sys.executable, str(program), "--images", "40", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout.splitlines()[-1])) == {"benchmark", "machine", "results", "ratios"}


def test_rows_have_the_same_pixels_and_take_less_space(prepared: dict[str, Path]) -> None:
    pixels, files = (Dataset(prepared[form]) for form in ("pixels", "compressed"))
    assert bytes_of(files.directory) < bytes_of(pixels.directory) / 2
    assert files.manifest.rejected == pixels.manifest.rejected == {"unreadable image": 1}
    for split in ("train", "val", "test"):
        one, other = pixels.split(split), files.split(split)
        assert one.shard_rows == other.shard_rows
        rows = np.random.default_rng(0).permutation(len(one))
        assert one.sources(rows.tolist()) == other.sources(rows.tolist())
        for name in ("image", "label"):
            assert np.array_equal(one.take(rows)[name], other.take(rows)[name])
            assert np.array_equal(*(np.concatenate([c[name] for c in s.columns(1, len(s))]) for s in (one, other)))
        assert [set(columns) for columns in other.columns(0, 1, ["label"])] == [{"label"}]


def test_a_file_that_is_larger_than_its_pixels_is_kept_as_png(prepared: dict[str, Path], source: Path) -> None:
    split = Dataset(prepared["compressed"]).split("train")
    kept = [file for number in range(len(split.shard_rows)) for file in split._shard(number).arrays["image"][:]]
    sizes = {len(path.read_bytes()) for path in source.rglob("*.*")}
    again = [file for file in kept if len(file) not in sizes]
    assert 0 < len(again) <= PHOTOS // 10
    assert {Image.open(io.BytesIO(file)).size for file in again} == {(SIZE, SIZE)}
    assert max(map(len, kept)) < 1.1 * 3 * SIZE * SIZE


def test_a_training_ends_with_the_same_bits(prepared: dict[str, Path], tmp_path: Path) -> None:
    for form, dataset in prepared.items():
        assert train_here(SETTINGS, dataset, str(tmp_path / form))
    assert weights_digest(tmp_path / "compressed" / LAST) == weights_digest(tmp_path / "pixels" / LAST)


def test_streamed_files_need_no_more_disk_than_their_cache(prepared: dict[str, Path], tmp_path: Path) -> None:
    streamed = replace(SETTINGS, streaming="on", shuffle_shards=2)
    assert train_here(streamed, prepared["pixels"], str(tmp_path / "pixels"))
    with storage_emulator("images") as bucket:
        names = [path.relative_to(prepared["compressed"]).as_posix() for path in prepared["compressed"].rglob("*.*")]
        RemoteFolder(f"{bucket}/images").upload(prepared["compressed"], names)
        # Less than the pixels of four shards take, of about seven.
        bound = replace(streamed, cache_gb=bytes_of(prepared["pixels"]) / 3 / 1e9)
        assert train_here(bound, f"{bucket}/images", str(tmp_path / "compressed"))
    assert weights_digest(tmp_path / "compressed" / LAST) == weights_digest(tmp_path / "pixels" / LAST)


def test_auto_keeps_files_where_pixels_would_be_too_large(
    source: Path, prepared: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pixels = 3 * SIZE * SIZE * (PHOTOS + 1)
    for most, is_encoded in ((pixels, False), (pixels - 1, True)):
        monkeypatch.setattr(images, "MOST_PIXELS", most)
        prepare_data(settings_of(source), tmp_path / str(most))
        feature = json.loads((tmp_path / str(most) / "dataset.json").read_text())["features"]["image"]
        assert (feature["encoded"] is not None) == is_encoded
        assert ("images are kept compressed" in capsys.readouterr().out) == is_encoded


def test_a_wrong_storage_is_named(source: Path) -> None:
    problems = settings_of(source, image_storage="jpeg").problems()
    assert problems == ["image_storage is 'jpeg'; give one of auto, pixels, compressed."]


def test_a_file_that_cannot_be_decoded_is_told() -> None:
    geometry = {"size": 8, "mode": "RGB"}
    with pytest.raises(UserError, match="An image of the dataset cannot be decoded: the file is empty"):
        decode_all([b""], geometry)
