"""Files of the repository that are generated from others."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path


def write_generated(files: Iterable[tuple[Path, str]], arguments: Sequence[str]) -> int:
    """Writes files whose content has changed.

    Args:
        files: each with its text.
        arguments: arguments of the command; with `--check` nothing is written, and stale files are named on stderr.

    Returns:
        The exit status: 1 if `--check` was given and a file differs.
    """
    differing = [(path, text) for path, text in files if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" not in arguments:
        for path, text in differing:
            path.write_text(text, encoding="utf-8")
        return 0
    for path, _ in differing:
        print(f"{path} is out of date; run make docs.", file=sys.stderr)
    return 1 if differing else 0
