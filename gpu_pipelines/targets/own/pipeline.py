"""A pipeline of one's own made ready for a target: read or compiled, filled in, placed."""

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
from gpu_pipelines.targets.own.placed import Step, place_steps, steps_in
from gpu_pipelines.targets.own.references import drop_unused_fields, require_fields, require_inputs, require_steps
from gpu_pipelines.targets.own.values import fill_in

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
#: Below which the trainings of a run have their checkpoints: KFP fills in the run, and restarts of it have the same.
CHECKPOINT_URI = "{{$.pipeline_root}}/checkpoints/{{$.pipeline_job_uuid}}"


@dataclass(frozen=True)
class OwnPipeline:
    """A pipeline in a file.

    Attributes:
        documents: those of the compiled file: the pipeline, and what is for Kubernetes where there is such.
        written: the file as it was written; empty where it is not as in a file, or steps of it have other names now.
        item_types: what lists among the parameters are to hold, as far as a Python file says it.
    """

    documents: Sequence[Mapping[str, Any]]
    written: str = ""
    item_types: Mapping[str, type] = field(default_factory=dict)

    @property
    def spec(self) -> Mapping[str, Any]:
        return self.documents[0]

    @property
    def name(self) -> str:
        """As KFP has it."""
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
        """As a file; one in which nothing was placed is what it was, byte for byte."""
        if self.written:
            return self.written
        return str(yaml.dump_all(self.documents, Dumper=_DUMPER, sort_keys=True, allow_unicode=True))

    def placed(self, target: Any, plans: Mapping[str, Any], checkpoints: str) -> OwnPipeline:
        """The pipeline as a target runs it.

        Args:
            target: the target.
            plans: what steps run on, by their names.
            checkpoints: below which each training has its checkpoints.
        """
        filled = [copy.deepcopy(dict(each)) for each in self.documents]
        # Before: of a step that has become a job nothing is seen any more.
        fill_in(steps_in(filled[0]), target, checkpoints)
        place_steps(filled, target.place, plans)
        return self if filled == list(self.documents) else OwnPipeline(filled)


def own_pipeline(place: str, filled: Callable[[str], str] = str) -> OwnPipeline:
    """A pipeline of one's own.

    Args:
        place: `FILE.py`, `FILE.py:function`, or a compiled file.
        filled: what to do with the text of a compiled file before it is read, such as to fill in an image.

    Raises:
        UserError: there is no such pipeline, or inputs or steps of it are not there.
    """
    pipeline = pipeline_in(place) if is_python(place) else None
    text = text_of_file(place) if pipeline is None else compiled(pipeline)
    try:
        text = filled(text)
        documents = documents_of(text)
        OwnPipeline(documents).name  # noqa: B018 (a file that is none has none)
        require_steps(documents[0], place)
        is_mended = drop_unused_fields(documents[0])
        require_inputs(documents[0], place)
        require_fields(documents[0], place)
        is_as_written = not name_steps_apart(documents[0]) and not is_mended
    except UserError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError, KeyError, TypeError, IndexError):
        raise UserError(
            f"{place} is not a compiled pipeline.", "Give FILE.py, or a file that kfp or gpu-pipelines compiled."
        ) from None
    return OwnPipeline(documents, text if is_as_written else "", item_types_of(pipeline))


def require_no_task(task: str) -> None:
    """Checks that no task is asked for.

    Raises:
        UserError: it is.
    """
    if task:
        raise UserError(
            f"--task {task} is for pipelines of this project.", "Leave it out; prepare_data has a parameter task."
        )
