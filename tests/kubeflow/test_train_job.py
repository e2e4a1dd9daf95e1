"""A step that is a TrainJob: through the real SDK, whose nodes run on a server that stands in for GKE."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import storage_emulator, write_photos
from kubernetes_api.server import KubernetesApi
from kubernetes_api.train_jobs import TrainJob
from kubernetes_api.types import is_label
from step_on_nodes import (
    NEEDS,
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

from gpu_pipelines.targets.kubeflow.in_cluster.exchange import with_executor_input
from gpu_pipelines.targets.kubeflow.in_cluster.train_job import Attempts
from gpu_pipelines.targets.kubeflow.in_cluster.train_job_manifest import manifest_of
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import DEFAULT_HOURS, JobRequest, TrainJobSpec


@pytest.fixture
def spec(claim: Path) -> TrainJobSpec:
    return spec_on(claim)


def require_manifest(job: TrainJob, spec: TrainJobSpec) -> None:
    """Checks that a TrainJob is what its specification says."""
    manifest, pod = job.manifest, job.pod["spec"]
    runtime = {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": "torch-distributed"}
    assert manifest["spec"]["runtimeRef"] == runtime
    assert manifest["spec"]["trainer"]["numNodes"] == 2
    assert manifest["spec"]["activeDeadlineSeconds"] == 5 * 3600
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "training"
    assert manifest["metadata"]["labels"]["pipeline/runid"] == "run-1"
    assert manifest["metadata"]["ownerReferences"] == [WORKFLOW], "it is deleted with the run"
    main = pod["containers"][0]
    assert main["image"] == spec.image
    assert main["resources"]["limits"] == {"cpu": "6", "memory": "20Gi", "nvidia.com/gpu": "2"}
    assert {v["name"]: v.get("value") or v["valueFrom"] for v in main["env"]} == {
        "GPU_PIPELINES_ACCELERATOR": "l4:2",
        "GPU_PIPELINES_RUN": "run-1",
        "HF_TOKEN": {"secretKeyRef": {"name": "huggingface", "key": "token"}},
    }
    assert pod["securityContext"]["fsGroup"] == 10001, "the user of the image writes to the claim"
    assert pod["nodeSelector"] == dict(NEEDS.node_selector)
    assert [toleration["key"] for toleration in pod["tolerations"]] == ["nvidia.com/gpu", "cloud.google.com/gke-spot"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["serviceAccountName"] == "trainer"
    assert {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "10Gi"}} in pod["volumes"]
    mounts = {mount["mountPath"] for mount in main["volumeMounts"]}
    assert mounts == {"/dev/shm", "/mnt/gpu-pipelines"}


def test_a_step_runs_on_its_nodes_and_its_outputs_are_those_of_rank_0(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    place = f"{claim}/checkpoints/${{GPU_PIPELINES_RUN}}"
    finished = run(kubernetes_api, spec, command_of(tmp_path, place), apart=True)
    assert finished.status == 0, finished.out + finished.err
    (job,) = kubernetes_api.created
    assert "node 0 of 2 reads 42 rows" in finished.out
    assert "node 1 of 2 reads 42 rows" in job.log(1).read_text()
    assert f"TrainJob {job.name}: complete" in finished.out
    assert (tmp_path / "pod" / "out" / "report").read_text() == "<p>fine</p>"
    (checkpoints,) = output_of(tmp_path)["artifacts"]["checkpoints"]["artifacts"]
    assert checkpoints["uri"] == str(tmp_path / "pod" / "out" / "checkpoints"), "where KFP looks for it"
    assert checkpoints["metadata"] == {"checkpoints": 3, "place": f"{claim}/checkpoints/run-1"}
    until(lambda: not kubernetes_api.jobs)  # it is cleaned up
    assert list((claim / "train-jobs" / "run-1").iterdir()) == []
    require_manifest(job, spec)


def test_the_message_of_the_node_that_failed_is_the_steps(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    finished = run(kubernetes_api, spec, command_of(tmp_path, str(claim), "fail"))
    assert finished.status == 1
    assert finished.err.endswith("error: The data is wrong.\n  Mend it.\n")
    assert len(kubernetes_api.created) == 1, "a mistake is not tried again"
    until(lambda: not kubernetes_api.jobs)


@pytest.mark.slow_but_for("lost-2")
@pytest.mark.parametrize(("what", "nodes"), [("interrupted", 2), ("interrupted", 1), ("lost", 2)])
def test_a_training_that_was_interrupted_goes_on(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path, what: str, nodes: int
) -> None:
    command = command_of(tmp_path, f"{claim}/checkpoints", what)
    finished = run(kubernetes_api, replace(spec, nodes=nodes), command)
    assert finished.status == 0, finished.out + finished.err
    assert len(kubernetes_api.created) == 2
    assert "starting again, 1 of at most 2 times" in finished.out


@pytest.mark.slow
def test_nodes_that_are_taken_away_each_time_end_the_step_as_resumable(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    process = start(kubernetes_api, replace(spec, restarts=1), command_of(tmp_path, f"{claim}/c", "wait"))
    for attempt in range(2):
        until(lambda: len(kubernetes_api.created) > attempt and (claim / "c" / "1").exists())  # noqa: B023
        (claim / "c" / "1").unlink()
        kubernetes_api.created[attempt].preempt(1)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, out + err
    assert "interrupted: the nodes of" in err
    assert "were taken away (Pod was terminated in response to imminent node shutdown), 2 times" in err


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_node_whose_memory_was_full_says_so_and_is_not_tried_again(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path, nodes: int
) -> None:
    process = start(kubernetes_api, replace(spec, nodes=nodes), command_of(tmp_path, f"{claim}/c", "wait"))
    until(lambda: all((claim / "c" / str(rank)).exists() for rank in range(nodes)))
    (job,) = kubernetes_api.created
    job.use_up_memory(nodes - 1)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, out + err
    assert f"error: The memory of {job.name}-node-0-{nodes - 1} was full" in err
    assert len(kubernetes_api.created) == 1


def test_a_step_whose_pod_is_replaced_goes_on_with_its_train_job(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    command = command_of(tmp_path, f"{claim}/c", "wait")
    process = start(kubernetes_api, spec, command)
    until(lambda: (claim / "c" / "0").exists() and (claim / "c" / "1").exists())
    process.kill()
    process.communicate()
    # As KFP's launcher does it in the pod of a retry.
    document = json.loads(command[command.index("--executor_input") + 1])
    artifacts = document["outputs"]["artifacts"]
    artifacts["executor-logs"] = {"artifacts": [{"name": "executor-logs", "uri": "minio://x/executor-logs-1"}]}
    again = start(kubernetes_api, spec, with_executor_input(command, document))
    (job,) = kubernetes_api.created
    assert again.stdout
    assert f"TrainJob {job.name}: exists already, and continues" in again.stdout.readline()
    assert job.runs
    again.send_signal(signal.SIGTERM)
    out, err = again.communicate(timeout=60)
    assert again.returncode == 75, out + err
    assert kubernetes_api.created == [job], "there is one TrainJob only"


@pytest.mark.slow
def test_a_training_outlives_a_control_plane_that_does_not_answer(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    process = start(kubernetes_api, spec, command_of(tmp_path, f"{claim}/c", "wait"))
    until(lambda: (claim / "c" / "0").exists() and (claim / "c" / "1").exists())
    kubernetes_api.unavailable = 10
    until(lambda: kubernetes_api.unavailable == 0 or process.poll() is not None)
    (job,) = kubernetes_api.created
    assert job.runs
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, out + err
    assert "the control plane is being upgraded; waiting for it" in out


@pytest.mark.parametrize("is_elastic", [False, True])
def test_a_control_plane_that_does_not_answer_at_once_ends_no_step(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path, is_elastic: bool
) -> None:
    kubernetes_api.unavailable = 2
    finished = run(kubernetes_api, replace(spec, is_elastic=is_elastic), command_of(tmp_path, f"{claim}/c"))
    assert finished.status == 0, finished.out + finished.err
    assert len(kubernetes_api.created) == 1


@pytest.mark.slow
def test_a_control_plane_that_does_not_answer_a_creation_ends_no_step_and_has_no_second_train_job(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    kubernetes_api.lost = 2
    finished = run(kubernetes_api, spec, command_of(tmp_path, f"{claim}/c"))
    assert finished.status == 0, finished.out + finished.err
    (job,) = kubernetes_api.created
    assert job.manifest["metadata"]["ownerReferences"] == [WORKFLOW], "it is deleted with the run"


@pytest.mark.slow
def test_the_log_of_the_first_node_is_followed_beyond_its_rotation(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    process = start(kubernetes_api, replace(spec, restarts=0), command_of(tmp_path, f"{claim}/c", "wait"))
    until(lambda: (claim / "c" / "0").exists() and (claim / "c" / "1").exists())
    assert process.stdout
    before = process.stdout.readline()
    while "node 0 of 2 reads" not in before:
        before = process.stdout.readline()
    (job,) = kubernetes_api.created
    kubernetes_api.rotated = len(job.log(0).read_text().splitlines())
    with job.log(0).open("a") as log:
        log.write("said after the rotation\n")
    job.preempt(0)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, out + err
    assert "said after the rotation\n" in out
    assert "node 0 of 2 reads" not in out, "it is said once"


def test_a_step_that_finds_no_nodes_says_why(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    said = "pod didn't trigger scale-up: GCE quota exceeded"
    kubernetes_api.scarce = {"nvidia-l4 standard": said}
    says_once(start(kubernetes_api, spec, command_of(tmp_path, f"{claim}/c")), "no node yet for train-model-", said)


@pytest.mark.parametrize("held_up", [NO_IMAGE, NO_VOLUME, NO_POD])
def test_a_step_whose_pods_do_not_start_says_why(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path, held_up: dict[str, str]
) -> None:
    kubernetes_api.held_up = held_up
    says_once(start(kubernetes_api, spec, command_of(tmp_path, f"{claim}/c")), held_up.get("event", "no match for"))


@pytest.mark.parametrize("is_scarce", [True, False])
def test_data_nodes_that_do_not_start_say_why(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path, is_scarce: bool
) -> None:
    said = "GCE quota exceeded" if is_scarce else "no match for platform in manifest"
    kubernetes_api.scarce = {"nvidia-l4 standard": said} if is_scarce else {}
    kubernetes_api.held_up = NO_IMAGE
    says_once(start(kubernetes_api, replace(spec, is_elastic=True), command_of(tmp_path, f"{claim}/c")), said)


def test_a_step_that_waits_in_a_queue_says_so_and_when_it_runs(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    kubernetes_api.suspends = True
    process = start(kubernetes_api, spec, command_of(tmp_path, f"{claim}/c", "wait"))
    assert process.stdout
    lines = [process.stdout.readline() for _ in range(2)]
    assert any("is suspended: it waits in its queue" in line for line in lines), lines
    kubernetes_api.created[0].resume()
    assert any(line.endswith(": running\n") for line in process.stdout)
    process.terminate()
    process.communicate(timeout=60)


def test_an_image_that_is_not_there_ends_the_step_before_its_nodes_have_cost_a_week(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PIPELINES_UNSCHEDULABLE_SECONDS", "0.1")
    kubernetes_api.held_up = NO_IMAGE
    finished = run(kubernetes_api, spec, command_of(tmp_path, f"{claim}/c"))
    assert finished.status == 1, finished.out + finished.err
    assert "does not start: train-model-" in finished.err
    assert "ErrImagePull: no match for platform in manifest" in finished.err
    assert len(kubernetes_api.created) == 1
    until(lambda: not kubernetes_api.jobs)


@pytest.mark.slow
def test_an_elastic_step_is_done_when_rank_0_is_whatever_the_others_do(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    elastic = replace(spec, is_elastic=True)
    finished = run(kubernetes_api, TrainJobSpec.loads(elastic.dumps()), command_of(tmp_path, f"{claim}/c", "late"))
    assert finished.status == 0, finished.out + finished.err
    assert output_of(tmp_path)["artifacts"]["checkpoints"]["artifacts"][0]["metadata"]["checkpoints"] == 3
    # The node that has not ended is deleted with the TrainJob.
    until(lambda: not kubernetes_api.jobs)
    assert "is_elastic" not in spec.dumps(), "files of trainings are what they were"


def test_an_error_of_rank_0_ends_an_elastic_step_before_kubernetes_has_tried_it_again(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    kubernetes_api.tries = 7  # with Trainer's own runtime
    finished = run(kubernetes_api, replace(spec, is_elastic=True), command_of(tmp_path, f"{claim}/c", "late and wrong"))
    assert finished.status == 1, finished.out + finished.err
    assert "error: The data is wrong.\n  Mend it." in finished.err
    assert len(kubernetes_api.created) == 1
    until(lambda: not kubernetes_api.jobs)


def test_other_runs_and_other_iterations_of_a_loop_have_train_jobs_of_their_own(spec: TrainJobSpec) -> None:
    class NoJobs:
        def find(self, labels: dict[str, str]) -> list[str]:
            return []

    jobs: Any = NoJobs()
    first = {"inputs": {"parameterValues": {"learning_rate": 1}}, "outputs": {}}
    second = {"inputs": {"parameterValues": {"learning_rate": 2}}, "outputs": {}}
    names = {Attempts(spec, run, document, jobs).name for run in ("a", "b") for document in (first, second)}
    assert len(names) == 4
    long = Attempts(replace(spec, step="train-model-with-a-name-that-is-much-too-long"), "a", first, jobs).name
    assert len(f"{long}-10-node-0-0-abcde") <= 63


def test_a_train_job_whose_creation_was_not_answered_is_not_doubled(spec: TrainJobSpec) -> None:
    class Lossy:
        """Creates what it is asked to, and says that it was there before; one of a name is still being deleted."""

        def __init__(self) -> None:
            self.names: list[str] = []

        def owner(self) -> None:
            return None

        def find(self, labels: dict[str, str]) -> list[str]:
            return [name for name in self.names if not name.endswith("-1")]

        def create(self, job: JobRequest) -> bool:
            self.names.append(job.name)
            return False

    jobs: Any = Lossy()
    attempts = Attempts(spec, "run-1", {}, jobs)
    assert attempts.existing() is None
    assert attempts.create([]) == f"{attempts.name}-2"
    assert len(jobs.names) == 2
    assert attempts.existing() == f"{attempts.name}-2"


def test_nothing_runs_on_when_the_step_was_killed(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    process = start(kubernetes_api, spec, command_of(tmp_path, f"{claim}/c", "wait"), silence=3)
    until(lambda: (claim / "c" / "0").exists() and (claim / "c" / "1").exists())
    process.kill()
    process.communicate()
    (job,) = kubernetes_api.created
    until(lambda: not job.runs)
    assert "nobody waits for this TrainJob any more" in job.log(0).read_text() + job.log(1).read_text()


def test_a_deadline_ends_the_step(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    process = start(kubernetes_api, spec, command_of(tmp_path, f"{claim}/c", "wait"))
    until(lambda: (claim / "c" / "0").exists() and (claim / "c" / "1").exists())
    kubernetes_api.created[0].exceed_deadline()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, out + err
    assert "ran for longer than its limit (--hours)" in err
    assert len(kubernetes_api.created) == 1, "it would only do so again"


def test_without_hours_a_train_job_ends_after_a_week(spec: TrainJobSpec) -> None:
    made = manifest_of(JobRequest("x", replace(spec, hours=DEFAULT_HOURS), [], {}), "TrainingRuntime")
    assert made["spec"]["activeDeadlineSeconds"] == 7 * 24 * 3600


@pytest.mark.slow
def test_a_step_whose_name_begins_with_a_number_runs_as_a_train_job(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    done = run(kubernetes_api, replace(spec, step="3d-unet"), command_of(tmp_path, f"{claim}/c"))
    assert done.status == 0, done.err
    assert kubernetes_api.created[0].name.startswith("step-3d-unet-")


def test_a_step_with_a_long_name_of_its_own_has_labels_that_kubernetes_takes(spec: TrainJobSpec) -> None:
    name = "trains-the-model-of-the-department-that-reads-letters-of-clients-at-night"
    made = manifest_of(JobRequest("x", replace(spec, step=name), [], {}), "TrainingRuntime")
    assert [each for each in made["metadata"]["labels"].values() if not is_label(each)] == []


def test_a_step_that_is_told_to_stop_deletes_its_train_job(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    process = start(kubernetes_api, spec, command_of(tmp_path, f"{claim}/c", "wait"))
    until(lambda: (claim / "c" / "0").exists() and (claim / "c" / "1").exists())
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, out + err
    assert kubernetes_api.created[0].deleted
    until(lambda: not kubernetes_api.jobs)


def test_a_cluster_without_the_runtime_or_that_refuses_is_one_line(
    kubernetes_api: KubernetesApi, spec: TrainJobSpec, claim: Path, tmp_path: Path
) -> None:
    finished = run(kubernetes_api, replace(spec, runtime="mine"), command_of(tmp_path, str(claim)))
    assert finished.status == 1
    assert 'clustertrainingruntimes \\"mine\\" not found' in finished.err or '"mine" not found' in finished.err
    assert "docs/kubeflow.md" in finished.err
    assert "Traceback" not in finished.err
    assert "warning" not in finished.err, "there is nothing to delete"


@pytest.mark.slow
def test_a_bucket_takes_the_place_of_a_claim(kubernetes_api: KubernetesApi, spec: TrainJobSpec, tmp_path: Path) -> None:
    with storage_emulator("bucket") as bucket:
        import fsspec

        files = fsspec.filesystem("gs", use_listings_cache=False)
        files.pipe_file("bucket/root/dataset/rows", b"7 rows")
        in_bucket = replace(spec, storage=f"{bucket}/storage", volume_claim="", mount_path="")
        command = command_of(tmp_path, f"{bucket}/storage/checkpoints", dataset="gs://bucket/root/dataset")
        finished = run(kubernetes_api, in_bucket, command)
        assert finished.status == 0, finished.out + finished.err
        assert "node 0 of 2 reads 7 rows" in finished.out
        assert files.find("bucket/storage") == [], "what was exchanged is deleted"
    (checkpoints,) = output_of(tmp_path)["artifacts"]["checkpoints"]["artifacts"]
    assert checkpoints["metadata"]["place"] == f"{bucket}/storage/checkpoints"
    assert (tmp_path / "pod" / "out" / "report").read_text() == "<p>fine</p>"


def test_the_server_refuses_what_the_api_does_not_know(kubernetes_api: KubernetesApi) -> None:
    from kubernetes import client, config

    config.load_kube_config(str(kubernetes_api.kubeconfig))
    api = client.CustomObjectsApi()
    trainer = {"image": "i", "numNodes": 1, "command": ["true"], "replicas": 2}
    manifest = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "x"},
        "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer},
    }
    with pytest.raises(client.ApiException) as caught:
        api.create_namespaced_custom_object("trainer.kubeflow.org", "v1alpha1", "default", "trainjobs", manifest)
    assert "trainjob.spec.trainer.replicas" in str(caught.value.body)


@pytest.mark.slow
def test_a_compiled_training_on_two_nodes_leaves_its_checkpoints_in_the_bucket(
    kubernetes_api: KubernetesApi, tmp_path: Path
) -> None:
    """The command in the compiled file, as KFP fills it in; the nodes train for real, on CPUs."""
    from driver import CompiledFile

    from gpu_pipelines.accelerators import plan
    from gpu_pipelines.data.prepare import prepare_data
    from gpu_pipelines.data.settings import PrepareSettings
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.kubeflow.target import KubeflowTarget

    prepare_data(PrepareSettings(), tmp_path / "dataset")
    with storage_emulator("bucket") as bucket:
        import fsspec

        settings = ProjectSettings(checkpoints=f"{bucket}/training")
        target = KubeflowTarget(settings, {"GPU_PIPELINES_REHEARSE": "cpu:1"})
        text = target.text_of("train_evaluate_upload", plan("l4:1", nodes=2))
        _, job, _, *command = CompiledFile(text).container("train-model")["args"]
        place = f"{bucket}/training/checkpoints/${{GPU_PIPELINES_RUN}}"
        document = {
            "inputs": {
                "artifacts": {"dataset": {"artifacts": [{"name": "d", "uri": str(tmp_path / "dataset")}]}},
                "parameterValues": {"max_steps": 4, "checkpoint_every_steps": 2, "checkpoint_uri": place},
            },
            "outputs": {
                "artifacts": {
                    name: {"artifacts": [{"name": name, "uri": str(tmp_path / "out" / name), "metadata": {}}]}
                    for name in ("checkpoints", "training_metrics", "training_report")
                },
                "outputFile": str(tmp_path / "out" / "executor_output.json"),
            },
        }
        filled_in = [part.replace("{{$}}", json.dumps(document)) for part in command]
        finished = run(kubernetes_api, TrainJobSpec.loads(job), filled_in)
        assert finished.status == 0, finished.out[-3000:] + finished.err[-3000:]
        files = fsspec.filesystem("gs", use_listings_cache=False)
        markers = [path for path in files.find("bucket/training") if path.endswith("checkpoint.json")]
    assert [path.split("/")[-2] for path in markers] == ["step-00000002", "step-00000004"]
    assert all(path.startswith("bucket/training/checkpoints/run-1/") for path in markers)
    output = json.loads((tmp_path / "out" / "executor_output.json").read_text())
    (metrics,) = output["artifacts"]["training_metrics"]["artifacts"]
    assert metrics["metadata"]["processes"] == 2
    assert "<svg" in (tmp_path / "out" / "training_report").read_text()


@pytest.mark.slow
def test_a_compiled_preparation_on_two_nodes_leaves_its_dataset_and_no_token(
    kubernetes_api: KubernetesApi, tmp_path: Path
) -> None:
    """The command in the compiled file; the nodes are a Ray cluster of this machine, and meet in the bucket."""
    from driver import CompiledFile

    from gpu_pipelines.accelerators import plan
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.kubeflow.placement.data_nodes import DataNodes
    from gpu_pipelines.targets.kubeflow.target import KubeflowTarget

    photos = write_photos(tmp_path / "photos")
    with storage_emulator("bucket") as bucket:
        import fsspec

        target = KubeflowTarget(ProjectSettings(checkpoints=f"{bucket}/work"), data=DataNodes(2, "spot"))
        text = target.text_of("train_evaluate_upload", plan("l4:1"))
        _, job, _, *command = CompiledFile(text).container("prepare-data")["args"]
        names = ("dataset", "report", "statistics")
        document = {
            "inputs": {"parameterValues": {"source": str(photos), "image_size": 16}},
            "outputs": {
                "artifacts": {
                    name: {"artifacts": [{"name": name, "uri": str(tmp_path / "out" / name), "metadata": {}}]}
                    for name in names
                },
                "outputFile": str(tmp_path / "out" / "executor_output.json"),
            },
        }
        filled_in = [part.replace("{{$}}", json.dumps(document)) for part in command]
        finished = run(kubernetes_api, TrainJobSpec.loads(job), filled_in)
        assert finished.status == 0, finished.out[-3000:] + finished.err[-3000:]
        assert "is the head of 2 machines" in finished.out
        left = fsspec.filesystem("gs", use_listings_cache=False).find("bucket/work")
    assert left == [], "what is finished is cleared away"
    (created,) = kubernetes_api.created
    assert created.pod["spec"]["nodeSelector"] == {"cloud.google.com/gke-spot": "true"}
    manifest = json.loads((tmp_path / "out" / "dataset" / "dataset.json").read_text())
    assert manifest["rows_read"] == 80
