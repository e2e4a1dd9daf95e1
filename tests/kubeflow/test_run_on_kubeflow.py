"""The commands of the command line on Kubeflow: the real `kfp.Client` against a server that speaks its API."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import command_line
import pytest
import yaml
from conftest import GPU_PIPELINES, Finished, storage_emulator
from kfp_api.server import KfpApi

from gpu_pipelines.accelerators import plan
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.component_interface.image import STEPS_IMAGE
from gpu_pipelines.dag.placement import EVALUATES
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.kubeflow.target import KubeflowTarget

PIPELINE = "train_evaluate_upload"
SETTINGS = """\
kubeflow_host: {url}
image: us-docker.pkg.dev/example-project/images/steps:0.1.0
"""


@pytest.fixture
def folder(kfp_api: KfpApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with settings, in which commands run; with a home of its own, where KFP's client keeps a context."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    (tmp_path / "gpu-pipelines.yaml").write_text(SETTINGS.format(url=kfp_api.url))
    return tmp_path


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled file."""
    path = tmp_path_factory.mktemp("compiled") / "l4-1.yaml"
    path.write_text(KubeflowTarget().text_of(PIPELINE, plan("l4:1")))
    return path


def command(folder: Path, *arguments: str) -> Finished:
    """Runs a command in this process."""
    return command_line.command(*arguments, cwd=folder)


def done(folder: Path, *arguments: str) -> str:
    """The output of a command that must succeed."""
    finished = command(folder, *arguments)
    assert finished.status == 0, finished.out + finished.err
    return finished.out


def on_kubeflow(folder: Path, pipeline: str | Path, *arguments: str) -> Finished:
    return command(folder, "run", str(pipeline), "--target", "kubeflow", *arguments)


def test_a_run_is_submitted_with_both_documents_and_checked_parameters(folder: Path, kfp_api: KfpApi) -> None:
    finished = on_kubeflow(
        folder, PIPELINE, "--accelerator", "t4:4", "--strategy", "spot", "-p", "epochs=2", "--experiment", "mine"
    )
    assert finished.status == 0, finished.err
    ((run_id, run),) = kfp_api.state.runs.items()
    assert f"submitted {run_id}" in finished.out
    assert f"console: {kfp_api.url}/#/runs/details/{run_id}" in finished.out
    assert f"gpu-pipelines cancel {run_id} --target kubeflow" in finished.out
    assert "training: 1 × n1-highmem-16 with 4 × NVIDIA_TESLA_T4" in finished.err
    assert "evaluation: 1 × n1-highmem-4 with 1 × NVIDIA_TESLA_T4" in finished.err
    assert run["runtime_config"]["parameters"]["epochs"] == 2
    assert set(run["pipeline_spec"]["platform_spec"]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]) == set(
        run["pipeline_spec"]["pipeline_spec"]["deploymentSpec"]["executors"]
    )
    assert [each["display_name"] for each in kfp_api.state.experiments] == ["mine"]
    again = on_kubeflow(folder, PIPELINE, "--accelerator", "l4:1", "--experiment", "mine", "--json")
    assert json.loads(again.out)["run_id"] in kfp_api.state.runs
    assert len(kfp_api.state.experiments) == 1


def test_what_the_nodes_cost_is_said_before_a_run_is_sent(folder: Path, kfp_api: KfpApi) -> None:
    given = ("--accelerator", "l4:4", "--hours", "6", "--dry-run")
    told = on_kubeflow(folder, PIPELINE, *given, "--region", "us-central1").err
    assert "about $4.00 an hour (on demand, us-central1; list prices of 2026-07-30), 6 h at most: $24.01\n" in told
    assert "evaluation: 1 × g2-standard-8 with 1 × NVIDIA_L4, about $0.85 an hour" in told
    open_region = on_kubeflow(folder, PIPELINE, *given).err
    assert "$" not in open_region
    assert "The region of the cluster is not known: give --region to see prices." in open_region
    of_own = Path(__file__).parents[2] / "examples" / "pipelines" / "seeds.py"
    mine = on_kubeflow(folder, of_own, *given, "--region", "us-central1", "-p", "source=/mnt/gpu-pipelines/x").err
    assert "train-model: 1 × g2-standard-48 with 4 × NVIDIA_L4, about $4.00 an hour" in mine
    assert mine.count("6 h at most: $24.01 each\n") == 1, "of each turn of the loop"
    assert not kfp_api.state.runs


def test_the_evaluation_is_on_the_nodes_that_it_was_asked_for(folder: Path, kfp_api: KfpApi) -> None:
    given = ("--accelerator", "h100:8", "--evaluation-accelerator", "l4:2")
    finished = on_kubeflow(folder, PIPELINE, *given)
    assert finished.status == 0, finished.err
    assert "evaluation: 1 × g2-standard-24 with 2 × NVIDIA_L4" in finished.err
    (run,) = kfp_api.state.runs.values()
    executors = run["pipeline_spec"]["platform_spec"]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    selectors = {name: executors[f"exec-{name}"]["nodeSelector"]["labels"] for name in ("train-model", EVALUATES)}
    assert selectors["train-model"]["cloud.google.com/gke-accelerator"] == "nvidia-h100-80gb"
    assert selectors[EVALUATES]["cloud.google.com/gke-accelerator"] == "nvidia-l4"
    refused = on_kubeflow(folder, PIPELINE, "--accelerator", "cpu:2")
    assert refused.status == 2
    assert "cpu:2 is for this machine; Kubeflow has no such machine" in refused.err


def test_a_dry_run_sends_nothing(folder: Path, kfp_api: KfpApi, compiled: Path) -> None:
    finished = on_kubeflow(folder, compiled, "--dry-run", "-p", "source=/mnt/gpu-pipelines/photos", "--no-cache")
    request = json.loads(finished.out)
    assert request["method"] == "POST"
    assert request["url"] == f"{kfp_api.url}/apis/v2beta1/runs"
    assert request["body"]["runtime_config"]["parameters"]["source"] == "/mnt/gpu-pipelines/photos"
    assert "us-docker.pkg.dev/example-project/images/steps:0.1.0" in finished.out, "a published file gets our image"
    assert '"image": "gpu-pipelines/steps' not in finished.out
    assert set(request["body"]["pipeline_spec"]) == {"pipeline_spec", "platform_spec"}
    assert kfp_api.state.requests == []


def test_a_run_is_followed_to_its_end(folder: Path, kfp_api: KfpApi, compiled: Path) -> None:
    finished = on_kubeflow(folder, compiled, "--follow", "--interval", "0.1")
    assert finished.status == 0, finished.out + finished.err
    for step in ("check-request", "prepare-data", "train-model", "evaluate-checkpoints", "upload-model"):
        assert f"{step}: started" in finished.out
        assert f"{step}: succeeded after" in finished.out
    assert "driver" not in finished.out
    assert "executor" not in finished.out


#: What KFP's launcher and Argo's executor print around what a step says.
LOG = """\
I1121 10:01:00.000000      15 launcher_v2.go:162] publish success.
training vit-micro on 54 rows
error: global_batch_size is 7, which 2 processes cannot share equally.
  Give 6 or 8.
F1121 10:01:09.000000      15 main.go:50] failed to execute component: exit status 1
time="2026-11-21T10:01:09.000Z" level=info msg="sub-process exited" error="<nil>"
"""


def test_a_step_that_fails_ends_the_command_with_its_message(folder: Path, kfp_api: KfpApi, compiled: Path) -> None:
    kfp_api.state.fails = ("train-model", LOG)
    finished = on_kubeflow(folder, compiled, "--follow", "--interval", "0.1")
    assert finished.status == 1
    assert (
        "error: train-model failed: global_batch_size is 7, which 2 processes cannot share equally.\n  Give 6 or 8.\n"
        in finished.err
    )
    assert "exit status 1" not in finished.err
    assert "/#/runs/details/" in finished.err
    assert "train-model: failed after 1 min 00 s" in finished.out
    assert finished.out.count("train-model") == 2, "its driver, executor and attempts are no steps"
    assert "upload-model" not in finished.out


def test_without_its_log_a_failed_step_has_what_argo_says(folder: Path, kfp_api: KfpApi, compiled: Path) -> None:
    kfp_api.state.fails = ("prepare-data", "Killed")
    finished = on_kubeflow(folder, compiled, "--follow", "--interval", "0.1")
    assert "error: prepare-data failed: Error (exit code 1)" in finished.err
    kfp_api.state.hides = True
    finished = on_kubeflow(folder, compiled, "--follow", "--interval", "0.1")
    assert (finished.status, "error: prepare-data failed: its log says why" in finished.err) == (1, True)


def test_a_service_that_is_out_for_a_moment_does_not_end_the_following(
    folder: Path, kfp_api: KfpApi, compiled: Path
) -> None:
    assert on_kubeflow(folder, compiled).status == 0
    (run_id,) = kfp_api.state.runs
    kfp_api.state.unavailable = 2
    followed = command(folder, "follow", run_id, "--target", "kubeflow", "--interval", "0.1")
    assert followed.status == 0, followed.err
    assert "upload-model: succeeded" in followed.out


def test_a_run_that_is_not_there_ends_the_following_at_once(folder: Path, kfp_api: KfpApi) -> None:
    followed = command(folder, "follow", "3f0c", "--target", "kubeflow", "--interval", "60")
    assert (followed.status, "Run 3f0c not found" in followed.err) == (2, True), followed.err
    assert "The run continues" not in followed.err
    assert "kubeflow_namespace" in followed.err
    assert len([request for request in kfp_api.state.requests if request.endswith("runs/3f0c")]) == 1


@pytest.mark.parametrize(
    "what",
    [
        ("run",),
        ("upload",),
        ("cancel", "3f0c"),
        ("follow", "3f0c"),
        ("schedule", "list"),
        ("schedule", "pause", "weekly"),
        ("schedule", "create", "x", "--name", "weekly", "--cron", "0 3 * * 1"),
    ],
    ids=" ".join,
)
def test_a_web_page_is_no_answer(folder: Path, kfp_api: KfpApi, compiled: Path, what: tuple[str, ...]) -> None:
    """Status 200 and HTML: a page to sign in, or a dashboard that answers at every path."""
    arguments = (*what, *([str(compiled)] if what[0] in ("run", "upload") else []), "--target", "kubeflow")
    kfp_api.state.page = "Kubeflow &amp; Central Dashboard"
    finished = command(folder, *arguments)
    assert finished.status == 2, finished.out
    assert "a web page 'Kubeflow & Central Dashboard' answered at " in finished.err
    assert "https://HOST/pipeline" in finished.err
    assert "Traceback" not in finished.err
    assert finished.out == ""
    kfp_api.state.page, kfp_api.state.redirect = "", "https://kubeflow.example.com/dex/auth?client_id=kubeflow"
    finished = command(folder, *arguments)
    assert finished.status == 2, finished.out
    assert "302 Found: one is sent on to https://kubeflow.example.com/dex/auth" in finished.err
    assert "Give a token in GPU_PIPELINES_KUBEFLOW_TOKEN" in finished.err


def test_a_page_that_comes_later_is_no_answer_either(folder: Path, kfp_api: KfpApi, compiled: Path) -> None:
    """As when a session ends between two requests."""
    from gpu_pipelines.project_settings import load_project_settings
    from gpu_pipelines.targets.kubeflow import connection

    client = connection.connect(load_project_settings(directory=folder))
    kfp_api.state.page = "Sign in"
    for request in (lambda: client.get_run("x"), lambda: client.terminate_run("x"), client.list_experiments):
        with pytest.raises(UserError, match="a web page 'Sign in'"), connection.service_errors("Asking"):
            request()


def test_every_request_has_a_time_limit(folder: Path, kfp_api: KfpApi, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_pipelines.project_settings import load_project_settings
    from gpu_pipelines.targets.kubeflow import connection

    monkeypatch.setattr(connection, "_TIMEOUT", (0.3, 0.3))
    settings = load_project_settings(directory=folder)
    client = connection.connect(settings)
    kfp_api.state.stalls = 1.5
    for request in (
        lambda: connection.connect(settings),
        lambda: client.get_run("x"),
        lambda: client.terminate_run("x"),
    ):
        with pytest.raises(UserError, match="timed out"), connection.service_errors("Asking"):
            request()


def test_ctrl_c_leaves_the_run(folder: Path, kfp_api: KfpApi, compiled: Path) -> None:
    process = subprocess.Popen(
        [str(GPU_PIPELINES), "run", str(compiled), "--target", "kubeflow", "--follow", "--interval", "60"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = ""
    while "started" not in line:
        line = process.stdout.readline()
        assert line or process.poll() is None
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    ((run_id, run),) = kfp_api.state.runs.items()
    assert f"{run_id} goes on" in err
    assert run["state"] == "RUNNING"


def test_a_run_is_cancelled(folder: Path, kfp_api: KfpApi, compiled: Path) -> None:
    assert on_kubeflow(folder, compiled).status == 0
    ((run_id, run),) = kfp_api.state.runs.items()
    cancelled = done(folder, "cancel", run_id, "--target", "kubeflow")
    assert cancelled == f"asked to cancel {run_id}\nconsole: {kfp_api.url}/#/runs/details/{run_id}\n"
    assert run["state"] == "CANCELED"
    followed = command(folder, "follow", run_id, "--target", "kubeflow", "--interval", "0.1")
    assert followed.status == 1
    assert "the run was cancelled" in followed.err


def test_all_settings_that_are_missing_are_told_at_once(folder: Path) -> None:
    (folder / "gpu-pipelines.yaml").write_text("{}\n")
    refused = on_kubeflow(folder, PIPELINE)
    assert refused.status == 2
    assert "3 things are wrong" in refused.err
    assert all(f"Give --{name}" in refused.err for name in ("kubeflow-host", "image", "accelerator"))


def test_data_in_a_bucket_is_looked_at_before_anything_is_sent(folder: Path, kfp_api: KfpApi, compiled: Path) -> None:
    with storage_emulator("sent-later") as bucket:
        RemoteFolder(bucket).write("red/1.png", b"-")
        refused = on_kubeflow(folder, compiled, "-p", f"source={bucket}", "-p", "registry=vertex://p/us-central1")
    assert refused.status == 2
    assert f"The source {bucket} has a single class, 'red'" in refused.err
    assert kfp_api.state.requests == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("-p", "source=photos"), "source photos is not where the pods can read it"),
        (("-p", "registry=./registry"), "would be a directory of the container"),
        (("-p", "tokenizer=/home/me/tokenizer"), "tokenizer is /home/me/tokenizer, a directory of this machine"),
        (("-p", "epohcs=1"), "epochs"),
        (("--accelerator", "l4:4", "-p", "global_batch_size=30"), "is 30, which 4 processes cannot share equally"),
        (("--reuse",), "kubeflow has no --reuse"),
        (("--accelerator", "l4:1", "--tensorboard", "projects/p/locations/l/tensorboards/1"), "--tensorboard"),
        (("--accelerator", "l4:1", "--boot-disk-gb", "500"), "--boot-disk-gb"),
        (("--label", "team=a"), "kubeflow has no --label"),
        (("--accelerator", "l4:1", "--data-machine-type", "n2-standard-16"), "kubeflow has no --data-machine-type"),
        (("--accelerator", "l4:1", "--data-nodes", "0"), "Data cannot be prepared on 0 nodes"),
        (("--accelerator", "l4:1", "--data-nodes", "4", "-p", "source=bq://p.d.t"), "is read by one machine"),
        (("--accelerator", "l4:1", "--nodes", "2", "--env", "PET_NNODES=2"), "Kubeflow Trainer sets PET_NNODES itself"),
    ],
)
def test_wrong_requests_are_refused_before_anything_is_sent(
    folder: Path, kfp_api: KfpApi, compiled: Path, arguments: tuple[str, ...], told: str
) -> None:
    pipeline: str | Path = PIPELINE if "--accelerator" in arguments else compiled
    finished = on_kubeflow(folder, pipeline, *arguments)
    assert finished.status == 2, finished.out
    assert told in finished.err
    assert kfp_api.state.requests == []


def test_settings_that_are_missing_or_wrong_are_named(folder: Path, compiled: Path) -> None:
    (folder / "gpu-pipelines.yaml").write_text("")
    finished = on_kubeflow(folder, compiled)
    assert (finished.status, "kubeflow_host" in finished.err) == (2, True)
    assert on_kubeflow(folder, compiled, "--kubeflow-host", "http://kubeflow.example.com").status == 2, "no TLS"
    (folder / "gpu-pipelines.yaml").write_text("node_pool: GPUS\nvolume_claim: a/b\n")
    finished = on_kubeflow(folder, compiled)
    assert "node_pool" in finished.err
    assert "volume_claim" in finished.err


def test_a_file_for_vertex_is_refused(folder: Path) -> None:
    from gpu_pipelines.targets.vertex.target import VertexTarget

    (folder / "vertex.yaml").write_text(VertexTarget().text_of(PIPELINE, plan("l4:1")))
    finished = on_kubeflow(folder, "vertex.yaml")
    assert finished.status == 2
    assert "is for Vertex AI: steps of it are CustomJobs" in finished.err
    assert "accelerate(task" in finished.err, "also of a CustomTrainingJobOp of one's own, which no compiling mends"


OF_VERTEX = """
from google_cloud_pipeline_components.v1.custom_job import CustomTrainingJobOp
from kfp import dsl


@dsl.pipeline(name="of-vertex")
def of_vertex():
    CustomTrainingJobOp(display_name="a", project="p", location="us-central1", worker_pool_specs=[{}])
"""


EMAILS = """
from google_cloud_pipeline_components.v1.vertex_notification_email import VertexNotificationEmailOp
from kfp import dsl
@dsl.component(base_image="python:3.11")
def work(): ...
@dsl.pipeline(name="emails")
def emails():
    with dsl.ExitHandler(VertexNotificationEmailOp(recipients=["team@example.com"])):
        work()
"""


def test_a_job_of_vertex_ai_is_refused_where_a_file_is_compiled(folder: Path) -> None:
    (folder / "of_vertex.py").write_text(OF_VERTEX)
    finished = command(folder, "compile", "of_vertex.py", "--target", "kubeflow", "-o", "out.yaml")
    assert finished.status == 2
    assert "of-vertex is for Vertex AI: steps of it are CustomJobs" in finished.err
    (folder / "emails.py").write_text(EMAILS)
    finished = command(folder, "compile", "emails.py", "--target", "kubeflow", "-o", "out.yaml")
    assert finished.status == 2
    assert "emails sends e-mails by a component of Google's that only Vertex AI Pipelines runs" in finished.err
    assert not (folder / "out.yaml").exists()


def test_a_server_that_is_not_there_or_refuses_is_one_line(folder: Path, kfp_api: KfpApi, compiled: Path) -> None:
    finished = on_kubeflow(folder, compiled, "--kubeflow-host", "http://localhost:9")
    assert (finished.status, finished.err.startswith("error: Connecting to Kubeflow Pipelines failed")) == (2, True)
    assert "port-forward" in finished.err
    kfp_api.state.token = "secret"
    finished = on_kubeflow(folder, compiled)
    assert (finished.status, "GPU_PIPELINES_KUBEFLOW_TOKEN" in finished.err) == (2, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_PIPELINES_KUBEFLOW_TOKEN", "secret")
        assert on_kubeflow(folder, compiled).status == 0


def test_versions_are_uploaded_once(folder: Path, kfp_api: KfpApi, compiled: Path) -> None:
    upload = ("upload", str(compiled), "--target", "kubeflow")
    first = done(folder, *upload)
    assert first.startswith("uploaded train-evaluate-upload/0.1.0-")
    assert "is there already" in done(folder, *upload)
    done(folder, *upload, "--tag", "v2")
    assert command(folder, *upload, "--tag", "v2").status == 2
    assert [each["display_name"] for each in kfp_api.state.pipelines] == ["train-evaluate-upload"]
    assert len(kfp_api.state.versions) == 2
    assert kfp_api.state.versions[0]["pipeline_spec"]["platform_spec"]["platforms"]


def test_the_life_of_a_schedule(folder: Path, kfp_api: KfpApi, compiled: Path) -> None:
    done(folder, "upload", str(compiled), "--target", "kubeflow", "--tag", "v1")
    done(folder, "upload", str(compiled), "--target", "kubeflow", "--tag", "v2")
    create = ("schedule", "create", "train-evaluate-upload", "--target", "kubeflow", "--name", "weekly")
    timing = ("--cron", "30 3 * * 5-7", "--start", "2027-01-01T00:00Z", "-p", "epochs=3")
    asked = json.loads(done(folder, *create, *timing, "--dry-run"))
    assert asked["body"]["trigger"]["cron_schedule"] == {
        "cron": "0 30 3 * * 5,6,0",
        "start_time": "2027-01-01T00:00:00Z",
    }
    assert kfp_api.state.recurring == {}
    made = done(folder, *create, *timing)
    ((schedule_id, schedule),) = kfp_api.state.recurring.items()
    assert f"created   weekly ({schedule_id})" in made
    assert schedule["trigger"]["cron_schedule"]["cron"] == "0 30 3 * * 5,6,0"
    assert schedule["no_catchup"] is True
    assert schedule["runtime_config"]["parameters"]["epochs"] == 3
    newest = next(v for v in kfp_api.state.versions if v["display_name"] == "v2")
    assert schedule["pipeline_version_reference"]["pipeline_version_id"] == newest["pipeline_version_id"]
    again = command(folder, *create, *timing)
    assert (again.status, "already" in again.err) == (2, True)
    assert "weekly" in done(folder, "schedule", "list", "--target", "kubeflow")
    done(folder, "schedule", "pause", "weekly", "--target", "kubeflow")
    assert "paused" in done(folder, "schedule", "describe", schedule_id, "--target", "kubeflow")
    done(folder, "schedule", "resume", "weekly", "--target", "kubeflow")
    shown = done(folder, "schedule", "describe", "weekly", "--target", "kubeflow")
    assert "active" in shown
    assert "epochs = 3" in shown
    document = json.loads(done(folder, "schedule", "list", "--target", "kubeflow", "--json"))
    assert document[0]["display_name"] == "weekly"
    done(folder, "schedule", "delete", "weekly", "--target", "kubeflow")
    assert kfp_api.state.recurring == {}
    gone = command(folder, "schedule", "pause", "weekly", "--target", "kubeflow")
    assert (gone.status, "There are no schedules here" in gone.err) == (2, True), gone.err


def test_a_prediction_is_scheduled(folder: Path, kfp_api: KfpApi) -> None:
    done(folder, "upload", "batch_prediction", "--target", "kubeflow", "--accelerator", "l4:1")
    create = ("schedule", "create", "batch-prediction", "--target", "kubeflow", "--name", "scores")
    given = ("-p", "source=gs://example-bucket/rows", "-p", "output=gs://example-bucket/{date}", "-p", "model_name=m")
    done(folder, *create, "--cron", "0 3 * * *", *given)
    (schedule,) = kfp_api.state.recurring.values()
    values = schedule["runtime_config"]["parameters"]
    assert (values["output"], values["model_version"]) == ("gs://example-bucket/{date}", "champion")
    (version,) = kfp_api.state.versions
    pipeline, kubernetes = version["pipeline_spec"]["pipeline_spec"], version["pipeline_spec"]["platform_spec"]
    container = pipeline["deploymentSpec"]["executors"]["exec-predict-batch"]["container"]
    assert container["resources"]["accelerator"]["resourceCount"] == "1"
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables["GPU_PIPELINES_UNFINISHED_WORK"].endswith("/unfinished-predictions")
    assert "nvidia-l4" in json.dumps(kubernetes)


def test_a_file_is_scheduled_as_it_is_placed(folder: Path, kfp_api: KfpApi, compiled: Path) -> None:
    own = Path(__file__).parents[1] / "own_pipelines/mine.py"
    create = ("schedule", "create", f"{own}:mine", "--target", "kubeflow", "--name", "nightly", "--cron", "0 3 * * *")
    refused = command(folder, *create)
    assert "count has no accelerator" in refused.err
    placed = (*create, "--accelerator", "count=l4:1", "-p", "steps=7", "--no-cache")
    refused = command(folder, *placed, "-p", "stpes=7")
    assert "Did you mean 'steps'?" in refused.err
    asked = json.loads(done(folder, *placed, "--dry-run"))["body"]
    done(folder, *placed)
    (schedule,) = kfp_api.state.recurring.values()
    assert schedule["runtime_config"]["parameters"]["steps"] == 7
    assert "pipeline_version_reference" not in schedule
    for body in (asked, schedule):
        sent = body["pipeline_spec"]
        executors = sent["platform_spec"]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
        labels = executors["exec-count"]["nodeSelector"]["labels"]
        assert labels == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    tasks = schedule["pipeline_spec"]["pipeline_spec"]["root"]["dag"]["tasks"]
    assert not any(task.get("cachingOptions", {}).get("enableCache") for task in tasks.values())
    done(
        folder,
        "schedule",
        "create",
        str(compiled),
        "--target",
        "kubeflow",
        "--name",
        "of-a-file",
        "--cron",
        "0 4 * * *",
    )
    assert len(kfp_api.state.recurring) == 2
    assert "nightly" in done(folder, "schedule", "describe", "nightly", "--target", "kubeflow")
    done(folder, "upload", str(compiled), "--target", "kubeflow", "--tag", "v1")
    uploaded = (
        "schedule",
        "create",
        "train-evaluate-upload",
        "--target",
        "kubeflow",
        "--name",
        "x",
        "--cron",
        "0 3 * * *",
    )
    refused = command(folder, *uploaded, "--accelerator", "l4:1")
    assert "The uploaded train-evaluate-upload is compiled already; --accelerator cannot change it" in refused.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--cron", "0 3 * * *", "--time-zone", "Europe/Paris"), "Europe/Paris"),
        (("--cron", "0 0 3 * * *"), "has 6 fields"),
        (("--cron", "0 3 * * *", "--max-runs", "3"), "--max-runs"),
        (("--cron", "0 3 * * *", "--max-concurrent", "11"), "at most 10"),
        (("--cron", "0 3 * * *", "-p", "source=here"), "not where the pods"),
    ],
)
def test_schedules_that_cannot_be_are_refused(
    folder: Path, kfp_api: KfpApi, compiled: Path, arguments: tuple[str, ...], told: str
) -> None:
    done(folder, "upload", str(compiled), "--target", "kubeflow", "--tag", "v1")
    create = ("schedule", "create", "train-evaluate-upload/v1", "--target", "kubeflow", "--name", "x")
    finished = command(folder, *create, *arguments)
    assert (finished.status, told in finished.err) == (2, True), finished.err
    assert kfp_api.state.recurring == {}


def test_what_kfps_client_has_uploaded_is_scheduled_if_its_image_is_one(
    folder: Path, kfp_api: KfpApi, compiled: Path
) -> None:
    import kfp

    client = kfp.Client(host=kfp_api.url)
    create = ("--target", "kubeflow", "--name", "nightly", "--cron", "0 3 * * *")
    theirs = client.upload_pipeline(str(compiled), pipeline_name="theirs")
    refused = command(folder, "schedule", "create", "theirs", *create)
    assert (refused.status, "run in gpu-pipelines/steps:" in refused.err) == (2, True), refused.err
    of_image = folder / "file.yaml"
    of_image.write_text(compiled.read_text().replace(STEPS_IMAGE, "mine:1"))
    client.upload_pipeline_version(str(of_image), "v2", pipeline_id=theirs.pipeline_id)
    assert "created   nightly" in done(folder, "schedule", "create", "theirs", *create)


@pytest.mark.parametrize(
    ("unix", "with_seconds"),
    [
        ("0 3 * * *", "0 0 3 * * *"),
        ("0 3 * * 7/2", "0 0 3 * * 0"),
        ("*/15 0-6 1,15 * 7", "0 */15 0-6 1,15 * 0"),
        ("0 0 * * 0-7/2", "0 0 0 * * 0,2,4,6"),
        ("0 0 * * 1-5", "0 0 0 * * 1-5"),
        ("0 0 * * 6-7,3", "0 0 0 * * 6,0,3"),
    ],
)
def test_cron_expressions_get_seconds_and_a_sunday_that_is_0(unix: str, with_seconds: str) -> None:
    from gpu_pipelines.targets.cron import parse_cron
    from gpu_pipelines.targets.kubeflow.scheduling import cron_with_seconds

    assert cron_with_seconds(parse_cron(unix)) == with_seconds


def test_the_server_refuses_what_the_api_does_not_know(kfp_api: KfpApi, compiled: Path) -> None:
    import kfp_server_api

    api = kfp_server_api.RunServiceApi(kfp_server_api.ApiClient(kfp_server_api.Configuration(host=kfp_api.url)))
    pipeline, platform = yaml.load_all(compiled.read_text(), Loader=yaml.CSafeLoader)

    def refused(body: dict[str, Any]) -> str:
        with pytest.raises(kfp_server_api.ApiException) as caught:
            api.run_service_create_run(run=body)
        assert caught.value.status == 400
        return str(caught.value.body)

    assert "unknown field" in refused({"displayname": "x"})
    pipeline["rooot"] = {}
    assert "rooot" in refused({"pipeline_spec": {"pipeline_spec": pipeline, "platform_spec": platform}})


def test_a_step_whose_pod_does_not_start_says_why(folder: Path, kfp_api: KfpApi, compiled: Path) -> None:
    no_node = "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    no_image = "ImagePullBackOff: Back-off pulling image steps:1"
    kfp_api.state.waits = ("train-model", [no_node, no_node, "ContainerCreating", no_image, "PodInitializing"])
    finished = on_kubeflow(folder, compiled, "--follow", "--interval", "0.1")
    assert finished.status == 0, finished.out + finished.err
    of_step = [line for line in finished.out.splitlines() if line.startswith("train-model: ")]
    waits = [f"train-model: its pod does not start: {said}" for said in (no_node, no_image)]
    assert of_step[:3] == ["train-model: started", *waits]
    assert of_step[3].startswith("train-model: succeeded")


def test_a_step_whose_pod_a_queue_may_hold_says_so(folder: Path, kfp_api: KfpApi, compiled: Path) -> None:
    # Argo knows no gates.
    kfp_api.state.waits = ("train-model", ["", ""])
    out = on_kubeflow(folder, compiled, "--follow", "--interval", "0.1").out
    assert out.count("train-model: its pod does not start: Argo does not say why; a queue of Kueue may hold it\n") == 1


def test_a_pod_that_does_not_start_and_may_not_be_looked_at_ends_no_run(
    folder: Path, kfp_api: KfpApi, compiled: Path
) -> None:
    kfp_api.state.waits, kfp_api.state.hides = ("train-model", ["ErrImagePull: none"]), True
    assert on_kubeflow(folder, compiled, "--follow", "--interval", "0.1").status == 0


PAGE = Path(__file__).parents[2] / "docs" / "kubeflow.md"
#: What is another in each run: addresses, ids, and the digest of a file, in which is the version of the project.
CHANGING = re.compile(r"http://127\.0\.0\.1:\d+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=/)[\d.]+-[0-9a-f]{12}")


def test_what_the_document_shows_is_what_is_printed(folder: Path, kfp_api: KfpApi) -> None:
    blocks = re.findall(r"```console\n(.*?)```\n", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    shown = [part for block in blocks for part in re.split(r"^\$ gpu-pipelines ", block, flags=re.MULTILINE)[1:]]
    for line, _, output in (part.partition("\n") for part in shown):
        quick = ("--interval", "0.1") if "--follow" in line else ()
        finished = command(folder, *shlex.split(line), *quick)
        assert CHANGING.sub("…", finished.err + finished.out) == CHANGING.sub("…", output), line
    assert len(shown) == 5


def test_a_failed_run_goes_on_with_what_its_steps_have_made(folder: Path, kfp_api: KfpApi) -> None:
    kfp_api.state.fails = ("train-model", "error: no")
    assert on_kubeflow(folder, PIPELINE, "--accelerator", "l4:1", "--follow", "--interval", "0.1").status == 1
    ((run_id, run),) = kfp_api.state.runs.items()
    kfp_api.state.fails = None
    resume = ("run", "--resume", run_id, "--target", "kubeflow")
    shown = json.loads(done(folder, *resume, "--dry-run"))
    assert shown["url"].endswith(f"/apis/v2beta1/runs/{run_id}:retry")
    assert run["state"] == "FAILED"
    out = done(folder, *resume, "--follow", "--interval", "0.1")
    assert f"goes on: {run_id}" in out
    assert kfp_api.state.requests.count(f"POST runs/{run_id}:retry") == 1
    assert list(kfp_api.state.runs) == [run_id]
    assert "has succeeded, so there is nothing to resume" in command(folder, *resume).err


def test_a_run_that_cannot_go_on_is_refused_before_anything_is_sent(folder: Path, kfp_api: KfpApi) -> None:
    run_id = re.findall("submitted (.+)", on_kubeflow(folder, PIPELINE, "--accelerator", "l4:1").out)[0]
    running = command(folder, "run", "--resume", run_id, "--target", "kubeflow")
    assert (running.status, "has not ended: it is" in running.err) == (2, True)
    done(folder, "cancel", run_id, "--target", "kubeflow")
    changed = command(folder, "run", "--resume", run_id, "--target", "kubeflow", "-p", "epochs=2")
    assert (changed.status, "without another pipeline or other parameters" in changed.err) == (2, True)
    here = command(folder, "run", "--resume", run_id)
    assert (here.status, "does not report what the steps of a run made" in here.err) == (2, True)
    unknown = command(folder, "run", "--resume", "00000000-0000-4000-8000-000000000000", "--target", "kubeflow")
    assert (unknown.status, "not found" in unknown.err) == (2, True)
    assert not [each for each in kfp_api.state.requests if ":retry" in each]
