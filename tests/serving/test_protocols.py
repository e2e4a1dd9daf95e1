"""What the server speaks beside Vertex AI's contract, who may ask, and what slow clients cannot do to the others."""

from __future__ import annotations

import base64
import gzip
import io
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from exported_models import LABELS, export
from fastapi.openapi.models import OpenAPI
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from server_process import HEALTH, PREDICT, Server, started

from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.errors import UserError
from gpu_pipelines.serving.app import Access
from gpu_pipelines.serving.comparison import differences
from gpu_pipelines.serving.settings import ServerSettings

TOKEN, OLD_TOKEN = "a-token.of~enough+characters/00==", "the-token-that-goes-away"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export("image_classification", tmp_path_factory.mktemp("exported") / "model")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "server.log"


@pytest.fixture(scope="module")
def server(model: Path, log: Path) -> Iterator[Server]:
    """A server with tokens, which may have few files, and waits a second for heads of requests."""
    file = log.with_name("tokens")
    file.write_text(f"{TOKEN}\n{OLD_TOKEN}\n")
    limits = {"HEADER_SECONDS": "1", "MAX_REQUEST_MEGABYTES": "1", "TOKEN_FILE": str(file)}
    with started(model, files=256, log=log, **limits) as found:
        yield found


@pytest.fixture(scope="module")
def examples(model: Path) -> Examples:
    return Examples.load(model)


def ask(server: Server, method: str, path: str, content: Any = None, **given: Any) -> requests.Response:
    headers = {**AUTHORIZED, **given.pop("headers", {})}
    return requests.request(method, server.url + path, json=content, headers=headers, timeout=60, **given)


def test_kserves_first_protocol(server: Server, examples: Examples) -> None:
    assert ask(server, "GET", "/v1/models").json() == {"models": ["animals"]}
    assert ask(server, "GET", "/v1/models/animals").json() == {"name": "animals", "ready": True}
    answer = ask(server, "POST", "/v1/models/animals:predict", {"instances": examples.instances})
    assert differences(examples, answer.json()["predictions"]) == []
    lost = ask(server, "POST", "/v1/models/animal:predict", {"instances": examples.instances})
    assert lost.status_code == 404
    assert "the model is 'animals'" in lost.json()["error"]


def test_the_open_inference_protocol(server: Server, examples: Examples) -> None:
    assert requests.get(f"{server.url}/v2/health/live", timeout=60).json() == {"live": True}
    assert requests.get(f"{server.url}/v2/health/ready", timeout=60).json() == {"ready": True}
    assert ask(server, "GET", "/v2").json()["name"] == "gpu-pipelines"
    assert ask(server, "GET", "/v2/models/animals/ready").json()["ready"] is True
    told = ask(server, "GET", "/v2/models/animals").json()
    assert [(each["name"], each["datatype"]) for each in told["inputs"]] == [("b64", "BYTES")]
    data = [instance["b64"] for instance in examples.instances]
    tensor = {"name": "b64", "datatype": "BYTES", "shape": [len(data)], "data": data}
    answer = ask(server, "POST", "/v2/models/animals/infer", {"id": "7", "inputs": [tensor]}).json()
    assert (answer["model_name"], answer["id"]) == ("animals", "7")
    found = {each["name"]: each for each in answer["outputs"]}
    assert [each["name"] for each in told["outputs"]] == list(found)
    assert found["scores"]["shape"] == [len(data), len(LABELS)]
    scores = np.reshape(found["scores"]["data"], found["scores"]["shape"]).tolist()
    labels = np.reshape(found["labels"]["data"], found["labels"]["shape"]).tolist()
    predictions = [
        {"label": label, "scores": dict(zip(names, row, strict=True))}
        for label, names, row in zip(found["label"]["data"], labels, scores, strict=True)
    ]
    assert differences(examples, predictions) == []
    best = ask(server, "POST", "/v2/models/animals/infer", {"inputs": [tensor], "parameters": {"top_k": 1}}).json()
    assert best["outputs"][1]["shape"] == [len(data), 1]
    content = {
        "model_name": "animals",  # as KServe's client sends it
        "inputs": [tensor],
        "outputs": [{"name": "label", "parameters": {"binary_data": False}}],
    }
    wanted = ask(server, "POST", "/v2/models/animals/infer", content).json()
    assert wanted["outputs"] == [found["label"]]
    # As Triton's client sends it where it is told of no outputs; it reads JSON as well.
    content = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    assert ask(server, "POST", "/v2/models/animals/infer", content).json()["outputs"] == answer["outputs"]


def test_tensors_in_binary_form_are_called_so(server: Server) -> None:
    tensor = {"name": "b64", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 12}}
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), **AUTHORIZED}
    body = head + b"\x08\0\0\0aGVsbG8="
    answer = requests.post(f"{server.url}/v2/models/animals/infer", data=body, headers=headers, timeout=60)
    assert (answer.status_code, "in binary form" in answer.json()["error"]) == (400, True)


GOOD_TENSOR = {"name": "b64", "datatype": "BYTES", "shape": [1], "data": ["aGVsbG8="]}
WRONG_TENSORS: list[tuple[Any, str]] = [
    ({}, "inputs is not a list of one tensor"),
    ({"inputs": [GOOD_TENSOR] * 2}, "inputs is not a list of one tensor"),
    ({"inputs": [{**GOOD_TENSOR, "name": "image"}]}, "the input is b64"),
    ({"inputs": [{**GOOD_TENSOR, "datatype": "FP32"}]}, "it takes BYTES"),
    ({"inputs": [{**GOOD_TENSOR, "shape": [2]}]}, "has 1 elements, which is not its shape [2]"),
    ({"inputs": [{"name": "b64", "datatype": "BYTES", "shape": [1]}]}, "binary form"),
    ({"inputs": [{**GOOD_TENSOR, "shape": [0], "data": []}]}, "0 entries"),
    ({"inputs": [GOOD_TENSOR]}, "instances[0]: b64 is not a readable image"),
    ({"inputs": [GOOD_TENSOR], "id": 3}, "id is a number"),
    ({"inputs": [GOOD_TENSOR], "outputs": [{"name": "lable"}]}, "which are label, scores, labels. Send"),
    ({"inputs": [GOOD_TENSOR], "outputs": ["label"]}, "outputs is not a list of outputs"),
    ({"inputs": [GOOD_TENSOR], "outputs": {"name": "label"}}, "outputs is not a list of outputs"),
]


@pytest.mark.parametrize(("content", "told"), WRONG_TENSORS)
def test_wrong_tensors_are_told_what_is_wrong(content: Any, told: str, server: Server) -> None:
    answer = ask(server, "POST", "/v2/models/animals/infer", content)
    assert answer.status_code == 400
    assert told in answer.json()["error"]


@pytest.mark.parametrize("path", ["/metrics", "/openapi.json", "/v1/models", "/v2", PREDICT, "/nowhere"])
@pytest.mark.parametrize("header", [None, "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN])
def test_without_a_token_nothing_is_answered_but_health(server: Server, path: str, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    answer = requests.post(server.url + path, json={}, headers=headers, timeout=60)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "Authorization: Bearer TOKEN" in answer.json()["error"]


def test_each_token_of_the_file_is_valid(server: Server) -> None:
    for headers in ({"Authorization": f"bearer  {OLD_TOKEN}"}, AUTHORIZED):
        assert requests.get(f"{server.url}/v2", headers=headers, timeout=60).status_code == 200
    assert server.health().status_code == 200
    assert Access(()).allows([])
    assert not Access(("a" * 16,)).allows([(b"authorization", b"Bearer " + b"a" * 16)] * 2)


def test_tokens_stay_out_of_messages(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("secret\n")
    for given in ({"TOKEN_FILE": str(file)}, {"TOKEN": "secret"}):
        with pytest.raises(UserError, match="not in the form of a bearer token") as refused:
            ServerSettings.of_environment({f"GPU_PIPELINES_SERVING_{name}": value for name, value in given.items()})
        assert "secret" not in str(refused.value)
    assert TOKEN not in repr(ServerSettings(tokens=(TOKEN,)))
    file.write_text("\n")
    for path, told in ((file, "is empty"), (tmp_path / "none", "cannot be read: No such file")):
        with pytest.raises(UserError, match=told):
            ServerSettings.of_environment({"GPU_PIPELINES_SERVING_TOKEN_FILE": str(path)})


def test_a_body_may_be_compressed(server: Server, examples: Examples) -> None:
    body = json.dumps({"instances": examples.instances}).encode()
    packed = {"Content-Encoding": "gzip", **AUTHORIZED}
    for compressed in (gzip.compress(body), gzip.compress(body[:50]) + gzip.compress(body[50:])):
        answer = requests.post(server.url + PREDICT, data=compressed, headers=packed, timeout=60)
        assert differences(examples, answer.json()["predictions"]) == []
    bomb = gzip.compress(b" " * (1 << 20)) * 900
    assert len(bomb) < 1 << 20
    for wrong, status, told in (
        (bomb, 413, "larger than 1 MiB"),
        (gzip.compress(body)[:-9], 400, "gzip has no end"),
        (body, 400, "The body is not gzip"),
    ):
        answer = requests.post(server.url + PREDICT, data=wrong, headers=packed, timeout=60)
        assert (answer.status_code, told in answer.json()["error"]) == (status, True)
    other = requests.post(server.url + PREDICT, data=b"", headers={**packed, "Content-Encoding": "br"}, timeout=60)
    assert (other.status_code, "Content-Encoding: gzip" in other.json()["error"]) == (415, True)


def test_a_body_of_many_compressed_members_keeps_nobody_waiting(model: Path, examples: Examples) -> None:
    member = gzip.compress(b"", mtime=0)
    body = gzip.compress(json.dumps({"instances": examples.instances}).encode())
    # Where each member copies what follows it, this takes minutes.
    many = member * ((10 << 20) // len(member) - len(body)) + b"\0" * 5000 + body
    with started(model, DEADLINE_SECONDS="20") as server:
        answer = requests.post(server.url + PREDICT, data=many, headers={"Content-Encoding": "gzip"}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert differences(examples, answer.json()["predictions"]) == []


def test_head_is_answered_without_a_body(server: Server) -> None:
    for path in (HEALTH, "/v2/health/ready"):
        answer = requests.head(server.url + path, timeout=60)
        assert (answer.status_code, answer.content) == (200, b"")
        assert int(answer.headers["content-length"]) > 0


def test_every_error_is_json(server: Server) -> None:
    for method, path, status in (
        ("GET", PREDICT, 405),
        ("POST", "/metrics", 405),
        ("GET", "/nowhere", 404),
        ("POST", f"{PREDICT}/", 404),
        ("GET", "/v1/models/other", 404),
        ("POST", "/v2/models/other/infer", 404),
    ):
        answer = ask(server, method, path)
        assert (answer.status_code, list(answer.json())) == (status, ["error"])
    for sent in (b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nA: " + b"a" * 200_000 + b"\r\n\r\n"):
        head, _, body = raw(server, sent).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        assert "HTTP/1.1" in json.loads(body)["error"]


def raw(server: Server, sent: bytes) -> bytes:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def metrics(server: Server) -> dict[tuple[str, ...], float]:
    text = ask(server, "GET", "/metrics").text
    return {
        (sample.name.removeprefix("gpu_pipelines_serving_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_what_was_answered(server: Server, examples: Examples) -> None:
    before = metrics(server)
    for _ in range(2):
        ask(server, "POST", PREDICT, {"instances": examples.instances})
    ask(server, "POST", PREDICT, {"instances": []})
    ask(server, "GET", "/" + "x" * 50)
    after = metrics(server)

    def grown(*key: str) -> float:
        return after[key] - before.get(key, 0.0)

    assert grown("requests_total", "predict", "200") == 2
    assert grown("requests_total", "predict", "400") == 1
    assert grown("requests_total", "other", "404") == 1
    assert grown("request_seconds_count", "predict") == 3
    assert grown("instances_total") == 6
    assert grown("batch_rows_sum") == 6
    assert (after["ready",], after["rows_waiting",], after["held_requests",], after["held_bytes",]) == (1, 0, 0, 0)
    assert after["connections",] >= 1
    assert after["process_resident_memory_bytes",] > 0


def test_openapi_describes_every_route(server: Server) -> None:
    document = ask(server, "GET", "/openapi.json").json()
    OpenAPI.model_validate(document)
    assert document["security"] == [{"token": []}]
    assert document["paths"][HEALTH]["get"]["security"] == []
    example = document["components"]["schemas"]["PredictRequest"]["examples"][0]
    for path, operations in document["paths"].items():
        for method in operations:
            answer = ask(server, method.upper(), path, example if method == "post" else None)
            assert answer.status_code == (400 if path.endswith("/infer") else 200), path
    references = set(json.dumps(document).split('"#/components/schemas/')[1:])
    assert {each.partition('"')[0] for each in references} <= set(document["components"]["schemas"])


def test_half_sent_heads_do_not_keep_others_out(server: Server, log: Path) -> None:
    """As many as 1,100 clients that never end the head of their request, at a server that may have 256 files."""
    host, port = server.url.removeprefix("http://").split(":")
    lines, held = len(log.read_text().splitlines()), []
    try:
        for number in range(1100):
            held.append(socket.create_connection((host, int(port)), timeout=30))
            held[-1].sendall(b"GET / HTTP/1.1\r\nHost: a\r\nA: ")
            if number % 250 == 249:
                assert server.health().status_code == 200
        assert ask(server, "GET", "/v2").status_code == 200
        counted = metrics(server)
        assert counted["connections",] <= 128
        assert counted["connections_closed_total", "too many"] > 900
        # Those that are left are closed after a second, with the reason.
        answer = b"".join(iter(lambda: held[-1].recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 408")
        assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {
            "error": "The head of the request did not arrive in time."
        }
    finally:
        for connection in held:
            connection.close()
    assert server.health().status_code == 200
    assert len(log.read_text().splitlines()) - lines < 20
    assert TOKEN not in log.read_text()


def test_what_is_no_http_writes_few_lines(server: Server, log: Path) -> None:
    before = len(log.read_text().splitlines())
    for _ in range(60):
        assert raw(server, b"hello\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert len(log.read_text().splitlines()) - before <= 11


def test_damaged_images_write_few_lines(server: Server, log: Path) -> None:
    """Pillow warns of each tag that lies outside of the file; the client is told that it is no image."""
    before = len(log.read_text().splitlines())
    for tag in range(20):
        tiff = struct.pack("<2sHIHHHIII", b"II", 42, 8, 1, 40_000 + tag, 2, 1000, 500, 0)
        answer = ask(server, "POST", PREDICT, {"instances": [{"b64": base64.b64encode(tiff).decode()}]})
        assert answer.status_code == 400
        assert "not a readable image" in answer.json()["error"]
    assert len(log.read_text().splitlines()) - before <= 11


def large_png(side: int) -> str:
    """A picture that is a few kilobytes in a body and takes long to decode."""
    file = io.BytesIO()
    Image.new("RGB", (side, side)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.slow
def test_large_images_do_not_keep_small_ones_waiting(server: Server, examples: Examples) -> None:
    """Two requests of twelve large images each; a small one is answered while most of them wait."""
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({"instances": [{"b64": large_png(4000)}] * 12}).encode()
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as one, socket.create_connection((host, int(port))) as two:
        for connection in (one, two):
            connection.sendall(head.encode() + body)
        while not (waiting := metrics(server)["held_pixels",]):
            time.sleep(0.01)
        assert waiting >= 12 * 16e6
        for _ in range(3):
            answer = ask(server, "POST", PREDICT, {"instances": examples.instances})
            assert differences(examples, answer.json()["predictions"]) == []
        assert metrics(server)["held_pixels",] == 24 * 16e6, "neither of the large ones has been answered"
    # Their clients have gone: what is not decoded yet is left undone.
    until = time.monotonic() + 60
    while metrics(server)["held_pixels",] and time.monotonic() < until:
        time.sleep(0.05)
    counted = metrics(server)
    assert counted["held_pixels",] == counted["held_requests",] == 0
    assert counted["requests_total", "predict", "499"] == 2


def test_a_client_that_goes_while_it_sends_is_no_failure_of_the_server(server: Server, log: Path) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\n"
    gone, lines = ("requests_total", "predict", "499"), len(log.read_text().splitlines())
    before = metrics(server)
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + b"half")
    until = time.monotonic() + 20
    while (after := metrics(server)).get(gone, 0) == before.get(gone, 0) and time.monotonic() < until:
        time.sleep(0.01)
    assert after[gone] == before.get(gone, 0) + 1
    assert "Traceback" not in "".join(log.read_text().splitlines()[lines:])


@pytest.mark.slow
def test_a_request_has_a_deadline(model: Path) -> None:
    with started(model, DEADLINE_SECONDS="0.3", MAX_PIXELS_WAITING="1000000000") as server:
        late = server.predict([{"b64": large_png(4900)}] * 24)
        assert late.status_code == 504
        assert "not answered within 0.3 s" in late.json()["error"]
        assert server.predict([{"b64": large_png(16)}]).status_code == 200
