"""The steps from a request to a registered model, and their connections: the common part of the pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kfp import dsl

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.one_gpu import one_gpu
from gpu_pipelines.component_interface.catalog import settings_of
from gpu_pipelines.component_interface.parameter import Parameter
from gpu_pipelines.components.data_prep.component import prepare_data
from gpu_pipelines.components.evaluation.component import evaluate_checkpoints
from gpu_pipelines.components.model_upload.component import upload_model
from gpu_pipelines.components.request.component import check_request
from gpu_pipelines.components.training.component import train_model
from gpu_pipelines.components.tuning.component import tune_model
from gpu_pipelines.dag.advanced import ADVANCED, COMMON, fields_of_advanced, is_of, parameter_with, parameters_of_users
from gpu_pipelines.dag.parameters import inputs_from
from gpu_pipelines.dag.placement import Placement, placed_study, seen_by_check
from gpu_pipelines.dag.request import Request
from gpu_pipelines.dag.telling import outcome_uri_of
from gpu_pipelines.tasks.tasks import task_named

# Stable over restarts of one run, unlike an artifact's place, which belongs to one attempt of one task.
CHECKPOINT_URI = f"{dsl.PIPELINE_ROOT_PLACEHOLDER}/checkpoints/{dsl.PIPELINE_JOB_ID_PLACEHOLDER}"
#: The components, by the output of `check_request` that has their fields of `advanced`.
STEPS = {"prepare": prepare_data, "train": train_model, "evaluate": evaluate_checkpoints, "upload": upload_model}


def pipeline_parameters(target: Placement, steps: Mapping[str, Any], task: str = "") -> dict[str, Parameter]:
    """The parameters of a pipeline: the common ones of its steps, the target's own, and `advanced` with all others.

    Args:
        target: its registry is the default.
        steps: the pipeline's components, as `STEPS`.
        task: the task that the pipeline is for, to keep only its parameters; empty to leave the task a parameter.
    """
    settings = [settings_of(component.name.replace("-", "_")) for component in steps.values()]
    every = parameters_of_users([*settings, Request])
    common = {name: every[name] for name in COMMON if name in every}
    common["registry"] = replace(common["registry"], default=target.registry)
    fields = fields_of_advanced(settings)
    if task:
        del common["task"]
        for name, value in task_named(task).defaults.items():
            if name in common:
                common[name] = replace(common[name], default=value)
        common, fields = ({name: p for name, p in each.items() if is_of(name, task)} for each in (common, fields))
    return {**common, ADVANCED: parameter_with(fields, {"seed": 1}), **target.parameters}


@dataclass(frozen=True)
class Tasks:
    """The tasks of one path from data to a registered model."""

    prepared: Any
    trained: Any
    evaluated: Any
    uploaded: Any


class Steps:
    """The steps as a target places them; create it before the pipeline's function runs.

    Args:
        target: where they will run.
        plan: accelerators of the training; None for whatever the target has.
        evaluation: accelerators of the evaluation; None for one GPU of the training's.
        task: the task that the pipeline is for; empty if it is a parameter.
        training: the component that trains.

    Attributes:
        outcome_uri: where the steps leave their results for a message; empty for a pipeline without messages.
    """

    def __init__(
        self,
        target: Placement,
        plan: AcceleratorPlan | None,
        evaluation: AcceleratorPlan | None = None,
        *,
        task: str = "",
        training: Any = train_model,
    ) -> None:
        self._pipeline_job, self._encryption_key = target.pipeline_job, target.encryption_key
        self._checkpoint_uri = target.checkpoint_uri or CHECKPOINT_URI
        self.outcome_uri = outcome_uri_of(target, self._checkpoint_uri)
        self._given = {"task": task} if task else {}
        self._seen = {
            **seen_by_check(target),
            "processes": plan.processes if plan else 0,
            **({"told_by_step": True} if target.recipients else {}),
        }
        self._check: Callable[..., Any] = target.place(check_request, None)
        self._prepare: Callable[..., Any] = target.place(prepare_data, None)
        self._training = training
        is_study = training is tune_model
        self._train: Callable[..., Any] = (
            placed_study(target, training, plan) if is_study else target.place(training, plan)
        )
        self._evaluate: Callable[..., Any] = target.place(evaluate_checkpoints, evaluation or (plan and one_gpu(plan)))
        self._upload: Callable[..., Any] = target.place(upload_model, None)

    def checked(self, pipeline: str, values: Mapping[str, Any]) -> Any:
        """Adds the task that checks the request, which comes before all others.

        Args:
            pipeline: name of the pipeline.
            values: of its parameters by name.
        """
        return self._check(**inputs_from(check_request, {**values, **self._given, **self._seen, "pipeline": pipeline}))

    def direct(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values that steps take one by one, not from the task that checks the request."""
        left_out = (ADVANCED, "checkpoint_uri")
        noted = {"outcome_uri": self.outcome_uri} if self.outcome_uri else {}
        return {**noted, **self._given, **{name: value for name, value in values.items() if name not in left_out}}

    def joined(self, values: Mapping[str, Any], checked: Any) -> Tasks:
        """Adds the other tasks to the pipeline, or the part of one, that is being built.

        Args:
            values: of the parameters by name.
            checked: the task that checks the request.
        """
        values = self.direct(values)
        prepared = self._prepare(
            source_fingerprint=checked.outputs["source_fingerprint"],
            advanced=checked.outputs["prepare"],
            **inputs_from(prepare_data, values),
        )
        trained = self._train(
            dataset=prepared.outputs["dataset"],
            checkpoint_uri=self._checkpoint_uri,
            # A given one is among the others, and wins. A script's parameters all have inputs of their own.
            **inputs_from(self._training, {**values, "advanced": checked.outputs["train"]}),
        )
        evaluated = self._evaluate(
            dataset=prepared.outputs["dataset"],
            checkpoints=trained.outputs["checkpoints"],
            advanced=checked.outputs["evaluate"],
            **inputs_from(evaluate_checkpoints, values),
        )
        uploaded = self._upload(
            best_checkpoint=evaluated.outputs["best_checkpoint"],
            passed=evaluated.outputs["passed"],
            pipeline_job=self._pipeline_job,
            encryption_key=self._encryption_key,
            advanced=checked.outputs["upload"],
            **inputs_from(upload_model, values),
        )
        return Tasks(prepared, trained, evaluated, uploaded)
