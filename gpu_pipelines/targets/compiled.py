"""A pipeline or component as the text of a YAML file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any


def compiled(source: Any) -> str:
    """The text that KFP's compiler writes.

    Args:
        source: a KFP pipeline or component.
    """
    from kfp import compiler

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "compiled.yaml"
        compiler.Compiler().compile(source, str(path))
        return path.read_text(encoding="utf-8")
