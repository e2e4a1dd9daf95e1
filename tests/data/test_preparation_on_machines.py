"""One preparation on a Ray cluster: the dataset of one machine, whatever becomes of the others meanwhile."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import storage_emulator, write_photos
from preparing import await_units, prepare_alone, start, units_done, write_texts
from processes import Started
from ray_cluster import ENVIRONMENT, RayCluster, ray_cluster

from gpu_pipelines.artifacts.documents import sha256_of_tree
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import INTERRUPTED

UNIT = 40_000
LIKE = {"val_fraction": 0.2, "test_fraction": 0.2}
#: What each phase leaves in the unfinished work, in their order.
PHASES = ("survey", "index", "exchange/records", "exchange/kept", "exchange/assigned", "judged", "units")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes; the driver is on the first, which is never killed."""
    with ray_cluster(nodes=2) as started:
        yield started


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts") / "source", files=7, rows=300)


@pytest.fixture(scope="module")
def fixed(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = write_texts(tmp_path_factory.mktemp("texts") / "fixed", files=2, rows=20, seed=1)
    shutil.copy(texts / "0.jsonl", found / "0.jsonl")
    return found


def everything(texts: Path, fixed: Path, address: str = "") -> PrepareSettings:
    """Settings with every phase: classes, near-duplicates, a test source, exact shares."""
    return PrepareSettings(
        source=str(texts), task="text_classification", sequence_length=64, vocabulary_size=400, near_duplicates=0.6,
        test_source=str(fixed), stratify=True, label_conflicts="reject", ray_address=address, **LIKE,
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(texts: Path, fixed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The hashes of the dataset from the processes of this machine."""
    return prepare_alone(everything(texts, fixed), tmp_path_factory.mktemp("whole") / "out", UNIT)


def prepare_on(cluster: RayCluster, settings: PrepareSettings, folder: Path, unit: int = UNIT) -> Started:
    return start(settings, folder / "out", str(folder / "work"), unit, ENVIRONMENT)


@pytest.mark.slow
def test_a_cluster_leaves_the_dataset_of_one_machine(
    cluster: RayCluster, texts: Path, fixed: Path, whole: dict[str, str], tmp_path: Path
) -> None:
    preparing = prepare_on(cluster, everything(texts, fixed, cluster.address), tmp_path)
    assert preparing.wait() == 0, preparing.output
    assert sha256_of_tree(tmp_path / "out") == whole
    manifest = json.loads((tmp_path / "out/dataset.json").read_text())
    assert manifest["duplicates"] > 100, "there are some, in other files than their first"
    assert manifest["in_test_source"] > 250
    assert list((tmp_path / "work").rglob("survey/*/done.json")), "workers did it"
    # All is done: it is taken as it is.
    again = prepare_on(cluster, everything(texts, fixed, cluster.address), tmp_path)
    assert again.wait() == 0, again.output
    assert "units of work were done before" in again.output
    assert sha256_of_tree(tmp_path / "out") == whole


def await_phase(preparing: Started, work: Path, phase: str) -> None:
    """Waits until the first unit of a phase is done."""
    deadline = time.monotonic() + 120
    while not any(work.glob(f"*/{phase}/*/done.json")):
        assert preparing.process.poll() is None, preparing.output
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("run", range(10))
@pytest.mark.parametrize("phase", PHASES)
def test_a_node_that_is_killed_changes_nothing(
    cluster: RayCluster, texts: Path, fixed: Path, whole: dict[str, str], tmp_path: Path, phase: str, run: int
) -> None:
    (node,) = cluster.add()
    preparing = prepare_on(cluster, everything(texts, fixed, cluster.address), tmp_path)
    await_phase(preparing, tmp_path / "work", phase)
    cluster.kill(node)
    assert preparing.wait() == 0, preparing.output
    assert sha256_of_tree(tmp_path / "out") == whole


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_node_that_joins_halfway_changes_nothing(
    texts: Path, fixed: Path, whole: dict[str, str], tmp_path: Path, phase: str
) -> None:
    with ray_cluster(nodes=1) as alone:
        preparing = prepare_on(alone, everything(texts, fixed, alone.address), tmp_path)
        await_phase(preparing, tmp_path / "work", phase)
        # The whole preparation takes less time than the start of a node: it is held until there is one.
        preparing.process.send_signal(signal.SIGSTOP)
        alone.add()
        preparing.process.send_signal(signal.SIGCONT)
        assert preparing.wait() == 0, preparing.output
        assert sha256_of_tree(tmp_path / "out") == whole


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 4])
def test_the_number_of_nodes_changes_nothing(
    texts: Path, fixed: Path, whole: dict[str, str], tmp_path: Path, nodes: int
) -> None:
    with ray_cluster(nodes=nodes) as cluster:
        preparing = prepare_on(cluster, everything(texts, fixed, cluster.address), tmp_path)
        assert preparing.wait() == 0, preparing.output
        assert sha256_of_tree(tmp_path / "out") == whole


@pytest.mark.slow
def test_a_cluster_works_in_a_bucket(texts: Path, fixed: Path, whole: dict[str, str], tmp_path: Path) -> None:
    with storage_emulator("work") as bucket, ray_cluster(nodes=2) as cluster:
        settings = everything(texts, fixed, cluster.address)
        preparing = start(settings, tmp_path / "out", f"{bucket}/work", UNIT, ENVIRONMENT)
        assert preparing.wait() == 0, preparing.output
        assert sha256_of_tree(tmp_path / "out") == whole
        assert units_done(f"{bucket}/work")


@pytest.mark.slow
def test_images_on_a_cluster_and_without_looking_for_all_first(cluster: RayCluster, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", per_class=60)
    # The same image once more with its own class, and once more with another.
    first = sorted((photos / "blue").iterdir())[0]
    shutil.copy(first, photos / "blue/zzz.png")
    shutil.copy(first, photos / "red/zzz.png")
    (photos / "red/broken.png").write_bytes(b"broken")
    settings = PrepareSettings(source=str(photos), image_size=16)
    unit = 20 * 3 * 16 * 16
    # One machine judges records as they come, a cluster knows all of them before.
    whole = prepare_alone(settings, tmp_path / "alone", unit)
    preparing = prepare_on(cluster, replace(settings, ray_address=cluster.address), tmp_path, unit)
    assert preparing.wait() == 0, preparing.output
    assert sha256_of_tree(tmp_path / "out") == whole
    manifest = json.loads((tmp_path / "alone/dataset.json").read_text())
    assert (manifest["duplicates"], manifest["rejected"]) == (1, {"unreadable image": 1})
    assert manifest["label_conflicts"] == 1


@pytest.mark.slow
def test_a_preparation_that_is_interrupted_is_continued_on_another_number_of_machines(
    cluster: RayCluster, texts: Path, fixed: Path, whole: dict[str, str], tmp_path: Path
) -> None:
    settings = everything(texts, fixed, cluster.address)
    preparing = prepare_on(cluster, settings, tmp_path)
    await_units(preparing, str(tmp_path / "work"), 1)
    preparing.process.terminate()
    assert preparing.wait() == INTERRUPTED
    assert "interrupted: stopped by SIGTERM; what is done is kept" in preparing.output
    # The same work, whoever does it.
    alone = start(everything(texts, fixed), tmp_path / "out", str(tmp_path / "work"), UNIT)
    assert alone.wait() == 0, alone.output
    assert "units of work were done before" in alone.output
    assert sha256_of_tree(tmp_path / "out") == whole


@pytest.mark.slow
def test_an_error_of_a_worker_is_told_as_one_of_this_machine(cluster: RayCluster, texts: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(texts, source)
    (source / "1.jsonl.gz").write_bytes(b"\x1f\x8b damaged")
    settings = PrepareSettings(source=str(source), task="text_classification", ray_address=cluster.address)
    preparing = prepare_on(cluster, settings, tmp_path)
    assert preparing.wait() == 1
    assert "\nerror: The file 1.jsonl.gz is not JSON lines" in preparing.output
    assert "Traceback" not in preparing.output


@pytest.mark.slow
def test_a_sample_is_prepared_where_it_is_made(cluster: RayCluster, tmp_path: Path) -> None:
    preparing = prepare_on(cluster, PrepareSettings(ray_address=cluster.address), tmp_path)
    assert preparing.wait() == 0, preparing.output
    assert "the source is made on this machine" in preparing.output


def test_an_address_is_looked_at_before_anything_is_read() -> None:
    assert (
        "ray_address: 'cluster' is not the address of a Ray cluster. Give HOST:PORT"
        in PrepareSettings(ray_address="cluster").problems()[0]
    )
    for address in ("", "auto", "10.0.0.2:6379", "ray://head:10001"):
        assert not PrepareSettings(ray_address=address).problems()
