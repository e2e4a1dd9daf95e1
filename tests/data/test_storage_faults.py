"""Cloud Storage that answers 503, and connections that are cut while a file is read."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import storage_emulator, write_photos

from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.file_source import find_files
from gpu_pipelines.data.sources.row_streams import Meter
from gpu_pipelines.data.sources.rows import rows_of
from gpu_pipelines.emulator.json_server import JsonHandler, answering, server_of
from gpu_pipelines.errors import UserError

ROWS = [{"text": f"text {number} " + "x" * 500, "label": "ab"[number % 2]} for number in range(2000)]


class _Faults(JsonHandler):
    """Hands requests on to the emulator and, as ordered, answers 503 or cuts the connection half-way."""

    protocol_version = "HTTP/1.1"
    emulator = ""
    orders: list[str]
    done: list[str]

    def _handle(self) -> None:
        content = self.body()
        # Lists and descriptions of files are JSON; a file's content is asked for with alt=media.
        order = self.orders[0] if self.orders and self.command == "GET" else ""
        if order == "503" or (order == "cut" and self._is_content()):
            self.done.append(self.orders.pop(0))
        else:
            order = ""
        if order == "503":
            self._send(503, {"Content-Type": "text/plain"}, b"Service Unavailable", 19)
            return
        connection = http.client.HTTPConnection(self.emulator)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        connection.request(self.command, self.path, content, headers)
        answer = connection.getresponse()
        body = answer.read()
        dropped = ("content-length", "transfer-encoding", "connection", "date", "server")
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in dropped}
        self._send(answer.status, kept, body, len(body) // 2 if order else len(body))
        connection.close()

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _handle

    def _is_content(self) -> bool:
        return "alt=media" in self.path or "/download/" in self.path

    def _send(self, status: int, headers: dict[str, str], body: bytes, sent: int) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:sent])
        self.close_connection = sent < len(body)


@pytest.fixture(scope="module")
def faulty() -> Iterator[tuple[str, type[_Faults]]]:
    """A bucket, and the handler that takes orders."""
    with storage_emulator("faults") as uri, pytest.MonkeyPatch.context() as patch:
        emulator = urlsplit(os.environ["STORAGE_EMULATOR_HOST"]).netloc
        handler = type("Handler", (_Faults,), {"emulator": emulator, "orders": [], "done": []})
        with answering(server_of(handler)) as address:
            patch.setenv("STORAGE_EMULATOR_HOST", address)
            yield uri, handler


@pytest.mark.parametrize(("name", "orders"), [("t.jsonl", ["503", "cut"]), ("t.parquet", ["cut"])])
def test_no_row_is_lost_or_read_twice(
    name: str, orders: list[str], faulty: tuple[str, type[_Faults]], tmp_path: Path
) -> None:
    uri, handler = faulty
    if name == "t.jsonl":
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / name, row_group_size=300)
    RemoteFolder(f"{uri}/rows").upload(tmp_path, [name])
    handler.orders[:], handler.done[:] = orders, []
    settings = PrepareSettings(source=f"{uri}/rows/{name}", task="text_classification")
    source = find_files(settings)
    rows = [row for _, (_, row) in rows_of(source, ["text", "label"], Meter(source))]
    assert rows == ROWS
    assert handler.done == orders


def test_a_storage_that_stays_unavailable_is_told_as_that(
    faulty: tuple[str, type[_Faults]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, handler = faulty
    handler.orders[:], handler.done[:] = ["503"] * 50, []

    async def at_once(_: float) -> None:
        """The pauses between gcsfs's tries grow to 16 s."""

    monkeypatch.setattr(asyncio, "sleep", at_once)
    with pytest.raises(UserError) as caught:
        RemoteFolder(f"{uri}/rows").names()
    assert "cannot be listed: the storage is not available (HttpError: Service Unavailable, 503)" in str(caught.value)
    assert "permission" not in str(caught.value)
    assert len(handler.done) == 6, "it was tried again"
    assert "Traceback" not in capfd.readouterr().err
    handler.orders.clear()


@pytest.mark.slow
def test_images_are_all_there(faulty: tuple[str, type[_Faults]], tmp_path: Path) -> None:
    uri, handler = faulty
    photos = write_photos(tmp_path / "photos", per_class=15)
    names = [path.relative_to(photos).as_posix() for path in photos.rglob("*.png")]
    RemoteFolder(f"{uri}/photos").upload(photos, names)
    here = prepare_data(PrepareSettings(source=str(photos)), tmp_path / "here")
    handler.orders[:], handler.done[:] = ["cut", "503"], []
    there = prepare_data(PrepareSettings(source=f"{uri}/photos"), tmp_path / "there")
    assert there.fingerprint == here.fingerprint
    assert not there.rows_rejected
    assert not handler.orders
