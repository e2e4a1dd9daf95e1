"""The manifest of a RayJob of KubeRay: data nodes as a Ray cluster that KubeRay starts, with the step as its one job.

Types: RayJob of ray.io/v1 (https://github.com/ray-project/kuberay, ray-operator/apis/ray/v1), as of KubeRay 1.5, the
first whose clusters have tokens.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from gpu_pipelines.targets.kubeflow.in_cluster.train_job_manifest import metadata_of, pod_of, resources_of, variables_of
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import JobRequest, TrainJobSpec

#: Names of a node's container, and of the container that submits the job to the cluster and prints its log.
NODE, SUBMITTER = "ray", "ray-job-submitter"
#: Variable with the command of the job: `ray job submit` would pass it through shells.
COMMAND = "GPU_PIPELINES_RAY_JOB_COMMAND"
_PROGRAM = "gpu_pipelines.targets.kubeflow.in_cluster.ray_job_command"
_WORKERS = "workers"
#: How long the pods exist after the end of the job.
_SECONDS_TO_LOOK = 60


def manifest_of(job: JobRequest, ray_version: str) -> dict[str, Any]:
    """A RayJob.

    Args:
        job: the request. One of its nodes is the head, which runs the command, on the cluster `auto`, and also works.
        ray_version: Ray's version in the image.
    """
    spec, labels = job.spec, job.labels
    encoded = {"name": COMMAND, "value": base64.b64encode(json.dumps(list(job.command)).encode()).decode()}
    workers = {
        "groupName": _WORKERS,
        "replicas": spec.nodes - 1,
        "minReplicas": spec.nodes - 1,
        "maxReplicas": spec.nodes - 1,
        "rayStartParams": {},
        "template": _node(spec, labels),
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata_of(job),
        "spec": {
            "entrypoint": f"python3 -m {_PROGRAM}",
            "submissionMode": "K8sJobMode",
            "submitterPodTemplate": _submitter(spec, labels),
            "activeDeadlineSeconds": round(spec.hours * 3600),
            # The step's own pod creates another RayJob if that may help.
            "backoffLimit": 0,
            "shutdownAfterJobFinishes": True,
            # The step's own pod checks why the head is gone, and then deletes everything.
            "ttlSecondsAfterFinished": _SECONDS_TO_LOOK,
            "rayClusterSpec": {
                "rayVersion": ray_version,
                "authOptions": {"mode": "token"},
                "headGroupSpec": {"rayStartParams": {}, "template": _node(spec, labels, encoded)},
                "workerGroupSpecs": [workers] if spec.nodes > 1 else [],
            },
        },
    }


def _node(spec: TrainJobSpec, labels: Mapping[str, str], *more: Mapping[str, str]) -> dict[str, Any]:
    pod, mounts = pod_of(spec)
    container = {
        "name": NODE,
        "image": spec.image,
        "resources": resources_of(spec),
        "env": [*variables_of(spec), {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}, *map(dict, more)],
        "volumeMounts": mounts,
    }
    return {"metadata": {"labels": dict(labels)}, "spec": {**pod, "containers": [container]}}


def _submitter(spec: TrainJobSpec, labels: Mapping[str, str]) -> dict[str, Any]:
    """A small pod, whose command KubeRay fills in."""
    container = {
        "name": SUBMITTER,
        "image": spec.image,
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "512Mi"}},
    }
    pod: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if spec.service_account:
        pod["serviceAccountName"] = spec.service_account
    if spec.pull_secret:
        pod["imagePullSecrets"] = [{"name": spec.pull_secret}]
    return {"metadata": {"labels": dict(labels)}, "spec": pod}
