"""The server that stands in for Google Cloud, against Google's own clients: it takes what they send, and says no."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
import yaml
from conftest import set_variables
from small_pipelines import compiled_sum
from vertex_commands import connected_sdk

from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.vertex.placement.job_spec import JobOptions, custom_job

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

PARENT = "projects/example-project/locations/us-central1"
SAY_HELLO = ("python", "-c", "print('hello')")


def pool(*command: str, replicas: int = 1, **machine: Any) -> dict[str, Any]:
    """A worker pool of machines with two L4."""
    spec = {"machineType": "g2-standard-24", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 2, **machine}
    return {
        "machineSpec": {name: value for name, value in spec.items() if value is not None},
        "replicaCount": replicas,
        "containerSpec": {"imageUri": "image", "command": list(command or SAY_HELLO)},
    }


def job(*pools: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"displayName": "hello", "jobSpec": {"workerPoolSpecs": list(pools or [pool()]), **spec}}


def post(api: VertexApi, body: dict[str, Any], collection: str = "customJobs") -> requests.Response:
    return requests.post(f"{api.url}/v1/{PARENT}/{collection}", json=body, timeout=30)


def gcloud(api: VertexApi, *arguments: str) -> Any:
    """What the real gcloud answers, as JSON."""
    return json.loads(api.answer_to(["gcloud", *arguments, "--format=json"]) or "null")


@pytest.fixture
def sdk(vertex_api: VertexApi, monkeypatch: pytest.MonkeyPatch) -> Any:
    """google-cloud-aiplatform, connected to the server."""
    set_variables(monkeypatch, vertex_api.environment())
    return connected_sdk(vertex_api)


@pytest.mark.slow
def test_gcloud_creates_follows_and_cancels_a_custom_job(vertex_api: VertexApi, tmp_path: Path) -> None:
    vertex_api.state.replicas.run_jobs()
    config = tmp_path / "job.yaml"
    config.write_text(yaml.safe_dump({"workerPoolSpecs": [pool("sh", "-c", "echo hello; sleep 60")]}))
    name = gcloud(vertex_api, "ai", "custom-jobs", "create", f"--config={config}", "--display-name=hello")["name"]
    assert gcloud(vertex_api, "ai", "custom-jobs", "describe", name)["state"] == "JOB_STATE_RUNNING"
    number = name.rpartition("/")[2]
    read = gcloud(vertex_api, "logging", "read", f'resource.type="ml_job" AND resource.labels.job_id="{number}"')
    assert [entry["jsonPayload"]["message"] for entry in read] == ["hello"]
    gcloud(vertex_api, "ai", "custom-jobs", "cancel", name)
    vertex_api.state.custom_jobs.wait(name, 10)
    assert vertex_api.state.custom_jobs.state(name) == "JOB_STATE_CANCELLED"


@pytest.mark.slow
def test_gcloud_finds_what_the_project_has(vertex_api: VertexApi) -> None:
    project, address = vertex_api.state.project, "trainer@example-project.iam.gserviceaccount.com"
    project.services.remove("compute.googleapis.com")
    project.service_accounts.add(address)
    enabled = [service["config"]["name"] for service in gcloud(vertex_api, "services", "list", "--enabled")]
    assert "aiplatform.googleapis.com" in enabled
    assert "compute.googleapis.com" not in enabled
    assert gcloud(vertex_api, "iam", "service-accounts", "describe", address)["email"] == address
    described = gcloud(vertex_api, "artifacts", "repositories", "describe", "pipelines", "--location=us-central1")
    assert described["format"] == "KFP"


def test_the_sdk_runs_a_custom_job_and_is_told_how_it_ended(vertex_api: VertexApi, sdk: Any) -> None:
    vertex_api.state.replicas.run_jobs()
    vertex_api.state.custom_jobs.hold_s = 20
    spec = {
        "machine_spec": {"machine_type": "g2-standard-24", "accelerator_type": "NVIDIA_L4", "accelerator_count": 2},
        "replica_count": 1,
        "container_spec": {"image_uri": "image", "command": ["python", "-c", "raise SystemExit(3)"]},
    }
    with pytest.raises(RuntimeError, match=r"workerpool0-0 exited with a non-zero status of 3\."):
        sdk.CustomJob("fails", [spec]).run()
    for number in range(3):
        sdk.CustomJob(f"job {number}", [spec]).submit()
    assert len(sdk.CustomJob.list()) == 4
    assert len(sdk.CustomJob.list(filter='display_name="fails"')) == 1


def test_the_sdk_takes_the_pools_of_a_plan_as_the_page_shows_it(sdk: Any) -> None:
    from google.cloud.aiplatform_v1 import CustomJob

    page = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(shown, names)
    (job,) = sdk.CustomJob.list()
    options = JobOptions(boot_disk_gb=300, environment={"SEED": "1"})
    wanted = CustomJob(custom_job(names["chosen"], "trainer", names["container"], ProjectSettings(), options)).job_spec
    sent = job.gca_resource.job_spec
    assert len(sent.worker_pool_specs) == 2
    assert sent.worker_pool_specs == wanted.worker_pool_specs
    assert sent.scheduling == wanted.scheduling


def test_the_sdk_follows_a_pipeline_step_by_step(vertex_api: VertexApi, sdk: Any, tmp_path: Path) -> None:
    pipelines = vertex_api.state.pipeline_jobs
    run = sdk.PipelineJob("sum", str(compiled_sum(tmp_path)), parameter_values={"a": 3}, job_id="sum-1")
    run.submit()
    name = run.resource_name
    assert pipelines.one(name).runtime_config.parameter_values["a"] == 3
    pipelines.begin(name)
    pipelines.set_task(name, "add", "RUNNING")
    pipelines.say(name, "add", ["3 + 1"])
    states = {task.task_name: task.state.name for task in run.task_details}
    assert states == {"sum": "RUNNING", "add": "RUNNING", "add-2": "PENDING"}
    main = next(task for task in run.task_details if task.task_name == "add").executor_detail.container_detail.main_job
    assert vertex_api.state.logs.messages("ml_job", job_id=main.rpartition("/")[2]) == ["3 + 1"]
    pipelines.set_task(name, "add", "FAILED", "The replica workerpool0-0 exited with a non-zero status of 1.")
    pipelines.end(name, "FAILED", "The DAG failed because some tasks failed. The failed tasks are: [add].")
    with pytest.raises(RuntimeError, match=r"The failed tasks are: \[add\]"):
        run.wait()
    run.delete()
    assert pipelines.jobs == {}


def test_a_pipeline_that_does_not_fit_is_refused(vertex_api: VertexApi, tmp_path: Path) -> None:
    spec = yaml.safe_load(compiled_sum(tmp_path).read_text())
    runtime = {"gcsOutputDirectory": "gs://example-bucket/root", "parameterValues": {"a": 3}}
    good = {"pipelineSpec": spec, "runtimeConfig": runtime}
    created = requests.post(
        f"{vertex_api.url}/v1/{PARENT}/pipelineJobs?pipelineJobId=sum-1", json=good, timeout=30
    ).json()
    assert created["name"].endswith("/pipelineJobs/sum-1")
    for change, message in (
        ({"runtimeConfig": {**runtime, "parameterValues": {}}}, "Parameter a is required"),
        ({"runtimeConfig": {**runtime, "parameterValues": {"a": "3"}}}, "is no NUMBER_INTEGER"),
        ({"runtimeConfig": {**runtime, "parameterValues": {"a": 3, "c": 1}}}, "Parameter c is not found"),
        ({"runtimeConfig": {**runtime, "gcsOutputDirectory": "/tmp"}}, "Cloud Storage URI"),
        ({"pipelineSpec": {**spec, "schemaVersions": "2"}}, "schemaVersions"),
    ):
        refused = post(vertex_api, {**good, **change}, "pipelineJobs")
        assert refused.status_code == 400, change
        assert message in refused.json()["error"]["message"]


def test_a_number_that_is_none_in_json_is_refused_as_one() -> None:
    """Over gRPC it comes through; the emulator failed with 500."""
    from google.cloud.aiplatform_v1 import PipelineJob

    from gpu_pipelines.emulator.api_error import ApiError
    from gpu_pipelines.emulator.transcoding import as_json

    job = PipelineJob(runtime_config={"parameter_values": {"a": float("nan")}})
    with pytest.raises(ApiError, match="NaN") as caught:
        as_json(job)
    assert caught.value.code == 400


def test_the_sdk_keeps_a_schedule(vertex_api: VertexApi, sdk: Any, tmp_path: Path) -> None:
    run = sdk.PipelineJob("sum", str(compiled_sum(tmp_path)), parameter_values={"a": 3})
    schedule = run.create_schedule(cron="TZ=Europe/Berlin 0 3 * * *", display_name="nightly")
    schedule.pause()
    assert schedule.state.name == "PAUSED"
    schedule.resume()
    schedule.update(cron="0 4 * * 1-5", max_run_count=3)
    held = vertex_api.state.schedules.schedules[schedule.resource_name]
    assert (held.cron, held.max_run_count, held.state.name) == ("0 4 * * 1-5", 3, "ACTIVE")
    assert held.display_name == "nightly"
    from google.api_core.exceptions import BadRequest

    for wrong in ("0 25 * * *", "* * * *", "TZ=Europe/Nowhere 0 3 * * *"):
        with pytest.raises(BadRequest, match="Invalid"):
            schedule.update(cron=wrong)
    schedule.delete()
    assert sdk.PipelineJobSchedule.list() == []


@pytest.mark.parametrize("address", ["its own", "Google's"])
def test_kfp_keeps_pipelines_in_the_repository(
    vertex_api: VertexApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str
) -> None:
    from kfp.registry import RegistryClient

    set_variables(monkeypatch, vertex_api.proxy_environment())
    host = vertex_api.url if address == "its own" else "https://us-central1-kfp.pkg.dev"
    client, file = RegistryClient(f"{host}/example-project/pipelines"), compiled_sum(tmp_path)
    package, version = client.upload_pipeline(str(file), tags=["v1", "latest"])
    assert package == "sum"
    client.create_tag(package, version, "good")
    client.update_tag(package, version, "latest")
    assert {tag["name"].rpartition("/")[2] for tag in client.list_tags(package)} == {"v1", "latest", "good"}
    assert client.get_tag(package, "good")["version"].endswith(f"/sum/versions/{version}")
    assert [held["name"].rpartition("/")[2] for held in client.list_versions(package)] == [version]
    client.download_pipeline(package, tag="latest", file_name=str(tmp_path / "again.yaml"))
    assert (tmp_path / "again.yaml").read_bytes() == file.read_bytes()
    with pytest.raises(requests.HTTPError):
        client.delete_version(package, version)
    for tag in ("v1", "latest", "good"):
        client.delete_tag(package, tag)
    assert client.delete_version(package, version)
    assert client.delete_package(package)
    assert client.list_packages() == []


def test_credentials_are_wanted_over_tls_and_refused_without(vertex_api: VertexApi) -> None:
    environment = vertex_api.proxy_environment()
    google = {"proxies": {"https": vertex_api.url}, "verify": environment["REQUESTS_CA_BUNDLE"], "timeout": 30}
    at = f"/v1/{PARENT}/customJobs"
    bearer = {"Authorization": "Bearer token"}
    assert requests.get(f"https://us-central1-aiplatform.googleapis.com{at}", **google).status_code == 401
    allowed = requests.get(f"https://us-central1-aiplatform.googleapis.com{at}", headers=bearer, **google)
    assert allowed.status_code == 200
    assert requests.get(vertex_api.url + at, headers=bearer, timeout=30).status_code == 400
    with pytest.raises(requests.exceptions.ProxyError):
        requests.get("https://example.com/", **google)


def test_grpc_speaks_of_the_same_jobs(vertex_api: VertexApi, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.api_core import exceptions
    from google.cloud.aiplatform_v1 import CustomJob, JobServiceClient

    from gpu_pipelines.emulator.transcoding import parsed

    set_variables(monkeypatch, vertex_api.proxy_environment())
    client = JobServiceClient(client_options={"api_endpoint": "us-central1-aiplatform.googleapis.com"})
    made = client.create_custom_job(parent=PARENT, custom_job=parsed(CustomJob, job()))
    assert requests.get(f"{vertex_api.url}/v1/{made.name}", timeout=30).json()["displayName"] == "hello"
    client.cancel_custom_job(name=made.name)
    assert client.get_custom_job(name=made.name).state.name == "JOB_STATE_CANCELLED"
    with pytest.raises(exceptions.InvalidArgument, match="List of found errors"):
        client.create_custom_job(parent=PARENT, custom_job=CustomJob(display_name="empty"))
    vertex_api.fail_next("GRPC CreateCustomJob", 403)
    with pytest.raises(exceptions.PermissionDenied, match=r"aiplatform\.customJobs\.create"):
        client.create_custom_job(parent=PARENT, custom_job=parsed(CustomJob, job()))
    vertex_api.fail_next("GRPC CreateCustomJob", 503, took_effect=True)
    with pytest.raises(exceptions.ServiceUnavailable):
        client.create_custom_job(parent=PARENT, custom_job=parsed(CustomJob, job()))
    assert len(vertex_api.state.custom_jobs.jobs) == 2


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({**job(), "jobSpecs": {}}, 'no field named "jobSpecs"'),
        (job(pool(acceleratorCount="two")), "acceleratorCount"),
        (job(pool(machineType="banana-42")), 'Machine type "banana-42" is not supported.'),
        (job(pool(acceleratorCount=None)), "Both `accelerator_type` and `accelerator_count` should be specified"),
        (job(pool(acceleratorType=None)), "Both `accelerator_type` and `accelerator_count` should be specified"),
        (job(pool(acceleratorType="NVIDIA_TESLA_T4")), 'Accelerator "NVIDIA_TESLA_T4" is not supported for machine'),
        (job(pool(acceleratorCount=4)), "Accelerator count 4"),
        (job({**pool(), "replicaCount": 2}), "must have exactly one replica"),
        (job({}, pool()), "must have exactly one replica"),
        (job(scheduling={"maxWaitDuration": "60s"}), "only be set with the FLEX_START strategy"),
        (job(scheduling={"strategy": "FLEX_START", "timeout": "604801s"}), "at most 604800 seconds"),
        (
            job(pool(), pool(machineType="g2-standard-12", acceleratorCount=1), scheduling={"strategy": "FLEX_START"}),
            "the same machine configuration",
        ),
        (
            job(
                pool(reservationAffinity={"reservationAffinityType": "ANY_RESERVATION"}),
                scheduling={"strategy": "FLEX_START"},
            ),
            "cannot be used together with reservations",
        ),
        (
            job(
                {
                    **pool(machineType="a4-highgpu-8g", acceleratorType="NVIDIA_B200", acceleratorCount=8),
                    "diskSpec": {"bootDiskType": "pd-ssd"},
                }
            ),
            "Boot disk type pd-ssd is not supported",
        ),
        (job({**pool(), "containerSpec": {"imageUri": "i", "env": [{"name": "A"}]}}), "Value is required"),
        (
            job(
                {
                    **pool(),
                    "containerSpec": {"imageUri": "i", "env": [{"name": f"A{n}", "value": "1"} for n in range(101)]},
                }
            ),
            "At most 100 environment variables",
        ),
        (job(tensorboard="projects/1/locations/us-central1/tensorboards/1"), "A service account is required"),
    ],
)
def test_a_job_that_breaks_a_rule_is_refused(vertex_api: VertexApi, broken: dict[str, Any], message: str) -> None:
    assert post(vertex_api, job()).status_code == 200
    refused = post(vertex_api, broken)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["status"] == "INVALID_ARGUMENT"
    assert message in error["message"]
    assert len(vertex_api.state.custom_jobs.jobs) == 1


def test_all_that_is_wrong_comes_in_one_answer(vertex_api: VertexApi) -> None:
    error = post(vertex_api, job(pool(machineType="banana-42"), scheduling={"maxWaitDuration": "60s"})).json()["error"]
    assert error["message"].startswith(
        "List of found errors:\t1.Field: job_spec.worker_pool_specs[0].machine_spec.machine_type; Message: "
    )
    assert "\t2.Field: job_spec.scheduling.max_wait_duration; Message: " in error["message"]


def test_it_fails_as_it_is_told(vertex_api: VertexApi) -> None:
    vertex_api.fail_next("POST .*/customJobs$", 429, times=2)
    for _ in range(2):
        refused = post(vertex_api, job())
        assert (refused.status_code, refused.json()["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
        assert "quota metrics exceed quota limits" in refused.json()["error"]["message"]
    assert vertex_api.state.custom_jobs.jobs == {}
    vertex_api.fail_next("POST .*/customJobs$", 503, took_effect=True)
    assert post(vertex_api, job()).status_code == 503
    assert len(vertex_api.state.custom_jobs.jobs) == 1
    vertex_api.fail_next("POST .*/customJobs$", 0, took_effect=True)
    with pytest.raises(requests.ConnectionError):
        post(vertex_api, job())
    assert len(vertex_api.state.custom_jobs.jobs) == 2
    vertex_api.fail_next("POST .*/customJobs$", None, seconds=0.3)
    before = time.monotonic()
    assert post(vertex_api, job()).status_code == 200
    assert time.monotonic() - before >= 0.3


TELL = """
import json, os, sys
cluster = json.loads(os.environ["CLUSTER_SPEC"])
config = json.loads(os.environ["TF_CONFIG"])
print(json.dumps([cluster["task"], cluster["cluster"], config["task"], os.environ["AIP_MODEL_DIR"], os.environ["A"]]))
"""


def test_each_replica_is_told_who_it_is_and_whom_it_trains_with(vertex_api: VertexApi) -> None:
    state = vertex_api.state
    state.replicas.run_jobs("cpu:1")
    tell = pool("python", "-c", TELL)
    tell["containerSpec"]["env"] = [{"name": "A", "value": "b"}]
    summing = {
        "machineSpec": {"machineType": "n1-highcpu-16"},
        "replicaCount": 1,
        "containerSpec": {"imageUri": "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"},
    }
    place = {"outputUriPrefix": "gs://example-bucket/out"}
    body = job(tell, {**tell, "replicaCount": 2}, summing, baseOutputDirectory=place)
    name = post(vertex_api, body).json()["name"]
    assert state.custom_jobs.wait(name, 20).state.name == "JOB_STATE_SUCCEEDED"
    number, told = name.rpartition("/")[2], []
    for task in ("workerpool0-0", "workerpool1-0", "workerpool1-1"):
        (line,) = state.logs.messages(job_id=number, task_name=task)
        told.append(json.loads(line))
    assert [(task["type"], task["index"]) for task, *_ in told] == [
        ("workerpool0", 0),
        ("workerpool1", 0),
        ("workerpool1", 1),
    ]
    assert [(task["type"], task["index"]) for _, _, task, *_ in told] == [("chief", 0), ("worker", 0), ("worker", 1)]
    clusters = [cluster for _, cluster, *_ in told]
    assert clusters[0] == clusters[1] == clusters[2]
    assert len({address for addresses in clusters[0].values() for address in addresses}) == 4
    assert all(entry[3:] == ["gs://example-bucket/out/model/", "b"] for entry in told)


STOPS_WELL = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(0)))
print("ready", flush=True)
time.sleep(60)
"""


def test_a_cancelled_job_gets_sigterm(vertex_api: VertexApi) -> None:
    state = vertex_api.state
    state.replicas.run_jobs()
    name = post(vertex_api, job(pool("python", "-c", STOPS_WELL))).json()["name"]
    until = time.monotonic() + 20
    while "ready" not in state.logs.messages():
        assert time.monotonic() < until
        time.sleep(0.02)
    assert requests.post(f"{vertex_api.url}/v1/{name}:cancel", json={}, timeout=30).status_code == 200
    assert state.custom_jobs.wait(name, 20).state.name == "JOB_STATE_CANCELLED"
    assert "saved" in state.logs.messages()
    again = requests.post(f"{vertex_api.url}/v1/{name}:cancel", json={}, timeout=30).json()["error"]
    assert again["status"] == "FAILED_PRECONDITION"


def test_a_replica_that_fails_is_started_again_as_often_as_asked(vertex_api: VertexApi) -> None:
    state = vertex_api.state
    state.replicas.run_jobs()
    state.replicas.restarts = 2
    name = post(vertex_api, job(pool("sh", "-c", "echo try; exit 7"))).json()["name"]
    assert "non-zero status of 7." in state.custom_jobs.wait(name, 20).error.message
    assert state.logs.messages().count("try") == 3


def test_a_model_has_versions_and_an_upload_that_is_repeated_makes_another(vertex_api: VertexApi, sdk: Any) -> None:
    given = {"artifact_uri": "gs://example-bucket/model", "serving_container_image_uri": "image"}
    first = sdk.Model.upload(display_name="digits", version_aliases=["champion"], **given)
    second = sdk.Model.upload(display_name="digits", parent_model=first.resource_name, **given)
    assert (first.version_id, second.version_id) == ("1", "2")
    versions = vertex_api.state.models.versions[first.resource_name]
    assert [list(version.version_aliases) for version in versions] == [["champion"], ["default"]]


def test_versions_are_changed_and_deleted_by_the_sdk(vertex_api: VertexApi, sdk: Any) -> None:
    from google.api_core.exceptions import GoogleAPICallError

    given = {"artifact_uri": "gs://example-bucket/model", "serving_container_image_uri": "image"}
    model = sdk.Model.upload(display_name="digits", **given)
    for _ in range(3):
        sdk.Model.upload(display_name="digits", parent_model=model.resource_name, is_default_version=False, **given)
    registry = sdk.models.ModelRegistry(model.resource_name)
    endpoint = sdk.Endpoint.create(display_name="digits")
    endpoint.deploy(registry.get_model("2"), machine_type="n1-standard-2")
    refused = {"1": "is the default one", "2": f"is deployed to {endpoint.resource_name}", "9": "is not found"}
    for version, said in refused.items():
        with pytest.raises(GoogleAPICallError, match=said):
            registry.delete_version(version)
    registry.add_version_aliases(["old"], "3")
    registry.delete_version("old")
    registry.delete_version("4")
    assert {each.version_id for each in registry.list_versions()} == {"1", "2"}
    again = sdk.Model.upload(display_name="digits", parent_model=model.resource_name, **given)
    assert again.version_id == "5", "no number is given twice"
    with pytest.raises(GoogleAPICallError, match="exactly one version with the alias default"):
        registry.remove_version_aliases(["default"], "5")

    model.update(display_name="numbers", labels={"team": "a"})
    registry.update_version("1", version_description="the first")
    first, second = registry.get_model("1"), registry.get_model("2")
    assert [each.display_name for each in (first, second)] == ["numbers"] * 2
    assert [each.version_description for each in (first, second)] == ["the first", ""]
    with pytest.raises(GoogleAPICallError, match="is deployed to"):
        model.delete()
    endpoint.delete(force=True)
    for version in ("1", "2"):
        registry.delete_version(version)
    with pytest.raises(GoogleAPICallError, match="only version"):
        registry.delete_version("5")
    model.delete()
    assert sdk.Model.list() == []
