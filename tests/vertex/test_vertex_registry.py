"""Vertex AI Model Registry: through Google's client, against a server that parses with the API's own types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.errors import UserError
from gpu_pipelines.registry import Registry, open_registry

if TYPE_CHECKING:
    from vertex_api.server import VertexApi

BUCKET = "gs://example-bucket"
INFO = {"passed": True, "metrics": {"accuracy": 0.9}}


@pytest.fixture
def registry(vertex_api: VertexApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    for name, value in vertex_api.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("gpu_pipelines.registry.vertex._POLL_SECONDS", 0.02)
    return open_registry("vertex://", f"{BUCKET}/pipeline-root/run")


def exported(folder: Path, weights: str) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_text(weights)
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocabulary.json").write_text("{}")
    return folder


def test_versions_aliases_and_files(registry: Registry, tmp_path: Path) -> None:
    assert registry.names() == []
    assert registry.champion("digits") is None
    first = registry.add("digits", exported(tmp_path / "1", "a"), INFO, promote=True, champion_seen=None)
    assert (first.number, first.aliases) == (1, ("challenger", "champion"))
    assert first.place.startswith(f"{BUCKET}/models/digits/")
    second = registry.add("digits", exported(tmp_path / "2", "b"), INFO, promote=False, champion_seen=1)
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
    assert registry.aliases("digits") == {"champion": 2, "challenger": 2, "default": 2}


def test_the_same_model_twice_adds_nothing(registry: Registry, tmp_path: Path) -> None:
    for folder in ("1", "2"):
        added = registry.add("digits", exported(tmp_path / folder, "a"), INFO, promote=True, champion_seen=None)
        assert added.number == 1
        assert "champion" in added.aliases
    assert len(registry.versions("digits")) == 1


def test_a_champion_that_was_not_compared_with_stays(registry: Registry, tmp_path: Path) -> None:
    registry.add("digits", exported(tmp_path / "1", "a"), INFO, promote=True, champion_seen=None)
    late = registry.add("digits", exported(tmp_path / "2", "b"), INFO, promote=True, champion_seen=None)
    assert late.aliases == ("challenger",)


@pytest.mark.parametrize("status", [503, 0])
def test_a_lost_answer_adds_one_version_not_two(
    registry: Registry, vertex_api: VertexApi, tmp_path: Path, status: int
) -> None:
    vertex_api.fail_next("POST .*/models:upload", status, took_effect=True)
    added = registry.add("digits", exported(tmp_path / "1", "a"), INFO, promote=True, champion_seen=None)
    assert added.number == 1
    assert len(registry.versions("digits")) == 1


def test_an_upload_that_fails_leaves_no_version(registry: Registry, vertex_api: VertexApi, tmp_path: Path) -> None:
    model = exported(tmp_path / "1", "a")
    vertex_api.fail_next("POST .*/models:upload", 403)
    with pytest.raises(UserError, match="No version was added") as refused:
        registry.add("digits", model, INFO, promote=True, champion_seen=None)
    assert "Adding a version of 'digits'" in str(refused.value)
    assert registry.versions("digits") == []
    assert registry.add("digits", model, INFO, promote=True, champion_seen=None).number == 1


def test_files_that_do_not_arrive_whole_are_noticed(
    registry: Registry, vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = RemoteFolder.upload

    def truncated(folder: RemoteFolder, directory: Path, names: list[str]) -> None:
        upload(folder, directory, names)
        folder.write(names[0], b"x")

    monkeypatch.setattr(RemoteFolder, "upload", truncated)
    with pytest.raises(UserError, match="does not hold what was written"):
        registry.add("digits", exported(tmp_path / "1", "a"), INFO, promote=True, champion_seen=None)
    assert registry.versions("digits") == []


def test_what_was_recorded_is_among_the_files(registry: Registry, tmp_path: Path) -> None:
    added = registry.add("digits", exported(tmp_path / "1", "a"), INFO, promote=True, champion_seen=None)
    recorded = json.loads(RemoteFolder(added.place).read("version.json"))
    assert set(recorded["files"]) == {"model.safetensors", "tokenizer/vocabulary.json"}
    assert "models/digits@1" in added.resource_name


def test_a_version_or_a_bucket_that_is_not_there_is_named(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="no version or alias '7'"):
        registry.version("digits", "7")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no bucket is known"):
        open_registry("vertex://").add("digits", exported(tmp_path / "1", "a"), INFO, promote=True, champion_seen=None)


@pytest.mark.parametrize("uri", ["vertex://only-a-project", "vertex://p/nowhere", "s3://bucket"])
def test_an_address_of_another_form_is_refused(uri: str) -> None:
    with pytest.raises(UserError, match="vertex://PROJECT/REGION"):
        open_registry(uri)
