"""RayJobs that really run: the step as KubeRay's submitter has it run on the head, and nodes that are processes here.

The schema is KubeRay's own; what its controller and Ray say is as in https://github.com/ray-project/kuberay (v1.7.0),
ray-operator/apis/ray/v1 and ray-operator/controllers/ray/utils/validation.go.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import yaml
from processes import kill_tree
from ray_cluster import ENVIRONMENT, RayCluster

from kubernetes_api.train_jobs import Invalid
from kubernetes_api.types import problems_of, problems_of_pod

#: Of a RayJob's spec.
SCHEMA: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("ray_job_schema.yaml").read_text(encoding="utf-8"))
_LONGEST_NAME = 47
_FIRST_WITH_TOKENS = (2, 52)


def unknown_fields(manifest: dict[str, Any], schema: dict[str, Any] | None = None) -> list[str]:
    """What `fieldValidation=Strict` refuses."""
    return _unknown(schema or SCHEMA, manifest["spec"], "spec")


def _unknown(schema: dict[str, Any], document: Any, path: str) -> list[str]:
    if isinstance(document, list):
        return [p for n, each in enumerate(document) for p in _unknown(schema["items"], each, f"{path}[{n}]")]
    if not isinstance(document, dict) or "properties" not in schema:
        return []
    found = [f'unknown field "{path}.{name}"' for name in document if name not in schema["properties"]]
    known = {name: each for name, each in document.items() if name in schema["properties"]}
    return found + [p for name in known for p in _unknown(schema["properties"][name], known[name], f"{path}.{name}")]


def problems_of_ray_job(manifest: dict[str, Any]) -> list[str]:
    """What the API server says of a RayJob, and what KubeRay says of it later."""
    import jsonschema  # a second, which not all tests need

    found = unknown_fields(manifest)
    found += [
        f"{error.json_path}: {error.message}"
        for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(manifest["spec"])
    ]
    if set(manifest) - {"apiVersion", "kind", "metadata", "spec"}:
        found.append("unknown fields")
    found += problems_of("V1ObjectMeta", manifest["metadata"], "metadata")
    for template in _templates(manifest):
        found += problems_of("V1PodTemplateSpec", template, "template")
        found += problems_of_pod({"apiVersion": "v1", "kind": "Pod", **template})
    return found or _problems_of_controller(manifest)


def _templates(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = manifest["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])]
    submitter = manifest["spec"].get("submitterPodTemplate")
    return [*(group["template"] for group in groups), *([submitter] if submitter else [])]


def _problems_of_controller(manifest: dict[str, Any]) -> list[str]:
    """`ValidateRayJobMetadata`, `ValidateRayJobSpec` and `ValidateRayClusterSpec`, of what is used here."""
    name, spec = manifest["metadata"]["name"], manifest["spec"]
    cluster = spec["rayClusterSpec"]
    found = []
    if len(name) > _LONGEST_NAME or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        found.append(f"{name} is no name of a RayJob")
    if spec.get("ttlSecondsAfterFinished", 0) > 0 and not spec.get("shutdownAfterJobFinishes"):
        found.append("ttlSecondsAfterFinished requires shutdownAfterJobFinishes")
    if spec.get("activeDeadlineSeconds", 1) <= 0:
        found.append("activeDeadlineSeconds must be a positive integer")
    if cluster.get("authOptions", {}).get("mode", "disabled") == "token":
        version = tuple(int(part) for part in re.findall(r"\d+", cluster.get("rayVersion", ""))[:2])
        if version < _FIRST_WITH_TOKENS:
            found.append("authOptions.mode is 'token' but minimum Ray version is 2.52.0")
    for group in cluster.get("workerGroupSpecs", []):
        if not 0 <= group.get("minReplicas", -1) <= group.get("maxReplicas", -1):
            found.append(f"worker group {group['groupName']} must set both minReplicas and maxReplicas")
    return found


class RayJob:
    """A RayJob, its cluster and the step on the head.

    Args:
        manifest: as it was created.
        folder: gets the logs.
        environment: further variables of the nodes.
        secrets: values in the cluster's secrets, by SECRET/KEY.
        with_ray: whether there is a Ray cluster; else the step alone runs.

    Raises:
        Invalid: the manifest is not of the types of the API.
    """

    plural = "rayjobs"

    def __init__(
        self,
        manifest: dict[str, Any],
        folder: Path,
        environment: dict[str, str],
        secrets: dict[str, str],
        *,
        with_ray: bool,
    ) -> None:
        if problems := problems_of_ray_job(manifest):
            raise Invalid("; ".join(problems))
        created = {"namespace": "default", "creationTimestamp": "2026-11-21T10:00:00Z"}
        self.manifest = {**manifest, "metadata": {**manifest["metadata"], **created}}
        self.name = manifest["metadata"]["name"]
        self._folder, self._environment, self._secrets = folder, environment, secrets
        self._with_ray = with_ray
        self._short = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self.cluster: RayCluster | None = None
        self._step: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._status: dict[str, Any] = {"jobDeploymentStatus": "Initializing"}
        self._ended = threading.Event()
        self.deleted = self._head_was_full = False
        #: Whether there are no nodes for it, and what its containers wait for, as of a TrainJob.
        self.waits = False
        self.held_up: dict[str, str] = {}
        self.log(0).touch()

    @property
    def spec(self) -> dict[str, Any]:
        """What it is to be."""
        spec: dict[str, Any] = self.manifest["spec"]
        return spec

    @property
    def head(self) -> dict[str, Any]:
        """The pod of the head."""
        pod: dict[str, Any] = self.spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
        return pod

    @property
    def selector(self) -> dict[str, str]:
        """The labels that its nodes must have."""
        selector: dict[str, str] = self.head.get("nodeSelector", {})
        return selector

    def suspend(self) -> None:
        """Holds it back, as Kueue does."""
        self._status = {"jobDeploymentStatus": "Suspended"}

    def start(self) -> None:
        """Starts the nodes, and the step on them."""
        self._thread.start()

    def _run(self) -> None:
        try:
            address = self._start_nodes() if self._with_ray else "127.0.0.1:1"
            if not self._ended.is_set():
                self._run_step(address)
        finally:
            if self.cluster:
                self.cluster.close()
            shutil.rmtree(self._short, ignore_errors=True)
            self._ended.set()

    def _start_nodes(self) -> str:
        """KubeRay's `ray start` of head and workers; the address of the cluster."""
        groups = self.spec["rayClusterSpec"]["workerGroupSpecs"]
        self.cluster = RayCluster(self._short, 1, self._variables(self.head))
        for _ in range(sum(group["replicas"] for group in groups)):
            self.cluster.begin()
        return self.cluster.address

    def _run_step(self, address: str) -> None:
        """What Ray's `JobSupervisor` does on the head."""
        variables = {**self._variables(self.head), "RAY_ADDRESS": address, **ENVIRONMENT}
        with self.log(0).open("ab") as log:
            self._step = subprocess.Popen(
                ["/bin/bash", "-c", self.spec["entrypoint"]],
                env=variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._status = {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}
        code = self._step.wait()
        if self._status["jobDeploymentStatus"] == "Failed":
            return
        if not code:
            self._status = {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}
            return
        said = (
            f"Job entrypoint command failed with exit code {code}, last available logs (truncated to 20,000 chars):\n"
        )
        self._fail("AppFailed", said + self.log(0).read_text()[-20_000:])

    def _variables(self, pod: dict[str, Any]) -> dict[str, str]:
        given = {variable["name"]: self._value(variable) for variable in pod["containers"][0]["env"]}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPU_PIPELINES_")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**kept, "PATH": path, **given, **self._environment}

    def _value(self, variable: dict[str, Any]) -> str:
        if "value" in variable:
            return str(variable["value"])
        reference = variable["valueFrom"]["secretKeyRef"]
        return self._secrets[f"{reference['name']}/{reference['key']}"]

    def _fail(self, reason: str, message: str) -> None:
        self._status = {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": reason, "message": message}

    def lose_head(self, *, full: bool = False) -> None:
        """Takes the node of the head away, or kills its container, whose memory was full and which starts again."""
        self._head_was_full = full
        self._fail("AppFailed", "Job supervisor actor died: the node it was on has died.")
        assert self._step
        kill_tree(self._step.pid)

    def exceed_deadline(self) -> None:
        """Ends it, as KubeRay does after `activeDeadlineSeconds`."""
        self._fail("DeadlineExceeded", "The RayJob has passed the activeDeadlineSeconds.")
        self.stop()

    def stop(self) -> None:
        """Ends its pods."""
        if self._step and self._step.poll() is None:
            os.killpg(self._step.pid, signal.SIGTERM)
        elif not self._ended.is_set():
            self._ended.set()
        if not self.runs:
            shutil.rmtree(self._short, ignore_errors=True)

    @property
    def runs(self) -> bool:
        """Whether a pod of it is there."""
        return self._thread.is_alive()

    def log(self, rank: int) -> Path:
        """What the step has printed."""
        return self._folder / f"{self.name}.log"

    def is_over(self, rank: int) -> bool:
        """Whether the step has ended."""
        return self._ended.is_set() or bool(self._step and self._step.poll() is not None)

    @property
    def cluster_name(self) -> str:
        """Name of the RayCluster that KubeRay makes for it."""
        return f"{self.name}-k4x2p"

    def to_json(self) -> dict[str, Any]:
        """The RayJob with its status."""
        document = {**copy.deepcopy(self.manifest), "status": dict(self._status)}
        if self._status["jobDeploymentStatus"] != "Suspended":
            document["status"]["rayClusterName"] = self.cluster_name
        if self.deleted:
            document["metadata"]["deletionTimestamp"] = "2026-11-21T10:30:00Z"
        return document

    def pods(self) -> list[dict[str, Any]]:
        """The pod that submits the step and prints its log, once there is one."""
        if self._step is None:
            return []
        pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(self.spec["submitterPodTemplate"])}
        pod["metadata"] |= {"name": f"{self.name}-submit", "creationTimestamp": "2026-11-21T10:01:00Z"}
        return [{**pod, "status": {"phase": "Running" if not self.is_over(0) else "Succeeded"}}]

    def nodes(self) -> list[dict[str, Any]]:
        """The pods of its cluster."""
        if self.held_up and "reason" not in self.held_up:
            return []
        workers = sum(group["replicas"] for group in self.spec["rayClusterSpec"]["workerGroupSpecs"])
        names = ["head", *(f"workers-worker-{number}" for number in range(workers))]
        return [self._node(f"{self.cluster_name}-{name}") for name in names]

    def _node(self, name: str) -> dict[str, Any]:
        template = copy.deepcopy(self.spec["rayClusterSpec"]["headGroupSpec"]["template"])
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        pod["metadata"] |= {"name": name, "creationTimestamp": "2026-11-21T10:00:30Z"}
        is_head = name.endswith("-head")
        pod["metadata"]["labels"]["ray.io/node-type"] = "head" if is_head else "worker"
        if self.waits:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            return {**pod, "status": {"phase": "Pending", "conditions": [condition]}}
        state = {"waiting": self.held_up} if self.held_up else {"running": {"startedAt": "2026-11-21T10:00:40Z"}}
        container = {"name": "ray", "image": "image", "imageID": "", "restartCount": 0, "state": state}
        if is_head and self._head_was_full:
            container["lastState"] = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
        phase = "Pending" if self.held_up else "Running"
        return {**pod, "status": {"phase": phase, "containerStatuses": [{**container, "ready": not self.held_up}]}}
