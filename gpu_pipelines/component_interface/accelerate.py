"""The accelerators of a task in a user's own pipeline, given where the task is made."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_pipelines.errors import UserError
from gpu_pipelines.step_environment import WISH

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask

    from gpu_pipelines.accelerators import AcceleratorPlan

#: KFP's notation for a value that only a run knows, also within a text.
_CHANNEL = re.compile(r"\{\{channel:task=[^;]*;name=([^;]*);")

Task = TypeVar("Task", bound="PipelineTask")


@dataclass(frozen=True)
class Wish:
    """The requested accelerators of a task.

    Attributes:
        spec: `NAME:COUNT`; empty to leave it to whoever compiles or runs the pipeline.
        nodes: machines.
        strategy: standard, spot, flex-start or reservation; None for the choice of whoever compiles or runs it.
        machine_type: None for the smallest that fits.
        reservation: `projects/P/zones/Z/reservations/R`.
        hours: longest that the task may run.
    """

    spec: str = ""
    nodes: int = 1
    strategy: str | None = None
    machine_type: str | None = None
    reservation: str | None = None
    hours: float | None = None

    def plan(self, region: str | None = None) -> AcceleratorPlan:
        """The plan.

        Args:
            region: where the machines are; None to leave that open.

        Raises:
            PlanError: lists all that is wrong.
        """
        from gpu_pipelines.accelerators import plan

        values = asdict(self)
        return plan(values.pop("spec"), region=region, **values)


def accelerate(task: Task, accelerator: str = "", **machines: Any) -> Task:
    """Gives accelerators to a task of a pipeline, of a component of this project or of your own.

    ```python
    @dsl.pipeline(name="my-pipeline")
    def my_pipeline(source: str = "sample:digits"):
        prepared = prepare_data(source=source)
        accelerate(train_model(dataset=prepared.outputs["dataset"]), "l4:4", strategy="spot")
    ```

    `gpu-pipelines compile` and `run` place it: on Vertex AI as a CustomJob, on Kubeflow as a pod on such a node or as a
    TrainJob, on this machine on what there is. KFP's own compiler ignores it.

    Args:
        task: as a component returns it.
        accelerator: `NAME:COUNT`; left out, what `--accelerator` says for the task, or for the pipeline.
        machines: `nodes`, `strategy`, `machine_type`, `reservation` and `hours`, as in `Wish`.

    Returns:
        The task.

    Raises:
        PlanError: there are no such machines; lists all that is wrong.
        UserError: `task` is no task, or one of the others is a parameter of the pipeline, the item of a loop, or the
            output of a task.
        TypeError: `machines` has another name.
    """
    for name, value in {"accelerator": accelerator, **machines}.items():
        _require_known(name, value)
    if not isinstance(accelerator, str):
        raise UserError(f"accelerate(…) takes accelerator as a text; got {accelerator!r:.80}.", "Such as 'l4:4'.")
    wish = Wish(accelerator, **machines)
    if accelerator:
        wish.plan()
    if not hasattr(task, "set_env_variable"):
        raise UserError(
            f"accelerate(…) takes a task; got {task!r:.80}.",
            "Call the component in the pipeline, and give what it returns: accelerate(train_model(dataset=…), 'l4:4').",
        )
    said = {name: value for name, value in asdict(wish).items() if value not in (None, "")}
    task.set_env_variable(WISH, json.dumps(said))
    return task


def _require_known(name: str, value: Any) -> None:
    """Checks that a value is known when the pipeline is compiled, because machines are chosen then.

    Raises:
        UserError: it is not.
    """
    if found := _CHANNEL.search(str(value)):
        raise UserError(
            f"accelerate(…) needs {name} when the pipeline is compiled, but {found[1]!r} is known only when it runs.",
            "Write the value, or leave it to --accelerator. For several accelerators make a task for each, in a Python "
            "loop instead of dsl.ParallelFor.",
        )


def wish_of(environment: Mapping[str, str]) -> Wish | None:
    """The wish of `accelerate`, from the variables of the task's container; None if there is none.

    Raises:
        UserError: the variable contains something else.
    """
    if WISH not in environment:
        return None
    try:
        return Wish(**json.loads(environment[WISH]))
    except (ValueError, TypeError):
        raise UserError(
            f"{WISH} of a task is {environment[WISH][:80]!r}.",
            "Only accelerate(task, …) may write it.",
        ) from None
