"""Batch prediction on a Ray cluster: the bytes are those of one machine, and a machine that is lost loses no row."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from predicting import exported, predicted, write_lines
from ray_cluster import RayCluster, ray_cluster, workers_of

from gpu_pipelines.artifacts.documents import sha256_of_tree
from gpu_pipelines.errors import UserError
from gpu_pipelines.prediction.outputs import DOCUMENT

ROWS, PIECE = 14_000, 50


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(nodes=2) as started:
        yield started


def files(folder: Path) -> dict[str, str]:
    """What was predicted; the document names the executor as well."""
    return {name: digest for name, digest in sha256_of_tree(folder).items() if name != DOCUMENT}


@pytest.mark.slow
def test_a_cluster_predicts_what_one_machine_does_also_when_a_machine_is_lost(
    cluster: RayCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = exported("text_classification", tmp_path / "model")
    rows = [{"text": "a cat and a bee " * (number % 7), "id": number} for number in range(ROWS)]
    source = write_lines(tmp_path / "rows.jsonl", rows)
    given = {"max_rejected": "20%", "rows_per_file": 700}
    predicted(model, source, tmp_path / "here", PIECE, **given)
    lost = threading.Thread(target=_kill_a_node_once_pieces_are_done, args=(cluster, tmp_path / "there-unfinished"))
    lost.start()
    done = predicted(model, source, tmp_path / "there", PIECE, ray_address=cluster.address, **given)
    lost.join()
    assert "is gone; the 50 rows from rows.jsonl:" in capfd.readouterr().out
    assert done.rows_read == done.rows_predicted + done.rows_rejected == ROWS
    assert done.rejected == {"no text": ROWS // 7}
    assert files(tmp_path / "there") == files(tmp_path / "here")


def _kill_a_node_once_pieces_are_done(cluster: RayCluster, base: Path) -> None:
    until, node = time.monotonic() + 120, cluster.nodes[-1]
    while not workers_of(node) and time.monotonic() < until:
        time.sleep(0.01)
    before = len(list(base.glob("*/pieces/*/done.json")))
    while len(list(base.glob("*/pieces/*/done.json"))) < before + 20 and time.monotonic() < until:
        time.sleep(0.01)
    cluster.kill(node)


def test_a_cluster_that_is_not_there_is_said(tmp_path: Path) -> None:
    model = exported("text_classification", tmp_path / "model")
    source = write_lines(tmp_path / "rows.jsonl", [{"text": "a cat"}])
    with pytest.raises(UserError, match=r"No Ray cluster can be used at 127\.0\.0\.1:1"):
        predicted(model, source, tmp_path / "out", ray_address="127.0.0.1:1")
