"""A disk that is full: each request that needs room says so, what was kept stays, and it goes on when there is room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from forked import Forked
from processes import Started
from rehearsed_jobs import PARENT

OBJECTS = "storage/v1/b/example-bucket/o"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """An emulator with its state on a disk of 2 MB."""
    (tmp_path / "disk").mkdir()
    command, log = ("emulator", "start", "--port", "0", "--state", str(tmp_path / "disk")), tmp_path / "log.txt"
    process = Forked("gpu_pipelines.cli.main", command, os.environ, log=log, disk=(tmp_path / "disk", "2m"))
    log.touch()
    started = Started(process, log)
    started.await_line("Ctrl-C")
    yield started.output.split("listens at ")[1].split()[0]
    started.kill_tree()
    assert "Traceback" not in started.output


def put(address: str, name: str, size: int) -> requests.Response:
    given: dict[str, Any] = {"uploadType": "media", "name": name}
    return requests.post(f"{address}/upload/{OBJECTS}", params=given, data=b"x" * size, timeout=60)


def test_it_is_told_until_there_is_room_again(address: str) -> None:
    too_large = put(address, "large", 4_000_000)
    assert too_large.status_code == 400
    assert too_large.json()["error"]["status"] == "FAILED_PRECONDITION"
    assert "The emulator cannot write the object: No space left on device" in too_large.json()["error"]["message"]
    filling = 0
    for size in (200_000, 4096):
        while put(address, f"filling-{filling}", size).ok:
            filling += 1
    endpoints = f"{address}/v1/{PARENT}/endpoints"
    kept = []
    while (refused := requests.post(endpoints, json={"displayName": "e"}, timeout=60)).ok:
        kept.append(refused.json()["response"]["name"])
        assert len(kept) < 1000
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    assert "The emulator cannot write its state in" in message
    assert "No space left on device. Free space there." in message
    assert requests.delete(f"{address}/{OBJECTS}/filling-0", timeout=60).ok
    kept.append(requests.post(endpoints, json={"displayName": "e"}, timeout=60).json()["response"]["name"])
    assert all(requests.get(f"{address}/v1/{name}", timeout=60).ok for name in kept)
    assert requests.get(f"{address}/download/{OBJECTS}/filling-1?alt=media", timeout=60).content == b"x" * 200_000


def test_a_table_that_has_no_room_stays_as_it_was(address: str) -> None:
    shop = f"{address}/bigquery/v2/projects/example-project/datasets"
    reference = {"datasetReference": {"datasetId": "shop"}}
    assert requests.post(shop, json=reference, timeout=60).ok
    schema = {"fields": [{"name": "a", "type": "STRING"}]}
    table = {"tableReference": {"tableId": "rows"}, "schema": schema}
    assert requests.post(f"{shop}/shop/tables", json=table, timeout=60).ok

    def insert(size: int) -> requests.Response:
        rows = {"rows": [{"json": {"a": "x" * size}}]}
        return requests.post(f"{shop}/shop/tables/rows/insertAll", json=rows, timeout=60)

    assert insert(10).ok
    refused = insert(3_000_000)
    assert refused.status_code == 400
    assert "cannot write the table example-project.shop.rows: No space left" in refused.json()["error"]["message"]
    assert requests.get(f"{shop}/shop/tables/rows", timeout=60).json()["numRows"] == "1"
    assert insert(20).ok
    assert requests.get(f"{shop}/shop/tables/rows", timeout=60).json()["numRows"] == "2"
