"""The log of requests: what is in it, what is not, and that no prediction waits for it or fails with it."""

from __future__ import annotations

import json
import resource
import stat
import threading
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest
from exported_models import export
from server_process import started
from starlette.testclient import TestClient

from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.errors import UserError
from gpu_pipelines.serving import request_log
from gpu_pipelines.serving.app import Serving
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.request_log import RequestLog, id_of
from gpu_pipelines.serving.settings import Contract, ServerSettings


def settings(place: Path | str, **given: Any) -> ServerSettings:
    return ServerSettings(log_requests=str(place), **{"log_share": 1.0, **given})


def lines(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("[!.]*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def wait_for(what: Any) -> None:
    until = time.monotonic() + 20
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export("text_classification", tmp_path_factory.mktemp("exported") / "model")


def test_requests_are_written_with_their_predictions_and_nothing_of_their_heads(model: Path, tmp_path: Path) -> None:
    secret = "a-token-that-nobody-sees-in-a-log"
    asked = settings(tmp_path / "log", tokens=(secret,))
    serving = Serving(asked, Contract())
    serving.start(load_predictor(model, asked), "animals")
    head = {"Authorization": f"Bearer {secret}", "X-Request-Id": "first", "Cookie": "s=cookie-of-somebody"}
    with TestClient(serving) as client:
        answer = client.post("/predict", json={"instances": [{"text": "a bee"}, {"text": "a cat"}]}, headers=head)
        assert client.post("/predict", json={"instances": [{"text": ""}]}, headers=head).status_code == 400
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["an ant"]}
        assert client.post("/v2/models/animals/infer", json={"inputs": [tensor]}, headers=head).status_code == 200
    found = lines(tmp_path / "log")
    assert [each["request_payload"] for each in found] == [
        ['{"text": "a bee"}', '{"text": "a cat"}'],
        ['{"text": "an ant"}'],
    ]
    assert [json.loads(each) for each in found[0]["response_payload"]] == answer.json()["predictions"]
    assert (found[0]["request_id"], found[0]["model"]) == ("first", "animals")
    (file,) = (tmp_path / "log").iterdir()
    assert secret not in file.read_text()
    assert "cookie" not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_sample_follows_from_the_names_of_requests(tmp_path: Path) -> None:
    one, other = (RequestLog(settings(tmp_path / name, log_share=0.1), "m") for name in ("one", "other"))
    names = [f"request-{number}" for number in range(5000)]
    drawn = [name for name in names if one.wants(name)]
    assert drawn == [name for name in names if other.wants(name)]
    assert 400 < len(drawn) < 600
    rare = RequestLog(settings(tmp_path, log_share=1e-9), "m")
    assert not any(rare.wants(name) for name in names)
    for log in (one, other, rare):
        log.close()
    assert id_of({"x-request-id": "mine"}) == "mine"
    assert id_of({"x-request-id": "not a name\n"}) != id_of({})


def test_files_are_closed_by_size_and_by_age(tmp_path: Path) -> None:
    log = RequestLog(settings(tmp_path / "size", log_megabytes=1), "m")
    for number in range(8):
        log.offer(str(number), [{"text": "x" * 300_000}], [{}], 300_000)
    log.close()
    assert len(list((tmp_path / "size").iterdir())) == 2
    assert [each["request_id"] for each in lines(tmp_path / "size")] == [str(number) for number in range(8)]
    aged = RequestLog(settings(tmp_path / "age", log_minutes=0.001), "m")
    aged.offer("1", [{}], [{}], 2)
    wait_for(lambda: lines(tmp_path / "age"))


def test_what_is_being_written_is_not_seen_by_readers(tmp_path: Path) -> None:
    log = RequestLog(settings(tmp_path), "m")
    log.offer("1", [{}], [{}], 2)
    wait_for(lambda: list(tmp_path.glob(".*.jsonl")))
    assert not lines(tmp_path)
    log.close()
    assert len(lines(tmp_path)) == 1


def test_a_place_that_cannot_be_written_to_breaks_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    asked = settings(tmp_path / "file")
    serving = Serving(asked, Contract())
    serving.start(load_predictor(model, asked), "animals")
    with TestClient(serving) as client:
        for _ in range(3):
            assert client.post("/predict", json={"instances": [{"text": "a bee"}]}).status_code == 200
        wait_for(lambda: b"gpu_pipelines_serving_unlogged_requests 3.0" in client.get("/metrics").content)
    assert "requests are not logged to" in capsys.readouterr().err


def test_a_disk_that_was_full_leaves_whole_lines(tmp_path: Path) -> None:
    log = RequestLog(settings(tmp_path), "m")

    def offer(number: int) -> None:
        log.offer(str(number), [{"text": "x" * 30_000}], [{}], 30_000)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        offer(1)
        offer(2)
        wait_for(lambda: log.left_out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    offer(3)
    log.close()
    assert [each["request_id"] for each in lines(tmp_path)] == ["1", "3"]
    assert (log.written, log.left_out) == (2, 1)


def test_a_file_of_a_full_disk_gets_its_name(tmp_path: Path) -> None:
    log = RequestLog(settings(tmp_path), "m")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
    try:
        for number in range(20):
            log.offer(str(number), [{}], [{}], 2)
        log.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(lines(tmp_path)) == log.written > 0
    assert log.written + log.left_out == 20


def test_a_slow_disk_makes_nobody_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_MOST_WAITING", 5)
    gate = threading.Event()
    log = RequestLog(settings(tmp_path), "m")
    monkeypatch.setattr(log, "_begin", lambda begin=log._begin: (gate.wait(20), begin()))
    began = time.monotonic()
    for number in range(50):
        log.offer(str(number), [{}], [{}], 1)
    assert time.monotonic() - began < 1
    assert log.left_out >= 44
    gate.set()
    log.close()
    assert len(lines(tmp_path)) + log.left_out == 50
    log = RequestLog(settings(tmp_path / "large"), "m")
    log.offer("1", [{}], [{}], 1 << 30)
    assert log.left_out == 1, "it would not fit into memory"


def test_files_go_to_a_bucket_and_wait_while_it_is_away(tmp_path: Path) -> None:
    bucket = fsspec.filesystem("memory")
    place = f"memory://{tmp_path.name}/log"
    log = RequestLog(settings(place, log_minutes=0.001), "m")
    away = bucket.store
    type(bucket).store = None  # type: ignore[assignment]
    try:
        log.offer("1", [{}], [{}], 2)
        wait_for(lambda: log._to_upload)
    finally:
        type(bucket).store = away
    log.offer("2", [{}], [{}], 2)
    log.close()
    found = [
        json.loads(line) for name in bucket.find(f"/{tmp_path.name}/log") for line in bucket.cat(name).splitlines()
    ]
    assert [each["request_id"] for each in found] == ["1", "2"]
    assert (log.written, log.left_out) == (2, 0)


def test_the_environment_and_wrong_values() -> None:
    environment = {"GPU_PIPELINES_SERVING_LOG_REQUESTS": "gs://b/log", "GPU_PIPELINES_SERVING_LOG_SHARE": "0.5"}
    found = ServerSettings.of_environment(environment)
    assert (found.log_requests, found.log_share) == ("gs://b/log", 0.5)
    with pytest.raises(UserError, match="log_share is 2; give a share of at most 1"):
        ServerSettings.of_environment({"GPU_PIPELINES_SERVING_LOG_SHARE": "2"})
    with pytest.raises(UserError, match="no name of a bucket"):
        ServerSettings.of_environment({"GPU_PIPELINES_SERVING_LOG_REQUESTS": "gs://"})


@pytest.mark.slow
def test_what_waits_is_written_when_a_signal_ends_the_server(model: Path, tmp_path: Path) -> None:
    with started(model, LOG_REQUESTS=str(tmp_path / "log"), LOG_SHARE="1") as server:
        for instance in Examples.load(model).instances:
            assert server.predict([instance]).ok
        server.end()
    assert len(lines(tmp_path / "log")) == len(Examples.load(model).instances)
