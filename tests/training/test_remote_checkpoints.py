"""Checkpoints in Cloud Storage: through the real client, against an emulator."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from slow_storage import deleted_once_listed, failing_storage, slow_storage
from started_training import run_training, tensors, weights_digest
from trainings import photos_dataset, train_here

from gpu_pipelines.artifacts import checkpoint_store
from gpu_pipelines.artifacts.checkpoint import complete_checkpoints, mark_complete, write_configuration
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.artifacts.copied_checkpoints import local_copy
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.errors import UserError
from gpu_pipelines.step_environment import CHECKPOINT_LEASE
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model

SETTINGS = TrainingSettings(model="mlp-small", max_steps=9, checkpoint_every_steps=3, global_batch_size=16)


@pytest.fixture(autouse=True, scope="module")
def one_process() -> None:
    """The trainings here are of two processes, each of which writes its part of a checkpoint."""


@pytest.fixture(scope="module")
def trained(bucket: str, numbers: Path) -> str:
    uri = f"{bucket}/first"
    train_model(SETTINGS, numbers, uri)
    return uri


@pytest.mark.slow
def test_all_that_a_local_training_leaves_is_in_the_bucket(trained: str, numbers: Path, tmp_path: Path) -> None:
    train_model(SETTINGS, numbers, str(tmp_path / "local"))
    local = {path.relative_to(tmp_path / "local").as_posix() for path in (tmp_path / "local").rglob("*.*")}
    held = set(RemoteFolder(trained).names())
    assert {name for name in held if "tfevents" not in name} == {name for name in local if "tfevents" not in name}
    assert any("tfevents" in name for name in held)
    copy = local_copy(trained, tmp_path / "copy")
    last = "step-00000009"
    assert weights_digest(copy / last) == weights_digest(tmp_path / "local" / last)
    assert all(checkpoint.damaged_file() is None for checkpoint in complete_checkpoints(copy))


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallelism", ["auto", pytest.param("ddp", marks=pytest.mark.slow), pytest.param("fsdp", marks=pytest.mark.slow)]
)
def test_a_training_in_a_bucket_continues_where_it_was_cut_off(
    bucket: str, trained: str, numbers: Path, tmp_path: Path, parallelism: str, capfd: pytest.CaptureFixture[str]
) -> None:
    settings, uri = replace(SETTINGS, parallelism=parallelism), f"{bucket}/{parallelism}"
    if settings == SETTINGS:
        names = RemoteFolder(trained).names()
        RemoteFolder(trained).download(names, tmp_path / "again")
        RemoteFolder(uri).upload(tmp_path / "again", names)
    else:
        train_model(settings, numbers, uri)
    whole = weights_digest(local_copy(uri, tmp_path / "whole") / "step-00000009")
    # As if it had been killed before the marker of its last checkpoint, with a damaged one before that.
    folder = RemoteFolder(uri)
    folder.delete(["step-00000009/checkpoint.json"])
    damaged = next(name for name in folder.names() if name.startswith("step-00000006/") and "safetensors" in name)
    (tmp_path / damaged).parent.mkdir()
    (tmp_path / damaged).write_bytes(b"cut off")
    folder.upload(tmp_path, [damaged])
    train_model(settings, numbers, uri)
    printed = capfd.readouterr().out
    assert "passing over step-00000006" in printed
    assert "continuing from step-00000003" in printed
    assert weights_digest(local_copy(uri, tmp_path / "continued") / "step-00000009") == whole


@pytest.mark.slow
def test_superseded_checkpoints_are_deleted_from_the_bucket(bucket: str, numbers: Path) -> None:
    uri = f"{bucket}/kept"
    assert run_training(replace(SETTINGS, keep_last=1), numbers, uri).status == 0
    names = RemoteFolder(uri).names()
    best = max(json.loads(RemoteFolder(uri).read(n))["best_step"] for n in names if n.endswith("/checkpoint.json"))
    assert {name.partition("/")[0] for name in names if name.startswith("step-")} == {
        "step-00000009",
        f"step-{best:08d}",
    }


@pytest.mark.slow
def test_a_bucket_that_is_not_there_is_an_error_that_names_it(bucket: str, numbers: Path) -> None:
    ended = run_training(SETTINGS, numbers, "gs://no-such-bucket/run")
    assert ended.status == 1
    assert "gs://no-such-bucket/run" in ended.lines[-2] + ended.lines[-1], ended.text
    assert "Traceback" not in ended.text


def test_a_scheme_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        CheckpointStore("nowhere://bucket/run", tmp_path)


def test_a_folder_without_a_training_is_an_error(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no training run"):
        local_copy(f"{bucket}/empty", tmp_path)


@pytest.mark.slow
def test_checkpoints_in_a_bucket_are_evaluated(trained: str, numbers: Path, tmp_path: Path) -> None:
    from kfp.dsl import HTML, Artifact, ClassificationMetrics, Dataset, Metrics, Model

    from gpu_pipelines.evaluation.step import EvaluationSettings, run

    def artifact(kind: type[Artifact], name: str) -> Artifact:
        return kind(name=name, uri=str(tmp_path / name), metadata={})

    (passed,) = run(
        EvaluationSettings(gates=["r2>=-100"], registry=str(tmp_path / "registry")),
        dataset=Dataset(name="dataset", uri=str(numbers), metadata={}),
        checkpoints=Artifact(name="checkpoints", uri=trained, metadata={}),
        best_checkpoint=artifact(Model, "best"),
        evaluation=artifact(Metrics, "metrics"),
        confusion=artifact(ClassificationMetrics, "confusion"),
        report=artifact(HTML, "report.html"),
        benchmark_results=artifact(Artifact, "benchmark_results"),
        advanced={},
    )
    assert passed
    assert (tmp_path / "best" / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_training_starts_from_weights_in_a_bucket(
    bucket: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import torch

    from gpu_pipelines.artifacts.dataset import Dataset
    from gpu_pipelines.tasks.image_classification.recipe import ImageClassification

    photos = photos_dataset(tmp_path_factory.mktemp("photos"))
    recipe = ImageClassification.for_dataset(Dataset(photos))
    torch.manual_seed(5)
    model = recipe.build_model("vit-micro")
    recipe.export(model, tmp_path)
    RemoteFolder(f"{bucket}/pretrained").upload(tmp_path, [path.name for path in tmp_path.iterdir()])
    uri = f"{bucket}/fine-tuned"
    settings = replace(
        SETTINGS, model=f"{bucket}/pretrained", max_steps=1, checkpoint_every_steps=1, learning_rate=1e-9
    )
    ended = run_training(settings, photos, uri)
    assert ended.status == 0, ended.text
    held = tensors(local_copy(uri, tmp_path / "copy") / "step-00000001")
    for name, value in model.state_dict().items():
        assert torch.allclose(held[f"model.{name}"], value, atol=1e-6)


def test_a_script_is_told_the_bucket_and_its_metrics_are_uploaded(bucket: str, numbers: Path, tmp_path: Path) -> None:
    from gpu_pipelines.training.script.run import run_script
    from gpu_pipelines.training.script.settings import ScriptSettings

    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "import fsspec\n"
        "with fsspec.open(os.environ['AIP_CHECKPOINT_DIR'] + 'told.txt', 'w') as file:\n"
        "    file.write(os.environ['AIP_MODEL_DIR'])\n"
        "open(os.environ['GPU_PIPELINES_METRICS'], 'a').write('{\"step\": 1, \"loss\": 2.5}\\n')\n"
    )
    uri = f"{bucket}/script"
    summary = run_script(ScriptSettings(script=str(script), launcher="plain"), numbers, uri)
    assert summary
    assert summary.figures()["final_loss"] == 2.5
    assert RemoteFolder(uri).read("told.txt").decode() == f"{uri}/model/"
    assert json.loads(RemoteFolder(uri).read("metrics.jsonl")) == {"step": 1, "loss": 2.5}


@pytest.mark.slow
def test_an_evaluation_fetches_the_weights_alone(trained: str, tmp_path: Path) -> None:
    whole, weights = local_copy(trained, tmp_path / "whole"), local_copy(trained, tmp_path / "part", weights_only=True)
    (everything, some) = (complete_checkpoints(directory)[-1] for directory in (whole, weights))
    assert some.damaged_file(weights_only=True) is None
    assert some.damaged_file() is not None
    held = {name: value for name, value in tensors(everything.path).items() if name.startswith("model.")}
    assert tensors(some.path).keys() == held.keys()

    def size(path: Path) -> int:
        return sum(file.stat().st_size for file in path.glob("*.safetensors"))

    assert size(some.path) < 0.4 * size(everything.path)


def test_what_a_slow_upload_took_is_said(bucket: str, numbers: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with slow_storage(b"step-00000001/shard", seconds=2):
        train_here(replace(SETTINGS, max_steps=2, checkpoint_every_steps=1), numbers, f"{bucket}/slow")
    (said,) = [line for line in capfd.readouterr().out.splitlines() if "is saved" in line]
    found = re.fullmatch(
        r"step-00000001 is saved: (\S+) GB written in 0\.\d s, uploaded in (\S+) s; "
        r"the training stood still for 0\.\d s",
        said,
    )
    assert found, said
    sizes = RemoteFolder(f"{bucket}/slow").sizes()
    size = sum(count for name, count in sizes.items() if name.startswith("step-00000001/shard"))
    assert found[1] == f"{size / 1e9:.3g}"
    assert float(found[2]) >= 2


@pytest.mark.parametrize(
    ("gone", "lists"), [("checkpoint.json", 2), ("shard-00001-model-00001-of-00001.safetensors", 3)]
)
def test_a_checkpoint_that_is_deleted_while_it_is_fetched_is_no_traceback(
    gone: str, lists: int, bucket: str, tmp_path: Path
) -> None:
    here, uri = tmp_path / "here", f"{bucket}/{gone}"
    files = [f"step-0000000{step}/shard-00001-model-00001-of-00001.safetensors" for step in (1, 2)]
    for step, file in enumerate(files, start=1):
        (here / file).parent.mkdir(parents=True)
        (here / file).write_bytes(b"weights")
        told = {"epoch": 1.0, "samples_seen": 1, "world_size": 1, "dataset_fingerprint": "a", "configuration_hash": "b"}
        mark_complete((here / file).parent, step=step, **told)
    write_configuration(here, {})
    RemoteFolder(uri).upload(here, [path.relative_to(here).as_posix() for path in here.rglob("*.*")])
    with deleted_once_listed(f"{uri}/step-00000001/{gone}", lists):
        copy = local_copy(uri, tmp_path / "copy")
    whole = [checkpoint.name for checkpoint in complete_checkpoints(copy) if not checkpoint.damaged_file()]
    assert whole == ["step-00000002"]


@pytest.mark.parametrize("failing", ["step-00000006/shard", "step-00000006/checkpoint.json", "token"])
def test_a_storage_that_is_not_available_for_a_while_ends_no_training(
    failing: str,
    bucket: str,
    numbers: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """`token` is in what renews the right to write."""

    async def at_once(_: float) -> None:
        """The pauses between gcsfs's tries grow to 16 s."""

    monkeypatch.setattr(asyncio, "sleep", at_once)
    monkeypatch.setattr(checkpoint_store, "_SECONDS_BETWEEN_TRIES", 0.1)
    monkeypatch.setenv(CHECKPOINT_LEASE, "0.1")
    uri = f"{bucket}/unavailable-{failing}"
    with failing_storage(failing.encode(), after=b"step-00000003/checkpoint.json", times=30):
        assert train_here(SETTINGS, numbers, uri)
    assert "the storage is not available" in capfd.readouterr().out
    kept = complete_checkpoints(local_copy(uri, tmp_path / "copy"))
    assert [checkpoint.info.step for checkpoint in kept if not checkpoint.damaged_file()] == [3, 6, 9]
