"""An author's settings for Kubernetes of a step that is a TrainJob, given to the nodes, where the step runs.

The step's own pod only waits for them. Fields: `KubernetesExecutorConfig` of kfp-kubernetes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.step_environment import RUN
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import SPEC_ARGUMENT, require_no_trainers
from gpu_pipelines.targets.kubeflow.target import LAUNCHER_SIZE
from gpu_pipelines.targets.spec_steps import tasks_in

#: Settings that nodes cannot have, with their names in messages.
_FOR_PODS_ALONE = {
    "configMapAsEnv": "variables from a ConfigMap",
    "configMapAsVolume": "a ConfigMap as a volume",
    "emptyDirMounts": "an empty directory",
    "fieldPathAsEnv": "variables from fields of the pod",
    "genericEphemeralVolume": "an ephemeral volume",
    "nodeAffinity": "an affinity to nodes",
    "podAffinity": "an affinity to pods",
    "pvcMount": "a claim of its own",
    "secretAsVolume": "a secret as a volume",
}
#: The same for settings of a whole pod.
_OF_THE_POD = {"podMetadata": "labels or annotations of pods", "securityContext": "a security context"}
#: Resources of the pod that waits for the nodes, as KFP writes them.
_OF_LAUNCHER = {
    "cpuRequest": float(LAUNCHER_SIZE.cpus),
    "memoryLimit": LAUNCHER_SIZE.memory_gib * 2**30 / 1e9,
    "memoryRequest": LAUNCHER_SIZE.memory_gib * 2**30 / 1e9,
    "resourceCpuRequest": str(LAUNCHER_SIZE.cpus),
    "resourceMemoryLimit": f"{LAUNCHER_SIZE.memory_gib}Gi",
    "resourceMemoryRequest": f"{LAUNCHER_SIZE.memory_gib}Gi",
}
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 (nodes have one)


def give_to_nodes(spec: Mapping[str, Any], executors: Mapping[str, dict[str, Any]]) -> None:
    """Gives the nodes of steps that are TrainJobs their author's settings: secrets, labels of nodes, CPUs and so on.

    Args:
        spec: a placed pipeline, which is changed.
        executors: settings for Kubernetes, by executor; changed: the choice of nodes, and their size, are removed from
            the pod that waits for them.

    Raises:
        UserError: an author's setting is not possible for nodes.
    """
    in_workspace = set(_in_workspace(spec))
    for label, executor in spec.get("deploymentSpec", {}).get("executors", {}).items():
        container = executor.get("container", {})
        arguments = container.get("args", [])
        if arguments[:1] == [SPEC_ARGUMENT] and label in executors:
            asked, container["resources"] = container["resources"], dict(_OF_LAUNCHER)
            known = ["the workspace of the run"] if label in in_workspace else []
            arguments[1] = _with_settings(json.loads(arguments[1]), executors[label], asked, known)


def _in_workspace(spec: Mapping[str, Any]) -> Iterator[str]:
    """The executors of tasks that get the place of the run's workspace: KFP mounts it in their own pods."""
    from kfp import dsl

    for _, task in tasks_in(spec):
        if dsl.WORKSPACE_PATH_PLACEHOLDER in json.dumps(task.get("inputs", {})):
            yield spec["components"][task["componentRef"]["name"]].get("executorLabel", "")


def _with_settings(
    job: dict[str, Any], config: dict[str, Any], resources: Mapping[str, Any], known: Sequence[str]
) -> str:
    """The specification of a TrainJob with its author's settings.

    Args:
        job: the specification.
        config: settings for Kubernetes.
        resources: resources of the step's own pod, including those that its author requested.
        known: known requests of the step that nodes cannot have.
    """
    left = list(known)
    left += [
        said for name, said in _FOR_PODS_ALONE.items() if any(not _is_there(job, each) for each in config.get(name, []))
    ]
    left += [said for name, said in _OF_THE_POD.items() if config.get(name)]
    secrets = _secrets(config.get("secretAsEnv", []))
    labels = config.pop("nodeSelector", {})
    tolerations = [_toleration(each) for each in config.pop("tolerations", [])]
    size = _size(resources)
    left += ["CPUs or memory that are a parameter"] if None in size.values() else []
    left += ["a secret that may be missing, or whose name is a parameter"] if None in secrets.values() else []
    left += ["labels of nodes that are a parameter"] if labels.keys() - {"labels"} else []
    left += ["a toleration that is a parameter, or not of NoSchedule"] if None in tolerations else []
    if left:
        raise UserError(
            f"{job['step']} is a TrainJob, whose nodes cannot have {', '.join(left)}.",
            "Leave it out, or take one node that is not Spot.",
        )
    require_no_trainers(secrets.keys())
    job["secrets"] |= secrets
    pulled_with = (_constant_name(each) for each in config.get("imagePullSecret", []))
    job["pull_secret"] = job["pull_secret"] or next(filter(None, pulled_with), "")
    for needs in (job["needs"], *(each["machines"]["needs"] for each in job.get("choices", []))):
        needs.update(size)
        needs["node_selector"] = {**needs["node_selector"], **labels.get("labels", {})}
        needs["tolerations"] += [each for each in tolerations if each not in needs["tolerations"]]
    return json.dumps(job, sort_keys=True)


def _size(resources: Mapping[str, Any]) -> dict[str, int | None]:
    """CPUs and memory that an author requested, as in `PodNeeds`; None for those that are a parameter."""
    from kubernetes.utils.quantity import parse_quantity

    found: dict[str, int | None] = {}
    for name, kind, unit in (("cpus", "Cpu", 1), ("memory_gib", "Memory", 2**30)):
        # A node gets as much as it may use; of requests and limits, the limit comes last.
        for amount in (resources.get(f"resource{kind}{which}") for which in ("Request", "Limit")):
            if amount and amount not in _OF_LAUNCHER.values():
                try:
                    found[name] = max(1, int(parse_quantity(amount) / unit))
                except ValueError:
                    found[name] = None
    return found


def _is_there(job: Mapping[str, Any], setting: Mapping[str, Any]) -> bool:
    """Whether nodes have a setting anyway: the claim of the project, the run, shared memory."""
    if setting.get("name") == RUN or setting.get("mountPath") == _SHARED_MEMORY:
        return True
    return bool(job["volume_claim"]) and setting.get("mountPath") == job["mount_path"]


def _secrets(settings: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """Variables with the secrets of their values, as SECRET/KEY; None if that form is not possible."""
    found: dict[str, str | None] = {}
    for setting in settings:
        name = _constant_name(setting)
        for each in setting["keyToEnv"]:
            found[each["envVar"]] = f"{name}/{each['secretKey']}" if name and not setting.get("optional") else None
    return found


def _constant_name(setting: Mapping[str, Any]) -> str:
    """Name of a secret; empty if it is a parameter."""
    return str(setting.get("secretNameParameter", {}).get("runtimeValue", {}).get("constant") or "")


def _toleration(setting: Mapping[str, Any]) -> dict[str, str] | None:
    """A toleration in the form of a TrainJob's specification; None if that form is not possible."""
    if not setting.get("key") or setting.get("effect") != "NoSchedule" or "tolerationSeconds" in setting:
        return None
    return {"key": setting["key"], "value": setting.get("value", "")}
