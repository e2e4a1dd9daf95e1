"""The request of `gpu-pipelines init`, and checks of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.data.default_tokenizer import PARAMETER as TOKENIZER
from gpu_pipelines.data.default_tokenizer import tokenizer_for
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.tasks.tasks import IMAGE_PROCESSOR, TASKS, image_processor_for, task_named, task_problems

if TYPE_CHECKING:
    from gpu_pipelines.component_interface.parameter import Parameter
    from gpu_pipelines.tasks.task import Task

#: The name of a pipeline, a model, an image and, with underscores, of a Python package.
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST_NAME = 40
SAMPLE = "sample"
#: Names of files and folders in a project; git ignores some of them.
_TAKEN = ("build", "compiled", "pipeline", "registry", "runs", "tests")
#: The pipeline that a project starts from, and its steps; every step with a parameter gets it.
_PIPELINE = "train_evaluate_upload"
_STEPS = ("prepare_data", "train_model", "evaluate_checkpoints", "upload_model")
#: The step before them that finds the champion, and those of their parameters that it also takes.
LOOKS = "check_for_new_data"
_LOOKED_AT = ("model", TOKENIZER, "registry", "billing_project")
#: Names that pipeline.py of a project imports, which its function would hide.
_IMPORTED = ("accelerate", "dsl", LOOKS, *_STEPS)
#: Parameters that the project sets itself or keeps elsewhere, or that several steps share.
_GIVEN = ("source", "task", "model_name", "recipe", "tracking", "checkpoint_uri")


@dataclass(frozen=True)
class NewProject:
    """A project to write.

    Attributes:
        directory: its folder.
        task: the task that it starts from, such as `image_classification`.
        data: the source of the rows, as the parameter `source`; `sample` for the sample of the task.
        target: the target of its pipeline: `local`, `vertex`, `kubeflow`, or that of another package.
        accelerator: the accelerator in the cloud, as `l4:1`.
        name: the name of the pipeline and of the model; empty for the name of the folder.
        assignments: defaults of further parameters, as `key=value`.
        settings: the known settings of the project in Google Cloud: `project`, `region`, `pipeline_root` and so on.
    """

    directory: Path
    task: str = "image_classification"
    data: str = SAMPLE
    target: str = "vertex"
    accelerator: str = "l4:1"
    name: str = ""
    assignments: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name of the pipeline and of the model."""
        return self.name or self.directory.resolve().name.lower().replace("_", "-").replace(" ", "-")

    @cached_property
    def package(self) -> str:
        """The Python package with the task; never the name of an installed one, which it would hide."""
        name = self.title.replace("-", "_")
        is_installed = not (self.directory / name).is_dir() and find_spec(name) is not None
        return f"{name}_project" if iskeyword(name) or name in _TAKEN or is_installed else name

    @property
    def function(self) -> str:
        """The function of the pipeline."""
        name = self.title.replace("-", "_")
        return f"{name}_pipeline" if iskeyword(name) or name in _IMPORTED else name

    @property
    def class_name(self) -> str:
        """The class of the task."""
        return "".join(part.capitalize() for part in self.title.split("-"))

    @cached_property
    def base(self) -> Task:
        """The task that it starts from."""
        return task_named(self.task)

    @property
    def sample(self) -> str:
        """The source of the sample of the task; empty if it has none."""
        return next((f"sample:{name}" for name in self.base.samples), "")

    @property
    def source(self) -> str:
        """The default of the parameter `source`; a place on this machine is relative to the project."""
        if self.data == SAMPLE:
            return self.sample
        return self._from_project(self.data) if self._is_path else self.data

    def _from_project(self, place: str) -> str:
        """A place on this machine relative to the project, in which the pipeline runs."""
        path = Path(place).expanduser()
        return place if path.is_absolute() else os.path.relpath(path.resolve(), self.directory.resolve())

    @property
    def _is_path(self) -> bool:
        """Whether the data are on this machine."""
        return not (self.data == SAMPLE or "://" in self.data or self.data.startswith("sample:"))

    @cached_property
    def parameters(self) -> dict[str, tuple[list[str], Parameter, Any]]:
        """The pipeline's parameters besides `source`: the steps that take each, its declaration, its default.

        Raises:
            UserError: `assignments` has an unknown name, or a value of the wrong type.
        """
        from gpu_pipelines.component_interface.catalog import settings_of
        from gpu_pipelines.component_interface.parameter import parameters_in
        from gpu_pipelines.driver.parameters.texts import given_values

        given = given_values(self.assignments, None)
        wanted = dict.fromkeys((*self.base.column_parameters, "model", "epochs", "max_steps", "gates", *given))
        by_step = {step: parameters_in(settings_of(step)) for step in _STEPS}
        places = self._places
        found = {}
        for name in wanted:
            if steps := [step for step in _STEPS if name in by_step[step]]:
                declared = by_step[steps[0]][name]
                value = self._from_project(self._values[name]) if name in places else self._values[name]
                taking = [] if name in self.followed else steps
                looking = [LOOKS] if self.followed and name in _LOOKED_AT else []
                found[name] = ([*taking, *looking], declared, value)
        return found

    @cached_property
    def followed(self) -> list[str]:
        """The parameters of the preparation that depend on a pretrained model, or the champion, in each run."""
        # The step before passes on a tokenizer that is given; the only image processor that it knows is the model's.
        names = (TOKENIZER,) if self._is_given(IMAGE_PROCESSOR) else (TOKENIZER, IMAGE_PROCESSOR)
        return [name for name in names if name in self.base.parameters]

    def _is_given(self, name: str) -> bool:
        """Whether an assignment sets a parameter."""
        return any(each.startswith(f"{name}=") for each in self.assignments)

    @property
    def _places(self) -> set[str]:
        """The parameters that name existing places on this machine; a registry belongs to the project."""
        from gpu_pipelines.dag import load_request
        from gpu_pipelines.dag.places import REGISTRY

        return {
            place.parameter
            for place in load_request(_PIPELINE).places(self._values)
            if place.kind != REGISTRY and place.uri and place.uri == self._values[place.parameter]
            if Path(place.uri).expanduser().exists()
        }

    @property
    def of_sample(self) -> dict[str, Any]:
        """The values for the sample in place of the project's parameters, which may be for other columns and models."""
        defaults, columns = self._with(()), self.base.column_parameters
        changed = {name for name in self.parameters if self._values[name] != defaults[name]} - {"max_steps"}
        return {
            name: defaults[name]
            for name in self.parameters
            if name in columns or (name in changed and self.data != SAMPLE)
        }

    @cached_property
    def _values(self) -> dict[str, Any]:
        """All parameters of the pipeline that a project starts from, with the values of this one."""
        if own := [name for name in _GIVEN if self._is_given(name)]:
            raise UserError(
                f"{', '.join(own)} is not a parameter that init takes with -p.",
                "See --data, --task, --name; give the others to their steps in pipeline.py.",
            )
        return self._with(self.assignments)

    def _with(self, assignments: Sequence[str]) -> dict[str, Any]:
        """All parameters of the pipeline that a project starts from, with these values in place of its defaults."""
        from gpu_pipelines.driver.parameters.arguments import all_arguments
        from gpu_pipelines.driver.parameters.known import known_parameters

        given = [f"source={self.data if self.data != SAMPLE else self.sample}", f"task={self.task}"]
        found = all_arguments(known_parameters(_PIPELINE), [*given, *assignments], None)
        # As found by the first step of the pipeline.
        processor = found[IMAGE_PROCESSOR] or image_processor_for(self.task, found["model"])
        return {
            **found,
            IMAGE_PROCESSOR: processor,
            TOKENIZER: tokenizer_for(found[TOKENIZER], self.task, found["model"]),
        }

    def require_possible(self) -> None:
        """Checks the request.

        Raises:
            UserError: lists what is wrong.
        """
        if problems := [*self._problems_of_names(), *self._problems_of_machines()]:
            raise UserError.of_all(problems)
        from gpu_pipelines.dag import load_request

        if problems := [*load_request(_PIPELINE).problems(self._values), *self._problems_of_data()]:
            raise UserError.of_all(problems)
        if problems := self._problems_in_data():
            raise UserError.of_all(problems)

    def _problems_of_names(self) -> list[str]:
        found = []
        if not _NAME.fullmatch(self.title) or len(self.title) > _LONGEST_NAME:
            found.append(
                f"The name of the project is {self.title!r}; it takes lower-case letters, digits and dashes, at most "
                f"{_LONGEST_NAME}, and begins with a letter. Give --name."
            )
        if problems := task_problems(self.task):
            return [*found, *problems]
        if not self.sample:
            found.append(f"The task {self.task} has no sample, on which the project is tested. Give another --task.")
        return found

    def _problems_of_machines(self) -> list[str]:
        from gpu_pipelines.accelerators import plan
        from gpu_pipelines.accelerators.plan import PlanError
        from gpu_pipelines.targets.target import targets

        found = []
        if self.target not in targets():
            found.append(f"There is no target {self.target!r}. {nearest(self.target, sorted(targets()))}")
        try:
            plan(self.accelerator)
        except PlanError as error:
            found.append(str(error))
        return found

    def _problems_of_data(self) -> list[str]:
        is_pattern = any(sign in self.data for sign in "*?[")
        if not self._is_path or is_pattern or Path(self.data).expanduser().exists():
            return []
        return [f"The data {self.data} does not exist. Give --data with a folder, a file, gs://… or {SAMPLE}."]

    def _problems_in_data(self) -> list[str]:
        """Problems of data on this machine that stop the first step or the training: columns, classes, the model."""
        if not self._is_path:
            return []
        from gpu_pipelines.component_interface.step import fields_from
        from gpu_pipelines.data.settings import PrepareSettings

        settings = fields_from(PrepareSettings, self._values)
        try:
            from gpu_pipelines.data.source_check import model_problems_here, problems_here

            return problems_here(settings) or model_problems_here(settings, self._values["model"])
        except ImportError:  # The packages that read data need not be installed only to write a project.
            return []


def names_of_tasks() -> list[str]:
    """The tasks that a project may start from."""
    return [name for name, task in TASKS.items() if task.samples]
