"""The server: TrainJobs, runtimes, pods and their logs."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from gpu_pipelines.emulator.json_server import JsonHandler, answering, server_of
from kubernetes_api.experiments import Experiment
from kubernetes_api.ray_jobs import RayJob, unknown_fields
from kubernetes_api.train_jobs import RUNTIME, Invalid, TrainJob

TRAINER, KUBERAY, KATIB = "trainer.kubeflow.org/v1alpha1", "ray.io/v1", "kubeflow.org/v1beta1"
_JOBS = re.compile(r"/apis/([^/]+/[^/]+)/namespaces/default/(trainjobs|rayjobs|experiments)(?:/([^/]+))?")
_RUNTIMES = re.compile(rf"/apis/{TRAINER}/clustertrainingruntimes/([^/]+)")
_PODS, _EVENTS = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/events"


@dataclass
class KubernetesApi:
    """The running server.

    Attributes:
        kubeconfig: a file by which clients find it.
        jobs: the TrainJobs, RayJobs and Experiments that there are.
        created: all TrainJobs that were ever created, in order.
        ray_jobs: all RayJobs that were ever created, in order.
        experiments: all Experiments of Katib that were ever created, in order.
        apis: groups and versions that the cluster has besides Kubernetes's own.
        ray_schema: what a RayJob is held against; None for that of KubeRay.
        with_ray: whether the pods of a RayJob really are a Ray cluster; else the step alone runs.
        runtimes: runtimes by name.
        environment: further variables of the nodes.
        secrets: values in the cluster's secrets, by SECRET/KEY.
        tries: how often a node of a TrainJob is started.
        pods: pods besides those of TrainJobs, by name.
        scarce: what the autoscaler says of nodes that there are none of, by their GPU and `spot` or `standard`.
        held_up: what containers of nodes wait for, with `reason` and `message`, or an `event` of their pods; an `event`
            alone is of the Job that may make no pods.
        no_suggestion: what the pods that choose values for Experiments wait for; empty where they start.
        suspends: whether TrainJobs wait in a queue.
        rules: rules of roles, as RBAC has them, that limit what may be asked; None for no limits.
        refused: what was not allowed.
        unavailable: how many looks at a job, for the jobs of a step, or for an API, are still to be answered with 503.
        undeletable: how many deletions are still to be answered so.
        rotated: how many lines of logs are there no more; streams break off where that changes.
        lost: how often looks at a pod and creations are still to be answered with 503, these though they are done.
    """

    kubeconfig: Path
    folder: Path
    jobs: dict[str, TrainJob | RayJob | Experiment] = field(default_factory=dict)
    created: list[TrainJob] = field(default_factory=list)
    ray_jobs: list[RayJob] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    apis: set[str] = field(default_factory=lambda: {TRAINER})
    ray_schema: dict[str, Any] | None = None
    with_ray: bool = False
    runtimes: dict[str, Any] = field(default_factory=lambda: {"torch-distributed": RUNTIME})
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    tries: int = 1
    pods: dict[str, Any] = field(default_factory=dict)
    scarce: dict[str, str] = field(default_factory=dict)
    held_up: dict[str, str] = field(default_factory=dict)
    no_suggestion: dict[str, str] = field(default_factory=dict)
    suspends: bool = False
    rules: list[dict[str, Any]] | None = None
    refused: list[str] = field(default_factory=list)
    unavailable: int = 0
    undeletable: int = 0
    lost: int = 0
    rotated: int = 0

    def allows(self, verb: str, group: str, resource: str) -> bool:
        """Whether a rule allows a request."""
        return self.rules is None or any(
            verb in rule["verbs"] and group in rule["apiGroups"] and resource in rule["resources"]
            for rule in self.rules
        )


@contextmanager
def serving(folder: Path) -> Iterator[KubernetesApi]:
    """A server on a port of this machine; `folder` gets the kubeconfig and the logs of nodes."""
    api = KubernetesApi(folder / "kubeconfig", folder)
    with answering(server_of(type("Handler", (_Handler,), {"api": api}))) as url:
        api.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(url)))
        try:
            yield api
        finally:
            for job in (*api.experiments, *api.created, *api.ray_jobs):
                job.stop()


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "default"}}],
    }


def _event(about: str, reason: str, message: str, second: str, kind: str = "Warning") -> dict[str, Any]:
    return {
        "metadata": {"name": f"{about}.{second}", "namespace": "default"},
        "involvedObject": {"name": about, "namespace": "default"},
        "lastTimestamp": f"2026-11-21T10:00:{second}Z",
        "type": kind,
        "reason": reason,
        "message": message,
    }


class _Handler(JsonHandler):
    api: KubernetesApi
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if match := re.fullmatch(r"/apis/([^/]+/[^/]+)/?", parts.path):
            if self.api.unavailable:
                self.api.unavailable -= 1
                self._refuse_for_now()
                return
            # Whoever is known may ask which APIs there are.
            there = {"kind": "APIResourceList", "groupVersion": match[1], "resources": []}
            self.send(200, there) if match[1] in self.api.apis else self._missing("api", match[1])
            return
        jobs = _JOBS.fullmatch(parts.path)
        if not self._allowed("list" if parts.path in (_PODS, _EVENTS) or (jobs and not jobs[3]) else "get", parts.path):
            return
        if jobs and jobs[1] not in self.api.apis:
            self._missing("api", jobs[1])
        elif jobs and self.api.unavailable:
            self.api.unavailable -= 1
            self._refuse_for_now()
        elif jobs and not jobs[3]:
            items = self._labelled(jobs[2], query["labelSelector"])
            self.send(200, {"apiVersion": "v1", "kind": "List", "items": items})
        elif jobs:
            job = self.api.jobs.get(jobs[3])
            self.send(200, job.to_json()) if job else self._missing(jobs[2], jobs[3])
        elif match := _RUNTIMES.fullmatch(parts.path):
            runtime = self.api.runtimes.get(match[1])
            self.send(200, runtime) if runtime else self._missing("clustertrainingruntimes", match[1])
        elif parts.path == _PODS:
            self.send(200, {"apiVersion": "v1", "kind": "PodList", "items": self._pods(query["labelSelector"])})
        elif match := re.fullmatch(rf"{_PODS}/(.+)-node-0-([0-9]+)/log", parts.path):
            assert query["container"] == "node"
            self._log(self.api.jobs[match[1]], int(match[2]), query)
        elif match := re.fullmatch(rf"{_PODS}/(.+)-submit/log", parts.path):
            assert query["container"] == "ray-job-submitter"
            self._log(self.api.jobs[match[1]], 0, query)
        elif parts.path == _EVENTS:
            self.send(200, {"apiVersion": "v1", "kind": "EventList", "items": self._events(query["fieldSelector"])})
        elif (match := re.fullmatch(rf"{_PODS}/([^/]+)", parts.path)) and match[1] in self.api.pods:
            self._refuse_for_now() if self._is_lost() else self.send(200, self.api.pods[match[1]])
        else:
            self._missing("resource", parts.path)

    def _pods(self, selector: str) -> list[dict[str, Any]]:
        clusters = {job.cluster_name: job for job in self.api.jobs.values() if isinstance(job, RayJob)}
        label, _, name = selector.partition("=")
        if label == "ray.io/cluster":
            return clusters[name].nodes() if name in clusters else []
        if label == "katib.kubeflow.org/suggestion":
            return self.api.jobs[name].suggestion() if name in self.api.jobs else []
        assert label in ("jobset.sigs.k8s.io/jobset-name", "batch.kubernetes.io/job-name")
        job = self.api.jobs.get(name)
        return job.pods() if job else []

    def _labelled(self, plural: str, selector: str) -> list[dict[str, Any]]:
        wanted = dict(pair.split("=") for pair in selector.split(","))
        jobs = [job.to_json() for job in list(self.api.jobs.values()) if job.plural == plural]
        return [job for job in jobs if wanted.items() <= job["metadata"].get("labels", {}).items()]

    def do_POST(self) -> None:
        manifest = json.loads(self.body())
        parts = urlsplit(self.path)
        if not self._allowed("create", parts.path):
            return
        jobs = _JOBS.fullmatch(parts.path)
        if not jobs or jobs[1] not in self.api.apis:
            self._missing("resource", self.path)
            return
        if manifest["metadata"]["name"] in self.api.jobs:
            self._refuse(409, "AlreadyExists", f'{jobs[2]} "{manifest["metadata"]["name"]}" already exists')
            return
        try:
            job = self._made(jobs[2], manifest, parts.query)
        except Invalid as error:
            self._refuse(422, "Invalid", str(error))
            return
        self._begin(job)
        self._refuse_for_now() if self._is_lost() else self.send(201, job.to_json())

    def _begin(self, job: TrainJob | RayJob | Experiment) -> None:
        """Takes a job, whose pods start or do not."""
        self.api.jobs[job.name] = job
        if isinstance(job, Experiment):
            job.held_up = self.api.no_suggestion
            if not job.held_up:
                job.start()
        elif self._scarcity(job):
            job.waits = True
        elif self.api.suspends:
            job.suspend()
        elif self.api.held_up:
            job.held_up = self.api.held_up
        else:
            job.start()

    def _scarcity(self, job: TrainJob | RayJob) -> str:
        """What the autoscaler says of the nodes of a job; empty where there are some."""
        way = "spot" if job.selector.get("cloud.google.com/gke-spot") else "standard"
        return self.api.scarce.get(f"{job.selector.get('cloud.google.com/gke-accelerator')} {way}", "")

    def _events(self, selector: str) -> list[dict[str, Any]]:
        """The events of a pod, or of what makes pods."""
        pod = selector.partition("involvedObject.name=")[2]
        of_ray = next((job for job in self.api.ray_jobs if pod.startswith(job.cluster_name)), None)
        if event := self.api.held_up.get("event"):
            if "reason" in self.api.held_up:
                reason, is_about = "FailedMount", bool(of_ray or re.search("-node-0-[0-9]+$", pod))
            elif of_ray:
                reason, is_about = "FailedToCreateHeadPod", pod == of_ray.cluster_name
            else:
                reason, is_about = "FailedCreate", pod.endswith("-node-0")
            if not is_about:
                return []
            return [_event(pod, reason, event, "10"), _event(pod, "Scheduled", "it has a node", "05", "Normal")]
        job = of_ray or self.api.jobs.get(pod.rpartition("-node-0-")[0])
        said = self._scarcity(job) if isinstance(job, (TrainJob, RayJob)) and job.waits else ""
        if not said:
            return []
        return [_event(pod, "FailedScaleUp", said, "00")]

    def _made(self, plural: str, manifest: dict[str, Any], query: str) -> TrainJob | RayJob | Experiment:
        if plural == TrainJob.plural:
            return self._train_job(manifest)
        if plural == RayJob.plural:
            return self._ray_job(manifest, query)
        self.api.experiments.append(Experiment(manifest, self._trial))
        return self.api.experiments[-1]

    def _trial(self, manifest: dict[str, Any]) -> TrainJob:
        """A TrainJob that Katib creates."""
        job = self._train_job(manifest)
        job.is_trial = True
        self._begin(job)
        return job

    def _train_job(self, manifest: dict[str, Any]) -> TrainJob:
        api, runtime = self.api, self.api.runtimes[manifest["spec"]["runtimeRef"]["name"]]
        api.created.append(TrainJob(manifest, api.folder, api.environment, runtime, api.secrets, api.tries))
        return api.created[-1]

    def _ray_job(self, manifest: dict[str, Any], query: str) -> RayJob:
        api = self.api
        if "fieldValidation=Strict" in query and (unknown := unknown_fields(manifest, api.ray_schema)):
            raise Invalid(f"strict decoding error: {', '.join(unknown)}")
        api.ray_jobs.append(RayJob(manifest, api.folder, api.environment, api.secrets, with_ray=api.with_ray))
        return api.ray_jobs[-1]

    def do_DELETE(self) -> None:
        parts = urlsplit(self.path)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self._allowed("delete", parts.path):
            return
        if self.api.undeletable:
            self.api.undeletable -= 1
            self._refuse_for_now()
            return
        job = self.api.jobs.get(parts.path.rpartition("/")[2])
        if job is None:
            self._missing("jobs", parts.path)
            return
        job.deleted = True
        job.stop()
        if "propagationPolicy=Foreground" in parts.query:
            threading.Thread(target=self._remove, args=(job,), daemon=True).start()
        else:
            self.api.jobs.pop(job.name)
        self.send(200, {"kind": "Status", "status": "Success"})

    def _remove(self, job: TrainJob | RayJob | Experiment) -> None:
        """Removes a job once its pods are gone."""
        while job.runs:
            time.sleep(0.05)
        self.api.jobs.pop(job.name, None)
        for trial in job.trials if isinstance(job, Experiment) else ():
            self.api.jobs.pop(trial.name, None)

    def _allowed(self, verb: str, path: str) -> bool:
        """Whether the rules allow a request; one that they do not is answered."""
        group, *rest = (
            path.removeprefix("/apis/").split("/") if path.startswith("/apis/") else ("", *path.split("/")[2:])
        )
        rest = rest[3:] if rest[1] == "namespaces" else rest[1:]
        resource = f"{rest[0]}/{rest[2]}" if len(rest) > 2 else rest[0]
        if self.api.allows(verb, group, resource):
            return True
        self.api.refused.append(f"{verb} {resource}")
        self._refuse(403, "Forbidden", f"{resource} is forbidden: cannot {verb}")
        return False

    def _log(self, job: TrainJob | RayJob, rank: int, query: dict[str, str]) -> None:
        assert {query["follow"], query["timestamps"]} <= {"true", "True"}
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        first = sent = self.api.rotated
        over = False
        while not over and first == self.api.rotated:
            over = job.is_over(rank)
            lines = job.log(rank).read_bytes().split(b"\n")
            for line in lines[sent : None if over and lines[-1] else -1]:
                content = f"2026-11-21T10:00:00.{sent:09d}Z ".encode() + line + b"\n"
                self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
                sent += 1
            time.sleep(0.1)
        self.wfile.write(b"0\r\n\r\n")

    def _is_lost(self) -> bool:
        self.api.lost -= 1
        return self.api.lost >= 0

    def _refuse_for_now(self) -> None:
        self._refuse(503, "ServiceUnavailable", "the control plane is being upgraded")

    def _missing(self, kind: str, name: str) -> None:
        self._refuse(404, "NotFound", f'{kind} "{name}" not found')

    def _refuse(self, status: int, reason: str, message: str) -> None:
        self.send(status, {"kind": "Status", "message": message, "reason": reason, "code": status})
