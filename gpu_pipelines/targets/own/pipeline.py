"""A user's own pipeline, made ready for a target: read or compiled, filled in, placed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import yaml

from gpu_pipelines.dag import PIPELINES
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.compiled import compiled, documents_of, text_of_file
from gpu_pipelines.targets.messages import is_python
from gpu_pipelines.targets.own.file import item_types_of, pipeline_in
from gpu_pipelines.targets.own.names import name_steps_apart
from gpu_pipelines.targets.own.placed import place_steps
from gpu_pipelines.targets.own.references import mend
from gpu_pipelines.targets.own.steps import Step, steps_in
from gpu_pipelines.targets.own.values import fill_in

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
#: Folder of the checkpoints of a run's trainings: KFP fills in the run, and restarts of it have the same.
CHECKPOINT_URI = "{{$.pipeline_root}}/checkpoints/{{$.pipeline_job_uuid}}"


@dataclass(frozen=True)
class OwnPipeline:
    """A pipeline in a file.

    Attributes:
        documents: documents of the compiled file: the pipeline, and settings for Kubernetes if there are any.
        written: the file as it was written; empty if it differs from a file, or its steps were renamed.
        item_types: item types of list parameters, as far as a Python file gives them.
    """

    documents: Sequence[Mapping[str, Any]]
    written: str = ""
    item_types: Mapping[str, type] = field(default_factory=dict)

    @property
    def spec(self) -> Mapping[str, Any]:
        return self.documents[0]

    @property
    def name(self) -> str:
        """Its name in KFP."""
        return str(self.spec["pipelineInfo"]["name"])

    @property
    def is_of_this_project(self) -> bool:
        """Whether it is one of this project's pipelines, whose files are placed when they are compiled."""
        return self.name.replace("-", "_") in PIPELINES

    @property
    def steps(self) -> list[Step]:
        return steps_in(self.spec)

    @cached_property
    def text(self) -> str:
        """The pipeline as a file; if nothing was placed, the original, byte for byte."""
        if self.written:
            return self.written
        return str(yaml.dump_all(self.documents, Dumper=_DUMPER, sort_keys=True, allow_unicode=True))

    def placed(self, target: Any, plans: Mapping[str, Any], checkpoints: str) -> OwnPipeline:
        """The pipeline with its steps placed on a target.

        Args:
            target: the target.
            plans: accelerators of the steps, by their names.
            checkpoints: folder of the checkpoints of all trainings.
        """
        filled = [copy.deepcopy(dict(each)) for each in self.documents]
        # Before placing: afterwards a step that became a job can no longer be read.
        fill_in(steps_in(filled[0]), target, checkpoints)
        place_steps(filled, target.place, plans)
        return self if filled == list(self.documents) else OwnPipeline(filled)


def own_pipeline(place: str, filled: Callable[[str], str] = str) -> OwnPipeline:
    """A user's own pipeline.

    Args:
        place: `FILE.py`, `FILE.py:function`, or a compiled file.
        filled: changes the text of a compiled file before it is read, such as to fill in an image.

    Raises:
        UserError: there is no such pipeline, or it refers to missing inputs or steps.
    """
    pipeline = pipeline_in(place) if is_python(place) else None
    text = text_of_file(place) if pipeline is None else compiled(pipeline)
    try:
        text = filled(text)
        documents = documents_of(text)
        OwnPipeline(documents).name  # noqa: B018 (a file that is not a pipeline has none)
        is_mended = mend(documents[0], place)
        is_as_written = not name_steps_apart(documents[0]) and not is_mended
    except UserError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError, KeyError, TypeError, IndexError):
        raise UserError(
            f"{place} is not a compiled pipeline.", "Give FILE.py, or a file that kfp or gpu-pipelines compiled."
        ) from None
    return OwnPipeline(documents, text if is_as_written else "", item_types_of(pipeline))


def require_no_task(task: str) -> None:
    """Checks that no task is given.

    Raises:
        UserError: one is.
    """
    if task:
        raise UserError(
            f"--task {task} is for pipelines of this project.", "Leave it out; prepare_data has a parameter task."
        )
