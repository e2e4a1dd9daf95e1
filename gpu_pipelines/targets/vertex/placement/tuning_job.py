"""A search as a HyperparameterTuningJob of Vertex AI: a step before it, GCPC's component, and a step after it.

GCPC's component has no field for the way to buy machines, for the time limit of a trial, for early stopping, and for a
few other fields of a job. They are added to the request that its launcher sends; image, command and launcher stay
GCPC's.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.targets.study_tasks import StudyOutputs, finished
from gpu_pipelines.tuning.service.vertex_study import MEASUREMENT, METRICS

#: The program of a trial's replica; the service appends the parameters.
TRIAL_COMMAND = ("python3", "-m", "gpu_pipelines.tuning.service.trial")
_PAYLOAD = "--payload"
#: KFP's placeholder for the region of the run: `LOCATION_PLACEHOLDER` of GCPC.
_LOCATION = "{{$.pipeline_google_cloud_location}}"
#: Pieces of GCPC's payload: the end of the study's own fields, and the beginning of those of a trial's job.
_AFTER_STUDY, _TRIAL_JOB = ', "max_trial_count": ', ', "trial_job_spec": {'
#: Inputs of GCPC's component that are fields of a trial's job; the others are added.
_KNOWN = ("worker_pool_specs", "service_account", "network", "base_output_directory")
#: Added fields that `machines.py` reads from a compiled file.
_READ = ("strategy", "timeout", "persistent_resource_id")


def pools_of(pools: Sequence[Mapping[str, Any]], study: Any) -> list[dict[str, Any]]:
    """Worker pools whose trials belong to a study.

    Args:
        pools: pools of a trial's job.
        study: the folder of the study, or its placeholder in a pipeline.
    """
    made = [dict(pool) for pool in pools]
    for pool in made:
        if list(pool["container_spec"].get("command", [])) == list(TRIAL_COMMAND):
            pool["container_spec"] = {**pool["container_spec"], "args": ["--study", study]}
    return made


def tuning_job(job: Mapping[str, Any]) -> Any:
    """GCPC's component for a tuning job whose trials are such custom jobs.

    Args:
        job: the `CustomJob` of a trial, with the field names of the API's protobuf types.
    """
    from google_cloud_pipeline_components.v1.hyperparameter_tuning_job import HyperparameterTuningJobRunOp

    component = copy.deepcopy(HyperparameterTuningJobRunOp)
    inputs, spec = component.component_spec.inputs, dict(job["job_spec"])
    scheduling = dict(spec.pop("scheduling"))
    for name in _KNOWN:
        if name in spec and name != "base_output_directory":
            inputs[name].default, inputs[name].optional = spec.pop(name), True
    spec.pop("base_output_directory", None)
    read = {name: value for name, value in {**scheduling, **spec}.items() if name in _READ}
    for name, value in read.items():
        inputs[name] = _text_input(value)
        scheduling.pop(name, None)
        spec.pop(name, None)
    inputs["study_spec_early_stopping"] = _text_input({}, "STRUCT")
    _extend(component, read, scheduling, spec, job.get("labels", {}))
    # A component reads its inputs when it is made.
    return type(component)(component.component_spec, component.pipeline_func)


def _text_input(default: Any, kind: str = "STRING") -> Any:
    from kfp.dsl.structures import InputSpec

    return InputSpec(type={"STRING": "String", "STRUCT": "Dict"}[kind], default=default, optional=True)


def _extend(
    component: Any,
    read: Mapping[str, Any],
    scheduling: Mapping[str, Any],
    others: Mapping[str, Any],
    labels: Mapping[str, str],
) -> None:
    """Adds fields to the payload of GCPC's component.

    Args:
        component: a copy of it.
        read: fields of the trial's job that are inputs.
        scheduling: other fields of its scheduling.
        others: other fields of it.
        labels: labels of the job.
    """
    from kfp.dsl.placeholders import InputValuePlaceholder as Input

    arguments = component.component_spec.implementation.container.args
    items = arguments[arguments.index(_PAYLOAD) + 1].items
    end_of_study = items.index(_AFTER_STUDY) - 1
    items[end_of_study:end_of_study] = [', "median_automated_stopping_spec": ', Input("study_spec_early_stopping")]
    bought: list[Any] = ['"scheduling": {']
    for name in ("strategy", "timeout"):
        bought += [f'"{name}": "', Input(name), '", ']
    # A flag with the service's default value, so that no comma comes before nothing.
    bought.append(_inside({"disable_retries": False, **scheduling}) + "}, ")
    if "persistent_resource_id" in read:
        bought += ['"persistent_resource_id": "', Input("persistent_resource_id"), '", ']
    if others:
        bought.append(f"{_inside(others)}, ")
    begin_of_job = items.index(_TRIAL_JOB) + 1
    items[begin_of_job:begin_of_job] = bought
    if labels:
        items.insert(1, f"{_inside({'labels': labels})}, ")


def _inside(fields: Mapping[str, Any]) -> str:
    """Fields as JSON, without the braces around them."""
    return json.dumps(fields)[1:-1]


@dataclass(frozen=True)
class TuningTasks:
    """The tasks of a search after its first one, as a target places them.

    Attributes:
        tune: GCPC's component.
        finish: adds the last task.
        on_machines: adds it on the machines of a trial, which it needs to train longer.
    """

    tune: Callable[..., Any]
    finish: Callable[..., Any]
    on_machines: Callable[..., Any]

    def joined(self, begun: Any, dataset: Any, tracking: Any, **fields: Any) -> StudyOutputs:
        """Adds them to the pipeline that is being built.

        Args:
            begun: the first task.
            dataset: dataset of the trials.
            tracking: the tracker.
            fields: further inputs of the tuning job.
        """
        told = begun.outputs
        tuned = self.tune(
            display_name="study",
            # Its own default is one region.
            location=_LOCATION,
            study_spec_metrics=METRICS,
            study_spec_parameters=told["parameters"],
            study_spec_algorithm=told["algorithm"],
            study_spec_measurement_selection_type=MEASUREMENT,
            study_spec_early_stopping=told["early_stopping"],
            max_trial_count=told["trials"],
            parallel_trial_count=told["parallel_trials"],
            # A trial whose parameters do not fit is infeasible, which is no reason to end the study.
            max_failed_trial_count=told["trials"],
            **fields,
        ).set_caching_options(False)
        ended = tuned.outputs["gcp_resources"]
        return finished(told, dataset, tracking, ended, self.finish, self.on_machines)
