"""The steps from data to a registered model, and how they are joined: what the pipelines have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kfp import dsl

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.one_gpu import one_gpu
from gpu_pipelines.components.data_prep.component import prepare_data
from gpu_pipelines.components.evaluation.component import evaluate_checkpoints
from gpu_pipelines.components.model_upload.component import upload_model
from gpu_pipelines.components.training.component import train_model
from gpu_pipelines.pipelines.parameters import Parameter, inputs_from, parameters_of
from gpu_pipelines.targets.target import Target

# Stable over restarts of one run, unlike an artifact's place, which belongs to one attempt of one task.
CHECKPOINT_URI = f"{dsl.PIPELINE_ROOT_PLACEHOLDER}/checkpoints/{dsl.PIPELINE_JOB_ID_PLACEHOLDER}"
#: What a pipeline fills in itself.
FILLED_IN = ("checkpoint_uri", "passed", "pipeline_job", "encryption_key")


def parameters_of_steps(target: Target) -> dict[str, Parameter]:
    """The parameters of all steps by name, with the target's own registry as its default."""
    found = parameters_of(prepare_data, train_model, evaluate_checkpoints, upload_model, without=FILLED_IN)
    return {**found, "registry": replace(found["registry"], default=target.registry)}


@dataclass(frozen=True)
class Tasks:
    """The tasks of one way from data to a registered model."""

    prepared: Any
    trained: Any
    evaluated: Any
    uploaded: Any


class Steps:
    """The steps as a target places them; to be made before the pipeline's function runs.

    Args:
        target: where they will run.
        plan: accelerators of the training; None for those that the target has.
        evaluation: those of the evaluation; None for one GPU of the training's.
    """

    def __init__(self, target: Target, plan: AcceleratorPlan | None, evaluation: AcceleratorPlan | None = None) -> None:
        self._pipeline_job, self._encryption_key = target.pipeline_job, target.encryption_key
        self._checkpoint_uri = target.checkpoint_uri or CHECKPOINT_URI
        self._prepare: Callable[..., Any] = target.place(prepare_data, None)
        self._train: Callable[..., Any] = target.place(train_model, plan)
        self._evaluate: Callable[..., Any] = target.place(evaluate_checkpoints, evaluation or (plan and one_gpu(plan)))
        self._upload: Callable[..., Any] = target.place(upload_model, None)

    def joined(self, values: Mapping[str, Any]) -> Tasks:
        """Adds their tasks to the pipeline, or the part of one, that is being built.

        Args:
            values: of the parameters by name.
        """
        prepared = self._prepare(**inputs_from(prepare_data, values))
        trained = self._train(
            dataset=prepared.outputs["dataset"],
            checkpoint_uri=self._checkpoint_uri,
            **inputs_from(train_model, values),
        )
        evaluated = self._evaluate(
            dataset=prepared.outputs["dataset"],
            checkpoints=trained.outputs["checkpoints"],
            **inputs_from(evaluate_checkpoints, values),
        )
        uploaded = self._upload(
            best_checkpoint=evaluated.outputs["best_checkpoint"],
            passed=evaluated.outputs["passed"],
            pipeline_job=self._pipeline_job,
            encryption_key=self._encryption_key,
            **inputs_from(upload_model, values),
        )
        return Tasks(prepared, trained, evaluated, uploaded)
