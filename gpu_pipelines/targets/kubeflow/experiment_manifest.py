"""The manifest of an Experiment of Katib, each of whose trials is a TrainJob.

Types: Experiment of kubeflow.org/v1beta1 (`kubeflow-katib-api`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.targets.kubeflow.train_job_manifest import NODE, manifest_of, metadata_of
from gpu_pipelines.targets.kubeflow.train_job_spec import TrainJobSpec
from gpu_pipelines.tuning.service.katib_study import search_of
from gpu_pipelines.tuning.service.study import ServiceStudy

#: What a node of a trial runs, before its arguments.
_TRIAL = ("python3", "-m", "gpu_pipelines.tuning.service.trial")
#: The name of the trial among Katib's parameters, and where that comes from.
_NAME, _FROM = "trialName", "${trialSpec.Name}"
#: Conditions in GJSON, by which Katib sees how a TrainJob has ended.
_ENDED = 'status.conditions.#(type=="{}")#|#(status=="True")#'
#: The pod of rank 0, whose log Katib reads.
_RANK_0 = {"batch.kubernetes.io/job-completion-index": "0", "jobset.sigs.k8s.io/replicatedjob-name": NODE}


def experiment_of(
    name: str,
    spec: TrainJobSpec,
    study: ServiceStudy,
    place: str,
    *,
    runtime_kind: str,
    labels: Mapping[str, str],
    owner: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """An Experiment.

    Args:
        name: its name.
        spec: what the TrainJob of a trial is made of.
        study: the request.
        place: folder of the study.
        runtime_kind: ClusterTrainingRuntime or TrainingRuntime.
        labels: by which it is found again.
        owner: reference to the object with which Kubernetes deletes it; None for none.
    """
    names = study.request.space.names
    values = [f"--{each}=${{trialParameters.{each}}}" for each in names]
    command = [*_TRIAL, "--study", place, "--trial", f"${{trialParameters.{_NAME}}}", *values]
    trial = manifest_of(name, spec, command, runtime_kind=runtime_kind, labels=labels, owner=None)
    # Katib names it.
    del trial["metadata"]["name"]
    template = {
        "primaryContainerName": NODE,
        "primaryPodLabels": _RANK_0,
        "successCondition": _ENDED.format("Complete"),
        "failureCondition": _ENDED.format("Failed"),
        "trialParameters": [
            {"name": _NAME, "reference": _FROM},
            *({"name": each, "reference": each} for each in names),
        ],
        "trialSpec": trial,
    }
    return {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Experiment",
        "metadata": metadata_of(name, spec, labels, owner),
        "spec": {**search_of(study), "trialTemplate": template},
    }
