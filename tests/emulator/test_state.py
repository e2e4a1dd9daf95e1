"""What an emulator knows survives its end, however it ends; and what is wrong with a start is said."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest
from command_line import command
from conftest import GPU_PIPELINES
from processes import Started, start_python

from gpu_pipelines.emulator.certificates import Certificates
from gpu_pipelines.emulator.start import EmulatorSettings, running_emulator

PARENT = "v1/projects/example-project/locations/us-central1"
SPEC = {
    "pipelineInfo": {"name": "waits"},
    "root": {"dag": {"tasks": {"wait": {"componentRef": {"name": "comp-wait"}, "taskInfo": {"name": "wait"}}}}},
    "components": {"comp-wait": {"executorLabel": "exec-wait"}},
    "deploymentSpec": {"executors": {"exec-wait": {"container": {"image": "i", "command": ["sleep"], "args": ["60"]}}}},
    "schemaVersion": "2.1.0",
}


def ask(url: str, verb: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = Request(f"{url}/{path}", content, {"Content-Type": kind}, method=verb)
    with build_opener(ProxyHandler({})).open(request, timeout=20) as answer:
        text = answer.read()
    return json.loads(text) if text[:1] in b"{[" else text


class Emulator:
    def __init__(self, started: Started) -> None:
        self.started = started
        started.await_line("Ctrl-C")
        self.url = started.output.split("listens at ")[1].split()[0]

    def ask(self, verb: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        return ask(self.url, verb, path, body, kind)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.started.process.send_signal(number)
        return self.started.wait(30)


class Starter:
    def __init__(self, folder: Path) -> None:
        self.folder, self.state, self.running = folder, folder / "state", list[Started]()

    def __call__(self, *arguments: str) -> Emulator:
        log = self.folder / f"log-{len(self.running)}.txt"
        given = ["-m", "gpu_pipelines.cli.main", "emulator", "start", "--port", "0", "--state", str(self.state)]
        self.running.append(start_python([*given, *arguments], log))
        return Emulator(self.running[-1])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    yield starter
    for started in starter.running:
        if started.process.poll() is None:
            started.kill_tree()


def refused(*arguments: str) -> str:
    """What the command says that cannot start."""

    def overdue(*_: Any) -> None:
        raise AssertionError("it has started")

    before = signal.signal(signal.SIGALRM, overdue)
    signal.alarm(60)
    try:
        done = command("emulator", "start", *arguments)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return said_of(done.status, done.out, done.err)


def said_of(status: int, out: str, err: str) -> str:
    assert status == 2, out + err
    assert "Traceback" not in err
    return err


def fill(emulator: Emulator) -> None:
    """One resource of each kind."""
    model = {
        "model": {
            "displayName": "digits",
            "artifactUri": "gs://example-bucket/m",
            "containerSpec": {"imageUri": "i"},
            "versionAliases": ["champion"],
        }
    }
    uploaded = emulator.ask("POST", f"{PARENT}/models:upload", model)["response"]["model"]
    metrics = {
        "metricsSchemaUri": "gs://google-cloud-aiplatform/schema/modelevaluation/classification_metrics_1.0.0.yaml",
        "metrics": {"auRoc": 0.5},
    }
    emulator.ask("POST", f"v1/{uploaded}/evaluations:import", {"modelEvaluation": metrics})
    endpoint = emulator.ask("POST", f"{PARENT}/endpoints", {"displayName": "e"})["response"]["name"]
    deployed = {
        "deployedModel": {
            "model": uploaded,
            "dedicatedResources": {"machineSpec": {"machineType": "n1-standard-4"}, "minReplicaCount": 1},
        },
        "trafficSplit": {"0": 100},
    }
    emulator.ask("POST", f"v1/{endpoint}:deployModel", deployed)
    job = {"displayName": "p", "pipelineSpec": SPEC, "runtimeConfig": {"gcsOutputDirectory": "gs://example-bucket/r"}}
    request = {"parent": PARENT.removeprefix("v1/"), "pipelineJob": job}
    schedule = {
        "displayName": "nightly",
        "cron": "0 3 * * *",
        "maxConcurrentRunCount": "1",
        "createPipelineJobRequest": request,
    }
    emulator.ask("POST", f"{PARENT}/schedules", schedule)
    form = f'--b\r\nContent-Disposition: form-data; name="content"\r\n\r\n{json.dumps(SPEC)}\r\n--b--\r\n'.encode()
    emulator.ask("POST", "example-project/pipelines", form, "multipart/form-data; boundary=b")
    custom = {
        "displayName": "c",
        "jobSpec": {
            "workerPoolSpecs": [
                {
                    "machineSpec": {"machineType": "n1-standard-4"},
                    "replicaCount": "1",
                    "containerSpec": {"imageUri": "i", "command": ["echo", "a line of a job"]},
                }
            ]
        },
    }
    made = emulator.ask("POST", f"{PARENT}/customJobs", custom)["name"]
    until = time.monotonic() + 20
    while emulator.ask("GET", f"v1/{made}")["state"] != "JOB_STATE_SUCCEEDED":
        assert time.monotonic() < until
        time.sleep(0.05)
    place = "upload/storage/v1/b/example-bucket/o?uploadType=media&name=a/b.txt"
    emulator.ask("POST", place, b"kept", "text/plain")


def known(emulator: Emulator) -> dict[str, Any]:
    """All that an emulator says it knows."""
    paths = {
        name: f"{PARENT}/{name}" for name in ("customJobs", "models", "endpoints", "schedules", "pipelineJobs")
    } | {
        "objects": "storage/v1/b/example-bucket/o",
        "packages": f"{PARENT}/repositories/pipelines/packages",
    }
    found = {name: emulator.ask("GET", path) for name, path in paths.items()}
    (model,) = found["models"]["models"]
    found["evaluations"] = emulator.ask("GET", f"v1/{model['name']}/evaluations")
    (package,) = found["packages"]["packages"]
    found["versions"] = emulator.ask("GET", f"v1/{package['name']}/versions")
    asked = {"resourceNames": ["projects/example-project"], "pageSize": 1000}
    found["logs"] = emulator.ask("POST", "v2/entries:list", asked)
    found["content"] = emulator.ask("GET", "download/storage/v1/b/example-bucket/o/a%2Fb.txt?alt=media")
    for each in found["objects"]["items"]:
        # It names the port.
        each.pop("mediaLink")
    return found


def test_the_number_of_a_deleted_version_is_not_given_again_after_a_restart(start: Starter) -> None:
    emulator = start()
    model = {"displayName": "digits", "artifactUri": "gs://example-bucket/m", "containerSpec": {"imageUri": "i"}}
    name = emulator.ask("POST", f"{PARENT}/models:upload", {"model": model})["response"]["model"]
    again = {"model": model, "parentModel": name}
    assert emulator.ask("POST", f"{PARENT}/models:upload", again)["response"]["modelVersionId"] == "2"
    emulator.ask("DELETE", f"v1/{name}@2:deleteVersion")
    emulator.end()
    assert start().ask("POST", f"{PARENT}/models:upload", again)["response"]["modelVersionId"] == "3"


def test_what_it_knows_is_there_after_a_restart(start: Starter) -> None:
    first = start()
    fill(first)
    before = known(first)
    assert [len(before[name]) for name in ("customJobs", "models", "endpoints", "schedules")] == [1, 1, 1, 1]
    assert before["content"] == b"kept"
    assert before["endpoints"]["endpoints"][0]["trafficSplit"]
    assert first.end(signal.SIGINT) == 0
    assert "Traceback" not in first.started.output
    second = start()
    assert known(second) == before
    assert second.end(signal.SIGKILL) == -signal.SIGKILL
    assert known(start()) == before


def test_a_job_that_ran_when_it_was_killed_has_failed_and_says_why(start: Starter) -> None:
    first = start()
    job = {"displayName": "p", "pipelineSpec": SPEC, "runtimeConfig": {"gcsOutputDirectory": "gs://example-bucket/r"}}
    name = first.ask("POST", f"{PARENT}/pipelineJobs?pipelineJobId=waits", job)["name"]
    until = time.monotonic() + 20
    while "RUNNING" not in [
        task["state"] for task in first.ask("GET", f"v1/{name}").get("jobDetail", {}).get("taskDetails", [])[1:]
    ]:
        assert time.monotonic() < until
        time.sleep(0.05)
    # It would see that its step is killed before it is.
    first.started.process.send_signal(signal.SIGSTOP)
    first.started.kill_tree()
    first.started.wait()
    found = start().ask("GET", f"v1/{name}")
    assert found["state"] == "PIPELINE_STATE_FAILED"
    assert "The emulator ended while this was running" in found["error"]["message"]
    assert {task["state"] for task in found["jobDetail"]["taskDetails"]} == {"FAILED"}


def test_it_ends_though_a_step_does_not(start: Starter) -> None:
    emulator = start()
    spec = json.loads(json.dumps(SPEC))
    (executor,) = spec["deploymentSpec"]["executors"].values()
    executor["container"] |= {"command": ["sh", "-c", "trap '' TERM; echo begun; sleep 300; sleep 300"], "args": []}
    job = {"displayName": "p", "pipelineSpec": spec, "runtimeConfig": {"gcsOutputDirectory": "gs://example-bucket/r"}}
    emulator.ask("POST", f"{PARENT}/pipelineJobs?pipelineJobId=stays", job)
    asked = {"resourceNames": ["projects/example-project"], "pageSize": 1000}
    until = time.monotonic() + 20
    while "begun" not in json.dumps(emulator.ask("POST", "v2/entries:list", asked)):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert emulator.end() == 0


def test_writers_of_one_resource_at_the_same_time_each_write_it(tmp_path: Path) -> None:
    from gpu_pipelines.emulator.state_folder import StateFolder

    state = StateFolder(tmp_path)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: state.write("cache", "same", {"number": number}), range(400)))
    ((_, kept),) = state.documents("cache")
    assert kept["number"] in range(400)
    state.close()


WRITER = """
import sys
from pathlib import Path
from gpu_pipelines.emulator.state_folder import StateFolder
state = StateFolder(Path(sys.argv[1]))
print("Ctrl-C", flush=True)
number = 0
while True:
    number += 1
    state.write("models", "one", {"number": number, "filling": str(number) * 200_000})
    state.log({"number": number})
"""


def test_a_kill_in_the_middle_of_a_write_leaves_a_state_that_can_be_read(tmp_path: Path) -> None:
    from gpu_pipelines.emulator.state_folder import StateFolder

    (tmp_path / "writer.py").write_text(WRITER)
    for turn in range(8):
        writer = start_python([str(tmp_path / "writer.py"), str(tmp_path / "state")], tmp_path / f"log-{turn}.txt")
        writer.await_line("Ctrl-C")
        time.sleep(0.05 + 0.013 * turn)
        writer.process.kill()
        writer.wait()
        state = StateFolder(tmp_path / "state")
        ((_, document),) = state.documents("models")
        assert document["filling"] == str(document["number"]) * 200_000
        assert all("number" in entry for entry in state.logs())
        state.close()


def test_faults_are_those_of_the_command_and_a_port_that_is_taken_and_a_state_in_use_are_told(start: Starter) -> None:
    emulator = start("--fault", "aiplatform:503:1")
    with pytest.raises(HTTPError, match="503"):
        emulator.ask("GET", f"{PARENT}/models")
    port = emulator.url.rpartition(":")[2]
    assert f"Port {port} of 127.0.0.1 is taken.\n  Give another --port" in refused("--port", port)
    assert "is in use by another emulator" in refused("--port", "0", "--state", str(start.state))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"name": "projects/1', "not what an emulator has written"),
        ('{"name": "a", "color": "b"}', "color"),
        ("[]", ""),
    ],
)
def test_a_damaged_state_is_told_with_its_file(tmp_path: Path, content: str, why: str) -> None:
    file = tmp_path / "resources/schedules/one.json"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    told = refused("--port", "0", "--state", str(tmp_path))
    assert f"state is damaged: {file}" in told
    assert why in told
    assert "Delete that file" in told
    assert file.read_text() == content


@pytest.mark.parametrize("name", [".meta", "objects.db"])
def test_records_of_storage_that_are_damaged_are_told_with_their_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "storage").mkdir()
    # SQLite takes a file of a few bytes for an empty table.
    (tmp_path / "storage" / name).write_text("{" * 2000)
    assert f"state is damaged: {tmp_path}/storage/{name}" in refused("--port", "0", "--state", str(tmp_path))


def test_a_state_of_another_format_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "emulator.json").write_text('{"format_version": 9}')
    assert "has the format 9" in refused("--port", "0", "--state", str(tmp_path))


def test_a_state_of_the_format_before_goes_on_in_this_one(tmp_path: Path) -> None:
    from gpu_pipelines.emulator.state_folder import StateFolder

    (tmp_path / "emulator.json").write_text('{"format_version": 1}')
    StateFolder(tmp_path).close()
    # A version that cannot read it says so.
    assert json.loads((tmp_path / "emulator.json").read_text()) == {"format_version": 2}


FULL = """
import resource, signal, sys
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.state_folder import StateFolder
state = StateFolder(Path(sys.argv[1]))
state.write("models", "one", {"text": "before"})
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    state.write("models", "one", {"text": "x" * 10_000})
except ApiError as error:
    print(error.status, error.message)
((_, document),) = state.documents("models")
print(document)
"""


def test_a_disk_that_is_full_is_told_and_what_was_kept_stays(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "FAILED_PRECONDITION The emulator cannot write its state" in done.stdout
    assert done.stdout.endswith("{'text': 'before'}\n")


@pytest.mark.slow
def test_a_start_on_a_full_disk_is_told(tmp_path: Path) -> None:
    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    given = [GPU_PIPELINES, "emulator", "start", "--port", "0", "--state", str(tmp_path / "state")]
    done = subprocess.run(given, capture_output=True, text=True, timeout=60, check=False, preexec_fn=full)
    assert "cannot write its state" in said_of(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
def test_env_is_what_gcloud_needs(start: Starter) -> None:
    emulator = start()
    fill(emulator)
    port = emulator.url.rpartition(":")[2]
    exports = f'eval "$({GPU_PIPELINES} emulator env --port {port})"'
    listing = "gcloud ai custom-jobs list --region us-central1 --format 'value(displayName)'"
    done = subprocess.run(["bash", "-c", f"{exports}; {listing}"], capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["c"], done.stderr
    told = subprocess.run([GPU_PIPELINES, "emulator", "env", "--port", port, "--json"], capture_output=True, check=True)
    document = json.loads(told.stdout)
    assert document["environment"]["GOOGLE_VERTEX_AI_CUSTOM_ENDPOINT"] == f"{emulator.url}/v1/"
    assert document["repository"] == f"{emulator.url}/example-project/pipelines"
    emulator.end()
    none = subprocess.run([GPU_PIPELINES, "emulator", "env", "--port", port], capture_output=True, text=True)
    assert none.returncode == 2
    assert "No emulator answers" in none.stderr


def test_what_a_container_writes_below_gcs_is_an_object_and_the_other_way_round(start: Starter) -> None:
    emulator = start()
    fill(emulator)
    mounted = start.state / "gcs/example-bucket"
    assert (mounted / "a/b.txt").read_bytes() == b"kept"
    (mounted / "of-a-container").mkdir()
    (mounted / "of-a-container/c.txt").write_text("written")
    listed = emulator.ask("GET", "storage/v1/b/example-bucket/o?prefix=of-a")["items"]
    assert [(each["name"], each["size"]) for each in listed] == [("of-a-container/c.txt", "7")]
    (mounted / "a/b.txt").write_text("changed")
    os.utime(mounted / "a/b.txt", (1, 1))
    place = "download/storage/v1/b/example-bucket/o/a%2Fb.txt?alt=media"
    assert emulator.ask("GET", place) == b"changed"


@pytest.mark.slow
def test_requests_fail_by_chance_and_the_same_with_the_same_seed(
    tmp_path: Path, vertex_certificates: Certificates
) -> None:
    def answered(seed: int) -> list[int]:
        settings = EmulatorSettings(
            state=tmp_path, certificates=vertex_certificates, faults=("aiplatform:503:0.5",), seed=seed
        )
        found = []
        with running_emulator(settings) as emulator:
            for _ in range(30):
                try:
                    ask(emulator.url, "GET", f"{PARENT}/models")
                    found.append(200)
                except HTTPError as error:
                    found.append(error.code)
            ask(emulator.url, "GET", "storage/v1/b/example-bucket/o")
        return found

    first = answered(1)
    assert set(first) == {200, 503}
    assert answered(1) == first
    assert answered(2) != first
    assert "Services: aiplatform" in refused("--port", "0", "--fault", "aiplatform:503:2")
