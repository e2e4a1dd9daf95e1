"""What holds the house together: who may import what, what is installed, and what is generated from what."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from conftest import gpu_pipelines

from gpu_pipelines.component_interface.catalog import COMPONENTS, load_component
from gpu_pipelines.component_interface.readme import readme
from gpu_pipelines.dag import PIPELINES, load_pipeline, load_request
from gpu_pipelines.dag.advanced import COMMON, FILLED_IN, advanced_defaults
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.watch import WatchSettings
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.registry.upload import UploadSettings
from gpu_pipelines.targets.local.target import LocalTarget
from gpu_pipelines.tasks.tasks import TASKS
from gpu_pipelines.training.script.settings import ScriptSettings
from gpu_pipelines.training.settings import TrainingSettings

ROOT = Path(__file__).parents[2]
SOURCES = [path for folder in ("components", "gpu_pipelines", "pipelines") for path in (ROOT / folder).rglob("*.py")]

# Which files alone may import a package, at the top or inside a function.
ONLY_IN = {
    "kfp": ("gpu_pipelines/targets/", "gpu_pipelines/dag/", "pipelines/", "components/*/component.py"),
    "google": (
        "gpu_pipelines/accelerators/live/",
        "gpu_pipelines/targets/vertex",
        "gpu_pipelines/registry/vertex",
        "gpu_pipelines/data/sources/bigquery",
    ),
    "torch": (
        "gpu_pipelines/distributed/",
        "gpu_pipelines/tasks/",
        "gpu_pipelines/training/",
        "gpu_pipelines/evaluation/",
        "gpu_pipelines/serving/",
    ),
    "transformers": ("gpu_pipelines/tasks/", "gpu_pipelines/serving/"),
    # Of the extra `serving`: pipelines are compiled, and models uploaded, by programs that have neither.
    "fastapi": ("gpu_pipelines/serving/app.py",),
    "uvicorn": ("gpu_pipelines/serving/server.py", "gpu_pipelines/serving/connections.py"),
    "prometheus_client": ("gpu_pipelines/serving/metrics.py",),
    **dict.fromkeys(("kubeflow", "kubernetes", "kfp_server_api"), ("gpu_pipelines/targets/kubeflow",)),
}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("package", ONLY_IN)
def test_a_heavy_package_is_imported_only_where_it_may_be(package: str) -> None:
    allowed = ONLY_IN[package]
    for path in SOURCES:
        name = relative(path)
        if any(Path(name).match(place) if "*" in place else name.startswith(place) for place in allowed):
            continue
        assert package not in {module.partition(".")[0] for module in imports_of(path)}, name


def test_a_component_is_an_interface_and_a_pipeline_is_a_dag_and_no_more() -> None:
    for folder, kept in (("components", "component.py"), ("pipelines", "pipeline.py")):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert path.name in (kept, "README.md", "__init__.py"), relative(path)
                assert path.name != "__init__.py" or len(path.read_text(encoding="utf-8").splitlines()) == 1


def test_every_package_and_every_data_file_is_installed(tmp_path: Path) -> None:
    build = [sys.executable, "setup.py", "--quiet", "build", "--build-base", str(tmp_path), "--build-lib"]
    subprocess.run([*build, str(tmp_path / "lib")], cwd=ROOT, check=True, capture_output=True)
    places = {"components": "gpu_pipelines/components", "pipelines": "gpu_pipelines/pipelines"}
    for folder in ("components", "gpu_pipelines", "pipelines"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".html", ".sh", ".csv", ".typed"):
                place = tmp_path / "lib" / places.get(folder, folder) / path.relative_to(ROOT / folder)
                assert place.is_file(), relative(path)


def test_help_and_version_import_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['gpu-pipelines', '--version']; import gpu_pipelines.cli.main as m\n"
        "try: m.main()\nexcept SystemExit: pass\n"
        "heavy = ('kfp', 'torch', 'numpy', 'pyarrow', 'rich.console', 'google.api_core')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines() == ["gpu-pipelines 0.1.0", "[]"]
    shown = gpu_pipelines("--help", cwd=tmp_path)
    assert shown.status == 0
    assert all(command in shown.out for command in ("run", "compile", "accelerators", "models"))


# One is there in place of train_model, in pipelines of the users' own, and one is of the second pipeline alone.
IN_PIPELINE = [n for n in COMPONENTS if n not in ("check_request", "run_training_script", "check_for_new_data")]


def interfaces() -> Iterator[tuple[str, Any]]:
    for name in COMPONENTS:
        yield name, load_component(name).component_spec
    for name in PIPELINES:
        yield name, load_pipeline(name).build(LocalTarget(), None).component_spec


@pytest.mark.parametrize(("name", "spec"), list(interfaces()))
def test_every_input_and_output_is_described_and_every_parameter_has_a_default(name: str, spec: Any) -> None:
    assert spec.description
    for kind, entries in (("input", spec.inputs), ("output", spec.outputs or {})):
        for entry, described in entries.items():
            assert described.description, f"{kind} {entry}"
    for entry, described in spec.inputs.items():
        assert described.optional or "@" in described.type, f"{entry} has no default"


@pytest.mark.parametrize(
    ("component", "settings"),
    [
        ("check_for_new_data", WatchSettings),
        ("prepare_data", PrepareSettings),
        ("train_model", TrainingSettings),
        ("run_training_script", ScriptSettings),
        ("evaluate_checkpoints", EvaluationSettings),
        ("upload_model", UploadSettings),
    ],
)
def test_the_defaults_in_a_stub_are_those_of_the_step(component: str, settings: Any) -> None:
    inputs = load_component(component).component_spec.inputs
    for field in fields(settings):
        assert inputs[field.name].default == getattr(settings(), field.name), field.name


def test_a_parameter_means_the_same_in_the_pipeline_as_in_its_component() -> None:
    pipeline = load_pipeline("train_evaluate_upload").build(LocalTarget(), None).component_spec.inputs
    inputs = {n: i for name in IN_PIPELINE for n, i in load_component(name).component_spec.inputs.items()}
    checked = load_component("check_request").component_spec.inputs
    for name, spec in pipeline.items():
        assert spec.type == inputs[name].type == checked[name].type
        assert spec.default == inputs[name].default == checked[name].default
    fields = advanced_defaults(load_request("train_evaluate_upload").SETTINGS)
    for name, default in fields.items():
        assert inputs[name].default == default
        assert f"\n- {name} (" in f"\n{pipeline['advanced'].description}"
    hidden = {n for n, i in inputs.items() if "@" not in i.type} - set(pipeline) - set(fields)
    assert hidden <= set(FILLED_IN), "what the pipeline itself fills in"


def test_the_first_step_takes_what_stands_in_the_forms_of_all_pipelines() -> None:
    of_the_place = {"advanced", "notify", "pipeline", "place", "data_nodes", "processes", "storage", "run_name"}
    assert set(load_component("check_request").component_spec.inputs) == {*COMMON, *of_the_place}
    outputs = load_component("check_request").component_spec.outputs
    steps = {step for name in PIPELINES for step in load_request(name).SETTINGS}
    assert set(outputs) == {"source_fingerprint", *steps}


def test_a_parameter_that_is_for_some_tasks_is_one_of_a_step_and_every_part_of_a_task_is_there() -> None:
    every = {*COMMON, *advanced_defaults(load_request("scheduled_retraining").SETTINGS)}
    for task in TASKS.values():
        assert set(task.parameters) <= every
        assert {*task.column_parameters, *task.defaults} <= every
        for part in (task.load_preparation(), task.load_recipe(), task.load_predictor()):
            assert not getattr(part, "__abstractmethods__", None), part
        assert set(task.defaults["source"].removeprefix("sample:").split()) <= set(task.samples)
        assert task.defaults["model"] in task.models


@pytest.mark.parametrize("name", COMPONENTS)
def test_stubs_are_thin(name: str) -> None:
    source = inspect.getsource(load_component(name).python_func)
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.FunctionDef)
    assert len(body.body) == 3, "a docstring, an import, a call: all of it is in the compiled file and the cache key"


@pytest.mark.parametrize("name", COMPONENTS)
def test_the_readme_of_a_component_is_up_to_date(name: str) -> None:
    path = ROOT / "components" / COMPONENTS[name] / "README.md"
    assert path.read_text(encoding="utf-8") == readme(name), "run make docs"


def test_what_both_pipelines_take_is_the_same_in_both() -> None:
    first, second = (load_pipeline(name).build(LocalTarget(), None).component_spec.inputs for name in PIPELINES)
    assert set(second) - set(first) == {"start_from_champion"}
    assert {name: (second[name].type, second[name].default) for name in first} == {
        name: (spec.type, spec.default) for name, spec in first.items()
    }
    fields, more = (advanced_defaults(load_request(name).SETTINGS) for name in PIPELINES)
    assert more == {**fields, "min_champion_age_days": 0.0}
