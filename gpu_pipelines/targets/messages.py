"""The messages between commands and targets: what to run, what will be sent, what was done, how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gpu_pipelines.dag import require_pipeline
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import how_to_give
from gpu_pipelines.targets.options import no_accelerator

if TYPE_CHECKING:
    from gpu_pipelines.targets.steps import Observer
    from gpu_pipelines.terminal import Table

#: Suffixes of compiled files.
FILE_SUFFIXES = (".yaml", ".yml", ".json")
PYTHON = ".py"


def is_python(pipeline: str) -> bool:
    """Whether it is `FILE.py` or `FILE.py:function`."""
    path, _, function = pipeline.rpartition(":")
    return pipeline.endswith(PYTHON) or (path.endswith(PYTHON) and function.isidentifier())


def is_own(pipeline: str) -> bool:
    """Whether it is a pipeline in a file, Python or compiled, and not the name of a pipeline of this project."""
    return is_python(pipeline) or pipeline.endswith(FILE_SUFFIXES)


class Watch(Protocol):
    """Shows the progress of something while a command waits for it."""

    def steps(self) -> AbstractContextManager[Observer]:
        """Shows the steps of a run and their lines, as long as the context lasts."""
        ...

    def tell(self, text: str) -> None:
        """Says what happened, with the time."""
        ...

    def say(self, line: str) -> None:
        """Says a line of a log."""
        ...

    def warn(self, text: str) -> None:
        """Warns."""
        ...


@dataclass(frozen=True)
class Request:
    """What to run, in the words of the command line.

    Attributes:
        pipeline: name of a pipeline, a compiled file, or an address that the target knows.
        given: the given values of parameters, as they were written.
        cache: whether steps may reuse results of earlier runs; None keeps the setting of each step.
        to_publish: whether it is to be uploaded, not run.
        resume: on this machine, the name of the run that it continues, or `latest`; empty for none.
    """

    pipeline: str
    given: Mapping[str, Any] = field(default_factory=dict)
    cache: bool | None = None
    to_publish: bool = False
    resume: str = ""

    @property
    def is_name(self) -> bool:
        """Whether it is the name of a pipeline, which is compiled."""
        return not self.is_own and "/" not in self.pipeline

    @property
    def is_own(self) -> bool:
        """Whether it is a pipeline in a file, Python or compiled."""
        return is_own(self.pipeline)

    def require(self, target: Any, *names: str) -> None:
        """Checks that everything is given that a command needs, so that the user learns of all missing settings.

        Args:
            target: a target with its options and settings; a pipeline compiled for it needs image and accelerator.
            names: of the settings that the command itself needs.

        Raises:
            UserError: lists everything that is missing; or there is no such pipeline.
        """
        if self.is_name:
            require_pipeline(self.pipeline)
        needed = [*names, "image"] if self.is_name else names
        missing = [how_to_give(name) for name in needed if not getattr(target.settings, name)]
        if self.is_name and not (target.options.accelerator or target.settings.fallback.get("accelerator")):
            missing.append(no_accelerator(target.title))
        if missing:
            raise UserError.of_all(missing)


@dataclass(frozen=True)
class Compiled:
    """A pipeline that is ready for a target.

    Attributes:
        name: its name in KFP.
        text: the compiled file; empty if a target runs the pipeline as it was built.
        spec: the pipeline in the file.
        written: a user's own pipeline before its steps were placed; empty if placing did not change it.
        built: the KFP pipeline, if it was built here.
        known: what is fixed besides its parameters: `processes` that train, `data_nodes`, `task`.
        origin: where the target found it, such as an uploaded version.
        told: what to tell about its machines, their cost and warnings, line by line.
        item_types: types of the items of parameters that are lists, as far as a Python file says them.
    """

    name: str
    text: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    built: Any = None
    known: Mapping[str, Any] = field(default_factory=dict)
    origin: Any = None
    told: Sequence[str] = ()
    item_types: Mapping[str, type] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """A file of the directory `compiled`.

    Attributes:
        pipeline: name of the pipeline.
        task: the task that it is for; empty if the task is a parameter.
        path: its path below the folder of the pipeline and the target.
        options: the target's options that it is compiled with.
    """

    pipeline: str
    task: str
    path: str
    options: Any


@dataclass(frozen=True)
class Values:
    """The parameters of a run.

    Attributes:
        arguments: the values of all parameters, by their own names.
        taken: the same in the form of the pipeline, with some of them as fields of its parameter `advanced`.
    """

    arguments: Mapping[str, Any]
    taken: Mapping[str, Any]


@dataclass(frozen=True)
class Submission:
    """A run, or a schedule, that is ready to be sent.

    Attributes:
        content: what the target sends.
        shown: returns what a dry run prints, line by line.
        document: returns the same for programs; None if it is JSON already.
    """

    content: Any
    shown: Callable[[], Sequence[str | Table]]
    document: Callable[[], Mapping[str, Any]] | None = None


def shown_request(method: str, url: str, body: object) -> str:
    """A request to a service, in the form that a dry run prints."""
    return json.dumps({"method": method, "url": url, "body": body}, indent=2, ensure_ascii=False)


@dataclass(frozen=True)
class Done:
    """What a service did.

    Attributes:
        name: of the object, for the next command.
        document: the result for programs.
        lines: the result for people.
    """

    name: str
    document: Mapping[str, Any]
    lines: Sequence[str]


@dataclass(frozen=True)
class Outcome:
    """How a run has ended.

    Attributes:
        state: succeeded, failed, cancelled, interrupted and the like.
        lines: the lines to print: on stdout if it succeeded, else on stderr.
        document: the same for programs.
    """

    state: str
    lines: Sequence[str | Table] = ()
    document: Mapping[str, Any] = field(default_factory=dict)
