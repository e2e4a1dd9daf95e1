"""`job submit`, `follow` and `cancel` through the real client, and that no failure makes a second job."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from command_line import command
from conftest import GPU_PIPELINES, set_variables
from vertex_commands import put_persistent_resource

import gpu_pipelines
from gpu_pipelines.errors import RunFailedError, UserError
from gpu_pipelines.project_settings import VARIABLES
from gpu_pipelines.targets.vertex.jobs import custom_jobs
from gpu_pipelines.targets.vertex.jobs.custom_jobs import REQUEST_LABEL
from gpu_pipelines.targets.vertex.logs import JobLogs

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

JOB = ("--accelerator", "l4:2", "--image", "us-docker.pkg.dev/p/r/trainer:1", "--name", "try")
CREATE = r"POST .*/customJobs$"


@pytest.fixture
def api(vertex_api: VertexApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> VertexApi:
    """The server, with what leads to it in the environment; waits are short."""
    set_variables(monkeypatch, vertex_api.environment())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(custom_jobs, "_WAITS", (0.01, 0.02))
    monkeypatch.setattr(custom_jobs, "_LOOKS", (0.0, 0.01))
    return vertex_api


def test_what_is_sent_is_what_the_config_says(api: VertexApi, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    options = (
        *("--accelerator", "h100:8", "--nodes", "3", "--strategy", "flex-start", "--max-wait", "2", "--hours", "5"),
        *("--image", "us-docker.pkg.dev/p/r/trainer:1", "--env", "A=1", "--output-dir", "gs://b/out", "--label", "a=b"),
        *(
            "--service-account",
            "me@p.iam.gserviceaccount.com",
            "--tensorboard",
            "projects/p/locations/us-central1/tensorboards/7",
        ),
        *("--network", "projects/1/global/networks/n", "--web-access", "--command", "python -m trainer"),
        *("--encryption-key", "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k"),
    )
    written = command("job", "config", *options, "-o", str(file), "--", "--epochs", "3")
    assert written.status == 0, written.err
    done = command("job", "submit", *options, "--json", "--", "--epochs", "3")
    assert done.status == 0, done.err
    told = json.loads(done.out)
    assert told["console"].startswith("https://console.cloud.google.com/")
    assert "USD per hour" in done.err
    from google.cloud.aiplatform_v1.types import CustomJobSpec
    from google.protobuf import json_format

    wanted = json_format.ParseDict(yaml.safe_load(file.read_text()), CustomJobSpec.pb()())
    job = api.state.custom_jobs.jobs[told["name"]]
    assert CustomJobSpec.pb(job.job_spec) == wanted
    assert job.display_name == told["display_name"] == "trainer-h100-8x3"
    assert job.labels["a"] == "b"
    assert job.encryption_spec.kms_key_name.endswith("/cryptoKeys/k")


def test_a_program_makes_submits_follows_and_finds_jobs_as_the_commands_do(
    api: VertexApi, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"image": "us-docker.pkg.dev/p/r/trainer:1", "command": ["python", "-c"]}
    given |= {"arguments": ["print('a b')"], "label": {"team": "vision"}, "hours": 4}
    config = gpu_pipelines.job_config("l4:2", nodes=2, **given)
    flags = ("--nodes", "2", "--image", given["image"], "--label", "team=vision", "--hours", "4")
    printed = command("job", "config", "--accelerator", "l4:2", *flags, "--command", "python -c", "--", "print('a b')")
    assert config == yaml.safe_load(printed.out)
    texts = gpu_pipelines.job_config("l4:2", image="i", arguments=["--n", 3], env={"A": 1, "B": None})
    container = texts["workerPoolSpecs"][0]["containerSpec"]
    assert container["args"] == ["--n", "3"]
    assert container["env"] == [{"name": "A", "value": "1"}]
    line = gpu_pipelines.job_config("l4:2", image="i", arguments="--n '3 4'")
    assert line["workerPoolSpecs"][0]["containerSpec"]["args"] == ["--n", "3 4"]
    with pytest.raises(UserError, match="There is no option 'imag'"):
        gpu_pipelines.job_config("l4:2", imag="i")
    with pytest.raises(UserError, match="nodes takes a whole number; got 'two'"):
        gpu_pipelines.submit_job("l4:2", nodes="two", **given)
    assert api.state.requests_of("CreateCustomJob") == []
    assert capsys.readouterr() == ("", "")

    api.state.replicas.run_jobs()
    job = gpu_pipelines.submit_job("l4:2", **given)
    assert job.status == "submitted"
    assert job.id in api.state.custom_jobs.jobs
    assert job.document["console"].startswith("https://console.cloud.google.com/")
    assert job.follow(0.1, progress=False).status == "succeeded"
    told = capsys.readouterr()
    assert told.out == ""
    assert "USD per hour" in told.err
    found = gpu_pipelines.open_run(job.id, target="vertex")
    assert (found.status, found.target) == ("succeeded", "vertex")
    assert found.document["cost"]
    with pytest.raises(RunFailedError):
        gpu_pipelines.submit_job("l4:2", **{**given, "arguments": ["raise SystemExit(3)"]}).follow(0.1)
    with pytest.raises(UserError, match="runs show has no projec"):
        gpu_pipelines.open_run(job.id, target="vertex", projec="p")


def test_a_job_reaches_a_network_attachment_and_a_persistent_resource(api: VertexApi) -> None:
    attachment = "projects/p/regions/us-central1/networkAttachments/a"
    put_persistent_resource(api, "g2-standard-24", 2)
    done = command("job", "submit", *JOB, "--network-attachment", attachment, "--persistent-resource", "pool-1")
    assert done.status == 0, done.err
    (sent,) = api.state.requests_of("CreateCustomJob")
    assert sent.custom_job.job_spec.psc_interface_config.network_attachment == attachment
    assert sent.custom_job.job_spec.persistent_resource_id == "pool-1"


def test_a_dry_run_prints_the_request_and_sends_nothing(api: VertexApi) -> None:
    done = command("job", "submit", *JOB, "--dry-run")
    request = json.loads(done.out)
    assert request["path"] == "/v1/projects/example-project/locations/us-central1/customJobs"
    assert request["body"]["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]["acceleratorCount"] == 2
    assert api.state.requests == []


@pytest.mark.parametrize("name", ["project", "region"])
def test_a_dry_run_prints_no_request_without_an_address(
    api: VertexApi, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It printed `projects/None`."""
    for variable in VARIABLES[name]:
        monkeypatch.delenv(variable, raising=False)
    done = command("job", "submit", *JOB, "--dry-run")
    assert (done.status, done.out) == (2, "")
    assert f"No {name} is known" in done.err


def test_an_unused_pool_between_two_others_reaches_the_service_empty(api: VertexApi, tmp_path: Path) -> None:
    """gcloud refuses such a file, and rank 0 of this one has no GPU."""
    container = {"imageUri": "us-docker.pkg.dev/p/r/trainer:1", "args": ["1e-4", "y"]}
    used = {"machineSpec": {"machineType": "n1-standard-8"}, "replicaCount": 1, "containerSpec": container}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"workerPoolSpecs": [used, {}, {}, {**used, "replicaCount": 2}]}))
    done = command("job", "submit", "--config", "job.yaml", "--name", "evaluated")
    assert done.status == 0, done.err
    (sent,) = api.state.requests_of("CreateCustomJob")
    pools = sent.custom_job.job_spec.worker_pool_specs
    assert [pool.replica_count for pool in pools] == [1, 0, 0, 2]
    assert list(pools[3].container_spec.args) == ["1e-4", "y"]


def test_the_experiment_of_a_file_is_sent(api: VertexApi, tmp_path: Path) -> None:
    pool = {"machineSpec": {"machineType": "n1-standard-8"}, "replicaCount": 1, "containerSpec": {"imageUri": "image"}}
    experiment = "projects/p/locations/us-central1/metadataStores/default/contexts/digits"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"workerPoolSpecs": [pool], "experiment": experiment}))
    done = command("job", "submit", "--config", "job.yaml", "--name", "tracked")
    assert done.status == 0, done.err
    (sent,) = api.state.requests_of("CreateCustomJob")
    assert sent.custom_job.job_spec.experiment == experiment


def test_a_job_without_a_place_for_its_outputs_gets_none(api: VertexApi) -> None:
    assert command("job", "submit", *JOB).status == 0
    (sent,) = api.state.requests_of("CreateCustomJob")
    assert not sent.custom_job.job_spec.base_output_directory.output_uri_prefix


@pytest.mark.parametrize("status", [0, 500, 503, 504])
def test_a_job_whose_answer_is_lost_is_found_and_not_sent_again(api: VertexApi, status: int) -> None:
    api.fail_next(CREATE, status, took_effect=True)
    done = command("job", "submit", *JOB, "--json")
    assert done.status == 0, done.err
    assert list(api.state.custom_jobs.jobs) == [json.loads(done.out)["name"]]


@pytest.mark.parametrize("status", [0, 500, 503])
def test_a_job_that_was_perhaps_created_is_never_sent_again(api: VertexApi, status: int) -> None:
    api.fail_next(CREATE, status)
    done = command("job", "submit", *JOB)
    assert done.status == 2
    assert "Whether it was created is not known" in done.err
    assert f"--filter=labels.{REQUEST_LABEL}=" in done.err
    assert api.state.requests_of("CreateCustomJob") == []


def test_a_request_too_many_is_sent_again_after_a_look(api: VertexApi) -> None:
    api.fail_next(CREATE, 429, times=2, message="Quota exceeded for requests per minute.")
    assert command("job", "submit", *JOB).status == 0
    methods = [name for name, _ in api.state.requests]
    assert methods == ["ListCustomJobs"] * 4 + ["CreateCustomJob"]


@pytest.mark.parametrize(
    ("status", "said", "remedy"),
    [
        (429, "custom_model_training_nvidia_l4_gpus", "gpu-pipelines accelerators plan"),
        (403, "Permission 'aiplatform.customJobs.create' denied", "gpu-pipelines doctor"),
    ],
)
def test_a_quota_or_a_missing_permission_is_told_with_googles_message_and_what_to_do(
    api: VertexApi, status: int, said: str, remedy: str
) -> None:
    api.fail_next(CREATE, status)
    done = command("job", "submit", *JOB)
    assert done.status == 2
    assert said in done.err
    assert remedy in done.err
    assert api.state.requests_of("CreateCustomJob") == []


def test_a_server_that_is_not_there_is_told(api: VertexApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM", "http://127.0.0.1:9/")
    done = command("job", "submit", *JOB)
    assert done.status == 2
    assert "nothing was sent" in done.err
    assert (
        "No connection to 127.0.0.1:9: Failed to establish a new connection: [Errno 111] Connection refused" in done.err
    )
    assert "Max retries" not in done.err


def test_a_job_is_followed_with_its_lines_to_its_end(api: VertexApi) -> None:
    api.state.replicas.run_jobs()
    done = command(
        *("job", "submit", *JOB, "--nodes", "2", "--follow", "--interval", "0.1"),
        *(
            "--command",
            "python -c",
            "--",
            "import os, json; print('I am', json.loads(os.environ['CLUSTER_SPEC'])['task']['type'])",
        ),
    )
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert "  I am workerpool0" in lines
    assert "  [workerpool1-0] I am workerpool1" in lines
    assert lines[-2].endswith("succeeded"), "the lines of the job come before its end"
    assert lines[-1].startswith("cost: $")


def test_a_job_that_fails_ends_the_command_with_1(api: VertexApi) -> None:
    api.state.replicas.run_jobs()
    done = command(
        *("job", "submit", *JOB, "--follow", "--interval", "0.1", "--json"),
        *("--command", "python -c", "--", "import sys; sys.exit(3)"),
    )
    assert done.status == 1
    assert json.loads(done.out)["state"] == "failed"
    assert "non-zero status of 3" in done.err


def test_a_job_is_followed_and_cancelled_by_its_number(api: VertexApi) -> None:
    name = json.loads(command("job", "submit", *JOB, "--json").out)["name"]
    # A process of its own: two commands in this one would have one stdout.
    cancel = [str(GPU_PIPELINES), "job", "cancel", name.rpartition("/")[2]]
    timer = threading.Timer(0.5, subprocess.run, (cancel,), {"check": True})
    timer.start()
    done = command("job", "follow", name, "--interval", "0.1")
    timer.join()
    assert done.status == 1
    assert "cancelled" in done.out


def test_ctrl_c_leaves_the_job_running_and_says_how_to_come_back(api: VertexApi) -> None:
    name = json.loads(command("job", "submit", *JOB, "--json").out)["name"]
    following = subprocess.Popen(
        [str(GPU_PIPELINES), "job", "follow", name, "--interval", "0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert following.stdout
    assert following.stdout.readline().endswith(" pending\n")
    following.send_signal(signal.SIGINT)
    _, told = following.communicate(timeout=30)
    assert following.returncode == 130
    assert f"cancel: gpu-pipelines cancel {name}" in told
    assert api.state.custom_jobs.state(name) == "JOB_STATE_PENDING"


def test_a_log_that_does_not_answer_is_read_again_and_nothing_of_it_is_lost(api: VertexApi) -> None:
    warned: list[str] = []
    logs = JobLogs("example-project", warned.append)

    def say(job: str, line: str) -> None:
        api.state.logs.write("example-project", "ml_job", {"job_id": job, "task_name": "workerpool0-0"}, line)

    say("1", "first")
    # The log of the first job is read before that of the second cannot be.
    api.fail_next("entries:list", None)
    api.fail_next("entries:list", 429, times=2)
    assert [line.text for line in logs.new_lines(["1", "2"])] == ["first"]
    assert logs.new_lines(["1", "2"]) == []
    say("2", "second")
    assert [line.text for line in logs.new_lines(["1", "2"])] == ["second"]
    assert len(warned) == 1


def test_a_log_that_may_not_be_read_does_not_end_the_following(api: VertexApi) -> None:
    api.state.replicas.run_jobs()
    api.fail_next(r"POST /v2/entries:list", 403, times=99, message="Permission denied for all log views")
    done = command(
        "job", "submit", *JOB, "--follow", "--interval", "0.1", "--command", "python -c", "--", "print('unseen')"
    )
    assert done.status == 0, done.err
    assert "Permission denied for all log views" in done.out
    assert "unseen" not in done.out


SUM = """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(f"sum {total.item():g} of {dist.get_world_size()}, {sys.argv[1:]}, {os.environ['AIP_MODEL_DIR']}")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_script_of_ones_own_runs_on_all_replicas_with_torchrun(api: VertexApi, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SUM)
    api.state.replicas.run_jobs()
    done = command(
        *("job", "submit", *JOB, "--nodes", "2", "--follow", "--interval", "0.5", "--output-dir", "gs://b/out"),
        *("--command", "python -m gpu_pipelines.training.script.launch --processes 1"),
        *("--", str(script), "--epochs", "3"),
    )
    assert done.status == 0, done.out
    assert "  sum 3 of 2, ['--epochs', '3'], gs://b/out/model/" in done.out.splitlines()
