"""The compiled pipeline of a new project, before the project is written."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpu_pipelines.new_project.writing import write_project


def compiled_text(files: Mapping[str, str], package: str, target: str) -> str:
    """The compiled pipeline of a project, as text.

    Args:
        files: the texts of the project, by their paths in it.
        package: the package with its task.
        target: the target to compile for.

    Raises:
        UserError: the target cannot run it.
    """
    from gpu_pipelines.project_settings import load_project_settings
    from gpu_pipelines.targets.target import targets

    with tempfile.TemporaryDirectory(prefix="gpu-pipelines-init-") as scratch:
        write_project(files, Path(scratch))
        with _importable(scratch, package):
            opened = targets()[target](settings=load_project_settings(directory=Path(scratch)))
            return opened.compile(f"{scratch}/pipeline.py").text


@contextmanager
def _importable(folder: str, package: str) -> Iterator[None]:
    """Lets this process import the package of a project within the block."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]
