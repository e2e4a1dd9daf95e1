"""Google's and KFP's own clients against the emulator, told of it by the variables of `emulator env` and no more."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
from sample_runs import SAMPLES, ended, outputs, sample

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

ECHO = SAMPLES / "kfp/arguments_parameters.yaml"
HOST = "https://us-central1-kfp.pkg.dev/example-project/pipelines"
MODEL = {"display_name": "digits", "artifact_uri": "gs://example-bucket/m", "serving_container_image_uri": "image"}
CUSTOM = """
workerPoolSpecs:
- machineSpec: {machineType: n1-standard-4}
  replicaCount: 1
  containerSpec: {imageUri: image, command: [echo, a line of a job]}
"""


@pytest.fixture
def sdk(vertex_emulator: VertexApi) -> Any:
    """google-cloud-aiplatform at Google's own addresses, over gRPC, with the credentials of the variables."""
    from google.cloud import aiplatform

    aiplatform.init(project="example-project", location="us-central1", staging_bucket="gs://example-bucket")
    return aiplatform


@pytest.fixture
def opened_before() -> None:
    """A test before this one has opened something with urllib, which keeps how."""
    urllib.request.urlopen("data:,").close()


def test_a_version_of_the_repository_is_run_and_scheduled_by_the_sdk(
    opened_before: None, vertex_emulator: VertexApi, sdk: Any
) -> None:
    from kfp.registry import RegistryClient

    client = RegistryClient(HOST)
    package, version = client.upload_pipeline(str(ECHO), tags=["latest"])
    assert client.get_version(package, version)["name"].endswith(f"/packages/{package}/versions/{version}")
    parameters = {"param1": "from", "param2": "the-repository"}
    job = sdk.PipelineJob(
        "a run", f"{HOST}/{package}/latest", pipeline_root="gs://example-bucket/r", parameter_values=parameters
    )
    job.submit()
    ended(vertex_emulator, job.resource_name, 60)
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED"
    assert "from-the-repository" in vertex_emulator.state.logs.messages()
    assert [each.name for each in sdk.PipelineJob.list(filter='display_name="a run"')] == [job.name]
    schedule = job.create_schedule(display_name="nightly", cron="0 3 * * *", max_concurrent_run_count=1)
    schedule.pause()
    schedule.update(cron="0 4 * * *", max_run_count=7)
    schedule.resume(catch_up=False)
    (held,) = sdk.PipelineJobSchedule.list()
    assert (held.cron, held.max_run_count, held.state.name) == ("0 4 * * *", 7, "ACTIVE")
    schedule.delete()
    job.delete()
    assert sdk.PipelineJob.list() == sdk.PipelineJobSchedule.list() == []


def test_models_endpoints_and_custom_jobs_of_the_sdk(vertex_emulator: VertexApi, sdk: Any) -> None:
    first = sdk.Model.upload(**MODEL, version_aliases=["champion"])
    second = sdk.Model.upload(**MODEL, parent_model=first.resource_name, is_default_version=False)
    registry = second.versioning_registry
    registry.add_version_aliases(["champion"], version=second.version_id)
    assert {each.version_id: set(each.version_aliases) for each in registry.list_versions()} == {
        "1": {"default"},
        "2": {"champion"},
    }
    endpoint = sdk.Endpoint.create(display_name="e")
    endpoint.deploy(first, machine_type="n1-standard-4", traffic_percentage=100)
    assert list(endpoint.traffic_split.values()) == [100]
    endpoint.undeploy_all()
    endpoint.delete()
    pools = [
        {
            "machine_spec": {"machine_type": "n1-standard-4"},
            "replica_count": 1,
            "container_spec": {"image_uri": "image", "command": ["echo", "a line of a job"]},
        }
    ]
    job = sdk.CustomJob("a job", pools)
    job.submit()
    vertex_emulator.state.custom_jobs.wait(job.resource_name, 60)
    assert job.state.name == "JOB_STATE_SUCCEEDED"
    assert "a line of a job" in vertex_emulator.state.logs.messages()


def test_a_run_is_cancelled_by_the_sdk(vertex_emulator: VertexApi, sdk: Any, tmp_path: Path) -> None:
    waits = tmp_path / "waits.json"
    spec = sample("arguments_parameters")
    (executor,) = spec["deploymentSpec"]["executors"].values()
    executor["container"] = {"image": "image", "command": ["sleep"], "args": ["60"]}
    waits.write_text(json.dumps(spec))
    job = sdk.PipelineJob("waits", str(waits), pipeline_root="gs://example-bucket/r", parameter_values={"param2": "x"})
    job.submit()
    job.cancel()
    assert ended(vertex_emulator, job.resource_name, 60).state.name == "PIPELINE_STATE_CANCELLED"
    assert outputs(vertex_emulator.state.pipeline_jobs.one(job.resource_name)) == {}


@pytest.mark.parametrize(
    ("service", "path"),
    [
        ("ARTIFACT_REGISTRY", "projects/example-project/locations/us-central1/repositories/pipelines"),
        ("CLOUD_RESOURCE_MANAGER", "projects/example-project"),
        ("IAM", "projects/example-project/serviceAccounts/runner@example-project.iam.gserviceaccount.com"),
        ("RESOURCE_MANAGER", "projects/example-project"),
        ("SERVICE_USAGE", "projects/example-project/services/aiplatform.googleapis.com"),
        ("STORAGE", "b/example-bucket"),
        ("VERTEX_AI", "projects/example-project/locations/us-central1/endpoints"),
    ],
)
def test_what_terraforms_provider_reads_is_where_its_variables_say(
    vertex_emulator: VertexApi, service: str, path: str
) -> None:
    variables = vertex_emulator.about()["environment"]
    vertex_emulator.state.project.service_accounts.add("runner@example-project.iam.gserviceaccount.com")
    token = {"Authorization": f"Bearer {variables['GOOGLE_OAUTH_ACCESS_TOKEN']}"}
    url = variables[f"GOOGLE_{service}_CUSTOM_ENDPOINT"] + path
    answer = requests.get(url, headers=token, timeout=20, proxies={"http": ""})
    assert answer.status_code == 200, answer.text
    refused = requests.get(url, headers={"Authorization": "Bearer a-real-one"}, timeout=20)
    assert refused.status_code == 400 or service == "STORAGE"


def test_a_large_object_is_uploaded_in_pieces(vertex_emulator: VertexApi, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.cloud import storage

    content = bytes(range(256)) * 4096
    for place in (vertex_emulator.url, ""):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", place)
        if not place:
            # At Google's own address.
            monkeypatch.delenv("STORAGE_EMULATOR_HOST")
        bucket = storage.Client(project="example-project").bucket("example-bucket")
        blob = bucket.blob(f"large{len(place)}", chunk_size=256 * 1024)
        with blob.open("wb", ignore_flush=True) as file:
            file.write(content)
        assert bucket.blob(blob.name).download_as_bytes(start=1000, end=1999) == content[1000:2000]
        assert (vertex_emulator.folder / f"gcs/example-bucket/{blob.name}").read_bytes() == content


def test_preconditions_and_odd_names_of_google_cloud_storage(vertex_emulator: VertexApi) -> None:
    from google.api_core.exceptions import NotFound, PreconditionFailed
    from google.cloud import storage  # type: ignore[attr-defined, unused-ignore]

    bucket = storage.Client(project="example-project").bucket("example-bucket")
    # The name is in the query, in the body of an upload, or in the one that began it.
    for size in (None, 256 * 1024):
        blob = bucket.blob(f"{size}/\u00fc ?#%2F+&.txt", chunk_size=size)
        blob.upload_from_string("first", if_generation_match=0)
        with pytest.raises(PreconditionFailed):
            blob.upload_from_string("second", if_generation_match=0)
        found = bucket.get_blob(blob.name)
        assert found is not None
        assert found.media_link.startswith(vertex_emulator.url)
        assert found.download_as_text() == "first"
    with pytest.raises(PreconditionFailed):
        bucket.copy_blob(found, bucket, "copy", if_source_generation_match=1)
    bucket.copy_blob(found, bucket, "copy", if_source_generation_match=found.generation, if_generation_match=0)
    with pytest.raises(PreconditionFailed):
        bucket.copy_blob(found, bucket, "copy", if_generation_match=0)
    blob.upload_from_string("third", if_generation_match=found.generation)
    with pytest.raises(NotFound):
        found.download_as_text()
    with pytest.raises(PreconditionFailed):
        bucket.blob(blob.name).delete(if_generation_match=found.generation)
    blob.delete(if_metageneration_match=1)
    first = bucket.get_blob("copy")
    assert first is not None
    whole = bucket.blob("whole")
    with pytest.raises(PreconditionFailed):
        whole.compose([first, first], if_source_generation_match=[first.generation, 1])
    whole.compose([first, first], if_source_generation_match=[first.generation, first.generation])
    assert whole.download_as_text() == "firstfirst"
    with pytest.raises(PreconditionFailed):
        bucket.delete_blobs([whole, first], if_generation_match=[whole.generation, 1])
    assert [each.name for each in bucket.list_blobs() if each.name in ("copy", "whole")] == ["copy"]
    again = bucket.blob("copy")
    first.metadata = {"k": "v"}
    with bucket.client.batch():
        first.patch()
        again.reload()
    assert (again.metadata, again.metageneration) == ({"k": "v"}, 2)


@pytest.mark.slow
def test_gcloud_copies_and_moves_folders(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    (tmp_path / "tree/a").mkdir(parents=True)
    for name in ("tree/1.txt", "tree/a/2.txt"):
        (tmp_path / name).write_text(name)
    for words in (
        "cp -r tree gs://example-bucket/up/",
        "cp -r gs://example-bucket/up/tree gs://example-bucket/other",
        "mv gs://example-bucket/other/a gs://example-bucket/moved",
        "rsync -r gs://example-bucket/up/tree back",
        "rm -r gs://example-bucket/up",
    ):
        (tmp_path / "back").mkdir(exist_ok=True)
        vertex_emulator.answer_to(["gcloud", "storage", *words.split()], tmp_path)
    assert (tmp_path / "back/a/2.txt").read_text() == "tree/a/2.txt"
    root = vertex_emulator.folder / "gcs/example-bucket"
    there = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    assert [name for name in there if name.startswith(("up", "other", "moved"))] == there
    assert [name.rpartition("/")[2] for name in there] == ["2.txt", "1.txt"]


@pytest.mark.slow
def test_gcloud_finds_what_is_there_and_runs_a_job(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    from kfp.registry import RegistryClient

    def gcloud(*words: str) -> Any:
        # Of storage it is a flag of its own.
        as_json = "--json" if words[0] == "storage" else "--format=json"
        return json.loads(vertex_emulator.answer_to(["gcloud", *words, as_json], tmp_path) or "null")

    _, version = RegistryClient(HOST).upload_pipeline(str(ECHO), tags=["latest"])
    (tmp_path / "job.yaml").write_text(CUSTOM)
    region = "--region=us-central1"
    gcloud("ai", "custom-jobs", "create", region, "--display-name=j", "--config=job.yaml")
    (job,) = gcloud("ai", "custom-jobs", "list", region)
    vertex_emulator.state.custom_jobs.wait(job["name"], 60)
    assert gcloud("ai", "custom-jobs", "describe", job["name"])["state"] == "JOB_STATE_SUCCEEDED"
    entries = gcloud("logging", "read", f'resource.labels.job_id="{job["name"].rpartition("/")[2]}"')
    assert "a line of a job" in {entry["jsonPayload"]["message"] for entry in entries}
    container = ("--container-image-uri=image", "--artifact-uri=gs://example-bucket/m")
    gcloud("ai", "models", "upload", region, "--display-name=digits", *container)
    (model,) = gcloud("ai", "models", "list", region)
    assert model["displayName"] == "digits"
    gcloud("ai", "endpoints", "create", region, "--display-name=e")
    assert [each["displayName"] for each in gcloud("ai", "endpoints", "list", region)] == ["e"]
    place = ("--location=us-central1", "--repository=pipelines")
    (found,) = gcloud("artifacts", "versions", "list", "--package=echo", *place)
    assert found["name"].rpartition("/")[2] == version
    assert gcloud("projects", "describe", "example-project")["projectId"] == "example-project"
    vertex_emulator.storage.put("a.txt", b"a")
    (item,) = gcloud("storage", "ls", "gs://example-bucket/a.txt")
    assert item["url"].partition("#")[0] == "gs://example-bucket/a.txt"
