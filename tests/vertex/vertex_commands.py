"""The command line against the server that stands in for Google Cloud."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import Finished

if TYPE_CHECKING:
    from vertex_api.server import VertexApi

PROJECT_FILE = """\
pipeline_root: gs://example-bucket/runs
image: us-docker.pkg.dev/example-project/images/steps:0.1.0
repository: {url}/example-project/pipelines
"""


def command(api: VertexApi, folder: Path, *arguments: str) -> Finished:
    """Runs a command in this process: Google's libraries take seconds to import.

    Args:
        api: the server.
        folder: where it runs; gets a gpu-pipelines.yaml unless it has one.
        arguments: as on the command line.
    """
    from gpu_pipelines.cli.main import main

    file = folder / "gpu-pipelines.yaml"
    if not file.exists():
        file.write_text(PROJECT_FILE.format(url=api.url))
    out, err, status = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch:
        for name, value in api.environment().items():
            patch.setenv(name, value)
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["gpu-pipelines", *arguments])
        try:
            with redirect_stdout(out), redirect_stderr(err):
                main()
        except SystemExit as end:
            status = int(end.code or 0)
    return Finished(status, out.getvalue(), err.getvalue())


def put_texts(api: VertexApi) -> None:
    """Makes gs://example-bucket/texts a source with the columns text and label."""
    api.storage.put("texts/1.jsonl", b'{"text": "one", "label": "a"}\n{"text": "two", "label": "b"}\n')
