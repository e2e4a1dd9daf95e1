"""A pipeline or component as the text of a YAML file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml

# Ten times as fast where PyYAML has been built with libyaml.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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


def documents_of(text: str) -> list[Any]:
    """The YAML documents of a compiled file that are not empty.

    Raises:
        yaml.YAMLError, ValueError, RecursionError: it is not YAML.
    """
    return [part for part in yaml.load_all(text, Loader=_LOADER) if part]
