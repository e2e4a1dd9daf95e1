"""Train again if there is new data, compare with the champion on the same rows, and tell somebody."""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from kfp import dsl

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.components.data_watch.component import check_for_new_data
from gpu_pipelines.components.data_watch.watch import WatchSettings
from gpu_pipelines.pipelines.parameters import Parameter, inputs_from, parameters_of, with_parameters
from gpu_pipelines.pipelines.steps import Steps, parameters_of_steps
from gpu_pipelines.pipelines.train_evaluate_upload import pipeline as one_training
from gpu_pipelines.step_interface import fields_from
from gpu_pipelines.targets.target import Target

#: As many as the notification component takes.
#: Source: https://cloud.google.com/vertex-ai/docs/pipelines/email-notifications, RECIPIENTS_LIST.
MOST_ADDRESSES = 3
_ADDRESS = re.compile(r"[^@\s,]+@[^@\s,]+\.[^@\s,]+")
_NOTIFY = Parameter(
    list, [], "One to three e-mail addresses that are told how each run ended: succeeded or failed, and where it is."
)


def build(target: Target, plan: AcceleratorPlan | None, evaluation: AcceleratorPlan | None = None) -> Any:
    """Builds the pipeline.

    Args:
        target: where it will run; places each step, and says who is told of the end.
        plan: accelerators of the training; None for those that the target has.
        evaluation: those of the evaluation; None for one GPU of the training's.

    Returns:
        A KFP pipeline (`kfp.dsl.GraphComponent`).
    """
    check, notification = target.place(check_for_new_data, None), target.notification
    steps = Steps(target, plan, evaluation)
    parameters = {**parameters_of_steps(target), **parameters_of(check_for_new_data, without=_of_steps(target))}
    if notification is not None:
        parameters["notify"] = _NOTIFY

    @dsl.pipeline(name="scheduled-retraining")
    @with_parameters(parameters)
    def scheduled_retraining(values: dict[str, Any]) -> None:
        """Trains again if the data has changed since the champion, and promotes the new model only if it is better."""
        with _told(notification, values):
            checked = check(**inputs_from(check_for_new_data, values))
            with dsl.If(checked.outputs["Output"] == True, name="new-data"):  # noqa: E712 (KFP makes a condition of it)
                found = {name: checked.outputs[name] for name in ("model", "tokenizer")}
                tasks = steps.joined({**values, **found})
                # A target that goes by the inputs alone would take what it prepared from the same place before.
                tasks.prepared.set_caching_options(False)

    return scheduled_retraining


def _of_steps(target: Target) -> set[str]:
    return set(parameters_of_steps(target))


def _told(notification: Any | None, values: Mapping[str, Any]) -> AbstractContextManager[Any]:
    if notification is None:
        return nullcontext()
    told = notification(recipients=values["notify"]).set_caching_options(False)
    handler: AbstractContextManager[Any] = dsl.ExitHandler(told, name="retraining")
    return handler


def problems(arguments: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with the parameters of a run, without reading any data."""
    return [*one_training.problems(arguments), *fields_from(WatchSettings, arguments).problems()]


def problems_here(arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with the parameters of a run on this machine: data that is not here, a registry not writable."""
    return one_training.problems_here(arguments)


def problems_on_vertex(arguments: Mapping[str, Any], data_nodes: int = 1) -> list[str]:
    """What is wrong with the parameters of a run on Vertex AI: what would be lost there, or nobody to tell.

    Args:
        arguments: all parameters.
        data_nodes: machines that prepare the data.
    """
    found, addresses = one_training.problems_on_vertex(arguments, data_nodes), arguments["notify"]
    if not 1 <= len(addresses) <= MOST_ADDRESSES:
        found.append(
            f"notify has {len(addresses)} addresses; give one to {MOST_ADDRESSES}, as in -p notify=team@example.com. "
            "They are told how each run ended."
        )
    wrong = [address for address in addresses if not _ADDRESS.fullmatch(address)]
    return [*found, *(f"notify has {address[:80]!r}, which is no e-mail address." for address in wrong)]


def problems_on_kubeflow(arguments: Mapping[str, Any], mounted: str) -> list[str]:
    """What is wrong with the parameters of a run on Kubeflow; see `train_evaluate_upload`."""
    return one_training.problems_on_kubeflow(arguments, mounted)


def state_here(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Nothing: where the data has changed no step has the inputs of an earlier run."""
    return {}
