"""Trainings on data that stay in a bucket: shards come through a cache of a tenth of them, the weights are the same."""

from __future__ import annotations

import fcntl
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from started_training import run_training, weights_digest
from trainings import entries, numbers_dataset, train_here

from gpu_pipelines.artifacts import dataset_writer
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.large_dataset import dataset_to_evaluate
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.errors import DamagedError, NotFoundError, UserError
from gpu_pipelines.training.rows.batches import TrainingBatches
from gpu_pipelines.training.rows.streamed_order import StreamedOrder
from gpu_pipelines.training.rows.streaming import given_data
from gpu_pipelines.training.settings import TrainingSettings

SETTINGS = TrainingSettings(
    model="mlp-small", max_steps=240, checkpoint_every_steps=80, global_batch_size=16, streaming="on"
).resolved("regression")
LAST = "step-00000240"


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of about fifty shards of 64 rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset_writer, "SHARD_BYTES", 64 * 12)
        directory = numbers_dataset(tmp_path_factory.mktemp("numbers"), rows=4000)
    assert len(Dataset(directory).manifest.splits["train"]) > 40
    return directory


@pytest.fixture(scope="module")
def stored(bucket: str, numbers: Path) -> str:
    return upload(numbers, f"{bucket}/numbers")


@pytest.fixture(scope="module")
def mapped(numbers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What comes of a training on a directory of this machine in the order of streamed rows."""
    directory = tmp_path_factory.mktemp("mapped")
    assert train_here(SETTINGS, numbers, str(directory))
    return directory


@pytest.fixture(autouse=True)
def own_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go: here and in the processes of trainings."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path / "tmp"


def upload(directory: Path, uri: str) -> str:
    names = [path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()]
    RemoteFolder(uri).upload(directory, names)
    return uri


def bytes_of(dataset: Path) -> int:
    return sum(path.stat().st_size for path in dataset.rglob("*.arrow"))


def cache_of(disk: Path) -> Path:
    (found,) = (path for path in disk.glob("gpu-pipelines-shards-*/*") if path.is_dir())
    return found


@contextmanager
def watched(disk: Path) -> Iterator[list[int]]:
    """The bytes in the cache, at every moment at which they were looked at."""
    seen: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.002):
            for lock in disk.glob("gpu-pipelines-shards-*/*/.lock"):
                with lock.open() as held:  # a file that gets another name meanwhile would be counted twice
                    fcntl.flock(held, fcntl.LOCK_EX)
                    shards = [path for path in lock.parent.iterdir() if path.suffix in (".arrow", ".part")]
                    seen.append(sum(path.stat().st_size for path in shards))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def test_the_weights_are_those_of_a_copy_and_the_cache_never_exceeds_its_bound(
    stored: str, numbers: Path, mapped: Path, tmp_path: Path, own_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bound = bytes_of(numbers) // 10
    with watched(own_disk) as seen:
        assert train_here(replace(SETTINGS, cache_gb=bound / 1e9), stored, str(tmp_path / "streamed"))
    assert len(seen) > 20
    assert bound / 2 < max(seen) <= bound
    assert weights_digest(tmp_path / "streamed" / LAST) == weights_digest(mapped / LAST)
    assert entries(tmp_path / "streamed", "val_loss") == entries(mapped, "val_loss")
    assert sum(entries(tmp_path / "streamed", "fetched_mb_per_second")) > 0
    assert 0 < max(entries(tmp_path / "streamed", "cache_gb")) <= bound / 1e9
    assert "stalled" in capsys.readouterr().out
    assert not list(own_disk.glob("gpu-pipelines-fetched-*/*/train/*.arrow")), "shards were copied besides"


def test_streamed_rows_have_another_order_than_those_of_a_copy(numbers: Path, mapped: Path, tmp_path: Path) -> None:
    assert train_here(replace(SETTINGS, streaming="off"), numbers, str(tmp_path / "copied"))
    assert weights_digest(tmp_path / "copied" / LAST) != weights_digest(mapped / LAST)
    with pytest.raises(UserError, match="streaming is 'on', there it was 'off'"):
        train_here(SETTINGS, numbers, str(tmp_path / "copied"))


def test_a_training_goes_on_in_the_middle_of_an_epoch(stored: str, mapped: Path, tmp_path: Path, numbers: Path) -> None:
    settings = replace(SETTINGS, cache_gb=bytes_of(numbers) / 1e10)
    assert train_here(settings, stored, str(tmp_path / "cut"))
    for folder in ("step-00000160", LAST):
        shutil.rmtree(tmp_path / "cut" / folder)
    assert train_here(settings, stored, str(tmp_path / "cut"))
    assert weights_digest(tmp_path / "cut" / LAST) == weights_digest(mapped / LAST)


@pytest.mark.slow
def test_what_an_earlier_training_left_in_the_cache_is_used_and_what_was_cut_off_is_not(
    stored: str, numbers: Path, mapped: Path, tmp_path: Path, own_disk: Path
) -> None:
    settings = replace(SETTINGS, cache_gb=1.0)
    assert train_here(settings, stored, str(tmp_path / "first"))
    cache, shards = cache_of(own_disk), Dataset(numbers).manifest.splits["train"]
    assert {path.stem for path in cache.glob("*.arrow")} >= {file.sha256 for file in shards}
    before = {path.name: path.stat().st_ino for path in cache.glob("*.arrow")}
    cut = cache / f"{shards[0].sha256}.arrow"
    cut.rename(cut.with_suffix(".part"))
    cut.with_suffix(".part").write_bytes(b"cut off")
    short = cache / f"{shards[1].sha256}.arrow"
    short.write_bytes(b"short")
    (cache / "of another.part").write_bytes(b"0" * 1000)
    assert train_here(settings, stored, str(tmp_path / "second"))
    assert weights_digest(tmp_path / "second" / LAST) == weights_digest(mapped / LAST)
    after = {path.name: path.stat().st_ino for path in cache.glob("*.arrow")}
    assert {name for name in before if after.get(name) != before[name]} <= {cut.name, short.name}


def test_the_cache_of_another_dataset_is_deleted_unless_it_is_in_use(
    stored: str, tmp_path: Path, own_disk: Path
) -> None:
    settings = replace(SETTINGS, max_steps=1, cache_gb=1.0)
    assert train_here(settings, stored, str(tmp_path / "first"))
    place = cache_of(own_disk).parent
    for name in ("left", "used"):
        (place / name).mkdir()
    with (place / "used.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert train_here(settings, stored, str(tmp_path / "second"))
    assert not (place / "left").exists()
    assert (place / "used").exists()


def test_auto_streams_what_is_larger_than_half_of_the_free_disk(
    bucket: str, stored: str, numbers: Path, tmp_path: Path, own_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, uri = replace(SETTINGS, max_steps=4, checkpoint_every_steps=2, streaming="auto"), f"{bucket}/checkpoints"

    def streaming() -> str:
        told: str = json.loads(RemoteFolder(uri).read("training.json"))["settings"]["streaming"]
        return told

    usage, tight = shutil.disk_usage, int(1.9 * bytes_of(numbers))

    def of_a_small_disk(path: str | Path) -> Any:
        return usage(path)._replace(free=tight) if str(path).startswith(str(own_disk)) else usage(path)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", of_a_small_disk)
        assert train_here(settings, stored, uri)
    assert streaming() == "on"
    # The disk is large again: the order stays that of the training.
    assert train_here(replace(settings, resume_from_step=2), stored, uri)
    assert streaming() == "on"
    assert train_here(settings, stored, str(tmp_path / "copied"))
    assert not entries(tmp_path / "copied", "cache_gb")


def test_a_step_has_the_rows_of_the_order_whatever_step_was_read_before(
    stored: str, numbers: Path, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, cache_gb=bytes_of(numbers) / 1e10)
    rows = Dataset(numbers).split("train")
    order = StreamedOrder(rows.shard_rows, settings.global_batch_size, settings.seed)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with given_data(settings, stored, str(tmp_path)) as data:
            split = data.dataset().split("train")
            batches = TrainingBatches(Rows(), split, settings, torch.device("cpu"))  # type: ignore[arg-type]
            for step in (0, 17, 18, 19, 190, 191, 5):
                if step == 17:
                    batches.begin(step, 240)
                ((batch, _),), _ = batches.of_step(step)
                assert np.array_equal(batch["target"].numpy(), rows.take(order.rows_of_step(step))["target"])
            batches.close()
    finally:
        dist.destroy_process_group()


def test_the_shard_of_the_next_row_is_asked_for_until_the_last_one_is_read(
    stored: str, numbers: Path, tmp_path: Path
) -> None:
    with given_data(SETTINGS, stored, str(tmp_path)) as data:
        val = data.dataset().split("val")
        asked = []
        for end in (8, val.shard_rows[0], len(val)):
            val.take(np.arange(end - 8, end))
            asked.append([path[-8:-6] for path in val.cache._asked()])
        val.cache.close()
    assert asked == [["00", "01", "02", "03"], ["01", "02", "03", "04"], []]


@pytest.mark.slow
def test_a_shard_that_is_read_in_several_batches_is_fetched_once_though_the_cache_is_full(
    stored: str, numbers: Path, tmp_path: Path
) -> None:
    with given_data(replace(SETTINGS, cache_gb=bytes_of(numbers) / 1e10), stored, str(tmp_path)) as data:
        dataset = data.dataset()
        train, val = dataset.split("train"), dataset.split("val")
        train.expect(range(20), [0])
        train.take(np.arange(1))
        largest = max(path.stat().st_size for path in numbers.rglob("*/*.arrow"))
        while train.cache.used() <= train.cache.bound - largest:
            time.sleep(0.01)
        train.cache.taken()
        for start in range(0, 64, 8):
            assert len(val.take(np.arange(start, start + 8))["target"]) == 8
            time.sleep(0.15)  # a step of a batch, in which the threads that fetch look for what they could do
        fetched, _ = train.cache.taken()
        train.cache.close()
        train.let_go()
    # The shard and those behind it, and of train what had to go for them.
    assert fetched <= 13 * largest


class Rows:
    """A recipe whose batches are the rows as they are, on the CPU whatever the device."""

    def batch(self, columns: dict[str, np.ndarray], device: torch.device) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(array) for name, array in columns.items()}

    def loss_tokens(self, columns: dict[str, np.ndarray]) -> int | None:
        return None


def test_readers_of_val_that_share_a_full_cache_fetch_each_shard_once(
    stored: str, numbers: Path, tmp_path: Path, own_disk: Path
) -> None:
    settings = replace(SETTINGS, cache_gb=bytes_of(numbers) / 1e10)
    val = [path.stat().st_size for path in (numbers / "val").glob("*.arrow")]
    with given_data(settings, stored, str(tmp_path), processes=3) as data:
        assert data.shards is not None
        largest = max(data.shards.sizes.values())
        datasets_of_three = [data.dataset() for _ in range(3)]
        trains = [each.split("train") for each in datasets_of_three]
        for train in trains:
            train.expect(range(40), [0])
            train.take(np.arange(1))
        cache = cache_of(own_disk)
        while trains[0].cache.used() <= trains[0].cache.bound - largest or list(cache.glob("*.part")):
            time.sleep(0.01)
        for train in trains:
            train.cache.taken()
        # A process that was killed asks for nothing more.
        left = cache / "left.asked"
        left.write_text("\n".join(path.name for path in cache.glob("*.arrow")))

        def read(rank: int) -> None:
            split, random_ = datasets_of_three[rank].split("val"), random.Random(rank)
            for start in range(8 * rank, len(split), 24):
                split.take(np.arange(start, min(start + 8, len(split))))
                time.sleep(random_.random() / 50)
            all_are_done.wait()
            counted.wait()
            split.end_of_order()

        all_are_done, counted = threading.Barrier(4), threading.Event()
        with ThreadPoolExecutor(3) as threads:
            ended = [threads.submit(read, rank) for rank in range(3)]
            all_are_done.wait()
            fetched = sum(train.cache.taken()[0] for train in trains)
            counted.set()
            for each in ended:
                each.result()
        assert fetched <= sum(val) + largest
        assert not left.exists()
        # What comes next of train takes the place of val.
        later = time.monotonic() + 20
        while not sum(train.cache.taken()[0] for train in trains) and time.monotonic() < later:
            time.sleep(0.01)
        assert time.monotonic() < later
        for train in trains:
            train.cache.close()
            train.let_go()
    assert not list(cache.glob("*.asked"))


def test_what_is_evaluated_of_a_large_dataset_is_copied_without_train(
    stored: str, numbers: Path, own_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(Dataset(dataset_to_evaluate(stored)).split("train")) > 3000
    with given_data(replace(SETTINGS, cache_gb=1.0), stored, str(tmp_path)) as streamed:
        assert not list(streamed.directory.rglob("*.arrow"))
    usage, tight = shutil.disk_usage, int(1.9 * bytes_of(numbers))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=tight))
    copied = Dataset(dataset_to_evaluate(stored))
    for split in ("val", "test"):
        assert len(copied.split(split).take(np.arange(5))["target"]) == 5
    with pytest.raises(UserError, match=r"There is no shard .*train/part-00000.arrow"):
        copied.split("train")


def test_a_folder_that_is_no_dataset_is_named_as_it_was_given(bucket: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    table = f"{bucket}/table"
    RemoteFolder(table).upload(tmp_path, ["rows.csv"])
    said = f"{table} is not a dataset: it has no dataset.json.\n  Give the folder that prepare_data wrote."
    with pytest.raises(UserError, match=re.escape(said)):
        dataset_to_evaluate(table)
    with pytest.raises(UserError, match=re.escape(said)), given_data(SETTINGS, table, str(tmp_path)):
        pass


def test_the_cache_has_room_for_all_steps_that_processes_may_be_at(stored: str, numbers: Path) -> None:
    """Two are made ready beside the one that another process reads: 120 rows, of shards of 64, the last one of 30."""
    settings = replace(SETTINGS, shuffle_shards=1, global_batch_size=40, cache_gb=1e-6)
    with pytest.raises(UserError, match="The cache is too small") as refused, given_data(settings, stored, ""):
        pass
    needed = float(refused.value.problem.partition(" GB, and ")[2].partition(" ")[0]) * 1e9
    shard = (numbers / "train" / "part-00000.arrow").stat().st_size
    val = sum(sorted(path.stat().st_size for path in (numbers / "val").iterdir())[-2:])
    assert needed - val >= 4 * shard


@pytest.mark.slow
def test_a_cache_too_small_for_what_is_read_at_once_says_what_is_needed(
    stored: str, numbers: Path, mapped: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="cache_gb is 1e-06 GB") as refused:
        train_here(replace(SETTINGS, cache_gb=1e-6), stored, str(tmp_path / "small"))
    needed = float(refused.value.remedy.partition("cache_gb=")[2].partition(" ")[0])
    assert needed < bytes_of(numbers) / 1e9
    assert train_here(replace(SETTINGS, cache_gb=needed), stored, str(tmp_path / "enough"))
    assert weights_digest(tmp_path / "enough" / LAST) == weights_digest(mapped / LAST)
    with pytest.raises(UserError, match="GB are free in"):
        train_here(replace(SETTINGS, cache_gb=1e9), stored, str(tmp_path / "large"))


def test_a_shard_that_is_damaged_or_gone_is_named(
    bucket: str, numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = upload(numbers, f"{bucket}/damaged")
    folder, name = RemoteFolder(uri), Dataset(numbers).manifest.splits["train"][7].path
    content = bytearray(folder.read(name))
    content[len(content) // 2] ^= 1
    folder.write(name, bytes(content))
    with pytest.raises(DamagedError, match=f"{uri}/{name} .* SHA-256"):
        train_here(SETTINGS, uri, str(tmp_path / "damaged"))
    folder.delete([name])
    with pytest.raises(NotFoundError, match=f"{name} is gone"):
        train_here(SETTINGS, uri, str(tmp_path / "gone"))
    # One that goes while the training runs.
    sizes = {**folder.sizes(), name: len(content)}
    monkeypatch.setattr(RemoteFolder, "sizes", lambda _: sizes)
    with pytest.raises(NotFoundError, match=f"{uri}/{name} is gone"):
        train_here(SETTINGS, uri, str(tmp_path / "going"))


@pytest.mark.slow
def test_processes_of_a_machine_share_the_cache(stored: str, numbers: Path, tmp_path: Path, own_disk: Path) -> None:
    two = {"GPU_PIPELINES_ACCELERATOR": "cpu:2"}
    settings = replace(SETTINGS, cache_gb=bytes_of(numbers) / 1e10)
    with watched(own_disk) as seen:
        streamed = run_training(settings, stored, str(tmp_path / "streamed"), environment=two)
    assert streamed.status == 0, streamed.text
    assert max(seen) <= settings.cache_gb * 1e9
    assert run_training(settings, numbers, str(tmp_path / "mapped"), environment=two).status == 0
    assert weights_digest(tmp_path / "streamed" / LAST) == weights_digest(tmp_path / "mapped" / LAST)


@pytest.mark.slow
def test_a_shard_that_is_gone_ends_the_processes_with_what_to_do(
    bucket: str, numbers: Path, tmp_path: Path, own_disk: Path
) -> None:
    uri = upload(numbers, f"{bucket}/going")
    folder, shards = RemoteFolder(uri), [file.path for file in Dataset(numbers).manifest.splits["train"]]

    def begins(line: str) -> bool:
        if line.startswith("streaming "):
            folder.delete(shards)
        return False

    ended = run_training(SETTINGS, uri, str(tmp_path / "run"), stop_when=begins)
    assert ended.status == 1
    assert "Traceback" not in ended.text
    assert f"error: The shard {uri}/train/part-" in ended.text, ended.text
    assert "is gone" in ended.text


FILL_SMALL_DISK = """
import json, sys
from pathlib import Path
from gpu_pipelines.artifacts.shard_cache import ShardCache, StoredShard
uri, directory, shards = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
cache = ShardCache(uri, {path: StoredShard(**shard) for path, shard in shards.items()}, directory, 10**9)
for path in shards:
    cache.hold(path)
"""


@pytest.mark.slow
def test_a_full_disk_is_said(stored: str, numbers: Path, tmp_path: Path) -> None:
    sizes = RemoteFolder(stored).sizes()
    shards = {
        file.path: {"size": sizes[file.path], "sha256": file.sha256}
        for file in Dataset(numbers).manifest.splits["train"]
    }
    (tmp_path / "disk").mkdir()
    script = 'mount -t tmpfs -o size=64k tmpfs "$1" && exec "$2" -c "$3" "$4" "$1" "$5"'
    arguments = [str(tmp_path / "disk"), sys.executable, FILL_SMALL_DISK, stored, json.dumps(shards)]
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-ec", script, "sh", *arguments], capture_output=True, text=True, check=False
    )
    assert f"UserError: The disk of {tmp_path / 'disk'} is full" in done.stderr
    assert "smaller cache_gb" in done.stderr


@pytest.mark.slow
def test_a_training_killed_at_random_moments_ends_with_the_same_bits(
    stored: str, numbers: Path, tmp_path: Path, own_disk: Path
) -> None:
    settings = replace(SETTINGS, max_steps=1000, checkpoint_every_steps=5, cache_gb=bytes_of(numbers) / 1e10)
    last = "step-00001000"
    assert train_here(replace(settings, cache_gb=0.0), numbers, str(tmp_path / "left alone"))
    moments, kills = random.Random(5), 0
    with watched(own_disk) as seen:
        while kills < 20:
            began, lines = time.monotonic(), moments.randint(1, 3)

            def due(line: str) -> bool:
                nonlocal lines
                lines -= line.startswith(("step ", "streaming "))
                return lines == 0

            ended = run_training(
                settings, stored, str(tmp_path / "killed"), stop_when=due, seconds_later=moments.uniform(0, 0.3)
            )
            assert "error: " not in ended.text, ended.text
            assert time.monotonic() - began < 120
            if ended.status == 0:
                break
            kills += 1
        else:
            assert run_training(settings, stored, str(tmp_path / "killed")).status == 0
    assert kills == 20, "it came to its end before"
    assert max(seen) <= settings.cache_gb * 1e9
    assert weights_digest(tmp_path / "killed" / last) == weights_digest(tmp_path / "left alone" / last)
