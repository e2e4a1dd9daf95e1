"""The manifest of an Experiment of Katib, each of whose trials is a TrainJob.

Types: Experiment of kubeflow.org/v1beta1 (`kubeflow-katib-api`).
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from gpu_pipelines.targets.kubeflow.in_cluster.train_job_manifest import NODE, manifest_of, metadata_of
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import JobRequest
from gpu_pipelines.tuning.service.katib_study import search_of
from gpu_pipelines.tuning.service.study import ServiceStudy

#: The program of a trial's node, before its arguments.
_TRIAL = ("python3", "-m", "gpu_pipelines.tuning.service.trial")
#: Katib puts rank 0's command behind a shell, word by word, unless it is a script already; and a shell that waits for a
#: program does not pass a signal on to it (`wrapWorkerContainer` of its webhook).
_SCRIPT = "{{ trap 'kill $trial; wait $trial' TERM; {} & trial=$!; wait $trial; }}"
#: The name of the trial among Katib's parameters, and its source.
_NAME, _FROM = "trialName", "${trialSpec.Name}"
#: GJSON conditions for Katib to see how a TrainJob ended.
_ENDED = 'status.conditions.#(type=="{}")#|#(status=="True")#'
#: The pod of rank 0, whose log Katib reads.
_RANK_0 = {"batch.kubernetes.io/job-completion-index": "0", "jobset.sigs.k8s.io/replicatedjob-name": NODE}


def command_of_trial(study: ServiceStudy, place: str) -> list[str]:
    """The command of each trial of a study with a folder at a place; Katib fills in the values."""
    values = [f"--{each}=${{trialParameters.{each}}}" for each in study.request.space.names]
    program = [*_TRIAL, "--study", place, "--trial", f"${{trialParameters.{_NAME}}}", *values]
    return ["sh", "-c", _SCRIPT.format(shlex.join(program))]


def experiment_of(job: JobRequest, study: ServiceStudy, runtime_kind: str) -> dict[str, Any]:
    """An Experiment.

    Args:
        job: the requested Experiment, with specification and command of a trial's TrainJob.
        study: request of the study.
        runtime_kind: ClusterTrainingRuntime or TrainingRuntime.
    """
    trial = manifest_of(replace(job, owner=None), runtime_kind)
    # Katib names it.
    del trial["metadata"]["name"]
    template = {
        "primaryContainerName": NODE,
        "primaryPodLabels": _RANK_0,
        "successCondition": _ENDED.format("Complete"),
        "failureCondition": _ENDED.format("Failed"),
        "trialParameters": [
            {"name": _NAME, "reference": _FROM},
            *({"name": each, "reference": each} for each in study.request.space.names),
        ],
        "trialSpec": trial,
    }
    # Katib gives the labels of an Experiment to the pod that chooses values, which must not wait in the queue for GPUs.
    without_queue = replace(job, spec=replace(job.spec, queue=""))
    return {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Experiment",
        "metadata": metadata_of(without_queue),
        "spec": {**search_of(study), "trialTemplate": template},
    }
