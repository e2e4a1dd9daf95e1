"""Vertex AI Model Registry: through Google's client, against a server that parses with the API's own types."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import set_variables
from processes import killing_before

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.errors import UserError
from gpu_pipelines.registry import RegisteredVersion, Registry, open_registry
from gpu_pipelines.registry.registered import DamagedVersionError, Promotion

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

BUCKET = "gs://example-bucket"
INFO = {"passed": True, "metrics": {"accuracy": 0.9}}
JOB = "projects/example-project/locations/us-central1/pipelineJobs/nightly-1"
#: Exit status of an upload that was not killed.
ENDED = 33


@pytest.fixture
def registry(vertex_api: VertexApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    set_variables(monkeypatch, vertex_api.environment())
    monkeypatch.setattr("gpu_pipelines.registry.vertex._POLL_SECONDS", 0.02)
    return open_registry("vertex://", f"{BUCKET}/pipeline-root/run")


def exported(folder: Path, weights: str) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_text(weights)
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocabulary.json").write_text("{}")
    return folder


def evaluated(folder: Path, weights: str, **changes: Any) -> Path:
    """An exported model with the evaluation of a classifier, or of a text model where `labels` are empty."""
    measured = {"accuracy": 0.9, "macro_f1": 0.85, "log_loss": 0.3}
    test = {"rows": 10, "metrics": {name: {"value": v, "low": v, "high": v} for name, v in measured.items()}}
    content = {
        "model_name": "digits",
        "task": "image_classification",
        "labels": ["no", "yes"],
        "dataset_fingerprint": "d" * 64,
        "source_fingerprint": "s" * 64,
        "best": "step-00000100",
        "configuration": {"settings": {}, "devices": {}},
        "select_by": "accuracy",
        "checkpoints": [],
        "gates": [],
        "test": {**test, "confusion": [[4, 1], [0, 5]]},
        "champion": None,
        "passed": True,
        "mistakes": [],
        **changes,
    }
    folder = exported(folder, weights)
    Evaluation(**content).save(folder)
    return folder


def add(registry: Registry, model: Path, name: str = "digits", seen: int | None = None) -> RegisteredVersion:
    info = {**INFO, "dataset_fingerprint": "d" * 64, "source_fingerprint": "s" * 64, "pipeline_job": JOB}
    return registry.add(name, model, info, Promotion(True, seen))


def test_versions_aliases_and_files(registry: Registry, tmp_path: Path) -> None:
    assert registry.names() == []
    assert registry.champion("digits") is None
    first = registry.add("digits", exported(tmp_path / "1", "a"), INFO, Promotion(True, None))
    assert (first.number, first.aliases) == (1, ("challenger", "champion"))
    assert first.place.startswith(f"{BUCKET}/models/digits/")
    second = registry.add("digits", exported(tmp_path / "2", "b"), INFO, Promotion(False, 1))
    assert (second.number, second.aliases) == (2, ("challenger",))
    champion = registry.champion("digits")
    assert champion is not None
    assert champion.number == 1
    assert champion.info["metrics"] == {"accuracy": 0.9}
    assert (champion.path / "model.safetensors").read_text() == "a"
    assert (champion.path / "tokenizer" / "vocabulary.json").read_text() == "{}"
    assert registry.names() == ["digits"]
    assert [version.number for version in registry.versions("digits")] == [1, 2]
    registry.set_alias("digits", "champion", 2)
    assert registry.aliases("digits") == {"champion": 2, "challenger": 2}


def test_a_model_is_encrypted_with_the_key_of_the_run_or_of_the_project(
    vertex_api: VertexApi, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "projects/p/locations/us-central1/keyRings/r/cryptoKeys/{}"
    of_run = open_registry("vertex://", f"{BUCKET}/pipeline-root/run", "", key.format("of-run"))
    of_run.add("digits", exported(tmp_path / "1", "a"), INFO, Promotion(True, None))
    (tmp_path / "gpu-pipelines.yaml").write_text(f"encryption_key: {key.format('of-project')}\n")
    monkeypatch.chdir(tmp_path)
    registry.add("digits", exported(tmp_path / "2", "b"), INFO, Promotion(False, 1))
    (versions,) = vertex_api.state.models.versions.values()
    keys = [version.encryption_spec.kms_key_name for version in versions]
    assert keys == [key.format("of-run"), key.format("of-project")]


def test_the_same_model_twice_adds_nothing(registry: Registry, tmp_path: Path) -> None:
    for folder in ("1", "2"):
        added = registry.add("digits", exported(tmp_path / folder, "a"), INFO, Promotion(True, None))
        assert added.number == 1
        assert "champion" in added.aliases
    assert len(registry.versions("digits")) == 1
    with pytest.raises(UserError, match="Did you mean 'champion'\\? It has the aliases challenger"):
        registry.version("digits", "champin")
    registry.version("digits", 1).note_source("t" * 64)
    noted = registry.version("digits", 1)
    assert (noted.sources, noted.is_damaged) == ({"t" * 64}, False)


def test_a_champion_that_was_not_compared_with_stays(registry: Registry, tmp_path: Path) -> None:
    registry.add("digits", exported(tmp_path / "1", "a"), INFO, Promotion(True, None))
    late = registry.add("digits", exported(tmp_path / "2", "b"), INFO, Promotion(True, None))
    assert late.aliases == ("challenger",)


@pytest.mark.parametrize("status", [503, 0])
def test_a_lost_answer_adds_one_version_not_two(
    registry: Registry, vertex_api: VertexApi, tmp_path: Path, status: int
) -> None:
    vertex_api.fail_next("POST .*/models:upload", status, took_effect=True)
    added = registry.add("digits", exported(tmp_path / "1", "a"), INFO, Promotion(True, None))
    assert added.number == 1
    assert len(registry.versions("digits")) == 1


def test_an_upload_that_fails_leaves_no_version(registry: Registry, vertex_api: VertexApi, tmp_path: Path) -> None:
    model = exported(tmp_path / "1", "a")
    vertex_api.fail_next("POST .*/models:upload", 403)
    with pytest.raises(UserError, match="No version was added") as refused:
        registry.add("digits", model, INFO, Promotion(True, None))
    assert "Adding a version of 'digits'" in str(refused.value)
    assert registry.versions("digits") == []
    assert registry.add("digits", model, INFO, Promotion(True, None)).number == 1


def test_files_that_do_not_arrive_whole_are_noticed(
    registry: Registry, vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = RemoteFolder.upload

    def truncated(folder: RemoteFolder, directory: Path, names: list[str]) -> None:
        upload(folder, directory, names)
        folder.write(names[0], b"x")

    monkeypatch.setattr(RemoteFolder, "upload", truncated)
    with pytest.raises(UserError, match="does not hold what was written"):
        registry.add("digits", exported(tmp_path / "1", "a"), INFO, Promotion(True, None))
    assert registry.versions("digits") == []


def test_what_was_recorded_is_among_the_files(registry: Registry, tmp_path: Path) -> None:
    added = registry.add("digits", exported(tmp_path / "1", "a"), INFO, Promotion(True, None))
    recorded = json.loads(RemoteFolder(added.place).read("version.json"))
    assert set(recorded["files"]) == {"model.safetensors", "tokenizer/vocabulary.json"}
    assert "models/digits@1" in added.resource_name


def test_a_version_or_a_bucket_that_is_not_there_is_named(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="There is no model 'digits'"):
        registry.version("digits", "7")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no bucket is set"):
        open_registry("vertex://").add("digits", exported(tmp_path / "1", "a"), INFO, Promotion(True, None))


@pytest.mark.parametrize("uri", ["vertex://only-a-project", "vertex://p/nowhere", "s3://bucket"])
def test_an_address_of_another_form_is_refused(uri: str) -> None:
    with pytest.raises(UserError, match="vertex://PROJECT/REGION"):
        open_registry(uri)


def evaluations(api: VertexApi, version: int, name: str = "digits") -> list[Any]:
    return next(
        (found for key, found in api.state.models.evaluations.items() if key.endswith(f"/{name}@{version}")), []
    )


def test_the_evaluation_is_beside_the_version_in_the_services_own_terms(
    registry: Registry, vertex_api: VertexApi, tmp_path: Path
) -> None:
    for _ in range(2):
        add(registry, tmp_path / "1" if (tmp_path / "1").exists() else evaluated(tmp_path / "1", "a"))
    [evaluation] = evaluations(vertex_api, 1)
    assert evaluation.metrics_schema_uri.endswith("/modelevaluation/classification_metrics_1.0.0.yaml")
    metrics = evaluation.metrics
    assert metrics["logLoss"] == 0.3
    [at_threshold_0] = metrics["confidenceMetrics"]
    assert (at_threshold_0["recall"], at_threshold_0["f1ScoreMacro"]) == (0.9, 0.85)
    assert [spec["displayName"] for spec in metrics["confusionMatrix"]["annotationSpecs"]] == ["no", "yes"]
    assert [list(row) for row in metrics["confusionMatrix"]["rows"]] == [[4, 1], [0, 5]]
    assert evaluation.metadata["test_rows"] == 10
    assert evaluation.metadata["pipeline_job_resource_name"] == JOB


def test_a_text_model_has_its_figures_in_the_metadata(
    registry: Registry, vertex_api: VertexApi, tmp_path: Path
) -> None:
    test = {"rows": 7, "metrics": {"perplexity": {"value": 12.5, "low": 12, "high": 13}}}
    add(registry, evaluated(tmp_path / "1", "a", task="causal_lm", labels=[], test=test))
    [evaluation] = evaluations(vertex_api, 1)
    assert evaluation.metrics_schema_uri.endswith("/general_text_generation_metrics_1.0.0.yaml")
    assert dict(evaluation.metadata["test_metrics"]) == {"perplexity": 12.5}


def test_a_version_says_where_it_is_from_and_how_good_it_is(
    registry: Registry, vertex_api: VertexApi, tmp_path: Path
) -> None:
    add(registry, evaluated(tmp_path / "1", "a"))
    ((version,),) = vertex_api.state.models.versions.values()
    assert version.pipeline_job == JOB
    assert version.labels["gpu-pipelines-dataset"] == "d" * 40
    assert version.labels["gpu-pipelines-source"] == "s" * 40
    assert version.version_description == (
        "step-00000100: accuracy 0.9000, macro_f1 0.8500, log_loss 0.3000 on 10 test rows; passed its gates"
    )


def test_an_evaluation_that_the_service_does_not_take_costs_no_model(
    registry: Registry, vertex_api: VertexApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vertex_api.fail_next("evaluations:import", 400)
    added = add(registry, evaluated(tmp_path / "1", "a"))
    assert added.aliases == ("challenger", "champion")
    assert "warning: Importing the evaluation of version 1 of 'digits' failed" in capsys.readouterr().out


@pytest.mark.parametrize("status", [503, 0])
def test_an_evaluation_whose_answer_is_lost_is_there_once(
    registry: Registry, vertex_api: VertexApi, tmp_path: Path, status: int
) -> None:
    vertex_api.fail_next("evaluations:import", status, took_effect=True)
    assert add(registry, evaluated(tmp_path / "1", "a")).aliases == ("challenger", "champion")
    assert len(evaluations(vertex_api, 1)) == 1


def test_an_evaluation_that_did_not_arrive_is_imported_by_the_next_upload(
    registry: Registry, vertex_api: VertexApi, tmp_path: Path
) -> None:
    model = evaluated(tmp_path / "1", "a")
    vertex_api.fail_next("evaluations:import", 403)
    with pytest.raises(UserError, match="Upload again to complete it"):
        add(registry, model)
    assert registry.aliases("digits") == {}, "the service's own default is none of ours"
    assert registry.version("digits", "1").aliases == ()
    assert add(registry, model).aliases == ("challenger", "champion")
    assert len(evaluations(vertex_api, 1)) == 1


def _add_and_die(environment: dict[str, str], name: str, model: Path, calls: int) -> None:
    """Adds a version and kills itself before the given call of one of those that write to storage or service."""
    os.environ.update(environment)
    from google.cloud.aiplatform_v1 import ModelServiceClient
    from google.cloud.aiplatform_v1.services.model_service.transports.rest import ModelServiceRestTransport

    counted = killing_before(calls)
    upload = ModelServiceRestTransport.upload_model.fget  # type: ignore[attr-defined]
    ModelServiceRestTransport.upload_model = property(lambda self: counted(upload(self)))
    for owner, method in (
        (RemoteFolder, "upload"),
        (RemoteFolder, "require_same"),
        (RemoteFolder, "write"),
        (ModelServiceClient, "import_model_evaluation"),
        (ModelServiceClient, "merge_version_aliases"),
    ):
        setattr(owner, method, counted(getattr(owner, method)))
    add(open_registry("vertex://", f"{BUCKET}/pipeline-root/run"), model, name, seen=1)
    os._exit(ENDED)


def is_whole(version: RegisteredVersion) -> bool:
    folder = RemoteFolder(version.place)
    written = {name: hashlib.sha256(folder.read(name)).hexdigest() for name in version.info["files"]}
    return bool(written) and written == version.info["files"]


@pytest.mark.slow
def test_an_upload_killed_at_any_stage_leaves_whole_versions_only(
    registry: Registry, vertex_api: VertexApi, tmp_path: Path
) -> None:
    # A process that has Google's clients loaded, and has not used them, is copied for each upload.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gcsfs", "google.cloud.aiplatform_v1", "gpu_pipelines.registry.vertex"])
    for calls in range(1, 20):
        name = f"digits-{calls}"
        add(registry, evaluated(tmp_path / f"{name}-1", f"a {calls}"), name)
        model = evaluated(tmp_path / f"{name}-2", f"b {calls}")
        upload = context.Process(target=_add_and_die, args=(vertex_api.environment(), name, model, calls))
        upload.start()
        upload.join(120)
        if upload.exitcode == ENDED:
            break
        assert upload.exitcode == -signal.SIGKILL
        assert all(is_whole(version) for version in registry.versions(name)), calls
        assert registry.aliases(name)["champion"] == 1
        assert add(registry, model, name, seen=1).number == 2, "the next upload takes up what is there"
        assert registry.aliases(name) == {"champion": 2, "challenger": 2}
        assert [version.number for version in registry.versions(name)] == [1, 2]
        assert len(evaluations(vertex_api, 2, name)) == 1
    assert calls == 7, "files, their check, version.json, the version, its evaluation, its aliases, and the end"


def test_a_file_that_changed_in_the_bucket_is_named_with_its_version(registry: Registry, tmp_path: Path) -> None:
    model = exported(tmp_path / "1", "a" * 1000)
    version = add(registry, model)
    folder = RemoteFolder(version.place)
    before = version.digest
    folder.write("model.safetensors", b"b" * 1000)
    damaged = registry.version("digits", "champion")
    assert damaged.digest != before
    for read in (damaged.require_undamaged, lambda: damaged.path, lambda: registry.set_alias("digits", "live", 1)):
        with pytest.raises(DamagedVersionError, match=r"Version 1 of 'digits' .*model\.safetensors is not as it was"):
            read()
    # Nor by its own hashes, where somebody has written those as well: the service has the digest of the first ones.
    other = registry.add("other", exported(tmp_path / "2", "b" * 1000), INFO, Promotion(True, None))
    folder.write("version.json", RemoteFolder(other.place).read("version.json"))
    with pytest.raises(DamagedVersionError, match=r"version\.json does not hold the hashes"):
        registry.version("digits", "1").require_undamaged()
    again = add(registry, model, seen=1)
    assert (again.number, again.added, again.is_damaged) == (1, False, False)
    assert (again.path / "model.safetensors").read_text() == "a" * 1000


def test_a_bucket_that_keeps_no_md5_is_read(registry: Registry, tmp_path: Path) -> None:
    version = add(registry, exported(tmp_path / "1", "a" * 1000))
    without = replace(version, info={key: value for key, value in version.info.items() if key != "md5"})
    without.require_undamaged()
    RemoteFolder(version.place).write("model.safetensors", b"b" * 1000)
    with pytest.raises(DamagedVersionError, match=r"model\.safetensors"):
        without.require_undamaged()


def test_a_model_that_is_evaluated_again_adds_no_version(registry: Registry, tmp_path: Path) -> None:
    assert add(registry, evaluated(tmp_path / "1", "a")).added
    again = add(registry, evaluated(tmp_path / "2", "a", dataset_fingerprint="e" * 64), seen=1)
    assert (again.number, again.added) == (1, False)
    assert len(registry.versions("digits")) == 1


@pytest.mark.usefixtures("no_project_settings")
def test_a_registry_without_a_project_names_no_option_that_its_commands_lack() -> None:
    with pytest.raises(UserError) as caught:
        open_registry("vertex://").names()
    assert caught.value.problem.endswith("vertex:// needs a project and a region: no project and no region is known.")
    assert caught.value.remedy.startswith("Write project and region into gpu-pipelines.yaml, or give the registry as")
