"""Whether a script joins the processes that torchrun starts of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

#: Frameworks that do not look for torchrun's variables themselves, and those that do, each by its import.
_ALONE = ("keras", "tensorflow", "jax", "flax", "sklearn", "xgboost", "lightgbm")
_JOINING = frozenset(("accelerate", "deepspeed", "lightning", "pytorch_lightning", "torch", "transformers", "trl"))
#: Its Trainer joins the processes of GPUs by itself; without a GPU it takes one device, unless told how many.
_LIGHTNING = frozenset(("lightning", "pytorch_lightning"))
#: What a loop of PyTorch has that its processes share.
_JOINS = re.compile(r"istributed|Accelerat|Fabric|deepspeed|horovod|torch_xla")
_VARIABLES = re.compile(r"\b(WORLD_SIZE|LOCAL_RANK|RANK)\b")


def trains_alone(script: Path, kind: str) -> str:
    """The framework of a script whose processes would know nothing of each other; empty if they may.

    Args:
        script: a file of Python.
        kind: of the devices, such as `cpu`.
    """
    text = script.read_text(encoding="utf-8", errors="replace")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # Python itself says so when it runs
        return ""
    names = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported = {name.partition(".")[0] for name in names}
    if _VARIABLES.search(text):
        return ""
    if kind == "cpu" and "devices" not in text and (lightning := imported & _LIGHTNING):
        return min(lightning)
    if "torch" in imported and ".backward(" in text and not _JOINS.search(text):
        return "torch"
    if imported & _JOINING:
        return ""
    return next((name for name in _ALONE if name in imported), "")
