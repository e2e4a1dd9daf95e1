"""The port of targets: what a command needs to know of the place where a pipeline runs, and how such places are found.

A target is a class that an installed package names in its entry points, in the group `gpu_pipelines.targets`. It has no
methods for what it cannot do: `execute` instead of `submit` if a command waits for the run, no `publish` without a
store of pipelines, and None for `schedules` without a scheduler.
"""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import Field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.dag.placement import Placement
from gpu_pipelines.dag.places import DATA, FILE, OUTPUT, PROGRAM, REGISTRY, Place, lost_registry
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.messages import Compiled, Published, Request, Submission, Values
from gpu_pipelines.targets.options import Options, declared, flag_of, given, kinds_of_options

if TYPE_CHECKING:
    from gpu_pipelines.notifications.recipients import Recipients
    from gpu_pipelines.targets.scheduling import Schedules

#: The group of the entry points of targets.
GROUP = "gpu_pipelines.targets"
_OWN = "gpu_pipelines."


class Target(ABC):
    """A place where pipelines run.

    A target is also a `gpu_pipelines.dag.placement.Placement`: it places the steps of a pipeline that is built for it.

    Args:
        options: of its commands; the defaults if left out.
        settings: of the project.

    Attributes:
        name: its name on the command line.
        title: its name in sentences.
        Options: a frozen dataclass whose fields are the options of its commands; see `gpu_pipelines.targets.options`.
        schedules: its scheduler; None for none.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    Options: ClassVar[type]
    #: Words of messages: who reads, in "is not where … can read it"; where to copy data and other files; registries.
    readers: ClassVar[str] = ""
    #: Recipients of the message at the end of a run, of a target on which a step sends it.
    recipients: Recipients | None = None
    place_for_data: str = "a bucket and give gs://BUCKET/FOLDER"
    place_for_files: str = "a bucket"
    other_registries: str = "registry=vertex:// for Vertex AI Model Registry"
    #: As in `Placement`.
    registry: str

    def __init__(self, options: Any = None, settings: ProjectSettings | None = None) -> None:
        self.options = self.Options() if options is None else options
        self.settings = settings or ProjectSettings()

    @property
    def is_here(self) -> bool:
        """Whether commands run a pipeline with `execute` and wait, and do not start it elsewhere with `submit`."""
        return not hasattr(self, "submit")

    @property
    def schedules(self) -> Schedules | None:
        """The scheduler that starts runs by the clock; None for none."""
        return None

    def can_read(self, uri: str) -> bool:
        """Whether the steps can read a place: sources, buckets, servers, and what is mounted.

        Args:
            uri: a path of this machine, or a URI such as gs://….
        """
        from gpu_pipelines.artifacts.mlflow_server import MLFLOW, MLFLOW_FILE
        from gpu_pipelines.data.sources.sources import source_of

        if uri.startswith(MLFLOW):
            return not uri.startswith(MLFLOW_FILE)
        return source_of(uri).is_read_anywhere(uri)

    def can_write(self, path: str) -> bool:
        """Whether files that the steps write into a directory outlive the steps.

        Args:
            path: a path of this machine, or a URI such as gs://….
        """
        return False

    def unreachable(self, places: Sequence[Place]) -> list[str]:
        """Problems with the places of a run: those that its steps would not find, or that would be lost.

        Args:
            places: the places that the parameters of the run name.
        """
        from gpu_pipelines.registry import is_local

        found = []
        for place in places:
            name, uri = place.parameter, place.uri
            if place.kind == REGISTRY:
                if is_local(uri) and not self.can_write(uri):
                    found.append(lost_registry(uri, self.other_registries))
            elif self.can_read(uri) or (place.kind == OUTPUT and (is_remote(uri) or self.can_write(uri))):
                continue
            elif place.kind == DATA:
                found.append(
                    f"The {name} {uri} is not where {self.readers} can read it. Copy it into {self.place_for_data}."
                )
            elif place.kind == FILE:
                found.append(
                    f"{name} is in {uri}, a file of this machine. Copy it into {self.place_for_files}, or add it to "
                    "the image and give package.module:function."
                )
            elif place.kind == PROGRAM:
                found.append(
                    f"{name} is {uri}, of this machine. Copy it into {self.place_for_files}, or add it to the image "
                    "and give its path there, or -m package.module."
                )
            elif place.kind == OUTPUT:
                found.append(
                    f"{name} is {uri}, which would be a directory of the container, lost at its end. Write into "
                    f"{self.place_for_data}."
                )
            elif uri.startswith((".", "/", "~")):
                found.append(f"{name} is {uri}, a directory of this machine. Copy it into {self.place_for_files}.")
        return found

    @property
    def written(self) -> dict[str, str]:
        """The places that every run writes to, by the name of the setting that gives each."""
        places = {name: getattr(self.settings, name) for name in ("pipeline_root", "checkpoints")}
        return {f"the setting {name}": place for name, place in places.items() if place}

    def problems(self, compiled: Compiled, arguments: Mapping[str, Any]) -> list[str]:
        """Further problems with a run of a pipeline of this project on this target.

        Args:
            compiled: the pipeline.
            arguments: all parameters, by their own names.
        """
        return []

    def defaults(self) -> dict[str, Any]:
        """Defaults of parameters from the project's settings, by name; a pipeline need not have these parameters."""
        return {}

    def is_run(self, run: str) -> bool:
        """Whether a name may be that of a run of this target, by its form or by what this machine has.

        No service is asked. A target without this method accepts any name, and is not found by the names of its runs.

        Args:
            run: as `run` prints it, or the service's name of it.
        """
        return True

    @abstractmethod
    def place(self, component: Any, plan: Any) -> Any:
        """The component to use in a pipeline instead of `component`; see `gpu_pipelines.dag.placement`.

        Args:
            component: the KFP component of the step.
            plan: the accelerators for it.
        """

    @abstractmethod
    def compile(self, pipeline: str, task: str = "") -> Compiled:
        """Compiles a pipeline of this project to a file.

        Args:
            pipeline: its name.
            task: the task that the file is for; empty if it is a parameter.

        Raises:
            UserError: there is no such pipeline, or the target cannot run it with these options.
        """

    @classmethod
    def published(cls) -> Iterable[Published]:
        """The files in the directory `compiled`."""
        return ()

    @abstractmethod
    def load(self, request: Request) -> Compiled:
        """The pipeline to run or upload: compiled, or read from a file or a store.

        Args:
            request: what the user asked for.

        Raises:
            UserError: there is no such pipeline, or something that it needs is missing or unavailable.
        """

    def fitted(self, compiled: Compiled, request: Request, values: Values) -> Compiled:
        """The pipeline for a run with these parameters, if they change it.

        Args:
            compiled: the pipeline as it was loaded.
            request: what the user asked for.
            values: of the parameters, by name.
        """
        return compiled

    @abstractmethod
    def submission(self, compiled: Compiled, request: Request, values: Values) -> Submission:
        """The run as it will be sent.

        Args:
            compiled: the pipeline as it was loaded.
            request: what the user asked for.
            values: of the parameters, by name.

        Raises:
            UserError: such a run is not possible.
        """

    # A target has these methods, with these parameters, if it can do what they do:
    #
    # execute(submission, watch) -> Outcome             runs it and waits for its end
    # submit(submission) -> Done                        starts it
    # follow(run, watch, every) -> Outcome              waits for the end of a run that was started
    # cancel(run) -> str                                asks the service to end a run, and returns a message
    # account(run) -> RunAccount                        state and cost of a run
    # earlier(run) -> EarlierRun                        what another run needs to know to continue this one
    # going_on(compiled, gone_on, earlier) -> Compiled  a pipeline without the steps that an earlier run has done
    # retried(run) -> Submission                        instead of `earlier`, if the service resumes runs itself
    # publish(compiled, tags) -> Done                   puts a compiled pipeline into a store


def require_attributes(target: Target) -> None:
    """Checks that a target has what a pipeline is built with; it may set that when it is made.

    Raises:
        UserError: names the attributes that it lacks.
    """
    # Properties are not asked: one may compile a component.
    names = (*Placement.__annotations__, "notification")
    if lacks := [name for name in names if not (hasattr(type(target), name) or name in vars(target))]:
        raise UserError(
            f"The target {target.name} has no {', '.join(lacks)}.", "docs/extending.md says what it has to have."
        )


def require_no_flags(
    what: str,
    options: Any,
    remedy: str = "Give the name of the pipeline in its place, or compile it again.",
    spared: Collection[str] = (),
) -> None:
    """Checks that no option is given that cannot change a pipeline any more because it is compiled already.

    Args:
        what: the compiled pipeline, in words.
        options: of a target.
        remedy: what to do instead.
        spared: names of options that also apply to a run.

    Raises:
        UserError: lists such options.
    """
    in_file = [name for name, each in declared(type(options)).items() if each.in_file and name not in spared]
    if flags := [flag_of(name) for name in given(options) if name in in_file]:
        raise UserError(f"{what} is compiled already; {', '.join(flags)} cannot change it.", remedy)


@cache
def targets() -> dict[str, type[Target]]:
    """The targets of all installed packages, by name.

    A target that cannot be loaded is left out with a warning on stderr: it must not keep the others from working.
    """
    from importlib.metadata import entry_points

    found: dict[str, type[Target]] = {}
    # Those of this program come first, so that no package takes their names.
    for point in sorted(entry_points(group=GROUP), key=lambda point: (not point.value.startswith(_OWN), point.name)):
        try:
            target = point.load()
            problem = "the name is taken" if point.name in found else _problem_of_class(target, point.name)
            problem = problem or _problem_of_options(target.Options, found)
        except (Exception, SystemExit) as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            package = point.dist.name if point.dist else "a package"
            print(f"warning: the target {point.name} of {package} cannot be loaded: {problem}", file=sys.stderr)
        else:
            found[point.name] = target
    return found


def _problem_of_class(target: Any, name: str) -> str:
    """Why a class cannot be the target of a name; empty if it can."""
    if not (inspect.isclass(target) and issubclass(target, Target)):
        return f"it is not a subclass of {Target.__module__}.{Target.__qualname__}"
    lacks = [*sorted(target.__abstractmethods__), *(n for n in ("name", "title", "Options") if not hasattr(target, n))]
    if lacks:
        return f"it has no {', '.join(lacks)}"
    return "" if target.name == name else f"its name is {target.name!r}"


def _problem_of_options(options: Any, others: Mapping[str, type[Target]]) -> str:
    """Why a class cannot have the options of a target beside those of others; empty if it can."""
    if not (inspect.isclass(options) and issubclass(options, Options)):
        return f"its Options is not a subclass of {Options.__module__}.Options"
    # The decorator puts the default in place of a field.
    if any(isinstance(value, Field) for value in vars(options).values()):
        return "its Options is not decorated with @dataclass"
    own = kinds_of_options(options)
    for name, other in others.items():
        theirs = kinds_of_options(other.Options)
        if differs := [flag_of(each) for each in own if own[each] != theirs.get(each, own[each])]:
            return f"{', '.join(differs)} has another type or default than that of {name}; a command has it once"
    return ""


def target_named(name: str, can: str = "", command: str = "") -> type[Target]:
    """The target with a name.

    Args:
        name: as on the command line.
        can: a method or attribute that it must have; empty for none.
        command: the command that needs this, for messages.

    Raises:
        UserError: there is no such target, or it lacks that.
    """
    able = {each: target for each, target in targets().items() if not can or is_able(target, can)}
    if name in able:
        return able[name]
    if name in targets():
        raise UserError(f"{command or can} is not for the target {name}.", f"It is for {' and '.join(able)}.")
    if not targets():
        raise UserError("No target is installed.", "Install gpu-pipelines again: its entry points are missing.")
    raise UserError(f"There is no target {name[:60]!r}.", nearest(name, list(able)))


def is_able(target: type[Target], what: str) -> bool:
    """Whether a target has a method or attribute of its own."""
    return getattr(target, what, None) is not getattr(Target, what, None)
