"""`run --target vertex`, `follow` and `cancel` against the server: one job for one request, and its end is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import command as command_here
from conftest import GPU_PIPELINES, set_variables
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform_v1 as api
from small_pipelines import compiled_sum
from vertex_commands import PROJECT_FILE, command, put_persistent_resource, put_texts

import gpu_pipelines
from gpu_pipelines.accelerators import plan
from gpu_pipelines.dag.advanced import fields_of_advanced
from gpu_pipelines.dag.train_evaluate_upload import SETTINGS
from gpu_pipelines.errors import RunFailedError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.local.target import compiled_for_here
from gpu_pipelines.targets.runs.trial_record import shaping_parameters
from gpu_pipelines.targets.vertex.runs.pipelines import parsed_spec, pipeline_job

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

REGISTRY = "registry=vertex://"
CLASSIFY = ["train_evaluate_upload", "--accelerator", "l4:1", "-p", "task=text_classification", "-p", REGISTRY]
CLASSIFY += ["-p", "source=gs://example-bucket/texts"]
CREATE = "POST .*/pipelineJobs$"
ATTACHMENT = "projects/p/regions/us-central1/networkAttachments/a"
LINE = "error: the images are not there"


def jobs(api: VertexApi) -> list[Any]:
    return list(api.state.pipeline_jobs.jobs.values())


@contextmanager
def a_run_that(api: VertexApi, tells: Callable[[str], None]) -> Iterator[None]:
    """Lets the next run begin as soon as it is submitted, and what it does then be told by the test."""
    over = threading.Event()
    failures: list[BaseException] = []

    def watch() -> None:
        while not jobs(api):
            if over.wait(0.02):
                return
        name = jobs(api)[0].name
        api.state.pipeline_jobs.begin(name)
        try:
            tells(name)
        except BaseException as error:
            failures.append(error)
            # So that whoever follows it comes to an end.
            api.state.pipeline_jobs.end(name, "CANCELLED")

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not failures, failures


def test_a_pipeline_is_compiled_checked_priced_and_submitted(vertex_api: VertexApi, tmp_path: Path) -> None:
    given = ("--accelerator", "l4:4", "-p", REGISTRY, "-p", "epochs=2", "--label", "team=vision")
    done = command(vertex_api, tmp_path, "run", "train_evaluate_upload", "--target", "vertex", *given)
    assert done.status == 0, done.err
    [job] = jobs(vertex_api)
    job_id = job.name.rpartition("/")[2]
    assert done.out.splitlines() == [
        f"submitted {job_id}",
        f"console: https://console.cloud.google.com/vertex-ai/locations/us-central1/pipelines/runs/{job_id}"
        "?project=123456789012",
        f"follow: gpu-pipelines follow {job_id}",
        f"cancel: gpu-pipelines cancel {job_id}",
    ]
    assert "train-model: 1 × g2-standard-48 with 4 × NVIDIA_L4, about $" in done.err
    assert "list prices of 2026-" in done.err
    assert dict(job.labels) == {"team": "vision"}
    assert job.runtime_config.gcs_output_directory == "gs://example-bucket/runs"
    values = job.runtime_config.parameter_values
    assert (values["epochs"], values["image_size"], values["registry"]) == (2.0, 0.0, "vertex://")
    # Each step keeps its own setting of the cache.
    tasks = job.pipeline_spec["root"]["dag"]["tasks"]
    assert dict(tasks["prepare-data"]["cachingOptions"]) == {"enableCache": True}
    assert not dict(tasks["train-model"]["cachingOptions"]).get("enableCache")


def test_the_evaluation_is_where_it_was_asked_for_at_its_own_price(vertex_api: VertexApi, tmp_path: Path) -> None:
    where = ("run", "train_evaluate_upload", "--target", "vertex", "--accelerator", "h100:8", "-p", REGISTRY)
    smallest = command(vertex_api, tmp_path, *where, "--dry-run")
    assert "evaluate-checkpoints: 1 × g2-standard-8 with 1 × NVIDIA_L4, about $0.85 an hour" in smallest.err
    put_texts(vertex_api)
    llama = ("-p", "task=causal_lm", "-p", "source=gs://example-bucket/texts", "-p", "model=meta-llama/Llama-3.1-8B")
    larger = command(vertex_api, tmp_path, *where, *llama, "--dry-run")
    assert "evaluate-checkpoints: 1 × a2-ultragpu-1g with 1 × NVIDIA_A100_80GB, about $5.07 an hour" in larger.err
    given = ("--evaluation-accelerator", "a100:2", "--hours", "6")
    done = command(vertex_api, tmp_path, *where, *given)
    assert done.status == 0, done.err
    assert "evaluate-checkpoints: 1 × a2-highgpu-2g with 2 × NVIDIA_TESLA_A100, about $7.35 an hour" in done.err
    assert done.err.count(", 6 h at most") == 2
    [job] = jobs(vertex_api)
    components = job.pipeline_spec["components"]
    pools = components["comp-evaluate-checkpoints"]["inputDefinitions"]["parameters"]["worker_pool_specs"]
    assert pools["defaultValue"][0]["machine_spec"]["machine_type"] == "a2-highgpu-2g"


def test_a_trial_of_the_same_training_limits_its_time(vertex_api: VertexApi, tmp_path: Path) -> None:
    given = ("-p", REGISTRY, "-p", "epochs=2", "--accelerator", "l4:4")
    where = ("run", "train_evaluate_upload", "--target", "vertex", "--dry-run", *given)
    first = command(vertex_api, tmp_path, *where)
    taken = json.loads(first.out)["body"]["runtimeConfig"]["parameterValues"]
    # A trial keeps the parameters by their own names.
    defaults = {name: each.default for name, each in fields_of_advanced(SETTINGS.values()).items()}
    arguments = {**defaults, **taken}
    hours = {"l4:4": 2.5}
    (tmp_path / "runs").mkdir()
    kept = {"format_version": 1, "parameters": shaping_parameters(arguments), "hours": hours}
    (tmp_path / "runs" / "trial.json").write_text(json.dumps(kept))
    done = command(vertex_api, tmp_path, *where)
    assert "the trial in runs/trial.json limits train-model to 9 h; --hours gives another" in done.err
    train, evaluate = (line for line in done.err.splitlines() if " at most" in line)
    assert train.endswith(", 9 h at most: $36.01")
    assert evaluate.endswith(", 24 h at most: $20.49")
    for other in (("--hours", "30"), ("-p", "epochs=3")):
        assert "trial.json" not in command(vertex_api, tmp_path, *where, *other).err


def test_a_run_fails_as_it_is_told_in_the_network_it_is_told(vertex_api: VertexApi, tmp_path: Path) -> None:
    given = ("--accelerator", "l4:4", "-p", REGISTRY, "--failure-policy", "fast", "--network-attachment", ATTACHMENT)
    resource = ("--persistent-resource", "pool-1")
    put_persistent_resource(vertex_api, "g2-standard-48", 4)
    done = command(vertex_api, tmp_path, "run", "train_evaluate_upload", "--target", "vertex", *given, *resource)
    assert done.status == 0, done.err
    told = "4 × NVIDIA_L4, of the persistent resource pool-1, which costs as long as it exists, 24 h at most"
    there = "persistent resource pool-1: 1 × g2-standard-48 with 4 × NVIDIA_L4; paid for as long as it exists"
    assert there in done.err
    assert done.err.count(told) == 2, "the evaluation has a machine of the resource as well"
    [job] = jobs(vertex_api)
    assert job.runtime_config.failure_policy.name == "PIPELINE_FAILURE_POLICY_FAIL_FAST"
    assert job.psc_interface_config.network_attachment == ATTACHMENT
    inputs = job.pipeline_spec["components"]["comp-train-model"]["inputDefinitions"]["parameters"]
    assert dict(inputs["psc_interface_config"]["defaultValue"]) == {"network_attachment": ATTACHMENT}
    assert inputs["persistent_resource_id"]["defaultValue"] == "pool-1"


def test_a_dry_run_prints_what_would_be_sent_and_sends_nothing(vertex_api: VertexApi, tmp_path: Path) -> None:
    file = compiled_sum(tmp_path)
    given = ("--dry-run", "-p", "a=2", "--no-cache", "--service-account", "runner@example.com")
    done = command(vertex_api, tmp_path, "run", str(file), "--target", "vertex", *given)
    assert (done.status, done.err) == (0, "")
    assert not jobs(vertex_api)
    sent = json.loads(done.out)
    assert sent["method"] == "POST"
    assert sent["url"].startswith(
        f"{vertex_api.url}/v1/projects/example-project/locations/us-central1/pipelineJobs?pipelineJobId=sum-"
    )
    assert sent["body"]["runtimeConfig"]["parameterValues"] == {"a": 2, "note": "none"}
    assert sent["body"]["serviceAccount"] == "runner@example.com"
    tasks = sent["body"]["pipelineSpec"]["root"]["dag"]["tasks"]
    assert [task["cachingOptions"] for task in tasks.values()] == [{"enableCache": False}] * 2


@pytest.mark.parametrize("cache", [None, True, False])
def test_the_request_is_the_one_that_the_sdk_makes(tmp_path: Path, cache: bool | None) -> None:
    from google.cloud import aiplatform
    from google.cloud.aiplatform_v1.types import PipelineJob
    from google.protobuf import json_format

    file, key = compiled_sum(tmp_path), "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k"
    settings = ProjectSettings(
        "example-project",
        "us-central1",
        "gs://b/root",
        encryption_key=key,
        failure_policy="fast",
        labels={"team": "vision"},
    )
    of_sdk = aiplatform.PipelineJob(
        "sum",
        str(file),
        pipeline_root="gs://b/root",
        parameter_values={"a": 2, "note": "x"},
        enable_caching=cache,
        encryption_spec_key_name=key,
        failure_policy="fast",
        labels={"team": "vision"},
        project="example-project",
        location="us-central1",
        credentials=AnonymousCredentials(),
    )
    spec = parsed_spec(file.read_text(), str(file))
    ours = PipelineJob()
    json_format.ParseDict(pipeline_job(spec, {"a": 2, "note": "x"}, settings, cache=cache), PipelineJob.pb(ours))
    # What it is about to send has no public name.
    assert ours == of_sdk._gca_resource


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["train_evaluate_upload"], ["Give --accelerator"]),
        (
            ["train_evaluate_upload", "--accelerator", "cpu:2"],
            ["cpu:2 is for this machine; Vertex AI has no"],
        ),
        (
            ["train_evaluate_upload", "--accelerator", "l4:1", "-p", "source=gs://", "-p", "model=gs:///m"],
            ["source is 'gs://', which has no name of a bucket", "model is 'gs:///m'"],
        ),
        (["train_evaluate_upload", "--accelerator", "l4:1", "--env", "A B=c"], ["'A B' is not the name of a variable"]),
        (
            ["train_evaluate_upload", "--accelerator", "v100:8", "--nodes", "4", "--reduction-server"],
            ["Give --machine-type n1-highmem-96."],
        ),
        (
            ["train_evaluate_upload", "--accelerator", "h100:8", "--evaluation-accelerator", "l4:3"],
            ["--evaluation-accelerator l4:3: No machine has 3 × l4"],
        ),
        (
            [
                *("train_evaluate_upload", "--accelerator", "h100:8", "-p", REGISTRY, "-p", "source=gs://b/texts"),
                *("-p", "task=causal_lm", "-p", "model=meta-llama/Llama-3.1-70B"),
            ],
            ["has 70 billion parameters, by its name", "Name another with --evaluation-accelerator."],
        ),
        (
            ["train_evaluate_upload", "--accelerator", "l4:4", "--persistent-resource", "r", "--strategy", "spot"],
            ["A job on a persistent resource runs on its machines"],
        ),
        (
            ["sum.yaml", "-p", "a=1", "--network", "projects/1/global/networks/n", "--network-attachment", ATTACHMENT],
            ["two ways into a network"],
        ),
        (["sum.yaml", "-p", "a=1", "--persistent-resource", "r"], ["--persistent-resource cannot change it"]),
        (["here.yaml", "-p", REGISTRY], ["here.yaml has no GPU for train-model"]),
        (["train_evaluate_upload", "--accelerator", "l4:3"], ["No machine has 3 × l4"]),
        (
            ["train_evaluate_upload", "--accelerator", "b200:8", "--region", "europe-west9"],
            ["europe-west9 has no b200"],
        ),
        (["train_evaluate_upload", "--accelerator", "l4:1", "-p", "epoch=1"], ["Did you mean 'epochs'?"]),
        (["train_evaluate_upload", "--accelerator", "l4:1", "-p", "epochs=x"], ["epochs takes a number; got 'x'"]),
        (["train_evaluate_upload", "--accelerator", "l4:1", "-p", REGISTRY, "-p", "model=x"], ["no model 'x'"]),
        (["train_evaluate_upload", "--accelerator", "l4:1", "--reuse"], ["The target vertex has no --reuse"]),
        (["train_evaluate_upload", "--accelerator", "l4:1", "--max-wait", "2"], ["Only flex-start waits"]),
        (
            [
                "train_evaluate_upload",
                "--accelerator",
                "l4:1",
                "-p",
                "source=photos",
                "-p",
                "model=./net",
                "-p",
                "registry=./r",
            ],
            [
                "The source photos is not where",
                "The registry ./r would be",
                "model is ./net, a directory of this",
            ],
        ),
        (
            ["train_evaluate_upload", "--accelerator", "l4:4", "-p", "source=gs://b/d", "-p", "global_batch_size=30"],
            ["global_batch_size is 30, which 4 processes cannot share equally. Give 28 or 32."],
        ),
        (
            ["train_evaluate_upload", "--accelerator", "l4:4", "-p", "source=gs://example-bucket/"],
            ["which lies in the data gs://example-bucket/: it would be read as well", "by the setting pipeline_root"],
        ),
        ([*CLASSIFY, "-p", "label_column=class"], ["no column 'class'; it has text, label."]),
        ([*CLASSIFY, "-p", "test_source=gs://example-bucket/none"], ["gs://example-bucket/none does not exist."]),
        (["sum.yaml", "-p", "a=1.5"], ["a takes a whole number"]),
        (["sum.yaml"], ["The parameter a must be given"]),
        (["sum.yaml", "-p", "a=1", "--nodes", "2"], ["compiled already; --nodes cannot change it"]),
        (["sum.yaml", "-p", "a=1", "--image", "other:1"], ["was compiled with an image of its own"]),
        (["none.yaml"], ["The file none.yaml cannot be read: No such file"]),
        (["gpu-pipelines.yaml"], ["is not a compiled pipeline"]),
        (["two.yaml"], ["has 2 YAML documents; Vertex AI takes one"]),
        (["sum.yaml", "-p", "a=1", "--pipeline-root", "my-bucket"], ["pipeline_root (from --pipeline-root) is"]),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_sent(
    vertex_api: VertexApi, tmp_path: Path, arguments: list[str], messages: list[str]
) -> None:
    if "here.yaml" in arguments:
        (tmp_path / "here.yaml").write_text(compiled_for_here("train_evaluate_upload", plan("cpu:2")))
    if arguments[: len(CLASSIFY)] == CLASSIFY:
        put_texts(vertex_api)
    (tmp_path / "two.yaml").write_text(compiled_sum(tmp_path).read_text() + "---\nplatforms: {}\n")
    done = command(vertex_api, tmp_path, "run", "--target", "vertex", *arguments)
    assert done.status == 2
    for message in messages:
        assert message in done.err
    assert not jobs(vertex_api)


def test_all_settings_that_are_missing_are_told_at_once(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpu-pipelines.yaml").write_text("region: us-central1\n")
    for words, names in (
        (("run", "--target", "vertex"), ("pipeline_root", "image", "accelerator")),
        (("upload",), ("repository", "image", "accelerator")),
    ):
        done = command(vertex_api, tmp_path, *words, "train_evaluate_upload")
        assert done.status == 2
        assert "3 things are wrong" in done.err
        assert all(f"Give --{name.replace('_', '-')}" in done.err for name in names)


def test_an_uploaded_version_runs_by_its_address_or_name(vertex_api: VertexApi, tmp_path: Path) -> None:
    command(vertex_api, tmp_path, "upload", str(compiled_sum(tmp_path)), "--tag", "stable")
    address = f"{vertex_api.url}/example-project/pipelines/sum"
    [version] = vertex_api.state.repositories.packages["us-central1/pipelines/sum"].versions
    for given in (f"{address}/stable", "sum/stable", f"sum/{version}"):
        done = command(vertex_api, tmp_path, "run", given, "--target", "vertex", "-p", "a=2")
        assert done.status == 0, done.err
    (tmp_path / "gpu-pipelines.yaml").write_text("region: us-central1\npipeline_root: gs://example-bucket/root\n")
    by_name = ("run", "sum/stable", "--target", "vertex", "-p", "a=2")
    assert "Give --repository" in command(vertex_api, tmp_path, *by_name).err
    repository = f"{vertex_api.url}/example-project/pipelines"
    done = command(vertex_api, tmp_path, *by_name, "--repository", repository)
    assert done.status == 0, done.err
    assert [job.template_uri for job in jobs(vertex_api)] == [f"{address}/{version}"] * 4


def test_a_name_that_is_no_pipeline_is_told_before_what_is_missing(vertex_api: VertexApi, tmp_path: Path) -> None:
    done = command(vertex_api, tmp_path, "run", "sum", "--target", "vertex")
    assert done.status == 2
    assert "There is no pipeline 'sum'" in done.err
    assert "an uploaded NAME/TAG, such as NAME/latest" in " ".join(done.err.split())
    assert "--accelerator" not in done.err


def test_a_published_file_takes_the_image_of_the_project(vertex_api: VertexApi, tmp_path: Path) -> None:
    file = Path(__file__).parents[2] / "compiled/train_evaluate_upload/vertex/image_classification/h100-8-4-nodes.yaml"
    given = ("--dry-run", "--target", "vertex", "-p", REGISTRY)
    done = command(vertex_api, tmp_path, "run", str(file), *given)
    train, evaluate = done.err.splitlines()[:2]
    assert train.startswith("train-model: 4 × a3-highgpu-8g with 8 × NVIDIA_H100_80GB, about $")
    assert evaluate.startswith("evaluate-checkpoints: ")
    assert "gpu-pipelines/steps" not in done.out
    # The compiled file holds every number with a point.
    assert '"image_size": 0,' in done.out
    assert "us-docker.pkg.dev/example-project/images/steps:0.1.0" in done.out
    (tmp_path / "gpu-pipelines.yaml").write_text("pipeline_root: gs://example-bucket/runs\n")
    done = command(vertex_api, tmp_path, "run", str(file), *given)
    assert done.status == 2
    assert "No image is known" in done.err


@pytest.mark.parametrize(
    "spoilt", [{"status": 503}, {"status": 0, "took_effect": True}, {"status": 429, "message": "Slow"}]
)
def test_a_request_that_is_sent_again_makes_one_job(
    vertex_api: VertexApi, tmp_path: Path, spoilt: dict[str, Any]
) -> None:
    vertex_api.fail_next(CREATE, **spoilt)
    file = compiled_sum(tmp_path)
    done = command(vertex_api, tmp_path, "run", str(file), "--target", "vertex", "-p", "a=2")
    assert done.status == 0, done.err
    [job] = jobs(vertex_api)
    assert f"submitted {job.name.rpartition('/')[2]}" in done.out
    assert done.err.startswith("trying again: ")


@pytest.mark.parametrize(
    ("status", "message", "remedy"),
    [
        (403, "Permission 'aiplatform.pipelineJobs.create' denied on resource", "gpu-pipelines doctor names the role"),
        (403, "You do not have permission to act as iam.serviceAccounts.actAs", "Service Account User"),
        (
            429,
            "The following quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_x",
            "Ask for more of the quota",
        ),
    ],
)
def test_a_refusal_is_told_in_googles_words_with_what_to_do(
    vertex_api: VertexApi, tmp_path: Path, status: int, message: str, remedy: str
) -> None:
    vertex_api.fail_next(CREATE, status, message=message)
    done = command(vertex_api, tmp_path, "run", str(compiled_sum(tmp_path)), "--target", "vertex", "-p", "a=2")
    assert done.status == 2
    assert done.err.startswith(f"error: Submitting the pipeline failed: {message}")
    assert remedy in done.err
    assert "http" not in done.err
    assert not jobs(vertex_api)


def test_credentials_that_are_not_taken_are_told_with_the_login(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At Google's own addresses, so that credentials are sent; the client gets new ones and tries twice again.
    set_variables(monkeypatch, vertex_api.proxy_environment())
    monkeypatch.chdir(tmp_path)
    vertex_api.fail_next("GET .*/schedules$", 401, times=9)
    done = command_here("schedule", "list", "--project", "example-project", "--region", "us-central1")
    assert done.status == 2
    assert done.err.startswith("error: Listing schedules failed: Request had invalid authentication credentials.")
    assert "Sign in again: gcloud auth application-default login." in done.err


def test_a_certificate_that_is_not_trusted_is_told_at_once(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Google's own addresses, through a proxy whose authority nobody has given.
    trusting = {"REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"}
    for name, value in vertex_api.proxy_environment().items():
        if name not in trusting:
            monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    file, at = compiled_sum(tmp_path), ("--project", "example-project", "--region", "us-central1")
    for words in (
        ("run", str(file), "--target", "vertex", "-p", "a=2", "--pipeline-root", "gs://example-bucket/runs", *at),
        ("job", "submit", "--accelerator", "l4:1", "--image", "i", *at),
        ("schedule", "list", *at),
    ):
        done = command_here(*words)
        assert done.status == 2
        assert "certificate is not trusted (unable to get local issuer certificate)" in done.err
        assert "export REQUESTS_CA_BUNDLE=FILE" in done.err
        assert "trying again" not in done.err


def test_a_run_is_followed_to_its_end(vertex_api: VertexApi, tmp_path: Path) -> None:
    state = vertex_api.state.pipeline_jobs

    def succeed(name: str) -> None:
        # A job may speak before its task is said to run.
        state.set_task(name, "add", "PENDING")
        state.say(name, "add", ["[KFP Executor 2026-11-21 INFO]: begin", "two", "three"])
        time.sleep(0.8)
        state.set_task(name, "add", "RUNNING")
        state.set_task(name, "add", "SUCCEEDED")
        state.set_task(name, "add-2", "SKIPPED")
        state.end(name, "SUCCEEDED")
        # Lines arrive late.
        time.sleep(0.6)
        state.say(name, "add", ["four"])

    file = compiled_sum(tmp_path)
    with a_run_that(vertex_api, succeed):
        done = command(
            vertex_api, tmp_path, "run", str(file), "--target", "vertex", "-p", "a=2", "--follow", "--interval", "0.5"
        )
    assert done.status == 0, done.err
    shown = done.out.splitlines()[4:]
    assert shown[:3] == ["add: started", "add: two", "add: three"]
    assert [line for line in shown if "four" in line] == ["add: four"]
    assert [line for line in shown if line.startswith("add: succeeded after")]
    assert "add-2: reused" in shown
    assert shown[-1].startswith("succeeded; its reports and metrics: https://console.cloud.google.com/")


def test_a_failed_run_is_told_with_its_step_its_error_and_its_last_lines(vertex_api: VertexApi, tmp_path: Path) -> None:
    state = vertex_api.state.pipeline_jobs

    def fail(name: str) -> None:
        job = name.replace("pipelineJobs", "customJobs").rpartition("/")[0] + "/77"
        state.set_task(name, "add", "RUNNING", custom_job=job)
        labels = {"job_id": "77", "task_name": "workerpool1-0"}
        vertex_api.state.logs.write("example-project", "ml_job", labels, "from another node")
        state.say(name, "add", [*(f"line {number}" for number in range(30)), LINE, "  give others"])
        state.set_task(name, "add", "FAILED", error="The replica workerpool0-0 exited with a non-zero status of 1.")
        state.end(name, "FAILED", "Job failed.")

    file = compiled_sum(tmp_path)
    with a_run_that(vertex_api, fail):
        done = command(
            vertex_api, tmp_path, "run", str(file), "--target", "vertex", "-p", "a=2", "--follow", "--interval", "0.1"
        )
    assert done.status == 1
    lines = done.err.splitlines()
    assert lines[:2] == ["error: add failed: the images are not there", "  give others"]
    assert lines[2].startswith("Vertex AI says: The replica workerpool0-0 exited with a non-zero status of 1.")
    assert "  line 29" in lines
    assert "  line 3" not in lines
    assert "add: [workerpool1-0] from another node" in done.out
    assert any(line.startswith("job: https://console.cloud.google.com/") and "/77?" in line for line in lines)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            [LINE, "  give others"],
            "error: add failed: the images are not there\n  give others\nVertex AI says: It failed.",
        ),
        (["ValueError: it is negative"], "error: add failed: It failed."),
    ],
)
def test_a_failed_job_is_told_by_its_own_words_and_not_by_its_launchers(
    vertex_api: VertexApi, tmp_path: Path, said: list[str], told: str
) -> None:
    state = vertex_api.state.pipeline_jobs

    def fail(name: str) -> None:
        job = name.replace("pipelineJobs", "customJobs").rpartition("/")[0] + "/77"
        state.set_task(name, "add", "RUNNING", custom_job=job)
        labels = {"job_id": "77", "task_name": "workerpool0-0"}
        for line in said:
            vertex_api.state.logs.write("example-project", "ml_job", labels, line)
        # As GCPC's launcher does, in the container of the step, once the job has failed.
        state.say(name, "add", ["Traceback (most recent call last):", *(f"  File {number}" for number in range(20))])
        state.set_task(name, "add", "FAILED", error="It failed.")
        state.end(name, "FAILED", "Job failed.")

    file = compiled_sum(tmp_path)
    with a_run_that(vertex_api, fail):
        done = command(
            vertex_api, tmp_path, "run", str(file), "--target", "vertex", "-p", "a=2", "--follow", "--interval", "0.1"
        )
    shown = "\n".join(f"  {line}" for line in said)
    assert f"{told}\nits log ends:\n{shown}\nconsole: " in done.err


def test_lines_of_a_custom_job_are_shown_while_it_runs(vertex_api: VertexApi, tmp_path: Path) -> None:
    state = vertex_api.state.pipeline_jobs
    label = {"vertex-ai-pipelines-run-billing-id": "77"}

    def train(name: str) -> None:
        state.one(name).labels.update(label)
        state.set_task(name, "train-model", "RUNNING")
        parent, spec = (
            "projects/example-project/locations/us-central1",
            {"machine_spec": {"machine_type": "n1-standard-8"}},
        )
        spec |= {"replica_count": 1, "container_spec": {"image_uri": "i"}}
        job = {"display_name": "train-model", "job_spec": {"worker_pool_specs": [spec]}, "labels": label}
        made = vertex_api.state.custom_jobs.create(api.CreateCustomJobRequest(parent=parent, custom_job=job))
        labels = {"job_id": made.name.rpartition("/")[2], "task_name": "workerpool0-0"}
        vertex_api.state.logs.write("example-project", "ml_job", labels, "step 1")
        time.sleep(0.6)
        # That the step tells of its job comes later still.
        state.set_task(name, "train-model", "SUCCEEDED")
        state.end(name, "SUCCEEDED")

    given = ("--target", "vertex", "--accelerator", "l4:1", "--follow", "--interval", "0.1")
    vertex_api.fail_next("GET .*/customJobs(\\?|$)", 429, message="Quota exceeded: quota metrics exceed quota limits.")
    with a_run_that(vertex_api, train):
        done = command(vertex_api, tmp_path, "run", "train_evaluate_upload", *given)
    assert done.status == 0, done.err
    shown = done.out.splitlines()[4:]
    assert shown[:2] == ["train-model: started", "train-model: step 1"]
    assert [line for line in shown if "step 1" in line] == ["train-model: step 1"]


def test_a_run_is_followed_without_its_log_where_that_may_not_be_read(vertex_api: VertexApi, tmp_path: Path) -> None:
    state = vertex_api.state.pipeline_jobs
    vertex_api.fail_next("entries:list", 403, times=99, message="Permission 'logging.logEntries.list' denied.")
    file = compiled_sum(tmp_path)
    command(vertex_api, tmp_path, "run", str(file), "--target", "vertex", "-p", "a=2")
    [job] = jobs(vertex_api)
    state.begin(job.name)
    state.set_task(job.name, "add", "SUCCEEDED")
    state.end(job.name, "SUCCEEDED")
    vertex_api.fail_next("GET .*/pipelineJobs/", 503)
    done = command(vertex_api, tmp_path, "follow", job.name, "--interval", "0.1", "--json")
    assert done.status == 0
    assert done.err.count("warning:") == 1
    assert "'logging.logEntries.list' denied" in done.err
    told = json.loads(done.out)
    assert (told["state"], [step["state"] for step in told["steps"]]) == ("succeeded", ["succeeded", "not triggered"])


def test_a_run_is_cancelled(vertex_api: VertexApi, tmp_path: Path) -> None:
    command(vertex_api, tmp_path, "run", str(compiled_sum(tmp_path)), "--target", "vertex", "-p", "a=2")
    [job] = jobs(vertex_api)
    done = command(vertex_api, tmp_path, "cancel", job.name.rpartition("/")[2])
    assert done.status == 0, done.err
    assert done.out.startswith("asked to cancel sum-")
    # What was not asked of the service would be followed for ever.
    [job] = jobs(vertex_api)
    assert job.state.name in {"PIPELINE_STATE_CANCELLING", "PIPELINE_STATE_CANCELLED"}
    done = command(vertex_api, tmp_path, "follow", job.name.rpartition("/")[2], "--interval", "0.1")
    assert done.status == 1
    assert "was cancelled" in done.err
    done = command(vertex_api, tmp_path, "cancel", "another")
    assert done.status == 2
    assert "is not found" in done.err


def test_ctrl_c_leaves_the_run_going_and_says_how_to_come_back(vertex_api: VertexApi, tmp_path: Path) -> None:
    (tmp_path / "gpu-pipelines.yaml").write_text(PROJECT_FILE.format(url=vertex_api.url))
    file = compiled_sum(tmp_path)
    given = ("--target", "vertex", "-p", "a=2", "--follow", "--interval", "0.1")
    process = subprocess.Popen(
        [str(GPU_PIPELINES), "run", str(file), *given],
        cwd=tmp_path,
        env={**os.environ, **vertex_api.environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    said = [process.stdout.readline() for _ in range(4)]
    [job] = jobs(vertex_api)
    vertex_api.state.pipeline_jobs.begin(job.name)
    vertex_api.state.pipeline_jobs.set_task(job.name, "add", "RUNNING")
    assert process.stdout.readline() == "add: started\n"
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    job_id = job.name.rpartition("/")[2]
    assert f"{job_id} goes on without being followed" in told
    assert f"follow: gpu-pipelines follow {job_id}" in told
    assert f"cancel: gpu-pipelines cancel {job_id}" in told
    assert "Traceback" not in told
    assert said[0] == f"submitted {job_id}\n"
    assert job.state.name == "PIPELINE_STATE_RUNNING"


# In a program


def test_a_program_submits_a_run_follows_it_and_learns_how_it_ended(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    state = vertex_api.state.pipeline_jobs
    (tmp_path / "gpu-pipelines.yaml").write_text(PROJECT_FILE.format(url=vertex_api.url))
    monkeypatch.chdir(tmp_path)
    set_variables(monkeypatch, vertex_api.environment())

    def succeed(name: str) -> None:
        state.set_task(name, "add", "SUCCEEDED")
        state.end(name, "SUCCEEDED")

    with a_run_that(vertex_api, succeed):
        run = gpu_pipelines.run(compiled_sum(tmp_path), target="vertex", a=2)
        assert (run.status, run.target) == ("submitted", "vertex")
        assert run.id in run.document["name"]
        ended = run.follow(0.5)
    assert (ended.id, ended.status) == (run.id, "succeeded")
    assert jobs(vertex_api)[0].runtime_config.parameter_values["a"] == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert "add: succeeded" in told.err

    run = gpu_pipelines.run(compiled_sum(tmp_path), target="vertex", a=3, project="example-project")
    failed = jobs(vertex_api)[1].name
    state.begin(failed)
    state.end(failed, "FAILED")
    with pytest.raises(RunFailedError) as raised:
        run.follow(0.5, progress=False)
    assert raised.value.run.status == "failed"
