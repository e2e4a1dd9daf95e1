"""The server over HTTP: Vertex AI's contract, predictions, batches, and its end."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
import transformers
from command_line import command
from conftest import gpu_pipelines, storage_emulator
from exported_models import MODELS, export
from server_process import PREDICT, Server, started, wait_until_ready

from gpu_pipelines.artifacts.documents import write_document
from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.cli.serve import place_of_model
from gpu_pipelines.errors import UserError
from gpu_pipelines.registry.upload import UploadSettings, upload_model
from gpu_pipelines.serving.comparison import differences
from gpu_pipelines.serving.predictors import load_predictor, task_of
from gpu_pipelines.serving.settings import ServerSettings


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An exported model of each task."""
    folder = tmp_path_factory.mktemp("exported")
    return {task: export(task, folder / task) for task in MODELS}


@pytest.fixture(scope="module")
def images(models: dict[str, Path]) -> Iterator[Server]:
    """A server of the image classifier."""
    with started(models["image_classification"]) as server:
        yield server


def check_examples(model: Path, server: Server) -> Examples:
    """Fails unless the examples of a model are served as they were evaluated; gives them."""
    examples = Examples.load(model)
    answer = server.predict(examples.instances)
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"predictions"}
    assert differences(examples, answer.json()["predictions"]) == []
    return examples


def test_images_are_served_as_they_were_evaluated(models: dict[str, Path], images: Server) -> None:
    examples = check_examples(models["image_classification"], images)
    best = images.predict(examples.instances[:1], top_k=1).json()["predictions"][0]
    assert list(best["scores"]) == [best["label"]]


@pytest.mark.slow
def test_a_model_in_a_bucket_is_loaded_while_health_says_so(models: dict[str, Path]) -> None:
    from gpu_pipelines.artifacts.remote_files import RemoteFolder

    model = models["text_classification"]
    with storage_emulator("models") as bucket:
        RemoteFolder(f"{bucket}/m").upload(model, [path.name for path in model.iterdir()])
        with started(None, ready=False, AIP_STORAGE_URI=f"{bucket}/m", MAX_WAITING="4") as server:
            first = server.health()
            assert first.status_code == 503
            assert int(first.headers["retry-after"]) > 0
            early = server.predict([{"text": "a"}])
            assert early.status_code == 503
            assert "being loaded" in early.json()["error"]
            wait_until_ready(server)
            check_examples(model, server)
            full = server.predict([{"text": "a"}] * 5)
            assert full.status_code == 429
            assert int(full.headers["retry-after"]) > 0
            assert server.predict([{"text": "a"}] * 4).status_code == 200
            assert server.end() == 0
            assert server.process.stdout
            assert "serving text classification on cpu at http://127.0.0.1:" in server.process.stdout.read()


def test_concurrent_requests_each_get_their_own_answers(images: Server, models: dict[str, Path]) -> None:
    examples = Examples.load(models["image_classification"])
    found: list[list[str]] = []

    def ask(number: int) -> None:
        order = [(number + offset) % 3 for offset in range(1 + number % 3)]
        with requests.Session() as session:
            for _ in range(10):
                content = {"instances": [examples.instances[place] for place in order]}
                answer = session.post(images.url + PREDICT, json=content, timeout=60)
                wanted = Examples(examples.task, content["instances"], [examples.predictions[p] for p in order])
                found.append(differences(wanted, answer.json()["predictions"]))

    together([lambda number=number: ask(number) for number in range(8)])  # type: ignore[misc]
    assert len(found) == 80
    assert not any(found)


def together(functions: list[Callable[[], None]]) -> None:
    """Runs functions at the same time."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@dataclass
class SlowClient:
    """Sends half of a request, the rest when it is told to, and keeps all that is answered."""

    server: Server
    go_on: threading.Event = field(default_factory=threading.Event)
    sent: threading.Event = field(default_factory=threading.Event)
    answer: bytes = b""

    def ask(self) -> None:
        body = json.dumps({"instances": [{"prompt": "the bee"}]}).encode()
        host, port = self.server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            head = f"POST {PREDICT} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            connection.sendall(head + body[:10])
            self.sent.set()
            self.go_on.wait(30)
            connection.sendall(body[10:])
            while piece := connection.recv(65536):
                self.answer += piece


def test_sigterm_loses_no_request(models: dict[str, Path]) -> None:
    """Clients ask without a pause before and after the signal; one has sent half of a request when it comes."""
    with started(models["causal_lm"], DRAIN_SECONDS="3") as server:
        examples = check_examples(models["causal_lm"], server)
        written = server.predict(examples.instances[:1], max_new_tokens=3).json()["predictions"][0]
        assert isinstance(written["text"], str)
        counted: Counter[str] = Counter()
        stop, phase, slow = threading.Event(), ["before"], SlowClient(server)

        def hammer() -> None:
            with requests.Session() as session:
                while not stop.is_set():
                    content = {"instances": examples.instances[:2]}
                    when, answer = phase[0], session.post(server.url + PREDICT, json=content, timeout=30)
                    whole = answer.status_code == 200 and len(answer.json()["predictions"]) == 2
                    counted[when if whole else f"{answer.status_code} {answer.text}"] += 1

        def end() -> None:
            assert slow.sent.wait(30)
            time.sleep(0.5)
            phase[0] = "after"
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            counted[f"health {server.health().status_code}"] += 1
            # As a load balancer does that has seen it.
            stop.set()
            until = time.monotonic() + 30
            while is_listening(server) and time.monotonic() < until:
                time.sleep(0.05)
            slow.go_on.set()

        together([slow.ask, end, *[hammer] * 6])
        assert server.process.wait(30) == 0
    assert slow.answer.startswith(b"HTTP/1.1 200")
    assert set(counted) == {"before", "after", "health 503"}
    assert min(counted["before"], counted["after"]) > 5


def is_listening(server: Server) -> bool:
    host, port = server.url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def test_a_model_is_a_directory_or_a_version_of_a_registry(models: dict[str, Path], tmp_path: Path) -> None:
    settings = UploadSettings(registry=str(tmp_path / "registry"), smoke_test=False)
    model = tmp_path / "model"
    shutil.copytree(models["causal_lm"], model)
    for passed in (True, False):
        (model / "notes.txt").write_text(f"The same model twice would be one version. {passed}")
        upload_model(settings, model, passed=passed)
    places = [place_of_model(f"animals{end}", settings.registry) for end in ("", "@champion", "@1", "@challenger")]
    assert [Path(place).name for place in places] == ["1", "1", "1", "2"]
    assert place_of_model(str(tmp_path), "no registry") == str(tmp_path)
    assert place_of_model("gs://bucket/model", "no registry") == "gs://bucket/model"
    with pytest.raises(UserError, match="Did you mean 'animals'"):
        place_of_model("animal", settings.registry)
    with pytest.raises(UserError, match="There is no directory no/where"):
        place_of_model("no/where", settings.registry)


def test_a_model_of_several_classes_that_another_program_trained_is_served_as_transformers_has_it(
    tmp_path: Path,
) -> None:
    model = _of_another_program(tmp_path / "model", problem_type="multi_label_classification")
    predictor = load_predictor(model, ServerSettings())
    [answer] = predictor.predict([predictor.read({"text": "the bee"}, predictor.checked({})).row()])
    expected = transformers.pipeline("text-classification", str(model), top_k=None)(["the bee"])[0]
    assert answer["scores"] == pytest.approx({each["label"]: each["score"] for each in expected}, abs=1e-5)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"problem_type": "regression"}, "and the problem_type regression"),
        ({"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}, "and a single class"),
    ],
)
def test_a_model_of_numbers_that_another_program_trained_is_not_served_as_a_classifier(
    tmp_path: Path, said: dict[str, Any], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        load_predictor(_of_another_program(tmp_path / "model", **said), ServerSettings())


def test_a_regression_from_texts_without_its_evaluation_is_known_by_its_config(tmp_path: Path) -> None:
    assert task_of(_of_another_program(tmp_path / "model", regression={"kind": "text"})) == "regression"


def _of_another_program(directory: Path, **said: Any) -> Path:
    """A model without this project's evaluation, whose config.json says something of it."""
    model = export("text_classification", directory)
    (model / "evaluation.json").unlink()
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps({**config, **said}), encoding="utf-8")
    return model


def test_an_export_is_told_with_what_serves_its_model(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    with pytest.raises(UserError, match=r"has a model as ONNX, which this server does not run\."):
        task_of(tmp_path)
    write_document(tmp_path / "export.json", {"model": "digits version 3"})
    with pytest.raises(UserError, match="has digits version 3 as ONNX") as refused:
        task_of(tmp_path)
    assert "gpu-pipelines serve NAME@VERSION. ONNX Runtime runs model.onnx." in refused.value.remedy


def test_the_command_names_what_it_cannot_serve(tmp_path: Path) -> None:
    wrong = command("serve", "animals@champion", cwd=tmp_path)
    assert wrong.status == 2
    assert "no such model in ./registry" in wrong.err
    (tmp_path / "empty").mkdir()
    failed = gpu_pipelines("serve", "empty", "--port", "0", cwd=tmp_path, apart=True)
    assert failed.status == 2
    assert "has no config.json" in failed.err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = command("serve", "empty", "--port", str(taken.getsockname()[1]), cwd=tmp_path)
    assert "Address already in use" in refused.err
    refused = command("serve", "empty", "--port", "99999", cwd=tmp_path)
    assert "must be 0-65535.\n  Give another" in refused.err
    (tmp_path / "file").touch()
    refused = command("serve", "empty", "--port", "0", "--log-requests", "file/log", cwd=tmp_path)
    assert "No requests can be logged to file/log: Not a directory." in refused.err
