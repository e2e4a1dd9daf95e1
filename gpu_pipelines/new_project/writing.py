"""Writes the files of a new project to this machine's disk. Existing files are overwritten only on request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.compiled import write_file


def write_project(files: Mapping[str, str], directory: Path, *, force: bool = False) -> dict[str, str]:
    """Writes the files of a project.

    Args:
        files: their texts, by their paths in the project.
        directory: the project; created if it does not exist.
        force: overwrite existing files with another text.

    Returns:
        The outcome for each file: `wrote`, `overwrote`, or `kept` if it already has this text.

    Raises:
        UserError: there are files with another text, and `force` is not given; or one cannot be written. In the first
            case nothing was written.
    """
    done = {name: _outcome(directory / name, text) for name, text in files.items()}
    there = [name for name, outcome in done.items() if outcome == "overwrote"]
    if there and not force:
        raise UserError(
            f"{directory} has other files of these names: {', '.join(there)}.",
            "Nothing was written. Give another folder, or --force to overwrite them.",
        )
    for name, text in files.items():
        if done[name] != "kept":
            write_file(directory / name, text)
    return done


def _outcome(path: Path, text: str) -> str:
    if not (path.exists() or path.is_symlink()):
        return "wrote"
    return "kept" if path.is_file() and path.read_bytes() == text.encode() else "overwrote"
