"""The sample of texts with classes."""

from __future__ import annotations

import ast
import sysconfig
from functools import cache
from pathlib import Path

from gpu_pipelines.tasks.sample_rows import write_rows

# Packages of the standard library, on every Python from 3.10 to 3.14, whose docstrings tell them apart. tkinter is not
# among them: Debian and Ubuntu install it apart.
DOCSTRING_PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")
SHORTEST_DOCSTRING = 40


def write_docstrings(folder: Path) -> Path:
    """Writes docstrings of the standard library, each with its package as the label, into `docstrings.jsonl`."""
    return write_rows(folder / "docstrings.jsonl", _docstrings())


@cache
def _docstrings() -> list[dict[str, str]]:
    rows = []
    library = Path(sysconfig.get_path("stdlib"))
    for package in DOCSTRING_PACKAGES:
        for path in sorted((library / package).rglob("*.py")):
            if {"test", "tests"} & set(path.relative_to(library).parts):
                continue
            # Parsed, not imported: importing all of the standard library opens windows and browsers.
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    text = ast.get_docstring(node) or ""
                    if len(text) >= SHORTEST_DOCSTRING:
                        rows.append({"text": text, "label": package})
    return rows
