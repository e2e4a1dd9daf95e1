"""Every command is a function as well: the table of docs/python.md, the commands, and what the package shows."""

from __future__ import annotations

import errno
import inspect
import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import typer

import gpu_pipelines
from gpu_pipelines.cli.main import app
from gpu_pipelines.errors import UserError

DOCUMENTS = Path(__file__).parents[2] / "docs"
PAGE = (DOCUMENTS / "python.md").read_text(encoding="utf-8")
REFERENCE = (DOCUMENTS / "reference" / "python.md").read_text(encoding="utf-8").splitlines()
TABLE = dict(re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", PAGE, re.MULTILINE))


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    """The commands below a command that are no groups of others, as they are typed."""
    for name, each in command.commands.items():
        if not hasattr(each, "commands"):
            yield from () if each.hidden else (" ".join((*words, name)),)
        else:
            yield from leaves(each, (*words, name))


def test_every_command_has_a_function_or_is_said_to_have_none() -> None:
    without = re.search(r"^Commands that serve .* have none: (.*?)\.(?:\s|$)", PAGE, re.MULTILINE | re.DOTALL)
    assert without
    names = re.findall(r"`([^`]+)`", without[1])
    assert sorted([*TABLE, *names]) == sorted(leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("name", TABLE.values())
def test_the_function_of_a_command_has_types_a_docstring_and_a_place_in_the_reference(name: str) -> None:
    function = inspect.unwrap(attrgetter(name)(gpu_pipelines))
    assert inspect.getdoc(function)
    parameters = [each for each in inspect.signature(function).parameters if each != "self"]
    assert {*parameters, "return"} <= set(function.__annotations__)
    assert f"::: {function.__module__}.{function.__qualname__.partition('.')[0]}" in REFERENCE


def test_the_package_shows_all_of_them_and_what_they_take() -> None:
    others = {"Container", "Evaluation", "JobOptions", "Wishes", "Workload", "__version__", "open_registry"}
    others |= {"evaluate", "tune", "worker_pool_specs", "workload_of_model"}
    assert set(dir(gpu_pipelines)) == others | {name.partition(".")[0] for name in TABLE.values()}


def test_an_error_of_the_system_is_that_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that catches UserError got the OSError itself."""

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/data/runs")

    monkeypatch.setattr(Path, "glob", refused)
    with pytest.raises(UserError, match=r"^/data/runs may not be used: Permission denied"):
        gpu_pipelines.list_runs(tmp_path)
