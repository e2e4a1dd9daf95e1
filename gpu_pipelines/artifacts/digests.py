"""Digests of what steps read besides their inputs: if one has changed, earlier results are not reused."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def digest_of_files(*paths: Path) -> str:
    """Hex SHA-256 of names, sizes and modification times of files, and of all files below directories."""
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                status = file.stat()
                digest.update(os.fsencode(file) + f"\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def digest_of_program() -> str:
    """Hex SHA-256 of the source files that steps import, so that results of other code are not reused."""
    import gpu_pipelines

    digest = hashlib.sha256()
    for folder in map(Path, gpu_pipelines.__path__):
        for file in sorted(folder.rglob("*")):
            if file.suffix in (".py", ".html") and file.relative_to(folder).parts[0] not in ("cli", "targets"):
                digest.update(file.read_bytes())
    return digest.hexdigest()
