"""MLflow as a registry: several writers, writers that are killed, what the server shows, and what is refused."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from command_line import command
from mlflow_server import mlflow_server
from processes import killing_before

from gpu_pipelines.artifacts.documents import sha256_of_tree
from gpu_pipelines.artifacts.mlflow_server import mlflow_client, mlflow_uri
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.cli.serve import place_of_model
from gpu_pipelines.data.watch import WatchSettings, check_for_new_data
from gpu_pipelines.emulator.json_server import free_port
from gpu_pipelines.errors import NotFoundError, UnavailableError, UserError
from gpu_pipelines.prediction.model import registered_model
from gpu_pipelines.registry import Registry, is_local, open_registry, registry_problems
from gpu_pipelines.registry.mlflow_registry import EXPERIMENT, MlflowRegistry
from gpu_pipelines.registry.registered import Promotion
from gpu_pipelines.registry.upload import UploadSettings, upload_model
from gpu_pipelines.targets.vertex.vertex import Vertex
from gpu_pipelines.tracking.mlflow_tracker import MlflowTracker
from gpu_pipelines.tracking.tracker import TrackedRun

#: Exit status of a process that was not killed.
ENDED = 33


def write_model(directory: Path, content: bytes = b"weights") -> Path:
    (directory / "tokenizer").mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer" / "vocabulary.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(content)
    return directory


def add(uri: str, name: str, model: Path, seen: int | None = None, **info: Any) -> int:
    return open_registry(uri).add(name, model, {"passed": True, **info}, Promotion(True, seen)).number


def runs_of(uri: str, name: str) -> list[Any]:
    client = mlflow_client(uri)
    experiment = client.get_experiment_by_name(EXPERIMENT).experiment_id
    return list(client.search_runs([experiment], f"tags.`gpu_pipelines.upload_of` = '{name}'"))


# Several writers, and writers that are killed


@pytest.mark.slow
def test_the_same_model_uploaded_by_several_at_a_time_is_one_version(mlflow: str, tmp_path: Path) -> None:
    model, together = write_model(tmp_path / "model"), threading.Barrier(3)

    def upload(_: int) -> tuple[int, bool]:
        # All are past the look for the same model when the first adds its version.
        check = lambda place: together.wait(60)  # noqa: E731
        version = open_registry(mlflow).add("together", model, {"passed": True}, Promotion(True, None), check)
        return version.number, version.added

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(upload, range(3)))
    assert {number for number, _ in found} == {1}
    assert sorted(added for _, added in found) == [False, False, True]
    registry = open_registry(mlflow)
    assert [version.number for version in registry.versions("together")] == [1]
    assert registry.aliases("together") == {"champion": 1, "challenger": 1}
    registry.version("together", "1").require_undamaged()
    assert len(runs_of(mlflow, "together")) == 1


def test_different_models_uploaded_at_a_time_are_all_there(mlflow: str, tmp_path: Path) -> None:
    models = [write_model(tmp_path / str(number), bytes([number])) for number in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda model: add(mlflow, "beside", model), models))
    assert sorted(found) == [1, 2, 3]
    for version in open_registry(mlflow).versions("beside"):
        version.require_undamaged()


@pytest.mark.slow
def test_an_alias_that_several_make_at_a_time_is_there(mlflow: str, tmp_path: Path) -> None:
    number, registry = add(mlflow, "named", write_model(tmp_path)), open_registry(mlflow)
    wanted = [f"alias-{each}" for each in range(12)]
    with ThreadPoolExecutor(4) as pool:
        for alias in wanted:
            list(pool.map(lambda _, alias=alias: registry.set_alias("named", alias, number), range(4)))
    assert {*wanted} <= {*registry.aliases("named")}


def _add_and_die(uri: str, model: Path, calls: int) -> None:
    """Adds a version and kills itself before the given one of the requests that change the server."""
    from mlflow.tracking import MlflowClient

    from gpu_pipelines.artifacts.mlflow_files import MlflowFiles

    counted = killing_before(calls)
    changes = ("create_run", "log_metric", "set_terminated", "create_registered_model", "create_model_version")
    for name in (*changes, "set_registered_model_alias"):
        setattr(MlflowClient, name, counted(getattr(MlflowClient, name)))
    MlflowFiles.put_file = counted(MlflowFiles.put_file)  # type: ignore[method-assign]
    add(uri, f"killed-{calls}", model, 1, metrics={"accuracy": 0.5})
    os._exit(ENDED)


@pytest.mark.slow
def test_an_upload_killed_at_any_stage_leaves_whole_versions_only(mlflow: str, tmp_path: Path) -> None:
    # Forked by a process that has no threads, and MLflow imported.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gpu_pipelines.registry.mlflow_registry", "mlflow.tracking"])
    first = write_model(tmp_path / "first", b"first")
    for calls in range(1, 20):
        name, model = f"killed-{calls}", write_model(tmp_path / str(calls), os.urandom(20_000))
        add(mlflow, name, first)
        process = context.Process(target=_add_and_die, args=(mlflow, model, calls))
        process.start()
        process.join(120)
        if process.exitcode == ENDED:
            break
        assert process.exitcode == -signal.SIGKILL
        registry = open_registry(mlflow)
        for version in registry.versions(name):
            written = sha256_of_tree(version.path, leave_out=("version.json",))
            assert version.info["files"] == written, f"killed at {calls}"
        assert registry.aliases(name)["champion"] == 1
        assert add(mlflow, name, model, 1) == 2, "the next upload of the same model takes up what is there"
        assert registry.aliases(name) == {"champion": 2, "challenger": 2}
        assert [version.number for version in registry.versions(name)] == [1, 2]
    assert calls == 11, (
        "a run, two files and version.json, a metric, the model, a version, its end, two aliases, the end"
    )


def test_what_a_killed_upload_has_left_is_deleted_by_one_a_day_later(
    mlflow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, client = write_model(tmp_path / "model"), mlflow_client(mlflow)
    add(mlflow, "left", model)
    (named,) = (run.info.run_id for run in runs_of(mlflow, "left"))
    # One that was killed right after its version was added has not ended.
    client.update_run(named, status="RUNNING")
    experiment = client.get_experiment_by_name(EXPERIMENT).experiment_id
    now = time.time()
    young, old = (
        client.create_run(experiment, int((now + hours * 3600) * 1000), {"gpu_pipelines.upload_of": "left"})
        for hours in (24, -1)
    )
    client.log_text(old.info.run_id, "half of it", "model/model.safetensors")
    monkeypatch.setattr("gpu_pipelines.registry.mlflow_registry.time.time", lambda: now + 25 * 3600)
    add(mlflow, "left", write_model(model, b"other"), 1)
    left = {run.info.run_id for run in runs_of(mlflow, "left")}
    assert {named, young.info.run_id} < left, "a version needs it, and it may go on yet"
    assert old.info.run_id not in left
    assert len(left) == 3
    assert client.list_artifacts(old.info.run_id, "model") == []
    open_registry(mlflow).version("left", "1").require_undamaged()


def test_a_version_that_the_server_refuses_leaves_no_files(
    mlflow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, name = write_model(tmp_path / "model"), "refused"
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED
    from mlflow.tracking import MlflowClient

    def refuse(*_: Any, **__: Any) -> None:
        raise MlflowException("you may not add models", error_code=PERMISSION_DENIED)

    monkeypatch.setattr(MlflowClient, "create_registered_model", refuse)
    with pytest.raises(UserError, match="you may not add models"):
        add(mlflow, name, model)
    assert runs_of(mlflow, name) == []
    monkeypatch.undo()
    assert add(mlflow, name, model) == 1


def test_an_account_that_may_read_alone_is_refused_before_anything_is_uploaded(
    mlflow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server with authentication answers one that has no more than its default right, to read."""
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED
    from mlflow.tracking import MlflowClient

    registry = open_registry(mlflow)
    registry.prepare()
    registry.require_writable()

    def refuse(*_: Any, **__: Any) -> None:
        raise MlflowException("Permission denied", error_code=PERMISSION_DENIED)

    for name in ("create_run", "set_experiment_tag", "create_registered_model", "create_model_version"):
        monkeypatch.setattr(MlflowClient, name, refuse)
    assert registry.names() is not None
    with pytest.raises(UserError, match=r"Opening the registry in .* failed: .*Permission denied"):
        registry.require_writable()


# What others see


def test_the_server_shows_metrics_and_the_run_of_the_tracker(mlflow: str, tmp_path: Path) -> None:
    tracker = MlflowTracker(mlflow.removeprefix("mlflow:"))
    tracker.begin(TrackedRun("/runs/shown", "shown"))
    info = {"metrics": {"accuracy": 0.75, "log_loss": None}, "source_fingerprint": "abc", "tracked_run": "/runs/shown"}
    add(mlflow, "shown", write_model(tmp_path / "model"), **info)
    client = mlflow_client(mlflow)
    version = client.get_model_version("shown", "1")
    assert version.tags["test_accuracy"] == "0.75"
    assert version.tags["source_fingerprint"] == "abc"
    assert version.description == "not evaluated"
    run = client.get_run(version.run_id)
    assert run.data.metrics == {"test_accuracy": 0.75}
    assert run.info.status == "FINISHED"
    assert client.get_run(run.data.tags["mlflow.parentRunId"]).info.run_name == "shown"


def test_versions_of_others_are_let_be(mlflow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = mlflow_client(mlflow)
    client.create_registered_model("theirs")
    client.create_model_version("theirs", "s3://bucket/theirs")
    client.set_registered_model_alias("theirs", "champion", "1")
    registry = open_registry(mlflow)
    assert "theirs" not in registry.names()
    assert registry.versions("theirs") == []
    assert add(mlflow, "theirs", write_model(tmp_path / "model")) == 2
    assert registry.aliases("theirs") == {"challenger": 2}
    assert client.get_model_version_by_alias("theirs", "champion").version == "1"
    for reference in ("champion", "1", "3"):
        with pytest.raises(NotFoundError):
            registry.version("theirs", reference)
    # One version is read alone: there may be thousands.
    monkeypatch.setattr(type(client), "search_model_versions", None)
    assert registry.version("theirs", "challenger").number == 2


# Whatever takes a registry


def test_commands_and_steps_take_it(mlflow: str, tmp_path: Path) -> None:
    info = {"metrics": {"accuracy": 0.75}, "source_fingerprint": "of other data"}
    shutil.copy(write_model(tmp_path / "model") / "tokenizer/vocabulary.json", tmp_path / "model/tokenizer.json")
    add(mlflow, "used", tmp_path / "model", **info)
    place = open_registry(mlflow).version("used", "1").place
    assert place_of_model("used@champion", mlflow) == place
    model = registered_model(mlflow, "used", "champion")
    assert (model.place, model.version) == (place, 1)
    assert (model.directory / "model.safetensors").read_bytes() == b"weights"
    (tmp_path / "data.jsonl").write_text('{"text": "a"}\n')
    settings = WatchSettings(
        source=str(tmp_path / "data.jsonl"),
        registry=mlflow,
        model_name="used",
        task="causal_lm",
        model="gpt2-micro",
        start_from_champion=True,
    )
    decision = check_for_new_data(settings)
    assert (decision.retrain, decision.model, decision.tokenizer) == (True, place, place)
    listed = command("models", "list", "--registry", mlflow)
    assert listed.status == 0, listed
    assert "used" in listed.out
    shown = command("models", "show", "used", "--registry", mlflow)
    assert "0.75" in shown.out
    assert f"{mlflow.removeprefix('mlflow:')}/#/models/used" in shown.out
    assert command("models", "alias", "used", "live", "1", "--registry", mlflow).status == 0
    assert open_registry(mlflow).aliases("used")["live"] == 1


def test_where_steps_reach_it(tmp_path: Path) -> None:
    target, model = Vertex(), write_model(tmp_path / "model")
    assert not is_local("mlflow:https://models.example")
    assert is_local("mlflow:sqlite:///models.db")
    assert target.can_read("mlflow:https://models.example/runs/0/artifacts/model")
    assert not target.can_read("mlflow:sqlite:////models.db/runs/0/artifacts/model")
    with pytest.raises(UserError, match="would be a file of this container"):
        upload_model(UploadSettings("mlflow:sqlite:///models.db", "lost"), model, True, "gs://bucket/run")


# What is refused


@pytest.mark.parametrize("rest", ["//host:5000", "ftp://host", "https://", "http://host?workspace=a", "databricks"])
def test_other_addresses_are_refused(rest: str) -> None:
    if rest == "databricks":
        with pytest.raises(UserError, match="not one of MLflow"):
            open_registry(f"mlflow:{rest}")
    else:
        (problem,) = registry_problems(f"mlflow:{rest}", "")
        assert "mlflow:https://HOST" in problem


def test_a_secret_in_an_address_is_refused_and_not_repeated() -> None:
    for address in ("mlflow:https://me:hidden@host", "mlflow:https://host/?token=hidden"):
        (problem,) = registry_problems(address, "")
        assert "MLFLOW_TRACKING_PASSWORD" in problem
        assert "hidden" not in problem


def test_a_file_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert mlflow_uri("mlflow:sqlite:///models.db") == f"mlflow:sqlite:///{tmp_path}/models.db"
    finished = command("models", "list", "--registry", "mlflow:sqlite:///models.db")
    assert "does not exist" in finished.err
    wanted = ("-p", "source=sample:digits", "-p", "registry=mlflow:sqlite:///models.db")
    assert command("run", "train_evaluate_upload", *wanted, "--dry-run").status == 0
    assert not (tmp_path / "models.db").exists()


def test_whoever_only_looks_whether_models_may_be_added_leaves_nothing(tmp_path: Path) -> None:
    registry = open_registry(f"mlflow:sqlite:///{tmp_path}/models/models.db")
    registry.require_writable()
    assert not list(tmp_path.iterdir())
    registry.prepare()
    registry.require_writable()
    assert (tmp_path / "models/models.db").is_file()


def test_a_look_leaves_no_experiment_on_a_server(mlflow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_pipelines.registry.mlflow_registry.EXPERIMENT", "nobody-has-made-it")
    open_registry(mlflow).require_writable()
    assert mlflow_client(mlflow).get_experiment_by_name("nobody-has-made-it") is None
    open_registry(mlflow).prepare()
    assert mlflow_client(mlflow).get_experiment_by_name("nobody-has-made-it") is not None


def test_a_server_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UnavailableError, match=r"failed: Connection refused\n  Check that the server runs"):
        open_registry(f"mlflow:http://127.0.0.1:{free_port()}").names()


def test_a_server_that_takes_long_is_waited_for_aloud(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpu_pipelines.registry.mlflow_registry._PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(MlflowRegistry, "_search", lambda *given: [time.sleep(0.2)][1:])
    assert open_registry("mlflow:http://127.0.0.1:9").names() == []
    assert capsys.readouterr().err == "waiting for an answer from mlflow:http://127.0.0.1:9\n"


@pytest.mark.slow
def test_a_server_that_would_leave_files_on_other_machines_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mlflow_server(tmp_path) as address:
        here: Registry = open_registry(f"mlflow:{address}")
        here.prepare()
        there = open_registry(f"mlflow:{address.replace('127.0.0.1', '127.0.0.2')}")
        monkeypatch.setattr("gpu_pipelines.registry.mlflow_registry.mlflow_client", lambda uri: mlflow_client(here.uri))  # type: ignore[attr-defined]
        with pytest.raises(UserError, match="neither takes files nor keeps them in a bucket"):
            there.require_writable()


def test_the_console_says_that_it_shows_none_of_them() -> None:
    finished = command("console", "--registry", "mlflow:https://models.example", "--no-open")
    assert finished.status == 2
    assert "shows no models of mlflow:" in finished.err


def test_files_are_read_as_those_of_a_bucket(mlflow: str, tmp_path: Path) -> None:
    add(mlflow, "read", write_model(tmp_path / "model", b"0123456789"))
    folder = RemoteFolder(open_registry(mlflow).version("read", "1").place)
    assert folder.sizes()["model.safetensors"] == 10
    assert folder.read("model.safetensors", 2, 5) == b"234"
    with pytest.raises(FileNotFoundError):
        folder.read("absent")
