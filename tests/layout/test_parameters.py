"""A parameter is declared once, in the settings of its step; components, pipelines and commands have it from there."""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Iterator
from dataclasses import fields, make_dataclass
from difflib import ndiff
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gpu_pipelines.component_interface import stubs
from gpu_pipelines.component_interface.catalog import (
    COMPONENTS,
    UNLISTED,
    common_parameters,
    load_component,
    settings_of,
)
from gpu_pipelines.component_interface.parameter import KFP_TYPES, parameter, parameters_in
from gpu_pipelines.component_interface.stubs import stub
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.tasks import tasks
from gpu_pipelines.tasks.tasks import TASKS
from gpu_pipelines.training.settings import TrainingSettings

ROOT = Path(__file__).parents[2]


ALL = {**COMPONENTS, **UNLISTED}


def text_of(component: str) -> str:
    return (ROOT / "components" / ALL[component] / "component.py").read_text(encoding="utf-8")


def differences(before: str, after: str) -> list[str]:
    return [line for line in ndiff(before.splitlines(), after.splitlines()) if line.startswith(("+ ", "- "))]


@pytest.mark.parametrize("component", ALL)
def test_the_parameters_of_a_stub_are_those_that_are_declared(component: str) -> None:
    assert differences(text_of(component), stub(component, text_of(component))) == [], "run make docs"


@pytest.mark.parametrize("component", ALL)
def test_a_component_has_what_is_declared(component: str) -> None:
    inputs = load_component(component).component_spec.inputs
    for name, declared in parameters_in(settings_of(component)).items():
        described = " ".join(inputs[name].description.split())
        assert (inputs[name].type, inputs[name].default, described) == (declared.type, declared.default, declared.text)


@pytest.mark.parametrize("component", ALL)
def test_a_declaration_is_of_the_type_that_its_field_has(component: str) -> None:
    settings = settings_of(component)
    hints = typing.get_type_hints(settings)
    for field in fields(settings):
        declared = parameters_in(settings)[field.name]
        assert declared.type == KFP_TYPES[typing.get_origin(hints[field.name]) or hints[field.name]], field.name
        assert declared.default == getattr(settings(), field.name), field.name
        assert declared.text == " ".join(declared.text.split()), "a text has single spaces"
        assert declared.text.endswith("."), field.name
        assert not declared.choices or declared.default in declared.choices, field.name
        words = re.findall(r"[\w.-]*\w", declared.text)
        assert [each for each in map(str, declared.choices) if each and each not in words] == [], field.name


def test_parameters_of_one_name_have_one_type_and_one_default() -> None:
    first: dict[str, Any] = {}
    for component in COMPONENTS:
        for name, declared in parameters_in(settings_of(component)).items():
            seen = first.setdefault(name, declared)
            assert (seen.type, seen.default) == (declared.type, declared.default), f"{name} of {component}"


def calls_in(component: str) -> Iterator[tuple[Any, ast.Call]]:
    """What a stub calls, with how: the step, and the class of its settings."""
    (function,) = (node for node in ast.parse(text_of(component)).body if isinstance(node, ast.FunctionDef))
    imported = function.body[1]
    assert isinstance(imported, ast.ImportFrom)
    module = import_module(str(imported.module))
    for node in ast.walk(function.body[2]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield getattr(module, node.func.id), node


@pytest.mark.parametrize("component", ALL)
def test_a_stub_calls_its_step_as_the_step_is_written(component: str) -> None:
    called = dict(calls_in(component))
    assert len(called) == 2
    assert settings_of(component) in called
    for function, call in called.items():
        by_name = {str(keyword.arg): ast.unparse(keyword.value) for keyword in call.keywords}
        assert all(name == value for name, value in by_name.items())
        inspect.signature(function).bind(*call.args, **by_name)


def test_what_is_declared_anew_comes_into_the_stub_and_goes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = text_of("train_model")
    text = "Share of the probability that the right class gives to the others, as in arxiv.org/abs/1512.00567v3."
    fresh = [
        ("label_noise", float, parameter(0.1, text)),
        ("frozen", list, parameter(["head"], "Layers that stay as they are.")),
    ]
    more = make_dataclass("TrainingSettings", fresh, bases=(TrainingSettings,), frozen=True)
    with monkeypatch.context() as patched:
        patched.setattr(stubs, "settings_of", lambda component: more)
        after = stub("train_model", before)
    assert differences(before, after) == [
        "+     label_noise: float = 0.1,",
        '+     frozen: list = ["head"],  # noqa: B006 (KFP takes the default from here)',
        "-     advanced: dict = {},  # noqa: B006 (KFP takes the default from here)",
        "+     advanced: dict = {},  # noqa: B006",
        "+         label_noise: Share of the probability that the right class gives to the others, as in",
        "+             arxiv.org/abs/1512.00567v3.",
        "+         frozen: Layers that stay as they are.",
        "+             label_noise=label_noise,",
        "+             frozen=frozen,",
    ]
    assert stub("train_model", after) == before


def test_the_first_step_is_asked_for_what_is_declared_common_and_says_where_it_is_described() -> None:
    described = {
        name: " ".join(each.description.split())
        for name, each in load_component("check_request").component_spec.inputs.items()
    }
    for name, component in common_parameters().items():
        assert component == "check_request" or described[name] == f"As for {component}."
    assert {"epochs", "source", "gates", "start_from_champion"} <= set(common_parameters())


def test_stubs_that_are_out_of_date_are_named_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for component, folder in ALL.items():
        (tmp_path / "components" / folder).mkdir(parents=True)
        (tmp_path / "components" / folder / "component.py").write_text(text_of(component), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert stubs.main(["--check"]) == 0
    old = Path("components/training/component.py")
    old.write_text(text_of("train_model").replace("epochs: float = 0.0", "epochs: float = 9.0"), encoding="utf-8")
    assert stubs.main(["--check"]) == 1
    assert capsys.readouterr().err == "components/training/component.py is out of date; run make docs.\n"
    assert stubs.main([]) == 0
    assert old.read_text(encoding="utf-8") == text_of("train_model")


@pytest.mark.parametrize("task", tasks.BUILT_IN)
def test_the_metrics_of_a_task_are_named_where_gates_are_described(task: str) -> None:
    words = re.findall(r"\w+", parameters_in(EvaluationSettings)["gates"].text)
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    for name in TASKS[task].metrics:
        assert name in words, "add it to the text of gates"
        assert f"`{name}`" in page, "add it to docs/evaluation.md"
