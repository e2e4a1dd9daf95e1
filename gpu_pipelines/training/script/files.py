"""The user's own Python files that a training script consists of, found without running it."""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

_PACKAGES = {"site-packages", "dist-packages"}


def files_of_script(script: Path) -> list[Path]:
    """A script, the Python files beside it, and those of the modules that these import, without installed packages.

    A package counts with all of its files, and so does one that is installed as editable. A module imported by a
    name that is made when the script runs, from another folder, is not found.

    Args:
        script: the file.
    """
    root = script.resolve().parent
    found, waiting = set[Path](), [script.resolve(), *root.glob("*.py")]
    looked_up: dict[str, list[Path]] = {}
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        for name in _imported(file) - looked_up.keys():
            looked_up[name] = list(_files_of_module(name, root))
            waiting += looked_up[name]
    return sorted(found)


def _imported(file: Path) -> set[str]:
    """First names of the modules that a file imports; none of a file that Python cannot read."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _files_of_module(name: str, root: Path) -> Iterator[Path]:
    folder = root / name
    if folder.is_dir():
        yield from folder.rglob("*.py")
    elif not (root / f"{name}.py").is_file():
        for place in _installed_to_be_edited(name):
            yield from place.rglob("*.py") if place.is_dir() else [place]


def _installed_to_be_edited(name: str) -> Iterator[Path]:
    """Where a module of this environment is, unless it is one of Python, of a package index, or of this project."""
    if name in sys.stdlib_module_names or name == __name__.partition(".")[0]:
        return
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return
    places = list(spec.submodule_search_locations or []) if spec else []
    for place in places or ([spec.origin] if spec and spec.origin else []):
        path = Path(place).resolve()
        # By name: an environment may see the packages of the user and of the system besides its own.
        is_installed = not _PACKAGES.isdisjoint(path.parts)
        if path.exists() and not is_installed and not path.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve()):
            yield path
