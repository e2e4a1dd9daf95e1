"""What clients send by mistake or on purpose: a clear answer with 4xx, and a server that goes on."""

from __future__ import annotations

import base64
import io
import json
import random
import socket
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from exported_models import export, png
from PIL import Image
from predicting import exported_of_small_numbers
from server_process import PREDICT, Server, started
from starlette.testclient import TestClient

from gpu_pipelines.errors import UserError
from gpu_pipelines.serving.app import Serving
from gpu_pipelines.serving.batching import FAILURES_OF_THE_ILL
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.request_body import WrongRequest, require_keys
from gpu_pipelines.serving.settings import Contract, ServerSettings

GOOD = {"b64": png(np.zeros((16, 16, 3), dtype=np.uint8))}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of images whose limits are within a test's reach."""
    limits = {"MAX_REQUEST_MEGABYTES": "1", "MAX_INSTANCES": "8", "MAX_PIXELS": "1000000", "READ_SECONDS": "1"}
    with started(export("image_classification", tmp_path_factory.mktemp("exported") / "model"), **limits) as found:
        yield found


def bomb(width: int, height: int) -> str:
    """A small PNG that says that it is large."""
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\x00\x00\x00"
    found = b"\x89PNG\r\n\x1a\n"
    for name, content in ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")):
        found += len(content).to_bytes(4, "big") + name + content + zlib.crc32(name + content).to_bytes(4, "big")
    return base64.b64encode(found).decode()


def cut_png() -> str:
    return base64.b64encode(
        base64.b64decode(png(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)))[:999]
    ).decode()


def postscript() -> str:
    """An image that Pillow would open by starting another program."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "EPS")
    return base64.b64encode(file.getvalue()).decode()


WRONG = {
    "no JSON": (b"{", "The body is not JSON"),
    "a number JSON does not have": (b'{"instances": [NaN]}', "NaN"),
    "nested too deeply": (b"[" * 100_000, "nested too deeply"),
    "not UTF-8": (b"\xff\xfe\xff", "The body is not JSON"),
    "a list": ([], "a list, not an object"),
    "no instances": ({}, "instances is missing"),
    "misspelt": ({"instance": []}, "Did you mean 'instances'?"),
    "instances no list": ({"instances": "a"}, "instances is a text"),
    "none": ({"instances": []}, "send 1 to 8"),
    "too many": ({"instances": [GOOD] * 9}, "9 entries; send 1 to 8"),
    "parameters no object": ({"instances": [GOOD], "parameters": 3}, "parameters is a number"),
    "an unknown parameter": ({"instances": [GOOD], "parameters": {"topk": 3}}, "Did you mean 'top_k'?"),
    "a parameter of another type": ({"instances": [GOOD], "parameters": {"top_k": "3"}}, "whole number"),
    "a parameter too large": (b'{"instances": [{}], "parameters": {"top_k": 1e999}}', "whole number"),
    "not an object": ({"instances": [GOOD, None]}, "instances[1]: is null"),
    "another field": ({"instances": [{"b46": ""}]}, "Did you mean 'b64'?"),
    "half a surrogate": (b'{"instances": [{"\\ud800": ""}]}', "has an unknown field"),
    "no text": ({"instances": [{"b64": 3}]}, "b64 is a number"),
    "no base64": ({"instances": [GOOD, {"b64": "ä"}]}, "instances[1]: b64 is not base64"),
    "empty": ({"instances": [{"b64": ""}]}, "the file is empty"),
    "no image": ({"instances": [{"b64": "aGVsbG8="}]}, "not an image that Pillow knows"),
    "cut off": ({"instances": [{"b64": cut_png()}]}, "not a readable image"),
    "too many pixels": ({"instances": [{"b64": bomb(2000, 1000)}]}, "2000 × 1000 pixels; send at most 1,000,000"),
    "a bomb": ({"instances": [{"b64": bomb(60_000, 60_000)}]}, "decompression bomb"),
    "PostScript": ({"instances": [{"b64": postscript()}]}, "in the format EPS"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_is_told_what_is_wrong(name: str, server: Server) -> None:
    content, told = WRONG[name]
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    answer = requests.post(server.url + PREDICT, data=body, timeout=60)
    assert answer.status_code == 400
    assert told in answer.json()["error"]


def test_all_wrong_instances_are_named(server: Server) -> None:
    told = server.predict([GOOD, {}, GOOD, {"b64": "a"}]).json()["error"].splitlines()
    assert [line.partition(":")[0] for line in told] == ["instances[1]", "instances[3]"]


def test_a_large_body_is_refused_whether_or_not_its_size_is_told(server: Server) -> None:
    assert server.post({"instances": ["a" * 2_000_000]}).status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 50_000

    try:
        status = requests.post(server.url + PREDICT, data=pieces(), timeout=60).status_code
    except requests.ConnectionError:  # the server has answered and closed before the client has sent all
        status = 413
    assert status == 413
    assert server.predict([GOOD]).status_code == 200


def raw(server: Server, sent: bytes) -> bytes:
    """Sends bytes, and gives what is answered until the connection is closed."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(sent)
        found = b""
        with suppress(ConnectionResetError):  # closed while there was still something to read
            while piece := connection.recv(65536):
                found += piece
    return found


def test_a_client_that_sends_no_more_is_not_waited_for(server: Server) -> None:
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n".encode()
    assert raw(server, head + b"{").startswith(b"HTTP/1.1 408")


def test_what_is_not_http_and_endless_headers_are_refused(server: Server) -> None:
    assert raw(server, b"hello\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert raw(server, b"GET / HTTP/1.1\r\nA: " + b"a" * 200_000)[:10] in (b"", b"HTTP/1.1 4")


def test_other_routes_and_verbs_are_told_the_right_ones(server: Server) -> None:
    lost = requests.post(f"{server.url}/v2/predict", json={}, timeout=10)
    assert lost.status_code == 404
    assert PREDICT in lost.json()["error"]
    assert requests.get(server.url + PREDICT, timeout=10).status_code == 405


def damaged(generator: random.Random) -> bytes:
    """A request in which something is wrong."""
    body = bytearray(json.dumps({"instances": [GOOD] * generator.randint(1, 3)}).encode())
    kind = generator.randrange(3)
    if kind == 0:
        return bytes(body[: generator.randrange(len(body))])
    if kind == 1:  # an image that is cut off, in a body that is whole
        return json.dumps({"instances": [{"b64": GOOD["b64"][: 4 * generator.randrange(10)]}]}).encode()
    for _ in range(generator.randint(1, 8)):
        body[generator.randrange(len(body))] = generator.randrange(256)
    return bytes(body)


def send_damaged(server: Server, requests_sent: int, seed: int) -> Counter[int]:
    """Sends damaged requests; gives how many got which status."""
    generator, found = random.Random(seed), Counter[int]()
    with requests.Session() as session:
        for _ in range(requests_sent):
            found[session.post(server.url + PREDICT, data=damaged(generator), timeout=60).status_code] += 1
    return found


def check_damaged(server: Server, requests_sent: int, growth_mb: float) -> None:
    send_damaged(server, 300, seed=1)  # allocators and caches take what they take
    before = server.memory()
    found = send_damaged(server, requests_sent, seed=2)
    # A few changed bytes may still be a picture.
    assert set(found) <= {200, 400}
    assert found[400] > requests_sent / 2
    assert server.memory() - before < growth_mb * 2**20
    assert server.health().status_code == 200
    assert server.predict([GOOD]).status_code == 200


def test_damaged_requests_leave_the_server_well(server: Server) -> None:
    check_damaged(server, 500, growth_mb=16)


@pytest.mark.slow
def test_ten_thousand_damaged_requests_leave_the_server_well(server: Server) -> None:
    check_damaged(server, 10_000, growth_mb=16)


TEXTS: list[tuple[Any, str]] = [
    ({"text": ""}, "text is empty"),
    ({"text": "a" * 101}, "101 characters; send at most 100"),
    ({"text": "\ud800"}, "surrogate"),
    ({"text": None}, "text is null"),
    ({"texts": "a"}, "Did you mean 'text'?"),
]


@pytest.mark.parametrize(("instance", "told"), TEXTS)
def test_a_text_that_cannot_be_encoded_is_refused(instance: Any, told: str, texts: Any) -> None:
    with pytest.raises(WrongRequest, match=told):
        texts.read(instance, texts.checked({}))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    model: Path = export("text_classification", tmp_path_factory.mktemp("texts") / "model")
    return load_predictor(model, ServerSettings(max_characters=100))


def test_a_row_without_a_finite_prediction_is_named_and_the_server_stays_well(tmp_path: Path) -> None:
    serving = Serving(ServerSettings(), Contract())
    serving.start(load_predictor(exported_of_small_numbers(tmp_path / "model"), ServerSettings()), "prices")
    near, far = {"values": {"size": 1.5, "age": 30}}, {"values": {"size": 3e38, "age": -3e38}}
    with TestClient(serving) as client:
        for _ in range(FAILURES_OF_THE_ILL):
            answer = client.post("/predict", json={"instances": [near, far]})
            assert answer.status_code == 400
            assert answer.json()["error"].startswith("instances[1]: the prediction of price is no finite number")
            assert client.post("/predict", json={"instances": [far]}).status_code == 400
            assert client.post("/predict", json={"instances": [{"values": "[" * 10_000}]}).status_code == 400
        assert client.get("/health").status_code == 200
        (found,) = client.post("/predict", json={"instances": [near]}).json()["predictions"]
        assert isinstance(found["values"]["price"], float)


def test_wrong_settings_are_named_all_at_once() -> None:
    given = {"GPU_PIPELINES_SERVING_MAX_BATCH": "many", "GPU_PIPELINES_SERVING_MAX_WAITING": "-1"}
    with pytest.raises(UserError, match=r"MAX_BATCH is 'many'(.|\n)*max_waiting is -1"):
        ServerSettings.of_environment(given)
    with pytest.raises(UserError, match="AIP_HTTP_PORT is 'http'"):
        Contract.of_environment({"AIP_HTTP_PORT": "http"})
    assert Contract.of_environment({"AIP_HTTP_PORT": "80", "AIP_HEALTH_ROUTE": "/h"}) == Contract(80, "/h")


def test_a_misspelt_setting_is_refused_with_the_name_that_was_meant() -> None:
    prefix = "GPU_PIPELINES_SERVING_"
    # Kubernetes sets some itself in all pods beside a service whose name begins with gpu-pipelines-serving.
    ours = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT_HTTP": "80",
        "PORT": "tcp://10.0.0.1:80",
        "PORT_80_TCP_PROTO": "tcp",
    }
    given = {"MAX_BATCH": "8", "TOKEN_FILE": "", **ours, **{f"CANARY_{name}": value for name, value in ours.items()}}
    assert ServerSettings.of_environment({f"{prefix}{name}": value for name, value in given.items()}).max_batch == 8
    # Without the second the server would answer everybody.
    with pytest.raises(UserError, match=f"{prefix}MAX_BACH (.|\n)*'MAX_BATCH'(.|\n)*{prefix}TOKENFILE .*'TOKEN_FILE'"):
        ServerSettings.of_environment({f"{prefix}MAX_BACH": "64", f"{prefix}TOKENFILE": "/secret"})
    with pytest.raises(UserError, match=f"{prefix}PORT is not a setting"):
        ServerSettings.of_environment({f"{prefix}PORT": "8000"})


def test_each_of_thousands_of_columns_is_looked_up_once() -> None:
    class Name(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

    names = [f"column {number}" for number in range(1000)]
    require_keys({Name(name): 0.0 for name in names}, names, "values")
    assert Name.compared < 3000
