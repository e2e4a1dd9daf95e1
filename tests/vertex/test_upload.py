"""`upload` against a repository of pipelines: one content is one version, and tags name the newest."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from small_pipelines import compiled_sum
from vertex_commands import command

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

PACKAGE = "us-central1/pipelines/sum"


def package(api: VertexApi, name: str = PACKAGE) -> Any:
    return api.state.repositories.packages[name]


def test_a_file_is_uploaded_as_the_version_that_its_content_is(vertex_api: VertexApi, tmp_path: Path) -> None:
    file = compiled_sum(tmp_path)
    version = f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    for _ in range(2):
        done = command(vertex_api, tmp_path, "upload", str(file), "--tag", "stable", "--tag", "latest")
        assert done.status == 0, done.err
    assert done.out.splitlines() == [
        "uploaded sum",
        f"version: {version}",
        "tags:    stable, latest",
        f"address: {vertex_api.url}/example-project/pipelines/sum/{version}",
        "console: https://console.cloud.google.com/artifacts?project=example-project",
    ]
    assert package(vertex_api).versions == {version: file.read_bytes()}
    assert package(vertex_api).tags == {"stable": version, "latest": version}


def test_a_tag_moves_to_the_version_that_is_uploaded_last(vertex_api: VertexApi, tmp_path: Path) -> None:
    file = compiled_sum(tmp_path)
    command(vertex_api, tmp_path, "upload", str(file), "--tag", "old")
    file.write_text(file.read_text().replace("defaultValue: none", "defaultValue: some"))
    done = command(vertex_api, tmp_path, "upload", str(file), "--json")
    told = json.loads(done.out)
    assert told["tags"] == ["latest"]
    assert package(vertex_api).tags["latest"] == told["version"] != package(vertex_api).tags["old"]
    command(vertex_api, tmp_path, "upload", str(file), "--tag", "old", "--tag", "new")
    assert package(vertex_api).tags == dict.fromkeys(("old", "latest", "new"), told["version"])


def test_a_pipeline_is_compiled_and_uploaded_with_the_image_of_the_project(
    vertex_api: VertexApi, tmp_path: Path
) -> None:
    done = command(vertex_api, tmp_path, "upload", "train_evaluate_upload", "--accelerator", "l4:4")
    assert done.status == 0, done.err
    [content] = package(vertex_api, "us-central1/pipelines/train-evaluate-upload").versions.values()
    pools = yaml.safe_load(content)["components"]["comp-train-model"]["inputDefinitions"]["parameters"]
    [pool] = pools["worker_pool_specs"]["defaultValue"]
    assert pool["machine_spec"]["machine_type"] == "g2-standard-48"
    assert pool["container_spec"]["image_uri"] == "us-docker.pkg.dev/example-project/images/steps:0.1.0"


@pytest.mark.parametrize(
    "spoilt", [{"status": 503}, {"status": 0, "took_effect": True}, {"status": 429, "message": "Slow"}]
)
def test_an_upload_that_is_sent_again_makes_one_version(
    vertex_api: VertexApi, tmp_path: Path, spoilt: dict[str, Any]
) -> None:
    vertex_api.fail_next("POST /example-project/pipelines", **spoilt)
    done = command(vertex_api, tmp_path, "upload", str(compiled_sum(tmp_path)))
    assert done.status == 0, done.err
    assert len(package(vertex_api).versions) == 1


def test_wrong_uploads_are_refused(vertex_api: VertexApi, tmp_path: Path) -> None:
    file = str(compiled_sum(tmp_path))
    for arguments, message in (
        ([file, "--tag", "Sha256:x"], "'Sha256:x' is not a tag"),
        (["train_evaluate_upload"], "Give --accelerator"),
        ([file, "--repository", "pipelines"], "repository (from --repository) is 'pipelines'"),
        ([file, "--repository", f"{vertex_api.url}/example-project/none"], "Repository does not exist"),
    ):
        done = command(vertex_api, tmp_path, "upload", *arguments)
        assert done.status == 2
        assert message in done.err
    vertex_api.fail_next("POST /example-project/pipelines", 403, message="Permission 'uploadArtifacts' denied.")
    done = command(vertex_api, tmp_path, "upload", file)
    assert done.status == 2
    assert "failed: Permission 'uploadArtifacts' denied." in done.err
    assert "gpu-pipelines doctor" in done.err
    assert not vertex_api.state.repositories.packages
