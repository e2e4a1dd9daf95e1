"""Data nodes as a RayJob, on a cluster that has KubeRay alone: a server that stands in for it runs what it is given."""

from __future__ import annotations

import copy
import json
import signal
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from conftest import write_photos
from kubernetes_api.ray_jobs import SCHEMA, RayJob, problems_of_ray_job
from kubernetes_api.server import KUBERAY, TRAINER, KubernetesApi
from step_on_nodes import (
    NO_IMAGE,
    NO_POD,
    NO_VOLUME,
    WORKFLOW,
    command_of,
    output_of,
    run,
    says_once,
    spec_on,
    start,
    until,
)

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.kubeflow.in_cluster.ray_job_manifest import COMMAND, manifest_of
from gpu_pipelines.targets.kubeflow.in_cluster.train_job import jobs_for
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import JobRequest, TrainJobSpec

#: Where the client of Kubernetes, once imported, looks for the cluster.
KUBECONFIG = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"


@pytest.fixture
def kuberay(kubernetes_api: KubernetesApi) -> KubernetesApi:
    kubernetes_api.apis = {KUBERAY}
    return kubernetes_api


@pytest.fixture
def spec(claim: Path) -> TrainJobSpec:
    return replace(spec_on(claim), is_elastic=True)


def require_manifest(job: RayJob, spec: TrainJobSpec) -> None:
    """Checks that a RayJob is what its specification says."""
    assert job.manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "training"
    assert job.manifest["metadata"]["labels"]["pipeline/runid"] == "run-1"
    assert job.manifest["metadata"]["ownerReferences"] == [WORKFLOW], "it is deleted with the run"
    assert (job.spec["activeDeadlineSeconds"], job.spec["backoffLimit"]) == (5 * 3600, 0)
    assert job.spec["shutdownAfterJobFinishes"], "its nodes cost nothing when it is over"
    cluster = job.spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}, "who has no token can run nothing on it"
    assert cluster["rayVersion"] == version("ray")
    (workers,) = cluster["workerGroupSpecs"]
    assert (workers["replicas"], workers["minReplicas"], workers["maxReplicas"]) == (1, 1, 1), "the head is the other"
    for pod in (job.head, workers["template"]["spec"]):
        (node,) = pod["containers"]
        assert node["image"] == spec.image
        assert node["resources"]["limits"] == {"cpu": "6", "memory": "20Gi", "nvidia.com/gpu": "2"}
        variables = {each["name"]: each.get("value") or each["valueFrom"] for each in node["env"]}
        assert variables["GPU_PIPELINES_RUN"] == "run-1"
        assert variables["HF_TOKEN"] == {"secretKeyRef": {"name": "huggingface", "key": "token"}}
        assert (COMMAND in variables) == (pod is job.head)
        assert pod["nodeSelector"] == dict(spec.needs.node_selector)
        assert {mount["mountPath"] for mount in node["volumeMounts"]} == {"/dev/shm", "/mnt/gpu-pipelines"}
        assert pod["securityContext"]["fsGroup"] == 10001, "the user of the image writes to the claim"
    for pod in (job.head, workers["template"]["spec"], job.spec["submitterPodTemplate"]["spec"]):
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["serviceAccountName"] == "trainer"


def test_data_nodes_are_a_ray_job_whose_head_runs_the_step(
    kuberay: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    finished = run(kuberay, spec, command_of(tmp_path, f"{claim}/c"))
    assert finished.status == 0, finished.out + finished.err
    (job,) = kuberay.ray_jobs
    assert f"RayJob {job.name}: 2 nodes" in finished.out
    assert "node 0 of cluster auto reads 42 rows" in finished.out, "the step finds the cluster, and its lines come back"
    assert f"RayJob {job.name}: complete" in finished.out
    assert (tmp_path / "pod" / "out" / "report").read_text() == "<p>fine</p>"
    (checkpoints,) = output_of(tmp_path)["artifacts"]["checkpoints"]["artifacts"]
    assert checkpoints["metadata"]["checkpoints"] == 3
    assert kuberay.jobs == {}, "it is cleaned up"
    assert list((claim / "train-jobs" / "run-1").iterdir()) == []
    assert not kuberay.created
    require_manifest(job, spec)


def test_an_error_of_the_step_is_its_last_word_and_is_not_tried_again(
    kuberay: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    finished = run(kuberay, spec, command_of(tmp_path, f"{claim}/c", "late and wrong"))
    assert finished.status == 1, finished.out + finished.err
    assert finished.err.endswith("error: The data is wrong.\n  Mend it.\n")
    assert len(kuberay.ray_jobs) == 1
    assert not kuberay.jobs


@pytest.mark.slow
def test_a_head_that_is_lost_costs_a_start(
    kuberay: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    process = start(kuberay, spec, command_of(tmp_path, f"{claim}/c", "wait"))
    until(lambda: (claim / "c" / "0").exists())
    (claim / "c" / "first").touch()
    kuberay.ray_jobs[0].lose_head()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert "the head of the RayJob" in out
    assert "Job supervisor actor died" in out
    assert "starting again, 1 of at most 2 times" in out
    assert len(kuberay.ray_jobs) == 2


def test_a_head_whose_memory_was_full_says_so_and_is_not_tried_again(
    kuberay: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    process = start(kuberay, spec, command_of(tmp_path, f"{claim}/c", "wait"))
    until(lambda: (claim / "c" / "0").exists())
    (job,) = kuberay.ray_jobs
    job.lose_head(full=True)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, out + err
    assert f"error: The memory of {job.cluster_name}-head was full, and it was killed (OOMKilled)" in err
    assert len(kuberay.ray_jobs) == 1
    assert job.spec["ttlSecondsAfterFinished"] > 0, "KubeRay would take the pods away before the step looks at them"


@pytest.mark.parametrize("held_up", [NO_IMAGE, NO_VOLUME, NO_POD])
def test_a_step_whose_nodes_do_not_start_says_why(
    kuberay: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path, held_up: dict[str, str]
) -> None:
    kuberay.held_up = held_up
    says_once(start(kuberay, spec, command_of(tmp_path, f"{claim}/c")), held_up.get("event", "no match for"))


def test_a_step_that_finds_no_nodes_or_waits_in_a_queue_says_so(
    kuberay: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    kuberay.scarce = {"nvidia-l4 standard": "GCE quota exceeded"}
    command = command_of(tmp_path, f"{claim}/c")
    says_once(start(kuberay, spec, command), "no node yet for train-model-", "workers-worker-0", "GCE quota exceeded")
    kuberay.scarce, kuberay.suspends = {}, True
    says_once(start(kuberay, spec, command), "is suspended: it waits in its queue")


def test_an_image_that_is_not_there_ends_the_step(
    kuberay: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PIPELINES_UNSCHEDULABLE_SECONDS", "0.1")
    kuberay.held_up = NO_IMAGE
    finished = run(kuberay, spec, command_of(tmp_path, f"{claim}/c"))
    assert finished.status == 1, finished.out + finished.err
    assert "error: The RayJob train-model-" in finished.err
    assert "does not start: " in finished.err
    assert not kuberay.jobs


def test_a_step_that_is_told_to_stop_deletes_its_ray_job(
    kuberay: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    process = start(kuberay, spec, command_of(tmp_path, f"{claim}/c", "wait"))
    until(lambda: (claim / "c" / "0").exists())
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, out + err
    assert "interrupted: the step was interrupted, and its RayJob is deleted" in err
    until(lambda: not kuberay.jobs)
    assert not kuberay.ray_jobs[0].runs


@pytest.mark.slow
def test_a_step_that_was_interrupted_goes_on(
    kuberay: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    finished = run(kuberay, spec, command_of(tmp_path, f"{claim}/c", "interrupted"))
    assert finished.status == 0, finished.out + finished.err
    assert "what is done is kept; starting again, 1 of at most 2 times" in finished.out
    assert len(kuberay.ray_jobs) == 2


@pytest.mark.slow
def test_a_deadline_ends_the_step(kuberay: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path) -> None:
    process = start(kuberay, spec, command_of(tmp_path, f"{claim}/c", "wait"))
    until(lambda: (claim / "c" / "0").exists())
    kuberay.ray_jobs[0].exceed_deadline()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, "ran for longer than its limit (--hours)" in err) == (1, True), err
    assert len(kuberay.ray_jobs) == 1


def test_a_kuberay_without_tokens_is_refused_and_does_not_leave_the_cluster_open(
    kuberay: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    # As before 1.5, where the field would be dropped.
    kuberay.ray_schema = copy.deepcopy(SCHEMA)
    del kuberay.ray_schema["properties"]["rayClusterSpec"]["properties"]["authOptions"]
    finished = run(kuberay, spec, command_of(tmp_path, f"{claim}/c"))
    assert finished.status == 1
    assert 'unknown field \\"spec.rayClusterSpec.authOptions\\"' in finished.err
    assert "Check that KubeRay is 1.5 or newer" in finished.err
    assert "Traceback" not in finished.err
    assert not kuberay.ray_jobs


@pytest.mark.parametrize(
    ("apis", "is_elastic", "kind"),
    [
        ({TRAINER}, True, "TrainJob"),
        ({TRAINER, KUBERAY}, True, "TrainJob"),
        ({KUBERAY}, True, "RayJob"),
        # Only data nodes can be one.
        ({KUBERAY}, False, "TrainJob"),
    ],
)
def test_whichever_the_cluster_has_is_taken(
    kuberay: KubernetesApi,
    spec: TrainJobSpec,
    monkeypatch: pytest.MonkeyPatch,
    apis: set[str],
    is_elastic: bool,
    kind: str,
) -> None:
    monkeypatch.setattr(KUBECONFIG, str(kuberay.kubeconfig))
    kuberay.apis = apis
    assert jobs_for(replace(spec, is_elastic=is_elastic)).kind == kind


def test_a_cluster_with_neither_is_told(
    kuberay: KubernetesApi, spec: TrainJobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KUBECONFIG, str(kuberay.kubeconfig))
    kuberay.apis = set()
    with pytest.raises(UserError, match="neither Kubeflow Trainer nor KubeRay"):
        jobs_for(spec)


def test_the_server_refuses_what_kuberay_does(spec: TrainJobSpec) -> None:
    fine = manifest_of(JobRequest("prepare-1", spec, ["true"], {}), ray_version="2.60.0")
    assert problems_of_ray_job(fine) == []
    for place, name, value, said in (
        (("spec",), "entryPoint", "true", "unknown field"),
        (("spec",), "activeDeadlineSeconds", "5", "is not of type 'integer'"),
        (("spec", "rayClusterSpec"), "rayVersion", "2.40.0", "minimum Ray version is 2.52.0"),
        (("spec", "rayClusterSpec", "authOptions"), "mode", "on", "is not one of ['disabled', 'token']"),
        (("spec", "rayClusterSpec", "headGroupSpec", "template", "spec"), "node", "x", "is no field of V1PodSpec"),
        (("metadata",), "name", "x" * 48, "is no name of a RayJob"),
    ):
        wrong = inside = json.loads(json.dumps(fine))
        for part in place:
            inside = inside[part]
        inside[name] = value
        assert any(said in problem for problem in problems_of_ray_job(wrong)), (name, problems_of_ray_job(wrong))


@pytest.mark.slow
def test_a_compiled_preparation_on_two_nodes_of_kuberay_leaves_the_dataset_of_one_machine(
    kuberay: KubernetesApi, claim: Path, tmp_path: Path
) -> None:
    """The command in the compiled file; the pods are a Ray cluster of this machine, and share the claim."""
    from driver import CompiledFile

    from gpu_pipelines.accelerators import plan
    from gpu_pipelines.artifacts.documents import sha256_of_tree
    from gpu_pipelines.data.prepare import prepare_data
    from gpu_pipelines.data.settings import PrepareSettings
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.kubeflow.placement.data_nodes import DataNodes
    from gpu_pipelines.targets.kubeflow.target import KubeflowTarget

    kuberay.with_ray = True
    photos = write_photos(tmp_path / "photos")
    prepare_data(PrepareSettings(source=str(photos), image_size=16), tmp_path / "alone")
    target = KubeflowTarget(ProjectSettings(), data=DataNodes(2, "spot"))
    _, job, _, *command = CompiledFile(target.text_of("train_evaluate_upload", plan("l4:1"))).container("prepare-data")[
        "args"
    ]
    out = tmp_path / "out"
    artifacts = {
        name: {"artifacts": [{"name": name, "uri": str(out / name), "metadata": {}}]}
        for name in ("dataset", "report", "statistics")
    }
    document = {
        "inputs": {"parameterValues": {"source": str(photos), "image_size": 16}},
        "outputs": {"artifacts": artifacts, "outputFile": str(out / "executor_output.json")},
    }
    filled_in = [part.replace("{{$}}", json.dumps(document)) for part in command]
    finished = run(kuberay, replace(TrainJobSpec.loads(job), storage=str(claim)), filled_in)
    assert finished.status == 0, finished.out[-3000:] + finished.err[-3000:]
    (created,) = kuberay.ray_jobs
    assert created.head["nodeSelector"] == {"cloud.google.com/gke-spot": "true"}
    assert sha256_of_tree(out / "dataset") == sha256_of_tree(tmp_path / "alone")
    assert not list((claim / "train-jobs").rglob("*.json")), "what passed between the pods is cleared away"
