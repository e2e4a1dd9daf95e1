"""The source that a request names, whose samples are written and read back like any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.files import Source
from gpu_pipelines.data.sources.names import SAMPLE
from gpu_pipelines.data.sources.source_files import find_source
from gpu_pipelines.tasks.tasks import task_named


def open_source(settings: PrepareSettings, scratch: Path) -> Source:
    """Finds the files of a source.

    Args:
        settings: `source`, `source_format` and `task` are read.
        scratch: a directory to be made; a sample data set is written there.

    Raises:
        UserError: the source does not exist, is empty, or is in a format that the task does not read.
    """
    if not settings.source.startswith(SAMPLE):
        return find_source(settings)
    scratch.mkdir(parents=True)
    place = task_named(settings.task).write_sample(settings.source.removeprefix(SAMPLE), scratch)
    return find_source(replace(settings, source=str(place), source_format="auto"))
