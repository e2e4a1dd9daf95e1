"""Samples, `sample:NAME`: each task writes its own, and they are read back like any other files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.file_source import Files
from gpu_pipelines.data.sources.source import Source, SourceFiles
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.tasks import TASKS, task_named, task_problems


class Samples(Source):
    """The data sets that come with the tasks."""

    title, example, scheme = "a sample", "sample:digits", "sample:"
    parameters = ("source_format",)

    def problems(self, settings: PrepareSettings) -> list[str]:
        found = []
        tasks = TASKS.values() if task_problems(settings.task) else [task_named(settings.task)]
        samples = [f"{self.scheme}{name}" for task in tasks for name in task.samples]
        if settings.source not in samples:
            known = ", ".join(samples) or "none"
            found.append(f"There is no {settings.source!r} for {settings.task}. Samples: {known}.")
        for name in ("slice_by", "group_by"):
            if column := getattr(settings, name):
                found.append(f"{name} is {column!r}, but samples have no more columns. Leave it out.")
        return found

    def require_readable(self, settings: PrepareSettings) -> None:
        """They are written when they are opened."""

    def open(self, settings: PrepareSettings, scratch: Path) -> SourceFiles:
        if problems := self.problems(settings):  # a model that predicts has a task of its own
            raise UserError.of_all(problems)
        scratch.mkdir(parents=True)
        place = task_named(settings.task).write_sample(settings.source.removeprefix(self.scheme), scratch)
        return Files().open(replace(settings, source=str(place), source_format="auto"), scratch)

    def state(self, uri: str, billing_project: str) -> list[Any]:
        return [(uri, "")]
