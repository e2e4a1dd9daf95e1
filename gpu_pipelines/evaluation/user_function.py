"""Functions of a user's own, named as `package.module:function` or `path/to/file.py:function`."""

from __future__ import annotations

import ast
import linecache
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from gpu_pipelines.errors import NotFoundError, UserError, named, nearest

# The dot before `py` keeps `module:function` apart; a file's name may be anything but a URI.
_FILE = re.compile(r"(?P<file>(?!\w+://).+\.py):(?P<function>[^\W\d]\w*)")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def names_function(given: str) -> bool:
    """Whether a text has the form of a function's name."""
    return bool(_FILE.fullmatch(given) or _MODULE.fullmatch(given))


def file_of(given: str) -> Path | None:
    """The file of a function, where it is given by its file."""
    match = _FILE.fullmatch(given)
    return Path(match["file"]).expanduser() if match else None


@dataclass(frozen=True)
class UserFunction:
    """A function that was imported.

    Attributes:
        name: as the user gave it.
        module: where it is defined.
        function: itself.
    """

    name: str
    module: ModuleType
    function: Callable[..., Any]

    def call(self, what: str, *arguments: Any) -> Any:
        """Calls it.

        Args:
            what: what it is called for, for people.
            arguments: its own.

        Raises:
            UserError: it failed; the remedy names the line.
        """
        try:
            return self.function(*arguments)
        except (Exception, SystemExit) as error:
            raise UserError(f"{self.name} failed on {what}: {named(error)}", _place(error, self.module)) from None


def load_function(given: str, what: str) -> UserFunction:
    """Imports a function; the folder of a file can be imported from, as if the file were run.

    Args:
        given: its name.
        what: what it is, such as "scoring function".

    Raises:
        UserError: it cannot be imported.
    """
    place, _, name = given.rpartition(":")
    file = file_of(given)
    if file is not None and not file.is_file():
        raise NotFoundError(f"There is no file {file} with the {what} {name}.")
    try:
        module = _module_of(file) if file is not None else import_module(place)
    except (Exception, SystemExit) as error:
        problem = f"{place} with the {what} cannot be imported: {named(error)}"
        raise UserError(problem, _place(error)) from None
    function = getattr(module, name, None)
    if not callable(function):
        functions = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise UserError(f"{place} has no function {name}.", nearest(name, functions) if functions else "")
    return UserFunction(given, module, function)


def why_not_there(given: str) -> str:
    """Why a function cannot be imported, as far as the text of its module says; empty if nothing speaks against it.

    The packages around a module are imported, the module itself is not: it may need a GPU.
    """
    module, _, name = given.rpartition(":")
    file = file_of(given)
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


def _module_of(file: Path) -> ModuleType:
    if (folder := str(file.parent.resolve())) not in sys.path:
        sys.path.insert(0, folder)
    # A name of its own, so that a file called like an installed package hides nothing.
    spec = spec_from_file_location(f"scoring_function_in_{file.stem}", file.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look a class's module up there
    spec.loader.exec_module(module)
    return module


def _place(error: BaseException, module: ModuleType | None = None) -> str:
    """Where in the user's own code it went wrong: the last frame of the function's file, else the last one at all."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {(error.text or '').strip()}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and "importlib" not in frame.filename
    ]
    own = [frame for frame in frames if module is not None and frame.filename == module.__file__]
    if not frames:
        return ""
    frame = (own or frames)[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f"{frame.filename}:{frame.lineno}: {line}"
