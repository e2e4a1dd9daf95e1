"""A step of two nodes, its command as KFP's launcher starts it, and what the pod of the step runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from conftest import Finished
from forked import Forked
from kubernetes_api.server import KubernetesApi, serving
from manifests import yaml_blocks

from gpu_pipelines.targets.kubeflow.placement.pods import PodNeeds, Toleration
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import TrainJobSpec
from gpu_pipelines.targets.process_1 import as_process_1

NEEDS = PodNeeds(
    cpus=6,
    memory_gib=20,
    gpus=2,
    shared_memory_gib=10,
    node_selector={"cloud.google.com/gke-accelerator": "nvidia-l4"},
    tolerations=(Toleration("nvidia.com/gpu"), Toleration("cloud.google.com/gke-spot", "true")),
)
#: The pod of the step, which belongs to a workflow of Argo.
WORKFLOW = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "pipeline-x7k2p", "uid": "7f3a"}
LAUNCHER_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "launcher", "uid": "51c0", "ownerReferences": [{**WORKFLOW, "controller": True}]},
}
#: What nodes may wait for; see `KubernetesApi.held_up`.
NO_IMAGE = {"reason": "ErrImagePull", "message": "no match for platform in manifest"}
NO_VOLUME = {"reason": "ContainerCreating", "event": "Multi-Attach error for volume pvc-1"}
NO_POD = {"event": "pods is forbidden: exceeded quota: gpus"}
#: What the pods of steps run.
LAUNCHERS = "gpu_pipelines.targets.kubeflow.in_cluster"
#: Of what the pod of the step runs, at its jobs.
SECONDS_BETWEEN_LOOKS = 0.1
#: How KFP compiles a component to a command, without what it installs.
STUB = """\
program_path=$(mktemp -d)
printf "%s" "$0" > "$program_path/ephemeral_component.py"
_KFP_RUNTIME=true python3 -m kfp.dsl.executor_main --component_module_path "$program_path/ephemeral_component.py" "$@"
"""
#: A step that says who it is, and does what its input says: succeed, fail, or be interrupted until it is continued.
STEP = """
import kfp
from kfp import dsl
from kfp.dsl import *

def step(dataset: Input[Dataset], checkpoints: Output[Artifact], report: Output[HTML], what: str = "", place: str = "",
         ray_address: str = ""):
    import os, pathlib, signal, sys, time
    from gpu_pipelines.errors import Interrupted, NodeLostError, UserError, user_errors_end_the_step
    from gpu_pipelines.component_interface.step import local_files, place_of
    # A step on a Ray cluster is one process, on the head.
    rank, nodes = os.environ.get("PET_NODE_RANK", "0"), os.environ.get("PET_NNODES", f"cluster {ray_address}")
    assert os.environ.get("HF_TOKEN") == "hf_secret"
    print(f"node {rank} of {nodes} reads {(local_files(dataset) / 'rows').read_text()}", flush=True)
    with user_errors_end_the_step():
        where = pathlib.Path(place_of(checkpoints, place))
        if what == "fail":
            if rank == "1":
                raise UserError("The data is wrong.", "Mend it.")
            time.sleep(60)
        first = where / "first"
        if what == "interrupted" and rank == "0" and not first.exists():
            first.parent.mkdir(parents=True)
            first.write_text("")
            raise Interrupted("node 0 was interrupted")
        if what == "lost" and rank == "1" and not first.exists():
            first.parent.mkdir(parents=True)
            first.write_text("")
            raise NodeLostError("node 0 has not been heard from for 30 s. Its machine is gone.")
        if what == "wait" and not first.exists():
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
            where.mkdir(parents=True, exist_ok=True)
            (where / rank).write_text("")
            while True:
                time.sleep(0.1)
        if what.startswith("late") and rank == "1":
            time.sleep(300)
        if what == "late and wrong":
            try:
                raise UserError("The data is wrong.", "Mend it.")
            except UserError as error:
                from gpu_pipelines.errors import ERROR_FILE, leave_error
                leave_error(pathlib.Path(os.environ[ERROR_FILE]), error)
                raise
    if rank != "0":
        sys.exit(0)
    checkpoints.metadata["checkpoints"] = 3
    with open(report.path, "w") as file:
        file.write("<p>fine</p>")
"""


@contextmanager
def limited_api(folder: Path) -> Iterator[KubernetesApi]:
    """A cluster that allows what the documents give the service account of a run, and no more."""
    folder.mkdir()
    with serving(folder) as api:
        found = [each for each in yaml.safe_load_all("---\n".join(yaml_blocks())) if each and "rules" in each]
        api.rules = [rule for role in found for rule in role["rules"]]
        api.pods["launcher"] = LAUNCHER_POD
        api.secrets["huggingface/token"] = "hf_secret"
        yield api
        # The SDK asks for Trainer's version, and passes over that it is not told.
        assert set(api.refused) <= {"get configmaps"}


def spec_on(claim: Path) -> TrainJobSpec:
    """What two nodes are that share a claim."""
    return TrainJobSpec(
        step="train-model",
        image="us-docker.pkg.dev/p/r/steps:1",
        nodes=2,
        needs=NEEDS,
        storage=str(claim),
        volume_claim="gpu-pipelines",
        mount_path="/mnt/gpu-pipelines",
        pull_secret="registry",
        queue="training",
        service_account="trainer",
        environment={"GPU_PIPELINES_ACCELERATOR": "l4:2"},
        secrets={"HF_TOKEN": "huggingface/token"},
        hours=5,
        restarts=2,
    )


def command_of(tmp_path: Path, place: str, what: str = "", dataset: str = "") -> list[str]:
    """The command of the step as KFP's launcher starts it in its pod, where artifacts are at local paths."""
    rows = tmp_path / "pod" / "dataset"
    rows.mkdir(parents=True)
    (rows / "rows").write_text("42 rows")
    pod = tmp_path / "pod"
    document = {
        "inputs": {
            "artifacts": {"dataset": {"artifacts": [{"name": "d", "uri": dataset or str(rows), "metadata": {}}]}},
            "parameterValues": {"what": what, "place": place},
        },
        "outputs": {
            "artifacts": {
                name: {"artifacts": [{"name": name, "uri": str(pod / "out" / name), "metadata": {}}]}
                for name in ("checkpoints", "report")
            },
            "outputFile": str(pod / "out" / "executor_output.json"),
        },
    }
    step = ["--executor_input", json.dumps(document), "--function_to_execute", "step"]
    return [*as_process_1(["sh", "-ec", STUB]), STEP, *step]


def launched(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], apart: bool = False
) -> Forked | subprocess.Popen[str]:
    """Starts what launches jobs in a cluster; `apart` as it is installed, for a second that it takes to import."""
    if not apart:
        return Forked(f"{LAUNCHERS}.{module}", arguments, environment, anew=["kubernetes.config.kube_config"])
    command = [sys.executable, "-m", f"{LAUNCHERS}.{module}", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def start(
    api: KubernetesApi, spec: TrainJobSpec, command: Sequence[str], silence: float = 60, apart: bool = False
) -> Forked | subprocess.Popen[str]:
    """Starts what the step's own pod runs; `silence` is how long its nodes do without a sign of it, seconds."""
    environment = {
        **os.environ,
        "KUBECONFIG": str(api.kubeconfig),
        "GPU_PIPELINES_RUN": "run-1",
        "KFP_POD_NAME": "launcher",
        "GPU_PIPELINES_TRAIN_JOB_SILENCE": str(silence),
        "GPU_PIPELINES_STORAGE": spec.storage,
        "GPU_PIPELINES_TRAIN_JOB_INTERVAL": str(SECONDS_BETWEEN_LOOKS),
    }
    return launched("train_job", ["--train-job", spec.dumps(), "--", *command], environment, apart)


def run(api: KubernetesApi, spec: TrainJobSpec, command: Sequence[str], apart: bool = False) -> Finished:
    process = start(api, spec, command, apart=apart)
    out, err = process.communicate(timeout=240)
    assert process.returncode is not None
    return Finished(process.returncode, out, err)


def says_once(process: Forked | subprocess.Popen[str], *said: str) -> None:
    """Requires that a step whose nodes do not start says why, once; and ends it."""
    late = threading.Timer(30, process.kill)
    late.start()
    assert process.stdout
    assert any(all(part in line for part in said) for line in process.stdout), "it says nothing"
    time.sleep(5 * SECONDS_BETWEEN_LOOKS)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    late.cancel()
    assert process.returncode == 75, out + err
    assert said[-1] not in out, "it is said once"


def output_of(tmp_path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((tmp_path / "pod" / "out" / "executor_output.json").read_text())
    return content


def until(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)
