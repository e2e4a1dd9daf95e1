"""The tasks by name: those of this program, those of installed packages, and a user's own, `package.module:Class`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.own_class import own_class, places_of
from gpu_pipelines.tasks.hyperparameters import Hyperparameters
from gpu_pipelines.tasks.metric import Metric
from gpu_pipelines.tasks.model_places import is_pretrained
from gpu_pipelines.tasks.task import Task

#: A task of this program is one folder and one line here.
BUILT_IN = {
    "image_classification": "gpu_pipelines.tasks.image_classification.task:ImageClassificationTask",
    "text_classification": "gpu_pipelines.tasks.text_classification.task:TextClassificationTask",
    "multi_label_classification": "gpu_pipelines.tasks.multi_label_classification.task:MultiLabelTask",
    "regression": "gpu_pipelines.tasks.regression.task:RegressionTask",
    "token_classification": "gpu_pipelines.tasks.token_classification.task:TokenClassificationTask",
    "causal_lm": "gpu_pipelines.tasks.causal_lm.task:CausalLanguageModelTask",
    "preference": "gpu_pipelines.tasks.preference.task:PreferenceTask",
}
IMAGE_PROCESSOR = "image_processor"
#: A task of an installed package is one line in its metadata: `name = package.module:Class`.
ENTRY_POINTS = "gpu_pipelines.tasks"


class _Tasks(Mapping[str, Task]):
    """Tasks by name, each imported when it is asked for.

    Whoever goes through all of them gets those that can be had; asking for one by its name says why it cannot.
    """

    def __getitem__(self, name: str) -> Task:
        return _loaded(name, self._places[name])

    def __iter__(self) -> Iterator[str]:
        return (name for name, place in self._places.items() if name in BUILT_IN or _is_usable(name, place))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in BUILT_IN or name in self._places

    @property
    def _places(self) -> dict[str, str]:
        return {**_installed(), **BUILT_IN}


TASKS = _Tasks()


@cache
def _installed() -> dict[str, str]:
    """The classes of the tasks of packages by their names; those of this program win."""
    return places_of(ENTRY_POINTS, "task", {}, taken=BUILT_IN)


@cache
def _is_usable(name: str, place: str) -> bool:
    """Whether a task can be had; where not, that is said on stderr: it must not keep the others from working."""
    try:
        _loaded(name, place)
    except UserError as error:
        print(f"warning: the task {name} is left out: {error.problem}", file=sys.stderr)
        return False
    return True


@cache
def _loaded(name: str, place: str) -> Task:
    kind = own_class(place, Task, f"The task {name}", "See docs/tasks.md.")
    try:
        task: Task = kind(name)
    except Exception as error:  # the user's own code
        raise UserError(
            f"The task {name} cannot be made by {place}: {type(error).__name__}: {error}.", "See docs/tasks.md."
        ) from None
    # The steps that need it would find out, some of them after the training.
    if name not in BUILT_IN and (wrong := _wrong_in(task)):
        raise UserError(f"The task {name} of {place} is not as it has to be: {'; '.join(wrong)}.", "See docs/tasks.md.")
    return task


def _wrong_in(task: Task) -> list[str]:
    """What is wrong with the attributes of a task; its parts are not imported."""
    found = [] if task.metrics else ["metrics is empty"]
    for name in ("defaults", "samples"):
        if not isinstance(getattr(task, name), Mapping):
            found.append(f"{name} is not a mapping")
    for name in ("metrics", "figures"):
        values = getattr(task, name)
        if not (isinstance(values, Mapping) and all(isinstance(each, Metric) for each in values.values())):
            found.append(f"{name} is not a mapping with a {Metric.__module__}.Metric for each name")
    for name in ("formats", "column_parameters", "parameters", "models", "gates", "architectures"):
        values = getattr(task, name)
        if isinstance(values, str) or not (isinstance(values, Iterable) and all(isinstance(v, str) for v in values)):
            found.append(f"{name} is not a tuple of texts")
    for name in ("from_scratch", "fine_tuned", "with_adapters"):
        if not isinstance(getattr(task, name), Hyperparameters):
            found.append(f"{name} is not of the class {Hyperparameters.__module__}.Hyperparameters")
    return found


def task_named(name: str) -> Task:
    """The task with a name; an unknown task, of a dataset that another program wrote, is scored by its loss.

    Raises:
        UserError: a user's own task, `package.module:Class`, cannot be imported or is none.
    """
    if name in TASKS:
        return TASKS[name]
    return _loaded(name, name) if ":" in name else Task(name)


def defaults_of_task(name: str) -> dict[str, Any]:
    """Defaults of a pipeline's parameters, by name, that follow its task; none of a task that does not exist.

    The defaults of the components are those of image_classification. Where another task is chosen, on the command line
    or for a file that is compiled for it, these take their place.
    """
    return {} if task_problems(name) else {"task": name, **task_named(name).defaults}


def image_processor_for(task: str, model: str) -> str:
    """The default of the parameter `image_processor`: a pretrained model, for tasks that take images."""
    takes_images = not task_problems(task) and IMAGE_PROCESSOR in task_named(task).parameters
    return model if takes_images and is_pretrained(model) else ""


def task_problems(name: str) -> list[str]:
    """Problems with a task's name; empty if there are none."""
    try:
        task = task_named(name)
    except UserError as error:
        return [error.in_one_line]
    if task.preparation:
        return []
    if ":" in name:
        return [f"The task {name} prepares no data: its attribute preparation is empty. See docs/tasks.md."]
    return [f"There is no task {name!r}. {nearest(name, TASKS)}"]
