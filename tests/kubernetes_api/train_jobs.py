"""TrainJobs that really run: each node is a process here, with the variables that Trainer's torch runtime sets.

The runtime is `torch-distributed` as Kubeflow Trainer 2.3 installs it
(https://github.com/kubeflow/trainer, charts/kubeflow-trainer/files/runtimes/torch-distributed.yaml).
"""

from __future__ import annotations

import copy
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kubeflow_trainer_api import models
from processes import kill_tree

from gpu_pipelines.emulator.json_server import free_port
from kubernetes_api.strict import problems_of_model
from kubernetes_api.types import problems_of_pod

RUNTIME: dict[str, Any] = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "ClusterTrainingRuntime",
    "metadata": {"name": "torch-distributed", "labels": {"trainer.kubeflow.org/framework": "torch"}},
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "node",
                        "template": {
                            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                            "spec": {
                                "template": {
                                    "spec": {"containers": [{"name": "node", "image": "pytorch/pytorch:2.13.0"}]}
                                }
                            },
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
        runtime: the training runtime that it starts from.
        secrets: values in the cluster's secrets, by SECRET/KEY.
        tries: how often a node is started before its failure is that of the job (`backoffLimit` of it and one).

    Raises:
        Invalid: the manifest is not of the types of the API.
    """

    plural = "trainjobs"

    def __init__(
        self,
        manifest: dict[str, Any],
        folder: Path,
        environment: dict[str, str],
        runtime: dict[str, Any],
        secrets: dict[str, str],
        tries: int = 1,
    ) -> None:
        if problems := problems_of_model(models.TrainerV1alpha1TrainJob, manifest, "trainjob"):
            raise Invalid("; ".join(problems))
        if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", manifest["metadata"]["name"]):
            raise Invalid("metadata.name must match RFC 1035 DNS label format")
        self.manifest = {
            **manifest,
            "metadata": {**manifest["metadata"], "namespace": "default", "creationTimestamp": "2026-11-21T10:00:00Z"},
        }
        self.name = manifest["metadata"]["name"]
        self.pod = _pod(manifest, runtime)
        if problems := problems_of_pod(self.pod):
            raise Invalid("; ".join(problems))
        self._folder, self._environment, self._secrets = folder, environment, secrets
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._variables: list[dict[str, str]] = []
        self._tries_left = tries - 1
        self._gone: set[int] = set()
        self.preempted: set[int] = set()
        self.full: set[int] = set()
        #: Whether there are no nodes for it.
        self.waits = False
        #: What the containers wait for, though there are nodes, as Kubernetes has it; no pods without a reason.
        self.held_up: dict[str, str] = {}
        self.was_suspended = False
        #: Whether Katib reads the log of rank 0.
        self.is_trial = False
        self.deleted = False
        self.over_deadline = False

    @property
    def selector(self) -> dict[str, str]:
        """The labels that its nodes must have."""
        selector: dict[str, str] = self.pod["spec"].get("nodeSelector", {})
        return selector

    @property
    def is_pending(self) -> bool:
        """Whether its pods do not start."""
        return self.waits or bool(self.held_up)

    def start(self) -> None:
        """Starts the nodes, and watches them."""
        port = free_port()
        nodes = self.manifest["spec"]["trainer"]["numNodes"]
        main = self.pod["spec"]["containers"][0]
        variables = {variable["name"]: self._value(variable) for variable in main.get("env", [])}
        for rank in range(nodes):
            torchrun = {"NNODES": nodes, "NODE_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith("GPU_PIPELINES_")},
                **{f"PET_{name}": str(value) for name, value in torchrun.items()},
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                **variables,
                **self._environment,
            }
            self._variables.append(environment)
            self._nodes.append(self._begin(rank))
        threading.Thread(target=self._watch, daemon=True).start()

    def _begin(self, rank: int) -> subprocess.Popen[bytes]:
        command = self.pod["spec"]["containers"][0]["command"]
        if self.is_trial and rank == 0:
            command = behind_a_shell(command, self.log(0))
        with self.log(rank).open("ab") as log:
            return subprocess.Popen(
                command, env=self._variables[rank], stdout=log, stderr=log, start_new_session=self.is_trial
            )

    def _value(self, variable: dict[str, Any]) -> str:
        if "value" in variable:
            return str(variable["value"])
        reference = variable["valueFrom"]["secretKeyRef"]
        return self._secrets[f"{reference['name']}/{reference['key']}"]

    def _watch(self) -> None:
        """Stops all nodes when one fails, as the job controller does, which also deletes the pods that still ran.

        While there are tries left, the one alone is started again.
        """
        while any(process.poll() is None for process in self._nodes):
            failed = [rank for rank, process in enumerate(self._nodes) if process.returncode]
            if failed and self._tries_left and not (self.deleted or self.over_deadline):
                self._tries_left -= 1
                self._nodes[failed[0]] = self._begin(failed[0])
            elif failed:
                self._gone = {rank for rank, process in enumerate(self._nodes) if process.poll() is None}
                self.stop()
                return
            time.sleep(0.1)
        if self.is_trial:
            # What is left in a container goes with its main process.
            for process in self._nodes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Tells the nodes that run to stop."""
        for process in self._nodes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)

    def suspend(self) -> None:
        """Holds it back, as Kueue does."""
        self.held_up, self.was_suspended = {"queue": "full"}, True

    def resume(self) -> None:
        """Lets it go."""
        self.start()
        self.held_up = {}  # without nodes it would be over

    def exceed_deadline(self) -> None:
        """Ends all nodes, as Trainer does after `activeDeadlineSeconds`."""
        self.over_deadline = True
        self._gone = set(range(len(self._nodes)))
        self.stop()

    @property
    def runs(self) -> bool:
        """Whether a node still runs."""
        return any(process.poll() is None for process in self._nodes)

    @property
    def has_succeeded(self) -> bool:
        """Whether all nodes have ended, and well."""
        return bool(self._nodes) and all(process.poll() == 0 for process in self._nodes)

    def preempt(self, rank: int) -> None:
        """Takes a node away."""
        self.preempted.add(rank)
        self._nodes[rank].send_signal(signal.SIGTERM)

    def kill(self, rank: int) -> None:
        """Takes a node away without notice, with all that it has started."""
        kill_tree(self._nodes[rank].pid)

    def use_up_memory(self, rank: int) -> None:
        """Kills a node, as the kernel does."""
        self.full.add(rank)
        self.kill(rank)

    def log(self, rank: int) -> Path:
        """What a node has printed."""
        return self._folder / f"{self.name}-{rank}.log"

    def is_over(self, rank: int) -> bool:
        """Whether a node has ended."""
        return self._nodes[rank].poll() is not None

    def to_json(self) -> dict[str, Any]:
        """The TrainJob with its status."""
        codes = [None] if self.is_pending else [process.poll() for process in self._nodes]
        if self.deleted:
            metadata = {**self.manifest["metadata"], "deletionTimestamp": "2026-11-21T10:30:00Z"}
            return {**self.manifest, "metadata": metadata}
        suspended = {"type": "Suspended", "status": "False" if self._nodes else "True", "reason": "Suspended"}
        conditions = [suspended] if self.was_suspended else []
        if any(code is None for code in codes):
            return {**self.manifest, "status": {"conditions": conditions}}
        kind = "Complete" if not any(codes) else "Failed"
        condition = {
            "type": kind,
            "status": "True",
            "reason": "DeadlineExceeded" if self.over_deadline else "Jobs",
            "message": "",
            "lastTransitionTime": "2026-11-21T10:00:00Z",
        }
        return {**self.manifest, "status": {"conditions": [*conditions, condition]}}

    def pods(self) -> list[dict[str, Any]]:
        """The pods of the nodes with their states."""
        if self.waits:
            return [self._pod_that_waits(rank) for rank in range(self.manifest["spec"]["trainer"]["numNodes"])]
        if self.held_up:
            nodes = range(self.manifest["spec"]["trainer"]["numNodes"]) if "reason" in self.held_up else ()
            return [self._pod_held_up(rank) for rank in nodes]
        there = [(rank, process) for rank, process in enumerate(self._nodes) if rank not in self._gone]
        return [self._pod_of(rank, process.poll()) for rank, process in there]

    def _pod_that_waits(self, rank: int) -> dict[str, Any]:
        pod = self._pod_of(rank, None)
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        pod["status"] = {"phase": "Pending", "conditions": [condition]}
        return pod

    def _pod_held_up(self, rank: int) -> dict[str, Any]:
        pod = self._pod_of(rank, None)
        pod["status"]["phase"] = "Pending"
        pod["status"]["containerStatuses"][0].update(ready=False, state={"waiting": self.held_up})
        return pod

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
            reason = "OOMKilled" if rank in self.full else "Error" if code else "Completed"
            state = {"terminated": {"exitCode": code if code >= 0 else 128 - code, "reason": reason}}
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
            said = "Pod was terminated in response to imminent node shutdown."
            pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "message": said}]
        return pod


def behind_a_shell(command: Sequence[str], log: Path) -> list[str]:
    """What Katib's webhook makes of the command of rank 0 (`wrapWorkerContainer` of pkg/webhook/v1beta1/pod)."""
    shell, words = (command[:2], command[2:]) if command[:2] == ["sh", "-c"] else (["sh", "-c"], command)
    return [*shell, " ".join([*words, f"1>{log} 2>&1", "&&", f"echo completed > {log}.pid"])]


def _pod(manifest: dict[str, Any], runtime: dict[str, Any]) -> dict[str, Any]:
    """The pod of a node: that of the runtime, with what the TrainJob says of its trainer, and its patches.

    As Trainer does it, in the plugin `jobset` and by `StrategicMergePatch`: lists are merged by name.
    """
    trainer, spec = manifest["spec"]["trainer"], manifest["spec"]
    template = copy.deepcopy(runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"])
    pod_spec = template["spec"]
    (main,) = [container for container in pod_spec["containers"] if container["name"] == "node"]
    main.update({name: trainer[name] for name in ("image", "command", "args") if name in trainer})
    main["env"] = _merged(main.get("env", []), trainer.get("env", []), "name")
    if "resourcesPerNode" in trainer:
        main["resources"] = trainer["resourcesPerNode"]
    labels = {name: value for name, value in manifest["metadata"].get("labels", {}).items() if "kueue" in name}
    for patch in spec.get("runtimePatches", []):
        if not re.fullmatch(r"[a-z0-9.-]+/[A-Za-z0-9._/-]+", patch["manager"]):
            raise Invalid(f"manager {patch['manager']!r} is no path with a domain")
        for job in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]:
            assert job["name"] == "node"
            changed = copy.deepcopy(job["template"]["spec"]["template"])
            labels |= changed.get("metadata", {}).get("labels", {})
            for container in changed["spec"].pop("containers", []):
                if container.get("env"):
                    raise Invalid("must not have envs for the node container")
                assert container.pop("name") == "node"
                mounts = container.pop("volumeMounts", [])
                main["volumeMounts"] = _merged(main.get("volumeMounts", []), mounts, "mountPath")
                main.update(container)
            pod_spec["volumes"] = _merged(pod_spec.get("volumes", []), changed["spec"].pop("volumes", []), "name")
            pod_spec.update(changed["spec"])
    metadata = {"name": "node", **template.get("metadata", {})}
    metadata["labels"] = {**metadata.get("labels", {}), **labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}


def _merged(first: list[dict[str, Any]], second: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return list({each[key]: each for each in [*first, *second]}.values())
