"""Cloud Storage with many objects: what an upload costs, pages, parts of objects, and a kill at any moment."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from gpu_pipelines.emulator.json_server import JsonHandler, server_of
from gpu_pipelines.emulator.storage.bucket_files import HERE
from gpu_pipelines.emulator.storage.service import Storage, StorageAnswer

OBJECTS = "/storage/v1/b/bucket/o"
#: "a-b" is before "a/…" and "a0" behind it, whatever the order of the folder's entries is.
NAMES = ["a-b", "a/1", "a/2/x", "a/2/y", "a/3", "a0", "b/c/d", "e"]


def opened(folder: Path) -> Storage:
    return Storage(folder / "gcs", folder / "storage", "bucket", "1")


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    made = opened(tmp_path)
    yield made
    made.close()


def ask(storage: Storage, verb: str, target: str, content: bytes = b"", **headers: str) -> StorageAnswer:
    return storage.answer(verb, target, headers, content, "http://here")


def content_of(storage: Storage, name: str, wanted: str = "") -> tuple[int, bytes]:
    headers = {"Range": wanted} if wanted else {}
    answer = storage.answer("GET", f"{OBJECTS}/{name}?alt=media", headers, b"", "http://here")
    if answer.file is None:
        return answer.status, answer.content
    with answer.file:
        return answer.status, answer.file.read(answer.length)


def pages(storage: Storage, **query: str) -> Iterator[list[str]]:
    token = ""
    while True:
        asked = urlencode({**query, **({"pageToken": token} if token else {})})
        page = json.loads(ask(storage, "GET", f"{OBJECTS}?{asked}").content)
        yield [each["name"] for each in page["items"]] + page["prefixes"]
        if not (token := page.get("nextPageToken", "")):
            return


def test_an_upload_writes_nothing_about_the_others(storage: Storage, tmp_path: Path) -> None:
    def size_of(name: str) -> int:
        return sum(path.stat().st_size for path in (tmp_path / "storage").glob(name))

    storage.put("first", b"")
    one, records = size_of(".meta"), size_of("objects.db*")
    for number in range(300):
        storage.put(f"d/{number}", b"")
    assert size_of(".meta") == one
    # SQLite writes some pages for each.
    assert size_of("objects.db*") - records < 300 * 20_000


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"maxResults": "3"}, [NAMES[:3], NAMES[3:6], NAMES[6:]]),
        ({"prefix": "a/", "maxResults": "4"}, [["a/1", "a/2/x", "a/2/y", "a/3"]]),
        ({"delimiter": "/", "maxResults": "2"}, [["a-b", "a/"], ["a0", "b/"], ["e"]]),
        ({"delimiter": "/", "prefix": "a/", "maxResults": "2"}, [["a/1", "a/2/"], ["a/3"]]),
        ({"delimiter": "/", "prefix": "a"}, [["a-b", "a0", "a/"]]),
        ({"delimiter": "2", "prefix": "a"}, [["a-b", "a/1", "a/3", "a0", "a/2"]]),
        ({"startOffset": "a/2/y", "endOffset": "b", "maxResults": "2"}, [["a/2/y", "a/3"], ["a0"]]),
        ({"matchGlob": "a/**", "maxResults": "3"}, [["a/1", "a/2/x", "a/2/y"], ["a/3"]]),
        ({"matchGlob": "{a,b}*", "delimiter": "/"}, [["a-b", "a0"]]),
        ({"prefix": "a//2/", "maxResults": "1"}, [["a//2/x"], ["a//2/y"]]),
        ({"softDeleted": "true"}, [[]]),
    ],
)
def test_a_list_comes_in_pages(storage: Storage, query: dict[str, str], wanted: list[list[str]]) -> None:
    for name in reversed(NAMES):
        storage.put(name, b"")
    (storage.files._folder / "bucket/empty").mkdir()
    assert list(pages(storage, **query)) == wanted


def test_folders_that_are_objects_are_in_their_places_of_the_list(storage: Storage) -> None:
    for name in ("a/", "a/1", "b/"):
        storage.put(name, b"")
    assert list(pages(storage, maxResults="1")) == [["a/"], ["a/1"], ["b/"]]
    assert list(pages(storage, delimiter="/")) == [["a/", "b/"]]
    assert list(pages(storage, delimiter="/", prefix="a/")) == [["a/", "a/1"]]


@pytest.mark.parametrize(
    ("wanted", "status", "content"),
    [
        ("", 200, b"0123456789"),
        ("bytes=2-4", 206, b"234"),
        ("bytes=7-", 206, b"789"),
        ("bytes=8-100", 206, b"89"),
        ("bytes=-3", 206, b"789"),
        ("bytes=10-", 416, b""),
    ],
)
def test_a_part_of_an_object_is_read_alone(storage: Storage, wanted: str, status: int, content: bytes) -> None:
    storage.put("a", b"0123456789")
    assert content_of(storage, "a", wanted) == (status, content)


def test_a_content_is_kept_as_it_was_sent(storage: Storage) -> None:
    for kind, content in (("application/json", b'{"a":  1}'), ("application/json", b"")):
        target = f"/upload{OBJECTS}?uploadType=media&name=a"
        assert ask(storage, "POST", target, content, **{"Content-Type": kind}).status == 200
        assert content_of(storage, "a") == (200, content)


def test_an_upload_in_pieces_says_what_is_here_and_can_be_cancelled(storage: Storage) -> None:
    def piece(place: str, wanted: str, content: bytes = b"") -> tuple[int, str | None]:
        answer = ask(storage, "PUT", place, content, **{"Content-Range": wanted})
        return answer.status, answer.headers.get("Range")

    def begun() -> str:
        target, kind = f"/upload{OBJECTS}?uploadType=resumable&name=a", {"Content-Type": "application/json"}
        answer = ask(storage, "POST", target, b"{}", **kind)
        return answer.headers["Location"].removeprefix("http://here")

    place = begun()
    assert piece(place, "bytes */*") == (308, None)
    assert piece(place, "bytes 0-2/*", b"abc") == (308, "bytes=0-2")
    assert piece(place, "bytes 0-2/*", b"abc")[0] == 400
    assert piece(place, "bytes 3-4/5", b"de")[0] == 200
    assert content_of(storage, "a") == (200, b"abcde")
    other = begun()
    assert ask(storage, "DELETE", other).status == 499
    assert piece(other, "bytes 0-2/3", b"xyz")[0] == 404


def test_uploads_in_pieces_copies_and_compositions_hold_no_whole_object(storage: Storage) -> None:
    piece, count = bytes(1 << 20), 24
    target, kind = f"/upload{OBJECTS}?uploadType=resumable&name=a", {"Content-Type": "application/json"}
    place = ask(storage, "POST", target, b"{}", **kind).headers["Location"].removeprefix("http://here")
    composed = json.dumps({"sourceObjects": [{"name": "a"}, {"name": "b"}], "destination": {}}).encode()
    tracemalloc.start()
    try:
        for number in range(count):
            first, end = number << 20, (number + 1) << 20
            wanted = f"bytes {first}-{end - 1}/{count << 20 if number + 1 == count else '*'}"
            answer = ask(storage, "PUT", place, piece, **{"Content-Range": wanted})
        assert answer.status == 200
        assert ask(storage, "POST", f"{OBJECTS}/a/rewriteTo/b/bucket/o/b", b"{}", **kind).status == 200
        assert ask(storage, "POST", f"{OBJECTS}/c/compose", composed, **kind).status == 200
        assert ask(storage, "POST", f"{OBJECTS}/c/moveTo/o/d").status == 200
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 << 20
    assert [content_of(storage, name)[1] for name in "abd"] == [piece * count, piece * count, piece * count * 2]


def test_an_error_of_its_own_is_no_error_of_the_request(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    storage.put("a", b"a")
    monkeypatch.setattr(storage.files, "_records", None)
    answer = ask(storage, "GET", f"{OBJECTS}/a")
    monkeypatch.undo()
    assert answer.status == 500
    assert "The emulator failed: AttributeError" in json.loads(answer.content)["error"]["message"]
    assert "Traceback" in capsys.readouterr().err


def write_until_killed(storage: Storage, turn: int, tell: int) -> None:
    for number in range(100_000):
        storage.put(f"{turn}/{number % 50}", b"%d" % number * 1000)
        os.write(tell, b"%d\n" % number)


def test_a_hundred_clients_may_come_at_once() -> None:
    """As those of an upload do: a client that the kernel turns away tries again seconds later, then a minute later."""
    with server_of(JsonHandler) as server, ExitStack() as clients:
        for _ in range(100):
            clients.enter_context(socket.create_connection(server.server_address[:2], timeout=0.2))


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    for turn in range(4):
        told, tell = os.pipe()
        child = os.fork()
        if not child:
            try:
                write_until_killed(opened(tmp_path), turn, tell)
            finally:
                os._exit(1)
        os.close(tell)
        with os.fdopen(told, "rb") as lines:
            first = int(lines.readline())
            time.sleep(0.05 + 0.013 * turn)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            last = [first, *(int(line) for line in lines)][-1]
        storage = opened(tmp_path)
        for number in range(max(0, last - 40), last + 1):
            status, content = content_of(storage, f"{turn}%2F{number % 50}")
            # The next one may have taken its place, whole, without an answer.
            assert (status, content) in [(200, b"%d" % each * 1000) for each in (number, last + 1)]
        storage.close()


def test_a_state_of_format_1_is_taken_over(tmp_path: Path) -> None:
    before = opened(tmp_path)
    target = f"/upload{OBJECTS}?uploadType=multipart"
    body = b'--b\r\n\r\n{"name": "a/b", "metadata": {"k": "v"}}\r\n--b\r\nContent-Type: text/csv\r\n\r\nx\r\n--b--'
    ask(before, "POST", target, body, **{"Content-Type": "multipart/related; boundary=b"})
    record = before.files.get_file_obj("bucket", "a/b")
    before.close()
    stat = (tmp_path / "gcs/bucket/a/b").stat()
    meta: dict[str, Any] = json.loads((tmp_path / "storage/.meta").read_text())
    old = {**record, "mediaLink": "http://127.0.0.1:1/download/storage/v1/b/bucket/o/a/b?alt=media"}
    meta |= {"objects": {"bucket": {"a/b": old, "gone": old}}, "soft_deleted": {}}
    meta |= {"stamps": {"bucket/a/b": [stat.st_size, stat.st_mtime_ns]}}
    for path in (tmp_path / "storage").glob("objects.db*"):
        path.unlink()
    (tmp_path / "storage/.meta").write_text(json.dumps(meta))
    for _ in range(2):
        storage = opened(tmp_path)
        assert storage.files.get_file_obj("bucket", "a/b") == record
        assert record["mediaLink"].startswith(f"{HERE}/download/storage/v1/b/bucket/o/a%2Fb?")
        assert list(pages(storage)) == [["a/b"]]
        storage.close()
