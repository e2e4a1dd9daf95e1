"""What service accounts may do: as a file says, told in Google's words, the same for every client."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
from conftest import GPU_PIPELINES, set_variables
from forked import Forked
from rehearsed_jobs import PARENT, await_message, create, ended, pool

from gpu_pipelines.emulator.project.permission_file import Grants, read_permissions
from gpu_pipelines.emulator.start import EmulatorSettings, running_emulator
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.emulator.certificates import Certificates
    from gpu_pipelines.emulator.vertex_api import VertexApi

TRAINER = "trainer@example-project.iam.gserviceaccount.com"
TESTER = "tester@example-project.iam.gserviceaccount.com"
FILE = f"""
accounts:
  {TRAINER}:
    buckets:
      example-bucket: [roles/storage.objectViewer]
  {TESTER}:
    roles: [roles/aiplatform.viewer]
    permissions: [aiplatform.customJobs.create, artifactregistry.packages.list]
"""
STORE = f"{PARENT}/metadataStores/default"
Start = Callable[[str], Any]


@pytest.fixture
def start(tmp_path: Path, vertex_certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts an emulator with a file of permissions."""
    with ExitStack() as stack:

        def started(text: str) -> VertexApi:
            (tmp_path / "permissions.yaml").write_text(text)
            settings = EmulatorSettings(
                state=tmp_path / "state",
                certificates=vertex_certificates,
                permissions=tmp_path / "permissions.yaml",
            )
            api = stack.enter_context(running_emulator(settings))
            set_variables(monkeypatch, api.environment())
            return api

        yield started


READS_AND_WRITES = """
import sys
import gcsfs
files = gcsfs.GCSFileSystem()
print(files.cat("example-bucket/a.txt").decode(), flush=True)
files.retries = 1
files.pipe("example-bucket/b.txt", b"b")
"""


def test_a_job_can_do_what_its_account_can(start: Start) -> None:
    emulator = start(FILE)
    emulator.storage.put("a.txt", b"it can read")
    reads = pool("python", "-c", READS_AND_WRITES)
    job = ended(emulator, create(emulator, reads, serviceAccount=TRAINER))
    assert job.state.name == "JOB_STATE_FAILED"
    said = "\n".join(emulator.state.logs.messages())
    assert "it can read" in said
    assert f"{TRAINER} does not have storage.objects.create access to the Google Cloud Storage object." in said
    assert "Permission 'storage.objects.create' denied on resource (or it may not exist)." in said
    assert ended(emulator, create(emulator, reads)).state.name == "JOB_STATE_SUCCEEDED", "the service's own agent"


CREATES = """
from google.cloud import aiplatform
aiplatform.init(project="example-project", location="us-central1", staging_bucket="gs://example-bucket")
print(len(aiplatform.CustomJob.list()))
aiplatform.PipelineJob.list()
try:
    aiplatform.Endpoint.create("e")
except Exception as error:
    print(type(error).__name__, error)
"""


DENIED = (
    "PermissionDenied 403 Permission 'aiplatform.endpoints.create' denied on resource "
    "'//aiplatform.googleapis.com/projects/example-project/locations/us-central1' (or it may not exist)."
)


@pytest.mark.parametrize(
    ("account", "told"),
    [(TESTER, DENIED), pytest.param(TRAINER, "aiplatform.customJobs.list", marks=pytest.mark.slow)],
)
def test_the_sdk_is_told_of_the_permission_that_it_lacks(start: Start, tmp_path: Path, account: str, told: str) -> None:
    emulator = start(FILE)
    environment = {**os.environ, **emulator.identity(account)}
    (tmp_path / "creates.py").write_text(CREATES)
    process = Forked(str(tmp_path / "creates.py"), [], environment, merged=True)
    assert told in process.communicate()[0]
    assert emulator.state.endpoints.endpoints == {}


def test_every_service_asks_for_its_permission(start: Start) -> None:
    emulator = start(FILE)
    emulator.storage.put("a.txt", b"a")

    def told(verb: str, path: str, **given: Any) -> str:
        answer = requests.request(verb, f"{emulator.url}{path}", timeout=30, **given)
        assert answer.status_code == 403, answer.text
        assert answer.json()["error"]["status"] == "PERMISSION_DENIED"
        return str(answer.json()["error"]["message"])

    bucket = "/storage/v1/b/example-bucket"
    inner = f"--b\r\n\r\nDELETE {bucket}/o/a.txt HTTP/1.1\r\n\r\n--b--".encode()
    for verb, path, permission, given in (
        ("GET", f"{bucket}/o", "storage.objects.list", {}),
        ("GET", f"{bucket}/o/a.txt", "storage.objects.get", {}),
        ("GET", f"/download{bucket}/o/a.txt?alt=media", "storage.objects.get", {}),
        ("DELETE", f"{bucket}/o/a.txt", "storage.objects.delete", {}),
        ("PATCH", f"{bucket}/o/a.txt", "storage.objects.update", {"json": {}}),
        ("POST", f"{bucket}/o/a.txt/copyTo/b/example-bucket/o/b.txt", "storage.objects.create", {"json": {}}),
        ("POST", f"/upload{bucket}/o?uploadType=media&name=c", "storage.objects.create", {"data": b"c"}),
        ("POST", "/storage/v1/b?project=example-project", "storage.buckets.create", {"json": {"name": "x"}}),
        ("GET", "/storage/v1/b?project=example-project", "storage.buckets.list", {}),
        ("POST", "/batch/storage/v1", "storage.objects.delete", {"data": inner}),
        ("POST", "/v2/entries:list", "logging.logEntries.list", {"json": {}}),
        ("GET", f"/v1/{PARENT}/repositories/pipelines", "artifactregistry.repositories.get", {}),
        ("POST", f"/v1/{PARENT}/models:upload", "aiplatform.models.upload", {"json": {}}),
        ("DELETE", f"/v1/{PARENT}/pipelineJobs/1", "aiplatform.pipelineJobs.delete", {}),
        ("POST", f"/v1/{STORE}/contexts/c:addContextChildren", "aiplatform.contexts.addContextChildren", {"json": {}}),
        ("POST", f"/v1/{PARENT}/schedules/1:pause", "aiplatform.schedules.update", {"json": {}}),
    ):
        assert f"Permission '{permission}' denied on resource" in told(verb, path, **given)
    assert (emulator.folder / "gcs/example-bucket/a.txt").exists()
    packages = requests.get(f"{emulator.url}/v1/{PARENT}/repositories/pipelines/packages", timeout=30)
    assert packages.status_code == 200
    asked = {"permissions": ["aiplatform.customJobs.create", "aiplatform.customJobs.cancel"]}
    held = requests.post(f"{emulator.url}/v1/projects/example-project:testIamPermissions", json=asked, timeout=30)
    assert held.json() == {"permissions": ["aiplatform.customJobs.create"]}


def test_who_lets_a_job_run_as_an_account_must_be_allowed_to(start: Start) -> None:
    emulator = start(FILE)
    job = {"displayName": "j", "jobSpec": {"workerPoolSpecs": [pool("true")]}}
    assert requests.post(f"{emulator.url}/v1/{PARENT}/customJobs", json=job, timeout=30).status_code == 200
    job["jobSpec"]["serviceAccount"] = TRAINER
    refused = requests.post(f"{emulator.url}/v1/{PARENT}/customJobs", json=job, timeout=30)
    assert refused.status_code == 403
    assert refused.json()["error"]["message"] == (
        f"Permission 'iam.serviceAccounts.actAs' denied on service account {TRAINER} (or it may not exist)."
    )
    assert len(emulator.state.custom_jobs.jobs) == 1


def test_without_a_file_everybody_may_do_everything(vertex_emulator: VertexApi) -> None:
    assert vertex_emulator.identity(TRAINER) == {}
    name = create(vertex_emulator, pool("sh", "-c", "echo $STORAGE_EMULATOR_HOST"), serviceAccount=TRAINER)
    await_message(vertex_emulator, vertex_emulator.url)
    assert ended(vertex_emulator, name).state.name == "JOB_STATE_SUCCEEDED"


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", "", "a mapping belongs here"),
        ("account:\n  a@b.de: {}", ", line 1", "there is no 'account' here; there are: accounts"),
        ("accounts:\n  a: {}", ", line 2", "'a' is no address of an account"),
        ("accounts:\n  a@b.de:\n    role: []", ", line 3", "there is no 'role' here; there are: roles, permissions"),
        ("accounts:\n  a@b.de:\n    roles: x", ", line 3", "a list belongs here"),
        ("accounts:\n  a@b.de:\n    roles:\n    - roles/none", ", line 4", "does not know roles/none"),
        ("accounts:\n  a@b.de:\n    roles: [storage.objects.get]", ", line 3", "is no role"),
        ("accounts:\n  a@b.de:\n    permissions: [storage]", ", line 3", "'storage' is no permission of aiplatform"),
        ("accounts:\n  a@b.de:\n    permissions: [roles/owner]", ", line 3", "'roles/owner' is no permission"),
        ("accounts:\n  a@b.de:\n    buckets:\n      b: [compute.disks.get]", ", line 4", "'compute.disks.get' is no"),
        ("accounts: {a@b.de: {}, a@b.de: {}}", "", "a@b.de"),
        ("accounts: [", "", "is not YAML"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_place(tmp_path: Path, text: str, line: str, why: str) -> None:
    file = tmp_path / "permissions.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        read_permissions(file)
    assert f"{file}{line}" in str(caught.value)
    assert why in str(caught.value)


def test_what_a_file_says(tmp_path: Path) -> None:
    (tmp_path / "permissions.yaml").write_text(FILE)
    found = read_permissions(tmp_path / "permissions.yaml")
    assert found[TRAINER] == Grants((), {"example-bucket": ("storage.objects.get", "storage.objects.list")})
    assert found[TESTER].project[-2:] == ("aiplatform.customJobs.create", "artifactregistry.packages.list")


def test_the_command_tells_it(tmp_path: Path) -> None:
    (tmp_path / "permissions.yaml").write_text("accounts:\n  a: {}")
    given = ["--port", "0", "--permissions", str(tmp_path / "permissions.yaml")]
    done = subprocess.run([GPU_PIPELINES, "emulator", "start", *given], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "permissions.yaml, line 2: 'a' is no address of an account." in done.stderr
