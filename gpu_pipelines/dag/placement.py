"""The port between a pipeline and the place where it will run, and the names of the steps, by which a place acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.accelerators import AcceleratorPlan
    from gpu_pipelines.dag.parameters import Parameter
    from gpu_pipelines.notifications.recipients import Recipients

#: The step that prepares the data, which continues what an earlier run left unfinished.
PREPARES = "prepare-data"
#: The step that trains.
TRAINS = "train-model"
#: The step that trains with a script of the user's own.
RUNS_SCRIPT = "run-training-script"
#: The step that searches for the parameters of a training.
TUNES = "tune-model"
#: The steps that train, in pipelines of this project and in others.
TRAINING_STEPS = (TRAINS, RUNS_SCRIPT, TUNES)
#: The step before a search whose trials a service starts, each on machines of its own.
BEGINS_STUDY = "begin-study"
#: The step after it, which may train the best parameters once more.
FINISHES_STUDY = "finish-study"
#: The step that scores the checkpoints, each GPU with a whole model.
EVALUATES = "evaluate-checkpoints"
#: The step whose output `model` is the version in the registry.
UPLOADS = "upload-model"
#: The step that predicts the rows of a source; it also continues what an earlier run left unfinished.
PREDICTS = "predict-batch"
#: The step that tells people how a run ended.
TELLS = "send-message"
#: The steps whose results a service may cache: the others are run to get a new version of a model.
CACHED_STEPS = (PREPARES,)
#: The step that checks the parameters of all others, and hands on those from `advanced`.
CHECKS = "check-request"
#: The step that says whether to train again.
WATCHES = "check-for-new-data"
#: The step that checks the parameters of a prediction, and the model.
CHECKS_PREDICTION = "check-prediction"
#: The steps that check a request; each takes the parameters of all others.
CHECKING_STEPS = (CHECKS, CHECKS_PREDICTION)
#: The steps that look for changes since an earlier run, so that a result of an earlier run must not be reused.
LOOKING_STEPS = (*CHECKING_STEPS, WATCHES)


class Placement(Protocol):
    """Places the steps of a pipeline: the part of a target that a pipeline is built with.

    Attributes:
        checkpoint_uri: where checkpoints go; None for a place of each run's own.
        registry: the model registry of a pipeline if the user names no other.
        pipeline_job: KFP's placeholder for the name of a run, by which it is found again.
        encryption_key: Cloud KMS key for what a run leaves in Vertex AI, or KFP's placeholder for it; empty for none.
        recipients: who gets a message from the last step of a run; None for nobody, and if the target sends it.
        notification: KFP component that sends the end of a run to its input `recipients`, for the exit handler of a
            scheduled pipeline if the attribute `recipients` is None; None if whoever starts a run sees its end.
        parameters: parameters that pipelines have there besides those of their steps, by name.
        note: what to know about the image of the steps; empty if they run without one.
        for_check: inputs of `check_request` that say where the pipeline runs.
    """

    checkpoint_uri: str | None
    registry: str
    pipeline_job: str
    encryption_key: str
    parameters: Mapping[str, Parameter]
    note: str
    for_check: Mapping[str, Any]
    recipients: Recipients | None

    @property
    def notification(self) -> Any | None: ...

    def place(self, component: Any, plan: AcceleratorPlan | None) -> Callable[..., Any]:
        """The component to use in the pipeline instead of `component`.

        Args:
            component: a KFP component.
            plan: the accelerators it runs on; None for a step that needs none, and for whatever the target has.
        """
        ...


@runtime_checkable
class StudyPlacement(Protocol):
    """A place that carries out a search for parameters in its own way, such as with a service for studies.

    If a place has no such method, the search is one step, placed like a training: its trials share the machine.
    """

    def study(self, component: Any, plan: AcceleratorPlan | None) -> Callable[..., Any]:
        """What a pipeline uses for the search instead of `component`.

        Args:
            component: the KFP component `tune_model`.
            plan: the accelerators that a trial runs on; None for whatever the target has.

        Returns:
            A function that takes the inputs of `component` by name, adds as many tasks as it needs to the pipeline
            that is being built, and returns something whose `outputs` are, by name, those of `component`.
        """
        ...


def seen_by_check(target: Placement) -> dict[str, Any]:
    """The inputs of `check_request` that say where its pipeline runs; KFP fills in those about the run."""
    return {**target.for_check, "run_name": target.pipeline_job, "storage": "{{$.pipeline_root}}"}


def require_one_node(plan: AcceleratorPlan | None) -> None:
    """Raises UserError for a search that is one step on several machines."""
    if plan is not None and plan.nodes > 1:
        raise UserError(
            f"{plan.spec} on {plan.nodes} nodes: a search runs on one machine, whose GPUs its trials share.",
            "Give an accelerator with one node.",
        )


def placed_study(target: Placement, component: Any, plan: AcceleratorPlan | None) -> Callable[..., Any]:
    """What a pipeline uses for a search for parameters; see `StudyPlacement`.

    Raises:
        UserError: the plan has several machines, and the place has no way of its own to use them.
    """
    if isinstance(target, StudyPlacement):
        return target.study(component, plan)
    require_one_node(plan)
    return target.place(component, plan)
