"""TrainJobs that really run: each node is a process here, with the variables that Trainer's torch runtime sets.

The runtime is `torch-distributed` as Kubeflow Trainer installs it, as far as its SDK reads it.
"""

from __future__ import annotations

import copy
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from kubeflow_trainer_api import models

from kubernetes_api.types import problems_of, problems_of_pod

RUNTIME: dict[str, Any] = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "ClusterTrainingRuntime",
    "metadata": {"name": "torch-distributed", "labels": {"trainer.kubeflow.org/framework": "torch"}},
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "node",
                        "template": {
                            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                            "spec": {"template": {"spec": {"containers": [{"name": "node", "image": "pytorch"}]}}},
                        },
                    }
                ]
            }
        },
    },
}


class Invalid(Exception):
    """A manifest that the API server refuses."""


class TrainJob:
    """A TrainJob and its nodes.

    Args:
        manifest: as it was created.
        folder: gets the logs of the nodes.
        environment: further variables of the nodes.

    Raises:
        Invalid: the manifest is not of the types of the API.
    """

    def __init__(self, manifest: dict[str, Any], folder: Path, environment: dict[str, str]) -> None:
        _check(manifest)
        self.manifest = {
            **manifest,
            "metadata": {**manifest["metadata"], "namespace": "default", "creationTimestamp": "2026-11-21T10:00:00Z"},
        }
        self.name = manifest["metadata"]["name"]
        self.pod = _pod(manifest)
        if problems := problems_of_pod(self.pod):
            raise Invalid("; ".join(problems))
        self._folder, self._environment = folder, environment
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._gone: set[int] = set()
        self.preempted: set[int] = set()
        self.deleted = False

    def start(self) -> None:
        """Starts the nodes, and watches them."""
        port = _free_port()
        nodes = self.manifest["spec"]["trainer"]["numNodes"]
        main = self.pod["spec"]["containers"][0]
        variables = {variable["name"]: variable["value"] for variable in main.get("env", [])}
        for rank in range(nodes):
            torchrun = {"NNODES": nodes, "NODE_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith("GPU_PIPELINES_")},
                **{f"PET_{name}": str(value) for name, value in torchrun.items()},
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                **variables,
                **self._environment,
            }
            with self.log(rank).open("wb") as log:
                process = subprocess.Popen(main["command"], env=environment, stdout=log, stderr=log)
            self._nodes.append(process)
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Stops all nodes when one fails, as the job controller does, which also deletes the pods that still ran."""
        while any(process.poll() is None for process in self._nodes):
            if any(process.returncode for process in self._nodes):
                self._gone = {rank for rank, process in enumerate(self._nodes) if process.poll() is None}
                self.stop()
                return
            time.sleep(0.1)

    def stop(self) -> None:
        """Tells the nodes that run to stop."""
        for process in self._nodes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)

    def preempt(self, rank: int) -> None:
        """Takes a node away."""
        self.preempted.add(rank)
        self._nodes[rank].send_signal(signal.SIGTERM)

    def log(self, rank: int) -> Path:
        """What a node has printed."""
        return self._folder / f"{self.name}-{rank}.log"

    def is_over(self, rank: int) -> bool:
        """Whether a node has ended."""
        return self._nodes[rank].poll() is not None

    def to_json(self) -> dict[str, Any]:
        """The TrainJob with its status."""
        codes = [process.poll() for process in self._nodes]
        if any(code is None for code in codes):
            return self.manifest
        kind = "Complete" if not any(codes) else "Failed"
        condition = {
            "type": kind,
            "status": "True",
            "reason": "Jobs",
            "message": "",
            "lastTransitionTime": "2026-11-21T10:00:00Z",
        }
        return {**self.manifest, "status": {"conditions": [condition]}}

    def pods(self) -> list[dict[str, Any]]:
        """The pods of the nodes with their states."""
        there = [(rank, process) for rank, process in enumerate(self._nodes) if rank not in self._gone]
        return [self._pod_of(rank, process.poll()) for rank, process in there]

    def _pod_of(self, rank: int, code: int | None) -> dict[str, Any]:
        pod = copy.deepcopy(self.pod)
        pod["metadata"].update(
            name=f"{self.name}-node-0-{rank}", namespace="default", creationTimestamp="2026-11-21T10:00:00Z"
        )
        pod["metadata"]["labels"] |= {
            "jobset.sigs.k8s.io/jobset-name": self.name,
            "jobset.sigs.k8s.io/replicatedjob-name": "node",
            "batch.kubernetes.io/job-completion-index": str(rank),
        }
        state: dict[str, Any] = {"running": {"startedAt": "2026-11-21T10:00:00Z"}}
        phase = "Running"
        if code is not None:
            state = {"terminated": {"exitCode": code if code >= 0 else 128 - code}}
            phase = "Failed" if code else "Succeeded"
        container = {
            "name": "node",
            "image": "image",
            "imageID": "",
            "ready": code is None,
            "restartCount": 0,
            "state": state,
        }
        pod["status"] = {"phase": phase, "containerStatuses": [container]}
        if rank in self.preempted:
            pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
        return pod


def _check(manifest: dict[str, Any]) -> None:
    """Reads a manifest with the models of kubeflow-trainer-api, and sees whether anything was not understood."""
    try:
        read = models.TrainerV1alpha1TrainJob.from_dict(manifest)
    except ValueError as error:
        raise Invalid(str(error)) from None
    assert read is not None
    if unknown := lost(manifest, read.to_dict(), "trainjob"):
        raise Invalid(f"unknown fields: {', '.join(unknown)}")


def lost(given: Any, read: Any, path: str) -> list[str]:
    """Paths of what is in a document and not in what was read of it."""
    if isinstance(given, dict) and isinstance(read, dict):
        return [p for name, value in given.items() for p in lost(value, read.get(name), f"{path}.{name}")]
    if isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        return [p for number, each in enumerate(given) for p in lost(each, read[number], f"{path}[{number}]")]
    return [] if given == read or not given else [path]


def _pod(manifest: dict[str, Any]) -> dict[str, Any]:
    """The pod of a node: that of the runtime, with what the TrainJob says of its trainer, and its patches."""
    trainer, spec = manifest["spec"]["trainer"], manifest["spec"]
    runtime_job = RUNTIME["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod_spec = copy.deepcopy(runtime_job["template"]["spec"])
    main = pod_spec["containers"][0]
    main.update({name: trainer[name] for name in ("image", "command", "args", "env") if name in trainer})
    if "resourcesPerNode" in trainer:
        main["resources"] = trainer["resourcesPerNode"]
    for patch in spec.get("runtimePatches", []):
        for job in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]:
            assert job["name"] == "node"
            changes = copy.deepcopy(job["template"]["spec"]["template"]["spec"])
            for container in changes.pop("containers", []):
                assert container.pop("name") == "node"
                if problems := problems_of("V1Container", {"name": "node", **container}):
                    raise Invalid("; ".join(problems))
                main.update(container)
            pod_spec.update(changes)
    labels = {name: value for name, value in manifest["metadata"].get("labels", {}).items() if "kueue" in name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "node", "labels": labels}, "spec": pod_spec}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
