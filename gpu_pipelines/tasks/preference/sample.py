"""The sample of preferences: what a function of Python does, said in words or in code."""

from __future__ import annotations

import ast
import sysconfig
from pathlib import Path

from gpu_pipelines.tasks.sample_rows import write_rows

_SHORTEST, _LONGEST = 20, 160


def write_explanations(folder: Path) -> Path:
    """Writes questions about functions of the standard library into `explanations.jsonl`.

    The chosen answer is the first line of the function's docstring, the rejected one the first statement of its code.

    Args:
        folder: gets the file.

    Returns:
        The path to give as the source.
    """
    return write_rows(folder / "explanations.jsonl", _explanations())


def _explanations() -> list[dict[str, str]]:
    rows = []
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.glob("*.py")):
        # Parsed, not imported: importing all of the standard library opens windows and browsers.
        for node in ast.walk(ast.parse(path.read_bytes())):
            words = (ast.get_docstring(node) or "").partition("\n")[0] if isinstance(node, ast.FunctionDef) else ""
            if not isinstance(node, ast.FunctionDef) or not _SHORTEST <= len(words) <= _LONGEST or len(node.body) < 2:
                continue
            code = ast.unparse(node.body[1]).partition("\n")[0]
            if len(code) <= _LONGEST:
                rows.append({"prompt": f"What does {path.stem}.{node.name} do?\n", "chosen": words, "rejected": code})
    return rows
