"""What holds the house together: who may import what, what is installed, and what is generated from what."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from conftest import gpu_pipelines, printed_by
from kfp.dsl.executor import Executor

from gpu_pipelines import components
from gpu_pipelines.component_interface.catalog import COMPONENTS, load_component
from gpu_pipelines.component_interface.readme import readme
from gpu_pipelines.dag import PIPELINES, PREDICTION, load_pipeline, load_request
from gpu_pipelines.dag.advanced import COMMON, fields_of_advanced
from gpu_pipelines.targets.local.target import LocalTarget
from gpu_pipelines.tasks.tasks import TASKS

ROOT = Path(__file__).parents[2]
SOURCES = [path for folder in ("components", "gpu_pipelines", "pipelines") for path in (ROOT / folder).rglob("*.py")]


def module_of(path: Path) -> str:
    """The name by which a file is imported."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return name if name.startswith("gpu_pipelines") else f"gpu_pipelines.{name}"


MODULES = {module_of(path): path for path in SOURCES}


@cache
def imports_of(path: Path) -> frozenset[str]:
    return frozenset(_imports_of(path))


def _imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_file_imports_itself_by_way_of_others() -> None:
    """What import-linter holds of packages (make lint), of single files; imports for types alone count as well."""
    graph = {name: {each for each in imports_of(path) if each in MODULES} for name, path in MODULES.items()}
    # The package itself names what programs use, for types alone: it imports each when it is used.
    graph["gpu_pipelines"] = set()
    # The ports of tasks and sources say what their parts are, for types alone: they are made of what asks them.
    graph["gpu_pipelines.tasks.task"] -= {
        "gpu_pipelines.data.preparation",
        "gpu_pipelines.data.settings",
        "gpu_pipelines.evaluation.scoring",
        "gpu_pipelines.serving.predictor",
    }
    graph["gpu_pipelines.data.sources.source"] -= {
        "gpu_pipelines.data.settings",
        "gpu_pipelines.data.sources.row_streams",
    }
    graph["gpu_pipelines.data.sources.sources"] -= {"gpu_pipelines.data.settings"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


#: The emulator keeps the user's own proxy before it gives itself out for one.
_READS_AT_IMPORT = ("gpu_pipelines.emulator.way_out",)


def environment_at_import(node: ast.AST) -> Iterator[int]:
    """The lines that read the environment when a module is imported: all that are in no function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            # `os.environ` itself as a default is read when the function is called.
            defaults = [*child.args.defaults, *filter(None, child.args.kw_defaults)]
            given = [each for each in defaults if not isinstance(each, ast.Attribute)]
            for each in (*given, *getattr(child, "decorator_list", ())):
                yield from environment_at_import(ast.Expr(each))
        elif isinstance(child, ast.Attribute) and child.attr in ("environ", "getenv", "environb"):
            yield child.lineno
        else:
            yield from environment_at_import(child)


def test_no_environment_is_read_at_import() -> None:
    """What is compiled would depend on who compiles it, and what a program sets later would be passed over."""
    assert list(environment_at_import(ast.parse("import os\ndef f(a=os.getenv('A')): os.environ\n"))) == [2]
    found = {
        name: list(environment_at_import(ast.parse(path.read_text(encoding="utf-8")))) for name, path in MODULES.items()
    }
    assert {name: lines for name, lines in found.items() if lines and name not in _READS_AT_IMPORT} == {}


def test_a_component_is_an_interface_and_a_pipeline_is_a_dag_and_no_more() -> None:
    for folder, kept in (("components", "component.py"), ("pipelines", "pipeline.py")):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert path.name in (kept, "README.md", "__init__.py"), relative(path)
                # What users import stands at the top.
                is_inside = path.name == "__init__.py" and path.parent != ROOT / folder
                assert not is_inside or len(path.read_text(encoding="utf-8").splitlines()) == 1


def test_every_package_and_every_data_file_is_installed(tmp_path: Path) -> None:
    # What setuptools writes of its own goes elsewhere: in the tree it would hide the entry points that are installed.
    command = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path), "build"]
    places = ["--build-base", str(tmp_path), "--build-lib", str(tmp_path / "lib")]
    subprocess.run([*command, *places], cwd=ROOT, check=True, capture_output=True)
    installed = {"components": "gpu_pipelines/components", "pipelines": "gpu_pipelines/pipelines"}
    for folder in ("components", "gpu_pipelines", "pipelines"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix not in (".md", ".pyc"):
                place = tmp_path / "lib" / installed.get(folder, folder) / path.relative_to(ROOT / folder)
                assert place.is_file(), relative(path)


def test_help_and_version_import_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['gpu-pipelines', '--version']; import gpu_pipelines.cli.main as m\n"
        "try: m.main()\nexcept SystemExit: pass\n"
        "heavy = ('kfp', 'torch', 'numpy', 'pyarrow', 'rich.console', 'google.api_core')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert printed_by(code, tmp_path).splitlines() == ["gpu-pipelines 0.1.0", "[]"]
    shown = gpu_pipelines("--help", cwd=tmp_path, apart=True)
    assert shown.status == 0
    assert all(command in shown.out for command in ("run", "compile", "accelerators", "models"))


def test_the_flags_of_a_run_are_there_without_what_only_steps_have(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('numpy', 'pyarrow', 'torch')))\n"
        "from gpu_pipelines.component_interface.catalog import flagged_parameters\n"
        "print(bool(flagged_parameters()))"
    )
    assert printed_by(code, tmp_path).splitlines() == ["True"]


def test_every_kind_of_source_is_judged_by_its_name_without_what_reads_data(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from gpu_pipelines.data.settings import PrepareSettings\n"
        "names = ('sample:digits', 'x/*.png', 'gs://b/x', 'bq://project.data.table', 'q.sql', 'hf://owner/name')\n"
        "print([problem for name in names for problem in PrepareSettings(source=name).problems()])\n"
        "heavy = ('numpy', 'pyarrow', 'datasets', 'huggingface_hub', 'google.auth', 'google.api_core', 'torch')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert printed_by(code, tmp_path).splitlines() == ["[]", "[]"]


# Two are there in place of train_model, in other pipelines, and two are of other pipelines alone.
_ELSEWHERE = (
    "check_for_drift",
    "check_request",
    "tune_model",
    "run_training_script",
    "check_for_new_data",
    "predict_batch",
    "send_message",
)
#: What has to be given.
_NEEDED = (("train_script_evaluate_upload", "script"), ("tune_train_evaluate_upload", "space"))
IN_PIPELINE = [n for n in COMPONENTS if n not in _ELSEWHERE]
TRAIN_AND_RETRAIN = ("train_evaluate_upload", "scheduled_retraining")


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
        is_needed = "@" in described.type or (name, entry) in _NEEDED
        assert described.optional or is_needed, f"{entry} has no default"


def test_every_component_is_imported_from_the_package_of_all() -> None:
    """Packages with the names of three components were imported in their place, and could not be called."""
    for name in COMPONENTS:
        component = load_component(name)
        assert getattr(components, name) is component
        assert name in components.__all__


@pytest.mark.parametrize("name", COMPONENTS)
def test_an_artifact_of_a_type_that_kfp_does_not_know_is_taken(name: str, tmp_path: Path) -> None:
    """As Google's components leave them. KFP's executor made an instance of `Optional` for them."""
    component = load_component(name)
    artifact = {"name": "theirs", "uri": "gs://bucket/x", "type": {"schemaTitle": "google.BQTable"}, "metadata": {}}
    inputs = {
        entry: {"artifacts": [artifact]} for entry, each in component.component_spec.inputs.items() if "@" in each.type
    }
    told = {"inputs": {"artifacts": inputs}, "outputs": {"outputFile": str(tmp_path / "out.json")}}
    assert set(Executor(told, component).input_artifacts) == set(inputs)


def test_a_parameter_means_the_same_in_the_pipeline_as_in_its_component() -> None:
    pipeline = load_pipeline("train_evaluate_upload").build(LocalTarget(), None).component_spec.inputs
    inputs = {n: i for name in IN_PIPELINE for n, i in load_component(name).component_spec.inputs.items()}
    checked = load_component("check_request").component_spec.inputs
    for name, spec in pipeline.items():
        assert spec.type == inputs[name].type == checked[name].type
        assert spec.default == inputs[name].default == checked[name].default
    fields = fields_of_advanced(load_request("train_evaluate_upload").SETTINGS.values())
    for name, field in fields.items():
        assert inputs[name].default == field.default
        assert f"\n- {name} (" in f"\n{pipeline['advanced'].description}"
    hidden = {n for n, i in inputs.items() if "@" not in i.type} - set(pipeline) - set(fields)
    filled_in = {
        *("passed", "pipeline_job", "encryption_key", "source_fingerprint", "test_source_fingerprint"),
        "outcome_uri",
    }
    assert hidden == filled_in, "what the pipeline itself fills in"


def test_the_first_step_takes_what_stands_in_the_forms_of_all_trainings() -> None:
    of_the_place = {
        "advanced",
        "notify",
        "pipeline",
        "place",
        "data_nodes",
        "processes",
        "storage",
        "run_name",
        "told_by_step",
    }
    assert set(load_component("check_request").component_spec.inputs) == {*COMMON, *of_the_place}
    outputs = load_component("check_request").component_spec.outputs
    steps = {step for name in PIPELINES if name != PREDICTION for step in load_request(name).SETTINGS}
    assert set(outputs) == {"source_fingerprint", *steps}


def test_a_parameter_that_is_for_some_tasks_is_one_of_a_step_and_every_part_of_a_task_is_there() -> None:
    every = {*COMMON, *fields_of_advanced(load_request("scheduled_retraining").SETTINGS.values())}
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
    first, second = (load_pipeline(name).build(LocalTarget(), None).component_spec.inputs for name in TRAIN_AND_RETRAIN)
    assert set(second) - set(first) == {"start_from_champion", "retrain_on", "drift_source"}
    assert {name: (second[name].type, second[name].default) for name in first} == {
        name: (spec.type, spec.default) for name, spec in first.items()
    }
    fields, more = (fields_of_advanced(load_request(name).SETTINGS.values()) for name in TRAIN_AND_RETRAIN)
    assert more == {**fields, **{name: more[name] for name in ("min_champion_age_days", "drift_days")}}
    assert more["min_champion_age_days"].default == 0.0


def test_every_compiled_file_that_a_document_names_is_published() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    named = {path for page in pages for path in re.findall(r"compiled/[\w/-]+\.yaml", page.read_text(encoding="utf-8"))}
    assert len(named) >= 2
    assert not [path for path in named if not (ROOT / path).is_file()]


def test_the_readme_lists_every_folder_of_the_package() -> None:
    listed = re.findall(r"(\w+)/ ", (ROOT / "README.md").read_text(encoding="utf-8").replace("/\n", "/ "))
    folders = {path.parent.name for path in (ROOT / "gpu_pipelines").glob("*/__init__.py")}
    assert folders - set(listed) == set()


def test_the_readme_says_for_how_many_tasks_files_are_published() -> None:
    said = re.search(
        r"the pipeline for (\w+) tasks .* and (\w+)\s+choices", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    assert said is not None
    folders = [path for path in (ROOT / "compiled/train_evaluate_upload/vertex").iterdir() if path.is_dir()]
    numbers = {"three": 3, "fifteen": 15}
    assert numbers[said[1]] == len(folders) == sum(task.published for task in TASKS.values())
    assert {numbers[said[2]]} == {len(list(folder.glob("*.yaml"))) for folder in folders}
