"""`doctor`: what it finds in a project, what it says to run, and that it is quick where there is nothing to ask."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
from command_line import command
from conftest import set_variables

from gpu_pipelines.emulator.json_server import JsonHandler, answering, server_of
from gpu_pipelines.targets.vertex.doctor.access import find_credentials
from gpu_pipelines.targets.vertex.doctor.local import look_at_versions

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

ACCOUNT = "trainer@example-project.iam.gserviceaccount.com"
METRIC = "aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus"
IMAGE = "us-central1-docker.pkg.dev/example-project/images/steps:0.1.0"
REPOSITORY = "https://us-central1-kfp.pkg.dev/example-project/pipelines"
ROLES = (
    "roles/aiplatform.user",
    "roles/storage.objectUser",
    "roles/artifactregistry.reader",
    "roles/logging.logWriter",
)
WHOLE = ("--accelerator", "l4:4", "--service-account", ACCOUNT, "--image", IMAGE, "--repository", REPOSITORY)
NOWHERE = "http://127.0.0.1:9/"

Checks = dict[str, dict[str, str]]


@pytest.fixture
def api(vertex_api: VertexApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> VertexApi:
    """A project in which nothing is missing."""
    from gpu_pipelines.emulator.pipelines.repository import Package

    set_variables(monkeypatch, vertex_api.environment())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpu-pipelines.yaml").write_text("pipeline_root: gs://example-bucket/runs\n")
    state = vertex_api.state
    state.project.services.add("cloudbuild.googleapis.com")
    state.project.service_accounts.add(ACCOUNT)
    state.project.bindings = {role: {f"serviceAccount:{ACCOUNT}"} for role in ROLES}
    state.project.limits[METRIC] = {"us-central1": 4}
    state.repositories.formats["us-central1/images"] = "DOCKER"
    image = state.repositories.packages["us-central1/images/steps"] = Package()
    image.versions["sha256:aa"], image.created["sha256:aa"], image.tags["0.1.0"] = b"", "", "sha256:aa"
    return vertex_api


def doctor(*arguments: str) -> tuple[int, Checks]:
    done = command("doctor", *arguments, "--json")
    document = json.loads(done.out)
    assert document["ok"] == (done.status == 0)
    return done.status, {check["subject"]: check for check in document["checks"]}


def missing(checks: Checks) -> list[str]:
    return [subject for subject, check in checks.items() if check["state"] == "missing"]


def test_a_project_that_has_everything(api: VertexApi) -> None:
    status, checks = doctor(*WHOLE)
    assert status == 0, checks
    assert {check["state"] for check in checks.values()} == {"ok", "unknown"}
    assert [subject for subject, check in checks.items() if check["state"] == "unknown"] == ["credentials"]
    assert len(checks) == 17
    done = command("doctor", *WHOLE)
    assert done.status == 0
    assert done.out.splitlines()[0].startswith("✓ libraries")
    assert done.out.splitlines()[-1].startswith("Nothing that was checked is missing")


def test_what_the_document_shows_is_what_is_printed(api: VertexApi, tmp_path: Path) -> None:
    document = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```console\n\$ cat gpu-pipelines.yaml\n(.*?)```", document, re.DOTALL)
    settings, _, rest = block.partition("$ gpu-pipelines ")
    (tmp_path / "gpu-pipelines.yaml").write_text(settings)
    project = api.state.project
    project.services.remove("cloudbuild.googleapis.com")
    project.bindings.pop("roles/storage.objectUser")
    project.limits[METRIC.replace("l4", "h100")] = {"us-central1": 8}
    line, _, printed = rest.partition("\n")
    # Versions and places of the programs are those of the day it was written.
    assert command(*line.split()).out.splitlines()[2:] == printed.splitlines()[2:]


def test_apis_that_are_not_enabled(api: VertexApi) -> None:
    api.state.project.services -= {"aiplatform.googleapis.com", "cloudbuild.googleapis.com"}
    status, checks = doctor(*WHOLE)
    assert (status, missing(checks)) == (1, ["APIs"])
    remedy = "gcloud services enable aiplatform.googleapis.com cloudbuild.googleapis.com --project=example-project"
    assert checks["APIs"]["remedy"] == remedy


def test_permissions_of_who_asks(api: VertexApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDSDK_CORE_ACCOUNT", "me@example.com")
    api.state.project.denied = {
        "aiplatform.customJobs.create",
        "iam.serviceAccounts.actAs",
        "storage.objects.create",
    }
    _, checks = doctor(*WHOLE)
    assert missing(checks) == ["your permissions", "use of the account", "write to the root"]
    assert checks["your permissions"]["remedy"] == (
        "gcloud projects add-iam-policy-binding example-project --member=user:me@example.com "
        "--role=roles/aiplatform.user --condition=None"
    )
    assert "--role=roles/iam.serviceAccountUser" in checks["use of the account"]["remedy"]
    assert "--role=roles/storage.objectUser" in checks["write to the root"]["remedy"]


@pytest.mark.parametrize(
    ("bindings", "state", "said"),
    [
        ({"roles/editor": 1}, "ok", "roles/editor"),
        ({"roles/storage.admin": 1, **dict.fromkeys(ROLES[:1] + ROLES[2:], 1)}, "ok", "roles/storage.admin"),
        (dict.fromkeys(ROLES[:3], 1), "missing", "write logs"),
        ({}, "missing", "run steps of pipelines; read and write"),
        ({"projects/p/roles/mine": 1}, "unknown", "unless projects/p/roles/mine allows it"),
    ],
)
def test_roles_of_the_service_account(api: VertexApi, bindings: dict[str, int], state: str, said: str) -> None:
    api.state.project.bindings = {role: {f"serviceAccount:{ACCOUNT}"} for role in bindings}
    _, checks = doctor(*WHOLE)
    assert checks["roles of the account"]["state"] == state
    assert said in checks["roles of the account"]["message"]


def test_a_role_that_a_group_has_may_be_the_accounts(api: VertexApi) -> None:
    api.state.project.bindings["roles/logging.logWriter"] = {"group:trainers@example.com"}
    _, checks = doctor(*WHOLE)
    assert checks["roles of the account"]["state"] == "unknown"
    assert "it may not write logs, unless it is in a group that may" in checks["roles of the account"]["message"]


def test_images_may_be_pulled_by_the_policy_of_their_repository(api: VertexApi) -> None:
    # As terraform/ gives the role.
    members = api.state.project.bindings.pop("roles/artifactregistry.reader")
    assert "it may not pull images" in doctor(*WHOLE)[1]["roles of the account"]["message"]
    for everybody in ({"allUsers"}, members):
        api.state.repositories.bindings["us-central1/images"] = {"roles/artifactregistry.reader": everybody}
        assert doctor(*WHOLE)[1]["roles of the account"]["state"] == "ok"
    # What it may with the images it may not elsewhere.
    api.state.repositories.bindings["us-central1/images"] = dict.fromkeys(ROLES, members)
    del api.state.project.bindings["roles/logging.logWriter"]
    _, checks = doctor(*WHOLE)
    assert checks["roles of the account"]["message"] == "it may not write logs"


def test_whether_images_of_another_project_may_be_pulled_is_not_known(api: VertexApi) -> None:
    del api.state.project.bindings["roles/artifactregistry.reader"]
    shared = ("--image", IMAGE.replace("example-project", "shared-images"))
    check = doctor(*WHOLE, *shared)[1]["roles of the account"]
    assert (check["state"], check["message"]) == ("unknown", "it may not pull images, unless shared-images allows it")
    assert check["remedy"].startswith("gcloud projects add-iam-policy-binding shared-images ")
    del api.state.project.bindings["roles/logging.logWriter"]
    check = doctor(*WHOLE, *shared)[1]["roles of the account"]
    assert (check["state"], check["message"]) == ("missing", "it may not write logs")


def test_a_service_account_that_is_not_there_or_disabled_or_not_set(api: VertexApi) -> None:
    api.state.project.disabled_accounts.add(ACCOUNT)
    assert "gcloud iam service-accounts enable" in doctor(*WHOLE)[1]["service account"]["remedy"]
    api.state.project.service_accounts.clear()
    remedy = doctor(*WHOLE)[1]["service account"]["remedy"]
    assert remedy == "gcloud iam service-accounts create trainer --project=example-project"
    _, checks = doctor("--accelerator", "l4:4", "--image", IMAGE)
    assert checks["service account"]["state"] == "unknown"
    assert "123456789012-compute@developer.gserviceaccount.com" in checks["service account"]["message"]


def test_a_bucket_that_is_not_there_or_elsewhere(api: VertexApi) -> None:
    _, checks = doctor(*WHOLE, "--pipeline-root", "gs://not-there/runs")
    assert checks["pipeline root"]["remedy"] == (
        "gcloud storage buckets create gs://not-there --location=us-central1 --uniform-bucket-level-access "
        "--project=example-project"
    )
    for location, state in (("US-CENTRAL1", "ok"), ("US", "ok"), ("EU", "missing"), ("EUROPE-WEST4", "missing")):
        body = {"location": location}
        requests.patch(f"{api.url}/storage/v1/b/example-bucket", json=body, timeout=10).raise_for_status()
        _, checks = doctor(*WHOLE)
        assert checks["pipeline root"]["state"] == state, location
    assert "europe-west4, but jobs run in us-central1" in checks["pipeline root"]["message"]


def test_images_and_repositories_that_are_not_there(api: VertexApi) -> None:
    _, checks = doctor(*WHOLE[:4], "--image", IMAGE.replace("0.1.0", "9"), "--repository", REPOSITORY + "-2")
    assert missing(checks) == ["image", "pipeline repository"]
    assert checks["image"]["remedy"].endswith(f"docker push {IMAGE.replace('0.1.0', '9')}")
    assert "--repository-format=kfp --location=us-central1" in checks["pipeline repository"]["remedy"]
    api.state.repositories.formats["us-central1/pipelines"] = "DOCKER"
    _, checks = doctor(*WHOLE[:4], "--image", IMAGE.replace("/images/", "/others/"), "--repository", REPOSITORY)
    assert "gcloud artifacts repositories create others --repository-format=docker" in checks["image"]["remedy"]
    assert "format DOCKER; pipelines need KFP" in checks["pipeline repository"]["message"]
    _, checks = doctor(*WHOLE[:4], "--image", "gcr.io/p/i")
    assert "shut down" in checks["image"]["message"]
    assert checks["pipeline repository"]["state"] == "unknown"


def test_a_role_in_another_project_is_granted_there(api: VertexApi) -> None:
    elsewhere = [address.replace("example-project", "shared-images") for address in (IMAGE, REPOSITORY)]
    _, checks = doctor(*WHOLE[:4], "--image", elsewhere[0], "--repository", elsewhere[1])
    for subject in ("image", "pipeline repository"):
        assert "denied" in checks[subject]["message"]
        assert checks[subject]["remedy"].startswith("gcloud projects add-iam-policy-binding shared-images ")
    for account, project in (("a@shared-accounts.iam", "shared-accounts"), ("1-compute@developer", "example-project")):
        api.fail_next("GET /v1/projects/-/serviceAccounts", 403)
        _, checks = doctor("--service-account", f"{account}.gserviceaccount.com")
        assert f"add-iam-policy-binding {project} " in checks["service account"]["remedy"]


def test_the_quota_of_the_accelerator(api: VertexApi) -> None:
    _, checks = doctor(*WHOLE, "--nodes", "2")
    assert checks["quota"]["state"] == "missing"
    assert "8 needed; us-central1 4" in checks["quota"]["message"]
    assert "--preferred-value=8 --dimensions=region=us-central1" in checks["quota"]["remedy"]
    _, checks = doctor("--accelerator", "h100:8")
    assert "nvidia_l4_gpus: 1 needed; us-central1 4" in checks["quota of evaluation"]["message"]
    api.state.project.limits[METRIC.replace("l4", "a100")] = {"us-central1": 1}
    _, checks = doctor("--accelerator", "h100:8", "--evaluation-accelerator", "a100:2")
    assert checks["quota of evaluation"]["state"] == "missing"
    assert "nvidia_a100_gpus: 2 needed" in checks["quota of evaluation"]["message"]
    _, checks = doctor("--accelerator", "cpu:2")
    assert checks["accelerator"]["message"] == "cpu:2 is for this machine; Vertex AI has no such machine."
    _, checks = doctor("--accelerator", "l4:3")
    assert "accelerator" in missing(checks)
    assert checks["accelerator"]["remedy"].startswith("gpu-pipelines accelerators plan l4:")


def test_settings_that_are_missing_are_told_with_the_way_to_set_them(no_project_settings: None) -> None:
    status, checks = doctor("--offline")
    assert status == 1
    assert {"project", "region", "pipeline root", "image", "credentials"} <= set(missing(checks))
    assert "gcloud config set ai/region REGION" in checks["region"]["remedy"]
    _, checks = doctor("--offline", "--region", "us-centarl1")
    assert "'us-central1'" in checks["region"]["remedy"]


def test_offline_asks_nothing(api: VertexApi) -> None:
    status, checks = doctor(*WHOLE, "--offline")
    assert status == 0
    assert checks["APIs"]["message"] == "not looked at: --offline"
    assert api.state.requests == []


def test_without_a_network_it_is_quick_and_says_what_was_not_looked_at(
    api: VertexApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in api.environment():
        if name.startswith("CLOUDSDK_API_ENDPOINT"):
            monkeypatch.setenv(name, NOWHERE)
    began = time.monotonic()
    status, checks = doctor(*WHOLE)
    assert time.monotonic() - began < 5
    assert status == 0, "nothing is known to be missing"
    assert "127.0.0.1:9 cannot be reached" in checks["project exists"]["message"]
    assert {checks[subject]["message"] for subject in ("APIs", "image", "quota")} == {"not looked at: no network"}


def test_it_leaves_the_environment_of_a_program_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nowhere.json"))
    monkeypatch.delenv("NO_GCE_CHECK", raising=False)
    before = dict(os.environ)
    find_credentials(offline=True)
    assert dict(os.environ) == before


def test_a_service_that_hangs_or_refuses_leaves_the_other_checks(api: VertexApi) -> None:
    api.fail_next("services:batchGet", 403, message="Permission denied to list services.")
    api.fail_next(r"GET /storage/v1/b/example-bucket$", 500)
    _, checks = doctor(*WHOLE)
    assert missing(checks) == []
    assert "Permission denied to list services." in checks["APIs"]["message"]
    assert "--role=roles/serviceusage.serviceUsageViewer" in checks["APIs"]["remedy"]
    assert "Internal error" in checks["pipeline root"]["message"]
    assert checks["image"]["state"] == "ok"


def test_an_api_that_the_doctor_itself_needs_and_is_not_enabled(api: VertexApi) -> None:
    said = (
        "Identity and Access Management (IAM) API has not been used in project 1 before or it is disabled. Enable it "
        "by visiting https://console.developers.google.com/apis/api/iam.googleapis.com/overview?project=1 then retry."
    )
    api.fail_next("GET /v1/projects/-/serviceAccounts", 403, message=said)
    _, checks = doctor(*WHOLE)
    assert checks["service account"]["state"] == "unknown"
    assert checks["service account"]["remedy"] == "gcloud services enable iam.googleapis.com --project=example-project"


def test_a_project_that_may_not_be_seen(api: VertexApi) -> None:
    api.fail_next("GET /v3/projects/example-project$", 403)
    _, checks = doctor(*WHOLE)
    assert missing(checks) == ["project exists"]


@contextmanager
def token_server(status: int) -> Iterator[str]:
    """Answers requests for tokens."""

    class Handler(JsonHandler):
        def do_POST(self) -> None:
            self.body()
            answer: dict[str, Any] = {"access_token": "a", "expires_in": 3600, "token_type": "Bearer"}
            if status != 200:
                answer = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
            self.send(status, answer)

    with answering(server_of(Handler)) as url:
        yield f"{url}/token"


def key_file(path: Path, token_uri: str) -> Path:
    """A key of a service account that exists nowhere."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    content = {"type": "service_account", "project_id": "p", "private_key_id": "1", "private_key": pem}
    path.write_text(json.dumps({**content, "client_email": ACCOUNT, "token_uri": token_uri}))
    return path


@pytest.mark.parametrize(
    ("status", "state", "said"),
    [
        (200, "ok", f"serviceAccount:{ACCOUNT}"),
        (400, "missing", "Invalid JWT Signature"),
        (0, "unknown", "not tried out: no network"),
    ],
)
def test_credentials_are_tried_out(
    status: int, state: str, said: str, api: VertexApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CLOUDSDK_AUTH_DISABLE_CREDENTIALS")
    with token_server(status) as url:
        file = key_file(tmp_path / "key.json", url if status else f"{NOWHERE}token")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        _, checks = doctor(*WHOLE)
    assert checks["credentials"]["state"] == state
    assert said in checks["credentials"]["message"]
    assert (checks["APIs"]["state"] == "ok") == (state != "missing")


def test_libraries_that_do_not_go_together_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert look_at_versions().state == "ok"
    # An older one, which comes first on the path; kfp's part requires the newer.
    folder = tmp_path / "kfp_pipeline_spec-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: kfp-pipeline-spec\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    check = look_at_versions(("kfp", "kfp-pipeline-spec"))
    assert check.state == "missing"
    assert "kfp needs kfp-pipeline-spec<3,>=2.17.3, but 0.1.0 is there" in check.message
    assert look_at_versions(("no-such-library",)).message == "no-such-library is not installed"
