"""The variants of the image: the table in docs/images.md, the Dockerfile, Cloud Build and Terraform say the same."""

from __future__ import annotations

import configparser
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from answering_posts import answering_posts

from gpu_pipelines import __version__
from gpu_pipelines.accelerators.catalog import load_catalog

ROOT = Path(__file__).parents[2]
DOCKERFILES = {name: (ROOT / f"images/{name}/Dockerfile").read_text() for name in ("steps", "serving")}
#: What a Dockerfile builds by itself.
DEFAULTS = {"steps": "cu126", "serving": "cpu"}
BUILD_ARGUMENTS = ("BASE_IMAGE", "TORCH_INDEX_URL")


def test_the_document_names_the_extras_of_the_image_of_the_steps() -> None:
    listed = re.findall(r"^- \*\*Packages\*\*(.*?)at the versions", (ROOT / "docs/images.md").read_text(), re.M | re.S)
    further = runpy.run_path(str(ROOT / "images/requirements.py"))["FURTHER"]
    assert re.findall(r"`\[(\w+)\]`", listed[0]) == ["steps", *further]


def table() -> dict[str, dict[str, str]]:
    """The variants of docs/images.md by name, each with the cells of its row by the title of the column."""
    lines = re.search(r"^\|.*?\n\n", (ROOT / "docs/images.md").read_text(), re.MULTILINE | re.DOTALL)
    assert lines
    titles, _, *rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines[0].split("\n")[:-2]]
    return {row[0]: dict(zip(titles, row, strict=True)) for row in rows}


@pytest.mark.parametrize("variant", ["cu126", "cu130"])
def test_a_variant_serves_the_gpus_that_its_pytorch_is_built_for(variant: str) -> None:
    row = table()[variant]
    built_for = [tuple(map(int, sm.split("."))) for sm in row["built for"].split()]

    def runs(capability: str) -> bool:
        """Machine code runs on GPUs of the same generation that are as new or newer."""
        major, minor = map(int, capability.split("."))
        return any(major == built_major and minor >= built_minor for built_major, built_minor in built_for)

    served = {name for name, gpu in load_catalog().gpus.items() if runs(gpu.compute_capability)}
    assert set(row["GPUs"].replace("`", "").split()) == served
    needed = {name for name, gpu in load_catalog().gpus.items() if gpu.pytorch_build == variant}
    assert needed <= served


@pytest.mark.parametrize("image", DOCKERFILES)
def test_the_dockerfile_builds_the_default_variant_by_itself(image: str) -> None:
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)", DOCKERFILES[image], re.MULTILINE))
    row = table()[DEFAULTS[image]]
    assert [defaults[name] for name in BUILD_ARGUMENTS] == [row[name] for name in BUILD_ARGUMENTS]


@pytest.mark.parametrize("image", DOCKERFILES)
def test_the_last_user_is_not_root(image: str) -> None:
    assert re.findall(r"^USER (.*)", DOCKERFILES[image], re.MULTILINE)[-1] == "${USER_ID}"
    assert int(re.findall(r"^ARG USER_ID=(\d+)", DOCKERFILES[image], re.MULTILINE)[0]) > 0


@pytest.mark.parametrize("image", DOCKERFILES)
def test_an_image_has_what_runs_in_it(image: str) -> None:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    printed = subprocess.run(
        [sys.executable, ROOT / "images/requirements.py", ROOT / "setup.cfg", image],
        capture_output=True,
        text=True,
        check=True,
    )
    extras = parser["options.extras_require"]
    wanted = set(extras["serving"].split("\n")) | set(extras[image].split("\n")) - {"gpu-pipelines[serving]"}
    found = printed.stdout.splitlines()
    assert len(found) == len(set(found))
    assert wanted - {""} <= set(found)
    assert not [line for line in found if line.startswith(("kfp", "google-cloud-pipeline-components", "gpu-pipelines"))]
    for package in ("google-cloud-aiplatform", "ray"):
        assert any(re.match(rf"{package}\b(?!-)", line) for line in found) == (image == "steps")


def as_queued(build: dict[str, Any]) -> dict[str, Any]:
    """What Cloud Build says of a build that it is sent."""
    known = {"id": "1", "projectId": "p-123456", "status": "QUEUED", "logUrl": "https://example.com"}
    return {"name": "operations/build/p-123456/1", "metadata": {"build": {**known, **build}}}


def test_gcloud_takes_the_cloud_build_file_and_each_variant_is_built_as_documented(tmp_path: Path) -> None:
    """The real gcloud refuses a file with a field that Cloud Build does not have."""
    with answering_posts(as_queued) as (address, builds):
        done = subprocess.run(
            [
                *("gcloud", "builds", "submit", "--no-source", "--async", f"--config={ROOT / 'cloudbuild.yaml'}"),
                *("--region=us-central1", "--project=p-123456", "--substitutions=_REVISION=abc"),
                "--service-account=projects/p-123456/serviceAccounts/b@p-123456.iam.gserviceaccount.com",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={
                **os.environ,
                "CLOUDSDK_CONFIG": str(tmp_path),
                "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBUILD": address,
                "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            },
        )
    assert done.returncode == 0, done.stderr
    (build,) = builds
    assert build["substitutions"]["_VERSION"] == __version__
    assert {step["id"] for step in build["steps"]} == {*table(), *(f"serving-{variant}" for variant in table())}
    for step in build["steps"]:
        row, image = table()[step["id"].removeprefix("serving-")], "serving" if "serving" in step["id"] else "steps"
        assert f"--file=images/{image}/Dockerfile" in step["args"]
        given = dict(re.fullmatch(r"(\w+)=(.*)", part[12:]).groups() for part in step["args"] if "--build-arg" in part)
        assert {name: given[name] for name in BUILD_ARGUMENTS} == {name: row[name] for name in BUILD_ARGUMENTS}
    assert [f"--tag={image}" for image in build["images"]] == [
        part for step in build["steps"] for part in step["args"] if part.startswith("--tag=")
    ]
