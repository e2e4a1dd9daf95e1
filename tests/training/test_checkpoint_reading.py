"""Continuing from a checkpoint in a bucket: what is read of it, and what is verified."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from slow_storage import counted_storage
from started_training import weights_digest
from trainings import train_here, train_on

from gpu_pipelines.artifacts import checkpoint_blocks
from gpu_pipelines.artifacts.checkpoint import complete_checkpoints
from gpu_pipelines.artifacts.checkpoint_blocks import Blocks, hashes_of
from gpu_pipelines.artifacts.copied_checkpoints import local_copy
from gpu_pipelines.artifacts.documents import sha256_of_file
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.training.settings import TrainingSettings

SETTINGS = TrainingSettings(model="mlp-small", max_steps=4, checkpoint_every_steps=2, global_batch_size=16)
TWO_BY_TWO = (2, 2)
train_in_blocks = partial(train_on, before="small_blocks:use_small_blocks")
HALF, LAST = "step-00000002", "step-00000004"


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """As many blocks as a large model has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_blocks, "BLOCK_BYTES", 512)
        yield


class Trained(dict[str, Path]):
    """What trainings on two nodes that were not interrupted leave, by how the model was placed; trained when asked for.

    Args:
        dataset: what they are trained on.
        folder: gets them.
    """

    def __init__(self, dataset: Path, folder: Path) -> None:
        super().__init__()
        self._dataset, self._folder = dataset, folder

    def __missing__(self, parallelism: str) -> Path:
        self[parallelism] = self._folder / parallelism
        train_in_blocks(TWO_BY_TWO, replace(SETTINGS, parallelism=parallelism), self._dataset, str(self[parallelism]))
        return self[parallelism]


@pytest.fixture(scope="module")
def trained(numbers: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(numbers, tmp_path_factory.mktemp("trained"))


def upload_cut_off(directory: Path, uri: str) -> RemoteFolder:
    """Uploads a training as if it had been killed before the marker of its last checkpoint."""
    return upload(directory, uri, leave_out=f"{LAST}/checkpoint.json")


def upload(directory: Path, uri: str, leave_out: str = "") -> RemoteFolder:
    files = [path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()]
    folder = RemoteFolder(uri)
    folder.upload(directory, [name for name in files if name != leave_out])
    return folder


def change(folder: RemoteFolder, name: str, place: int) -> None:
    """Changes one bit of a file; negative places count from its end."""
    content = bytearray(folder.read(name))
    content[place] ^= 1
    folder.write(name, bytes(content))


def without_blocks(folder: RemoteFolder, checkpoint: str) -> None:
    """Makes a marker what versions wrote that knew no blocks."""
    marker: dict[str, Any] = json.loads(folder.read(f"{checkpoint}/checkpoint.json"))
    assert marker.pop("blocks").keys() == marker["files"].keys()
    folder.write(f"{checkpoint}/checkpoint.json", json.dumps(marker).encode())


def bytes_of(checkpoint: Path) -> int:
    return sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", ["ddp", "hsdp", "fsdp"])
def test_all_nodes_together_read_a_checkpoint_once(
    trained: Trained, numbers: Path, bucket: str, tmp_path: Path, parallelism: str
) -> None:
    uri = f"{bucket}/once-{parallelism}"
    upload_cut_off(trained[parallelism], uri)
    with counted_storage() as read:
        logs = train_in_blocks(TWO_BY_TWO, replace(SETTINGS, parallelism=parallelism), numbers, uri)
    assert f"continuing from {HALF}" in logs[0]
    size = bytes_of(trained[parallelism] / HALF)
    fetched = sum(count for name, count in read.items() if f"/{HALF}/" in name and name.endswith(".safetensors"))
    assert 0.99 * size <= fetched <= 1.1 * size
    assert f"{HALF}: {fetched / 1e9:.3g} GB fetched and verified" in logs[0]
    assert digest_of_last(uri, tmp_path) == weights_digest(trained[parallelism] / LAST)


def digest_of_last(uri: str, scratch: Path) -> str:
    return weights_digest(local_copy(uri, scratch / "copy") / LAST)


@pytest.mark.slow
def test_another_number_of_processes_reads_ranges_of_the_files(trained: Trained, numbers: Path, bucket: str) -> None:
    uri = f"{bucket}/ranges"
    upload_cut_off(trained["fsdp"], uri)
    with counted_storage() as read:
        logs = train_in_blocks((2, 1), replace(SETTINGS, parallelism="fsdp"), numbers, uri)
    assert f"continuing from {HALF}" in logs[0]
    fetched = sum(count for name, count in read.items() if f"/{HALF}/" in name and name.endswith(".safetensors"))
    size = bytes_of(trained["fsdp"] / HALF)
    assert size <= fetched <= 1.1 * size
    one_file = next(count for name, count in read.items() if "shard-00004-model-00002" in name)
    assert one_file < 1.2 * (trained["fsdp"] / HALF / "shard-00004-model-00002-of-00002.safetensors").stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "place"),
    [("shard-00004-model-00001", -1), ("shard-00003-model-00002", -1), ("shard-00002-model-00002", 20)],
    ids=["weight", "moment", "header"],
)
def test_one_bit_that_one_process_alone_reads_makes_all_pass_over_the_checkpoint(
    trained: Trained, numbers: Path, bucket: str, tmp_path: Path, file: str, place: int
) -> None:
    uri = f"{bucket}/bit-{file}-{place}"
    folder = upload(trained["fsdp"], uri)
    change(folder, f"{LAST}/{file}-of-00002.safetensors", place)
    logs = train_in_blocks(TWO_BY_TWO, replace(SETTINGS, parallelism="fsdp"), numbers, uri)
    assert f"passing over {LAST}: {file}-of-00002.safetensors is damaged" in logs[0]
    assert f"continuing from {HALF}" in logs[0]
    assert digest_of_last(uri, tmp_path) == weights_digest(trained["fsdp"] / LAST)


@pytest.mark.slow
def test_a_file_that_is_gone_makes_all_pass_over_the_checkpoint(
    trained: Trained, numbers: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(trained["fsdp"], directory)
    (directory / LAST / "shard-00004-model-00001-of-00002.safetensors").unlink()
    logs = train_in_blocks(TWO_BY_TWO, replace(SETTINGS, parallelism="fsdp"), numbers, str(directory))
    assert f"passing over {LAST}: shard-00004-model-00001-of-00002.safetensors is missing" in logs[0]
    assert weights_digest(directory / LAST) == weights_digest(trained["fsdp"] / LAST)


@pytest.mark.slow
def test_a_checkpoint_without_hashes_of_blocks_is_read_and_verified_whole(
    trained: Trained, numbers: Path, bucket: str, tmp_path: Path
) -> None:
    uri = f"{bucket}/older"
    folder = upload(trained["fsdp"], uri)
    for checkpoint in (HALF, LAST):
        without_blocks(folder, checkpoint)
    change(folder, f"{LAST}/shard-00004-model-00001-of-00002.safetensors", -1)
    logs = train_in_blocks(TWO_BY_TWO, replace(SETTINGS, parallelism="fsdp"), numbers, uri)
    assert f"passing over {LAST}: shard-00004-model-00001-of-00002.safetensors is damaged" in logs[0]
    assert f"continuing from {HALF}" in logs[0]
    assert digest_of_last(uri, tmp_path) == weights_digest(trained["fsdp"] / LAST)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_where_no_checkpoint_is_good_the_training_begins_anew(numbers: Path, tmp_path: Path, optimizer: str) -> None:
    settings = replace(SETTINGS, max_steps=2, optimizer=optimizer)
    for name in ("whole", "damaged"):
        train_here(settings, numbers, str(tmp_path / name))
    (file,) = (tmp_path / "damaged" / HALF).glob("*-model-00002-*")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    train_here(settings, numbers, str(tmp_path / "damaged"))
    assert weights_digest(tmp_path / "damaged" / HALF) == weights_digest(tmp_path / "whole" / HALF)


@pytest.mark.parametrize(
    ("start", "end", "numbers"),
    [(100, 101, [1]), (100, 110, [1]), (109, 111, [1, 2]), (110, 120, [2]), (119, 125, [2, 3]), (105, 105, [])],
)
def test_the_blocks_that_hold_bytes(start: int, end: int, numbers: list[int]) -> None:
    blocks = Blocks(size=125, header=100, length=10, sha256=("",) * 4)
    assert list(blocks.covering(start, end)) == numbers
    spans = [blocks.span(number) for number in range(4)]
    assert spans == [(0, 100), (100, 110), (110, 120), (120, 125)]
    assert all(blocks.span(n)[0] < end and start < blocks.span(n)[1] for n in numbers)


@pytest.mark.slow
def test_a_marker_whose_blocks_do_not_fit_its_file_is_damaged(trained: Trained, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    shutil.copytree(trained["fsdp"], directory)
    place = directory / LAST / "checkpoint.json"
    marker = json.loads(place.read_text())
    next(iter(marker["blocks"].values()))["sha256"].pop()
    place.write_text(json.dumps(marker))
    assert [checkpoint.name for checkpoint in complete_checkpoints(directory)] == [HALF]
    file = next((directory / LAST).glob("*.safetensors"))
    assert hashes_of(file)[0] == sha256_of_file(file)
