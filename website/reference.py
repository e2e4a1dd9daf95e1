"""Holds the Python reference to what is public: every name that users are told to import, with types and `Args:`.

Pages, tutorials, examples and the files that `gpu-pipelines init` writes tell users what to import.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from pages import BLOCK, ROOT, pages, text_of

from gpu_pipelines.tasks.tasks import TASKS

_IMPORT = re.compile(r"^[ >]*from (gpu_pipelines[\w.]*) import (\([^)]*\)|[^\n#(]+)", re.MULTILINE)
#: KFP components, which their READMEs describe.
_COMPONENT = re.compile(r"gpu_pipelines\.components\.\w+\.component\.\w+")


def problems() -> Iterator[str]:
    """What the Python reference lacks: names that users import, and types, docstrings or arguments of what it shows."""
    shown = re.findall(r"^::: (\S+)$", text_of("docs/reference/python.md"), re.MULTILINE)
    for name in shown:
        found = defined(name, shown)
        if found is None:
            yield f"docs/reference/python.md: there is no {name}"
        for path, node in found or []:
            yield from (f"{path}: {problem}" for problem in lacking(node))
    missing = {name: place for place, code in examples() for name in imported(code) if name not in shown}
    yield from (f"docs/reference/python.md: {name} is missing; {missing[name]} imports it" for name in sorted(missing))


def examples() -> Iterator[tuple[str, str]]:
    """The code that users are shown, with the file that it stands in."""
    for page in pages():
        yield from ((page, textwrap.dedent(match["code"])) for match in BLOCK.finditer(text_of(page)))
    for folder, pattern in (("examples", "*.py"), ("gpu_pipelines/new_project/templates", "*.py.j2")):
        for path in sorted((ROOT / folder).rglob(pattern)):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for task in TASKS.values():  # a new project derives from one of these
        for module, name in ((type(task).__module__, type(task).__name__), task.recipe.split(":")):
            yield "gpu-pipelines init", f"from {module} import {name}"


def imported(code: str) -> set[str]:
    """What code takes from this package, each by the module that defines it; KFP components are left out.

    Args:
        code: Python, or text that holds some.
    """
    names, modules = set[str](), {"gpu_pipelines": "gpu_pipelines"}
    for module, given in _IMPORT.findall(code):
        for part in given.strip("() \n,").split(","):
            name, _, alias = part.strip().partition(" as ")
            if _file_of(f"{module}.{name}") and not _place(f"{module}.{name}"):
                modules[alias or name] = f"{module}.{name}"
            else:
                names.add(_place(f"{module}.{name}") or f"{module}.{name}")
    for alias, module in modules.items():
        # A submodule has no place.
        names.update(filter(None, (_place(f"{module}.{name}") for name in re.findall(rf"\b{alias}\.(\w+)", code))))
    return {name for name in names if not _COMPONENT.fullmatch(name)}


def _place(name: str) -> str | None:
    """Where a name is defined, behind the imports of modules; None if none defines it."""
    module, _, attribute = name.rpartition(".")
    for node in ast.walk(_tree_of(module)):
        if isinstance(node, ast.ImportFrom):
            for each in node.names:
                if (each.asname or each.name) == attribute and (found := _place(f"{node.module}.{each.name}")):
                    return found
        elif attribute in _names_of(node):
            return name
    return None


def _names_of(node: ast.AST) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for each in targets if isinstance(each, ast.Name)]


def defined(name: str, shown: Sequence[str] = ()) -> list[tuple[str, ast.FunctionDef]] | None:
    """The function, or the public methods of the class, behind a name of the reference; None if there is none.

    A method that overrides one of a shown class is left out: the reference explains its arguments there.

    Args:
        name: of the reference.
        shown: all names of the reference.
    """
    module, _, attribute = name.rpartition(".")
    # The last one counts, as in Python: before it stand the overloads that only type checkers read.
    for node in reversed(_tree_of(module).body):
        if isinstance(node, ast.FunctionDef) and node.name == attribute:
            return [(name, node)]
        if isinstance(node, ast.ClassDef) and node.name == attribute:
            told = set[str]().union(*(_told_by(_place(f"{module}.{_class_of(b)}"), shown) for b in node.bases))
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name not in told]
            return [(f"{name}.{each.name}", each) for each in methods if not each.name.startswith("_")]
        if attribute in _names_of(node):
            return []
    return None


def _told_by(base: str | None, shown: Sequence[str]) -> set[str]:
    """The methods of a class and of its bases that the reference explains."""
    module, _, attribute = (base or "").rpartition(".")
    found: set[str] = set()
    for node in _tree_of(module).body if base else []:
        if isinstance(node, ast.ClassDef) and node.name == attribute:
            found.update(*(_told_by(_place(f"{module}.{_class_of(each)}"), shown) for each in node.bases))
            if base in shown:
                found.update(each.name for each in node.body if isinstance(each, ast.FunctionDef))
    return found


def _class_of(base: ast.expr) -> str:
    return ast.unparse(base.value if isinstance(base, ast.Subscript) else base)


@cache
def _tree_of(module: str) -> ast.Module:
    file = _file_of(module)
    return ast.parse(file.read_text(encoding="utf-8") if file else "")


def _file_of(module: str) -> Path | None:
    stem = ROOT / module.replace(".", "/").replace("gpu_pipelines/components", "components")
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()), None)


def lacking(node: ast.FunctionDef) -> Iterator[str]:
    """What the signature and the docstring of a function do not say.

    Args:
        node: the function.
    """
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    arguments = [each for each in given if each.arg not in ("self", "cls")]
    text = ast.get_docstring(node) or ""
    if not text:
        yield "has no docstring"
    if node.returns is None or any(each.annotation is None for each in arguments):
        yield "lacks types"
    described = re.findall(r"^ *\**(\w+)(?: \(.*?\))?:", text.partition("Args:")[2], re.MULTILINE)
    if text and (missing := [each.arg for each in arguments if each.arg not in described]):
        yield f"does not say what {', '.join(missing)} is (Args:)"
