"""The workflow that Argo makes of a run, and what the API server of KFP 2.17 tells of it.

Nodes are named as backend/src/v2/compiler/argocompiler has them (root-driver, root, STEP-driver, STEP, executor).
Each has a retry node above its attempts (`root(0)`), because the manifests give all templates a `retryStrategy`
(manifests/kustomize/third-party/argo/base/workflow-controller-configmap-patch.yaml).

The tasks of the API are those of backend/src/apiserver/server/api_converter.go (`toModelTask`,
`toApiPipelineTaskDetail`) and backend/src/common/util/workflow.go (`NodeStatuses`, `RetrievePodName`): names as child
tasks alone, no errors, no pods of the tasks' own, and 1970 for a time that is not known.
"""

from __future__ import annotations

import zlib
from typing import Any

NAME = "train-evaluate-upload-x7k2p"
_STATES = {
    "Pending": "PENDING",
    "Running": "RUNNING",
    "Succeeded": "SUCCEEDED",
    "Failed": "FAILED",
    "Omitted": "RUNTIME_STATE_UNSPECIFIED",
}


class Workflow:
    """The workflow of a run that gets one step further at each look.

    Args:
        run: the run, with its pipeline.
        look: how often it has been looked at.
        fails: name of the step that fails, and the log of its pod.
    """

    def __init__(self, run: dict[str, Any], look: int, fails: tuple[str, str] | None) -> None:
        self.spec = spec = run["pipeline_spec"]
        steps = _in_order(spec.get("pipeline_spec", spec)["root"]["dag"]["tasks"])
        self._run_id = run["run_id"]
        self._fails = fails
        self.nodes: list[dict[str, Any]] = []
        failing = steps.index(fails[0]) if fails else len(steps)
        ended = min(look, failing)
        self.state = "RUNNING"
        if fails and look >= failing:
            self.state = "FAILED"
        elif look >= len(steps):
            self.state = "SUCCEEDED"
        phase = {"RUNNING": "Running", "FAILED": "Failed", "SUCCEEDED": "Succeeded"}[self.state]
        self._add("", NAME, "entrypoint", "DAG", phase, None)
        self._add(NAME, "root-driver", "system-dag-driver", "Pod", "Succeeded", 0)
        self._add(NAME, "root", "root", "DAG", phase, 0)
        for number, step in enumerate(steps[: look + 1]):
            above = f"{NAME}.root(0)"
            if number > failing:
                self._add(above, step, "system-container-executor", "Skipped", "Omitted", None)
                continue
            phase = "Succeeded" if number < ended else "Failed" if self.state == "FAILED" else "Running"
            self._add(above, f"{step}-driver", "system-container-driver", "Pod", "Succeeded", number)
            self._add(above, step, "system-container-executor", "DAG", phase, number)
            self._add(f"{above}.{step}(0)", "executor", "system-container-impl", "Pod", phase, number)

    def hold(self, step: str, said: list[str]) -> bool:
        """Lets the pod of a step that runs wait, with the first of what is said of it; whether there is such a pod."""
        for node in self.nodes:
            if node["type"] == "Pod" and node["phase"] == "Running" and f".{step}(0).executor" in node["name"]:
                node.update(phase="Pending", message=said.pop(0))
                return True
        return False

    def _add(self, above: str, own: str, template: str, kind: str, phase: str, minute: int | None) -> None:
        """Adds a node and, but for the first, its retry node above it."""
        path = f"{above}.{own}" if above else own
        attempts = [(path, own, kind)] if not above or phase == "Omitted" else [
            (path, own, "Retry"), (f"{path}(0)", f"{own}(0)", kind)]  # fmt: skip
        for name, display, type_ in attempts:
            node = {
                "id": name if name == NAME else f"{NAME}-{zlib.crc32(name.encode())}",
                "name": name,
                "displayName": display,
                "type": type_,
                "templateName": template,
                "phase": phase,
                "startedAt": f"2026-11-21T10:{minute or 0:02d}:00Z",
                "finishedAt": f"2026-11-21T10:{(minute or 0) + 1:02d}:00Z" if phase != "Running" else None,
                "children": [],
            }
            if phase == "Failed" and type_ == "Pod":
                node["message"] = "Error (exit code 1)"
            parent = name.removesuffix("(0)") if name.endswith("(0)") else above
            for each in self.nodes:
                if each["name"] == parent:
                    each["children"].append(node["id"])
            self.nodes.append(node)

    def pod_of(self, node: dict[str, Any]) -> str:
        """`RetrievePodName`."""
        if node["name"] == NAME:
            return NAME
        return f"{NAME}-{node['templateName']}-{node['id'].rpartition('-')[2]}"

    def manifest(self) -> dict[str, Any]:
        """The workflow as it is stored."""
        return {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "metadata": {"name": NAME, "labels": {"pipeline/runid": self._run_id}},
            "status": {"nodes": {node["id"]: node for node in self.nodes}},
        }

    def task_details(self) -> list[dict[str, Any]]:
        """The nodes as tasks of the API v2beta1, sorted by the names of nodes, as the server has them."""
        return [
            {
                "run_id": self._run_id,
                "task_id": f"00000000-0000-4000-8000-{zlib.crc32(node['name'].encode()):012d}",
                "display_name": node["displayName"],
                "create_time": "2026-11-21T10:00:00Z",
                "start_time": node["startedAt"],
                "end_time": node["finishedAt"] or "1970-01-01T00:00:00Z",
                "state": _STATES[node["phase"]],
                "child_tasks": [{"pod_name": child} for child in node["children"]],
            }
            for node in sorted(self.nodes, key=lambda node: str(node["id"]))
        ]

    def logs(self) -> dict[str, str]:
        """The logs of the pods whose steps have failed, by the pods' names."""
        return {
            self.pod_of(node): self._fails[1]
            for node in self.nodes
            if self._fails and node["type"] == "Pod" and node["phase"] == "Failed"
        }


def _in_order(tasks: dict[str, Any]) -> list[str]:
    """Names of tasks, each after those that it depends on."""
    ordered: list[str] = []
    while len(ordered) < len(tasks):
        ordered += [
            name
            for name, task in tasks.items()
            if name not in ordered and set(task.get("dependentTasks", [])) <= set(ordered)
        ]
    return ordered
