"""What a step gets from Kubernetes, and this machine may lack: variables and volumes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.step_environment import RUN
from gpu_pipelines.targets.own.placed import executors_on_kubernetes
from gpu_pipelines.targets.own.steps import Step

#: The settings of kfp-kubernetes (`kubernetes_executor_config.proto`) that set variables, with the source of each.
_VARIABLES = {"secretAsEnv": "secret", "configMapAsEnv": "configMap"}
#: The settings that mount a folder.
_VOLUMES = {
    "secretAsVolume": "secret",
    "configMapAsVolume": "configMap",
    "pvcMount": "pvc",
    "genericEphemeralVolume": "volume",
    "emptyDirMounts": "volume",
}
_CALLED = {
    "secret": "secret",
    "configMap": "ConfigMap",
    "field": "pod's field",
    "pvc": "volume claim",
    "volume": "volume",
}
#: KFP's components CreatePVC and DeletePVC: the cluster does what the names of these images say.
_STUBS = "argostub/"


@dataclass(frozen=True)
class ClusterPart:
    """A variable or a folder that a cluster gives a step.

    Attributes:
        name: name of the variable, or path of the folder.
        kind: kind of its source: a key of `_CALLED`.
        origin: name of its source; empty if only a run knows it.
        is_folder: whether it is a folder.
        is_optional: whether the step starts without it.
    """

    name: str
    kind: str
    origin: str
    is_folder: bool
    is_optional: bool

    @property
    def is_here(self) -> bool:
        """Whether this machine has it: a variable of the environment, or a folder at the same path."""
        return Path(self.name).is_dir() if self.is_folder else self.name in os.environ

    def __str__(self) -> str:
        of = f"{_CALLED[self.kind]} {self.origin}".strip()
        return f"the {of} at {self.name}" if self.is_folder else f"the variable {self.name} of the {of}"


def cluster_parts(step: Step, documents: Sequence[Mapping[str, Any]]) -> list[ClusterPart]:
    """The variables and folders that a step of a compiled pipeline gets from a cluster.

    Args:
        step: the step.
        documents: documents of the compiled file: the pipeline, and settings for Kubernetes if there are any.
    """
    if len(documents) == 1:
        return []
    settings = executors_on_kubernetes(documents[1]).get(step.spec["executorLabel"], {})
    fields = settings.get("fieldPathAsEnv", [])
    found = [ClusterPart(each["name"], "field", each["fieldPath"], False, False) for each in fields]
    for key, kind in _VARIABLES.items():
        for each in settings.get(key, []):
            names = [pair["envVar"] for pair in each.get("keyToEnv", [])]
            found += [ClusterPart(name, kind, _name(each, kind), False, each.get("optional", False)) for name in names]
    for key, kind in _VOLUMES.items():
        for each in settings.get(key, []):
            found.append(ClusterPart(each["mountPath"], kind, _name(each, kind), True, each.get("optional", False)))
    return found


def problems_without_cluster(step: Step, parts: Sequence[ClusterPart]) -> list[str]:
    """What a step needs from a cluster and this machine lacks, each with a remedy.

    The steps of this project have other means: a token that its client has kept, data and scripts by their places.
    """
    if any(part.kind == "field" and part.name == RUN for part in parts):
        return [
            "The file was compiled for --target kubeflow, and its checkpoints are in the cluster. Run the pipeline "
            "from before it was compiled."
        ]
    if step.container.get("image", "").startswith(_STUBS):
        return [
            f"{step.name} makes or deletes a volume claim, and no Kubernetes is here. Pass files as artifacts, or "
            "mount a claim by its name, for which a folder can stand here."
        ]
    return [] if step.is_ours else list(_lacking(step, parts))


def missed_without_cluster(steps: Iterable[Step], documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What this project's steps would have in a cluster and this machine lacks, each with a remedy."""
    for step in steps:
        if step.is_ours:
            yield from _lacking(step, cluster_parts(step, documents))


def _lacking(step: Step, parts: Sequence[ClusterPart]) -> Iterator[str]:
    for part in parts:
        if not (part.is_here or part.is_optional):
            fill, export = "Make the folder, with what the step finds there.", f"Set it: export {part.name}=…"
            yield f"{step.name} has {part} on Kubernetes, which is not here. {fill if part.is_folder else export}"


def require_no_cluster(steps: Sequence[Step], documents: Sequence[Mapping[str, Any]]) -> None:
    """Checks that no step gets secrets, settings or claims of a cluster, for a run that has none of the user's.

    Raises:
        UserError: lists them.
    """
    found = [
        f"{part} ({step.name})"
        for step in steps
        for part in cluster_parts(step, documents)
        if part.kind != "volume" and not part.is_optional
    ]
    if found:
        raise UserError(
            f"Only Kubernetes has {', '.join(found)}.", "Use --target kubeflow, or leave these settings out."
        )


def _name(setting: Mapping[str, Any], kind: str) -> str:
    parameter = setting.get(f"{kind}NameParameter", {}).get("runtimeValue", {}).get("constant", "")
    return str(setting.get(f"{kind}Name") or setting.get("constant") or parameter)
