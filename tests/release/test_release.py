"""What a release says of itself: one version, a page for PyPI, a workflow with the rights it needs and no more."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from interpreters import VERSIONS

import gpu_pipelines

ROOT = Path(__file__).parents[2]
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
JOBS: dict[str, dict[str, Any]] = WORKFLOW["jobs"]
VERSION = gpu_pipelines.__version__


def test_every_place_that_names_the_version_names_this_one() -> None:
    cloud_build = yaml.safe_load((ROOT / "cloudbuild.yaml").read_text(encoding="utf-8"))
    assert cloud_build["substitutions"]["_VERSION"] == VERSION
    terraform = (ROOT / "terraform/variables.tf").read_text(encoding="utf-8")
    assert set(re.findall(r'"(\d[\w.]*)-(?:cpu|cu\d+)"', terraform)) == {VERSION}
    sections = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert VERSION in sections


@pytest.mark.parametrize(("tag", "status"), [(f"v{VERSION}", 0), (VERSION, 2), ("v99.0.0", 2)])
def test_a_tag_is_released_only_with_its_version_and_its_changes(tag: str, status: int) -> None:
    done = subprocess.run(["make", "-s", "check-tag", f"TAG={tag}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert status == 0 or f"The tag is {tag}, but" in done.stderr
    without = subprocess.run(
        ["make", "-s", "check-tag", "TAG=v9", "VERSION=9"], cwd=ROOT, capture_output=True, text=True
    )
    assert "CHANGELOG.md has no section [9]." in without.stderr


def test_the_page_on_pypi_has_addresses_where_the_readme_has_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["setup.py", "--version"])
    monkeypatch.setenv("PROJECT_URL", "https://example.com/owner/name/")
    described = runpy.run_path(str(ROOT / "setup.py"))["described"]("https://example.com/owner/name")
    page = described["long_description"]
    targets = re.findall(r"!?\[[^\]]*\]\(([^)]+)\)", page)
    assert len(targets) > 20
    assert all(target.startswith("https://") for target in targets)
    assert f"(https://example.com/owner/name/blob/v{VERSION}/docs/data-prep.md)" in page
    assert f"(https://example.com/owner/name/raw/v{VERSION}/docs/images/report.png)" in page
    paths = [target.split(f"v{VERSION}/", 1)[1] for target in targets if f"v{VERSION}/" in target]
    assert all((ROOT / path.split("#")[0]).exists() for path in paths)


#: What a benchmark says where it measures what an extra brings.
MEASURED = {
    r"from gpu_pipelines\.emulator\.": "emulator",
    r"\bgpu_pipelines\.tune\(": "tune",
    r"\bimport ray$": "ray",
    r'"mlflow"': "mlflow",
    r'"nf4"|"adamw_8bit"': "quantization",
}


def test_the_environment_of_the_benchmarks_has_what_they_measure() -> None:
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    installed = re.findall(r"^gpu-pipelines\[(\w+)\]$", parser["options.extras_require"]["bench"], re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^bench: \$\(VENV\)/\.bench ", makefile, re.MULTILINE)
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for said, extra in MEASURED.items():
            assert extra in installed or not re.search(said, text, re.MULTILINE), (path.name, extra)


def test_every_python_that_is_named_is_tried() -> None:
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    classifiers = parser["metadata"]["classifiers"].split("\n")
    named = [line.rsplit(" ", 1)[1] for line in classifiers if re.search(r":: 3\.\d+$", line)]
    assert tuple(named) == VERSIONS == tuple(JOBS["wheel"]["strategy"]["matrix"]["python"])
    assert parser["options"]["python_requires"] == f">={VERSIONS[0]}"


def test_actions_are_pinned_by_commit_and_rights_are_given_job_by_job() -> None:
    assert WORKFLOW["permissions"] == {}
    for name, job in JOBS.items():
        assert "permissions" in job, name
        assert "timeout-minutes" in job, name
        for step in job["steps"]:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step.get("uses", f"a/b@{'0' * 40}")), step
            # What is put into a script is data of the one who pushes: it comes by the environment.
            assert "${{" not in step.get("run", ""), step
    writes = {name: {r for r, level in job["permissions"].items() if level == "write"} for name, job in JOBS.items()}
    assert writes == {
        "test": set(),
        "build": set(),
        "wheel": set(),
        "images": {"packages", "id-token", "attestations"},
        "pypi": {"id-token"},
        "github": {"contents", "id-token"},
    }


def test_nothing_is_published_before_it_was_tested() -> None:
    def before(job: str) -> set[str]:
        needed = JOBS[job].get("needs", [])
        needed = [needed] if isinstance(needed, str) else needed
        return {*needed, *(each for name in needed for each in before(name))}

    assert before("images") == {"test", "build", "wheel"}
    assert before("pypi") == {"test", "build", "wheel", "images"}
    assert "pypi" in before("github")


def test_the_images_of_a_release_are_those_of_cloud_build() -> None:
    cloud_build = yaml.safe_load((ROOT / "cloudbuild.yaml").read_text(encoding="utf-8"))
    built = set()
    for step in cloud_build["steps"]:
        text = " ".join(step["args"])
        base, index = re.search(r"BASE_IMAGE=(\S+)", text), re.search(r"TORCH_INDEX_URL=(\S+)", text)
        image = re.search(r"images/(\w+)/Dockerfile", text)
        assert base
        assert index
        assert image
        built.add((image[1], index[1].rsplit("/", 1)[1], base[1]))
    matrix = JOBS["images"]["strategy"]["matrix"]
    bases = {each["variant"]: each["base"] for each in matrix["include"]}
    assert built == {(image, variant, bases[variant]) for image in matrix["image"] for variant in matrix["variant"]}


def test_commands_of_the_workflow_are_targets_of_make() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    runs = "\n".join(step.get("run", "") for job in JOBS.values() for step in job["steps"])
    named = re.findall(r"^make ([a-z -]+)", runs, re.MULTILINE)
    assert {target for line in named for target in line.split()} >= {
        "test",
        "dist",
        "sbom",
        "release-files",
        "check-tag",
    }
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for line in named for target in line.split())
