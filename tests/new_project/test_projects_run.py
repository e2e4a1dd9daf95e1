"""A project that init has written works at once: make run, make test, and what its workflows do."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from conftest import gpu_pipelines, newest_run

from gpu_pipelines.new_project.request import names_of_tasks

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi


def written(name: str, *arguments: str, cwd: Path) -> Path:
    # In a process of its own: it imports the package of the project, whose name no other one could have here then.
    done = gpu_pipelines("init", name, *arguments, cwd=cwd, apart=True)
    assert done.status == 0, done.err
    return cwd / name


def shell(script: str, cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    """What a script printed that did not fail."""
    process = subprocess.Popen(
        ["/bin/bash", "-e", "-o", "pipefail", "-c", script],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=1800)
    finally:
        # make has processes of its own, which have processes of theirs.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said
    return said


@pytest.mark.slow
def test_a_project_runs_and_passes_its_tests(tmp_path: Path) -> None:
    project = written("mine", "--task", "regression", "--target", "local", cwd=tmp_path)
    said = shell("make lint run test ARGUMENTS=--dry-run", project)
    assert (
        "mine on this machine: check-for-new-data → prepare-data → train-model → evaluate-checkpoints → upload-model"
        in said
    )
    assert "1 passed" in said
    # The test has left the folder of the project as it was: no model of it competes with those of make run.
    assert not (project / "registry").exists()


@pytest.mark.slow
@pytest.mark.parametrize("task", names_of_tasks())
def test_a_project_of_each_task_runs_and_passes_its_tests(task: str, tmp_path: Path) -> None:
    project = written("mine", "--task", task, cwd=tmp_path)
    # Language models of the default length train for minutes; the images have a gate that takes theirs.
    steps = "" if task == "image_classification" else "ARGUMENTS='-p max_steps=40'"
    said = shell(f"make lint diff run test {steps}", project)
    assert "smoke test: " in said
    assert "served as evaluated" in said
    assert "registered mine version 1 as challenger and champion" in said
    assert "1 passed" in said
    assert newest_run(project)["parameters"]["source"].startswith("sample:")


@pytest.mark.slow
def test_a_change_of_the_recipe_and_of_the_gates_is_what_is_trained(tmp_path: Path) -> None:
    project = written("mine", "--task", "regression", "--target", "local", cwd=tmp_path)
    recipe, task = project / "mine/recipe.py", project / "mine/task.py"
    recipe.write_text(recipe.read_text().replace("super().loss(model, batch)", "0 * super().loss(model, batch)"))
    task.write_text(task.read_text().replace("gates = ()", 'gates = ("r2>=0.3",)'))
    said = shell("make lint run ARGUMENTS='--accelerator cpu:1 -p max_steps=2'", project)
    assert "✗ r2>=0.3" in said


@pytest.mark.slow
def test_the_steps_of_a_pull_request_pass_and_show_what_changes(tmp_path: Path) -> None:
    project = written("mine", "--task", "regression", cwd=tmp_path)
    (job,) = yaml.safe_load((project / ".github/workflows/check.yaml").read_text())["jobs"].values()
    steps = {step["name"]: step["run"] for step in job["steps"] if "run" in step}
    assert list(steps) == [
        *("Install", "Lint", "Compile", "Show what changes, and the price", "Allow user namespaces", "Test")
    ]
    git = "git -c user.name=me -c user.email=me@example.com"
    shell(f"git init -qb main && git add -A && {git} commit -qm first && git branch origin/main", project)
    assert "local.mk" not in shell("git ls-files", project)
    pipeline = project / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace('"l4:1")', '"a100:2")'))
    shell("! make diff", project)
    shell(f"make compile && {git} commit -qam second", project)
    summary = tmp_path / "summary.md"
    of_github = {"GITHUB_BASE_REF": "main", "GITHUB_STEP_SUMMARY": str(summary)}
    for name in ("Install", "Lint", "Compile", "Show what changes, and the price"):
        shell(steps[name], project, of_github)
    text = summary.read_text()
    assert "-            machineType: g2-standard-8" in text.replace('\\"', "").replace('"', "") or "NVIDIA_L4" in text
    assert "NVIDIA_TESLA_A100" in text
    assert "USD, list prices" in text


@pytest.mark.slow
def test_a_merge_uploads_the_pipeline_and_a_tag_schedules_it(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    given = ("--project", "example-project", "--region", "us-central1", "--pipeline-root", "gs://example-bucket/runs")
    project = written("mine", "--task", "regression", *given, cwd=tmp_path)
    settings = project / "gpu-pipelines.yaml"
    place = "https://us-central1-kfp.pkg.dev/example-project/pipelines"
    settings.write_text(f"{settings.read_text()}repository: {place}\n")
    variables = {**vertex_emulator.environment(), "REVISION": "abc"}
    shell("make upload TAG=main", project, variables)
    assert vertex_emulator.state.schedules.schedules == {}
    shell("make upload schedule TAG=v1", project, variables)
    shell("make upload schedule TAG=v2 CRON='0 4 * * *'", project, variables)
    (schedule,) = vertex_emulator.state.schedules.schedules.values()
    assert "0 4 * * *" in str(schedule)
