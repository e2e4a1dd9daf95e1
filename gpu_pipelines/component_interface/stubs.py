"""Writes the parameters into the stub of each component: `python -m gpu_pipelines.component_interface.stubs [--check]`.

KFP takes the interface of a component from the text of a function. Artifacts, outputs and parameters that only
pipelines give are written there by hand. Parameters that users give are declared in the settings of the step, and are
written from there: into the signature, into the docstring, and into the call that passes everything to the step.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_pipelines.component_interface.catalog import COMPONENTS, UNLISTED, common_parameters, settings_of
from gpu_pipelines.component_interface.generated import write_generated
from gpu_pipelines.component_interface.parameter import PYTHON_TYPES, Parameter, parameters_in

_WIDTH = 120
# It also takes the common parameters of all other components.
_FIRST = "check_request"
_INPUT = ": Input["


def stub(name: str, text: str) -> str:
    """The text of a component's `component.py` with the parameters as declared now.

    Args:
        name: of the component.
        text: the old text. Parameters in the step's settings are replaced, those that it gets by name stay.
    """
    lines = text.splitlines()
    function: Any = next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    docstring, imports, ending = function.body
    groups = _declared(name)
    declared = {name: each for group in groups.values() for name, each in group.items()}
    in_settings = {node.id for given in ending.value.args for node in ast.walk(given) if isinstance(node, ast.Name)}
    by_hand = {name: each for name, each in _arguments(function, text) if name not in {*in_settings, *declared}}
    # A parameter has a default; an artifact has one if it is optional.
    needed = [name for name, each in by_hand.items() if " = " not in each]
    artifacts = [*needed, *(name for name, each in by_hand.items() if _INPUT in each and name not in needed)]
    others = [name for name in by_hand if name not in artifacts]
    order = [*artifacts, *declared, *others]

    summary, _, rest = docstring.value.value.partition("\n\n    Args:\n")
    inputs, returns, outputs = rest.partition("\n\n    Returns:\n")
    entries = {entry.split(":")[0].strip(): entry for entry in re.split(r"\n(?= {8}\w)", inputs.rstrip())}
    # Unchanged text keeps its line breaks, which are in the compiled files.
    said = {name: " ".join(entry.split()) for name, entry in entries.items()}
    wanted = {name: f"{name}: {each.text}" for name, each in declared.items()}
    entries |= {name: _entry(text) for name, text in wanted.items() if said.get(name) != text}
    signature = {**by_hand, **{name: _in_signature(name, each) for name, each in declared.items()}}
    # With its comment, which is for checkers.
    returned = "\n".join(lines[function.returns.lineno - 1 : docstring.lineno - 1])[function.returns.col_offset :]
    return "\n".join(
        [
            *lines[: function.lineno - 1],
            f"def {name}(",
            *_with_reasons(signature[name] for name in order),
            f") -> {returned}",
            f'    """{summary}\n\n    Args:',
            *(entries[name] for name in order if name in entries),
            f'{returns[1:]}{outputs.rstrip()}\n    """' if returns else '    """',
            *lines[imports.lineno - 1 : imports.end_lineno],
            "",
            f"    {'return ' if isinstance(ending, ast.Return) else ''}{ending.value.func.id}(",
            *_settings(groups),
            *(f"        {name}={name}," for name in (*artifacts, *others)),
            "    )\n",
        ]
    )


def _declared(name: str) -> dict[str, dict[str, Parameter]]:
    """The declared parameters of a component, by the class of its settings; without one, in a mapping."""
    settings = settings_of(name)
    groups = {settings.__name__: parameters_in(settings)}
    if name != _FIRST:
        return groups
    others = {name: component for name, component in common_parameters().items() if component != _FIRST}
    texts = {name: f"As for {component}." for name, component in others.items()}
    common = {name: replace(parameters_in(settings_of(others[name]))[name], text=text) for name, text in texts.items()}
    return {"": common, **groups}


def _arguments(function: ast.FunctionDef, text: str) -> Iterator[tuple[str, str]]:
    """The arguments of a function as they are written, by name."""
    arguments = function.args.args
    defaults = [None] * (len(arguments) - len(function.args.defaults)) + function.args.defaults
    for argument, default in zip(arguments, defaults, strict=True):
        written = ast.get_source_segment(text, argument)
        yield argument.arg, f"{written} = {ast.get_source_segment(text, default)}" if default else str(written)


def _in_signature(name: str, declared: Parameter) -> str:
    default = declared.default
    shown = json.dumps(default, ensure_ascii=False) if isinstance(default, (str, list, dict)) else repr(default)
    return f"{name}: {PYTHON_TYPES[declared.type].__name__} = {shown}"


def _with_reasons(signature: Iterable[str]) -> Iterator[str]:
    """Lines of a signature; comments answer checkers about mutable defaults."""
    reason = " (KFP takes the default from here)"
    for entry in signature:
        mutable = " = " in entry and entry.endswith(("]", "}"))
        yield f"    {entry}," + (f"  # noqa: B006{reason}" if mutable else "")
        reason = "" if mutable else reason


def _entry(text: str) -> str:
    """The docstring's entry for a parameter, in lines."""
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=" " * 8,
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _settings(groups: Mapping[str, Mapping[str, Parameter]]) -> Iterator[str]:
    """The lines that pass on the declared parameters."""
    for settings, parameters in groups.items():
        yield f"        {settings}(" if settings else "        {"
        for name in parameters:
            yield f"            {name}={name}," if settings else f'            "{name}": {name},'
        yield "        )," if settings else "        },"


def main(arguments: list[str]) -> int:
    """Writes the stubs below the working directory; with `--check`, names stale ones and returns 1 if any is."""
    paths = {name: Path("components", folder, "component.py") for name, folder in {**COMPONENTS, **UNLISTED}.items()}
    made = ((path, stub(name, path.read_text(encoding="utf-8"))) for name, path in paths.items())
    return write_generated(made, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
