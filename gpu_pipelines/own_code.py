"""Whether a function or class of the user's is there, without running any of the user's code."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

from gpu_pipelines.errors import nearest


def why_not_there(module: str, name: str, file: Path | None = None) -> str:
    """Why a name cannot be imported, as far as the text of its module says; empty if nothing speaks against it.

    The packages around a module are imported, the module itself is not: it may need a GPU.

    Args:
        module: as in an import; for messages where `file` is given.
        name: of a function or class.
        file: the module's file, where it is given by that.
    """
    if file is None:
        try:
            spec = find_spec(module)
        except (Exception, SystemExit) as error:
            return f"{module} cannot be imported: {type(error).__name__}: {error}."
        if spec is None:
            return f"There is no module {module}. Add it to the image, or give a file."
        if not (spec.origin and spec.origin.endswith(".py")):
            return ""
        file = Path(spec.origin)
    elif not file.is_file():
        return f"There is no file {file}."
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        return f"{module} cannot be imported: {error}."
    names = _names_in(tree)
    return "" if names is None or name in names else f"{module} has no {name}. {nearest(name, sorted(names))}"


def _names_in(tree: ast.Module) -> set[str] | None:
    """The names that a module may have; None where it takes all those of another."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            if any(alias.name == "*" for alias in node.names):
                return None
            found.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    return None if "__getattr__" in found else found
