"""What Terraform prints for gpu-pipelines.yaml, and who may do what: `make test-terraform`. Needs no provider."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import hcl2
import pytest

from gpu_pipelines import __version__
from gpu_pipelines.project_settings import FILE, ProjectSettings, load_project_settings

pytestmark = [pytest.mark.slow, pytest.mark.terraform]

MODULE = Path(__file__).parents[2] / "terraform"


def terraform(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs terraform on the files that need no provider."""
    for name in ("variables.tf", "settings.tf"):
        shutil.copy(MODULE / name, place)
    return subprocess.run(["terraform", *arguments], cwd=place, capture_output=True, text=True, check=False, timeout=60)


def test_the_settings_are_those_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    applied = terraform(tmp_path, "apply", "-auto-approve", "-no-color", "-var=project=p-123456")
    assert applied.returncode == 0, applied.stderr
    (tmp_path / FILE).write_text(terraform(tmp_path, "output", "-raw", "settings").stdout)
    assert load_project_settings(directory=tmp_path) == ProjectSettings(
        project="p-123456",
        region="us-central1",
        pipeline_root="gs://p-123456-gpu-pipelines/pipelines",
        image=f"us-central1-docker.pkg.dev/p-123456/gpu-pipelines-images/steps:{__version__}-cu126",
        serving_image=f"us-central1-docker.pkg.dev/p-123456/gpu-pipelines-images/serving:{__version__}-cpu",
        repository="https://us-central1-kfp.pkg.dev/p-123456/gpu-pipelines-pipelines",
        service_account="gpu-pipelines-runs@p-123456.iam.gserviceaccount.com",
    )


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("name=GPU", "5 to 20 lower-case"),
        ("artifact_days=1.5", "whole number of days"),
        ("untagged_image_days=-1", "whole number of days"),
        ("soft_delete_days=3", "7 to 90, or 0"),
        ("monthly_budget=0", "at least 1"),
        ('users=["user:me@example.com", "ml@example.com"]', "such as user:me@example.com or group:ml@example.com"),
        ('image_builders=["ml@example.com"]', "image_builders are given as Google Cloud names them"),
        ('vm_creators=["ml@example.com"]', "vm_creators are given as Google Cloud names them"),
        ("alert_at=[0.5, 50]", "50 is no percentage"),
    ],
)
def test_a_wrong_setting_is_refused(tmp_path: Path, wrong: str, told: str) -> None:
    planned = terraform(tmp_path, "plan", "-no-color", "-var=project=p-123456", f"-var={wrong}")
    assert planned.returncode == 1
    assert told in " ".join(planned.stderr.replace("│", "").split())


def test_members_of_every_kind_and_shares_above_the_budget_are_taken(tmp_path: Path) -> None:
    kinds = (
        "user:a@b.c",
        "group:a@b.c",
        "domain:b.c",
        "serviceAccount:a@p.iam.gserviceaccount.com",
        "principalSet://iam",
    )
    given = [f"-var={name}={json.dumps(kinds)}" for name in ("users", "image_builders", "vm_creators")]
    planned = terraform(tmp_path, "plan", "-no-color", "-var=project=p-123456", "-var=alert_at=[0.5,1.2]", *given)
    assert planned.returncode == 0, planned.stderr


KEY = "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k"


def test_a_key_of_ones_own_is_a_setting_and_must_be_where_all_else_is(tmp_path: Path) -> None:
    project = ("-no-color", "-var=project=p-123456")
    assert terraform(tmp_path, "apply", "-auto-approve", *project, f"-var=encryption_key={KEY}").returncode == 0
    (tmp_path / FILE).write_text(terraform(tmp_path, "output", "-raw", "settings").stdout)
    assert load_project_settings(directory=tmp_path).encryption_key == KEY
    for wrong, told in (("k", "full name"), (KEY.replace("central1", "east1"), "in another location than region")):
        planned = terraform(tmp_path, "plan", *project, f"-var=encryption_key={wrong}")
        assert planned.returncode == 1
        assert told in " ".join(planned.stderr.replace("│", "").split())


@pytest.fixture(scope="module")
def resources() -> dict[str, dict[str, Any]]:
    """The resources of the module, by type and name; texts without their quotes."""
    found = {}
    for file in MODULE.glob("*.tf"):
        for block in plain(hcl2.loads(file.read_text(encoding="utf-8"))).get("resource", []):
            ((kind, named),) = block.items()
            ((name, resource),) = named.items()
            found[f"{kind}.{name}"] = resource
    return found


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.strip('"') if isinstance(value, str) else value


def test_who_builds_images_may_write_sources_of_builds_and_nothing_else(resources: dict[str, dict[str, Any]]) -> None:
    grants = {
        name: resource
        for name, resource in resources.items()
        if resource.get("for_each") == "${var.image_builders}" and "bucket" in resource
    }
    roles = {resource["role"]: resource.get("condition") for resource in grants.values()}
    assert set(roles) == {"roles/storage.objectCreator"}
    (names,) = plain(hcl2.loads((MODULE / "users.tf").read_text(encoding="utf-8")))["locals"]
    assert names["roles_of_image_builders_on_bucket"] == ["roles/storage.legacyBucketReader"]
    (condition,) = roles["roles/storage.objectCreator"]
    assert condition["expression"] == "${local.is_source_of_a_build}"


def test_the_condition_is_on_the_folder_of_builds(tmp_path: Path) -> None:
    for name in ("variables.tf", "settings.tf"):
        shutil.copy(MODULE / name, tmp_path)
    shown = subprocess.run(
        ["terraform", "console", "-var=project=p-123456"],
        input="local.is_source_of_a_build\n",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    prefix = "projects/_/buckets/p-123456-gpu-pipelines/objects/builds/"
    assert json.loads(shown.stdout.strip().splitlines()[-1]) == f'resource.name.startsWith("{prefix}")'


def test_no_account_may_give_away_files_and_no_role_is_wide(resources: dict[str, dict[str, Any]]) -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in MODULE.glob("*.tf"))
    assert not re.search(r"roles/(owner|editor|[a-z]+\.admin|storage\.(admin|objectAdmin))\b", text)
    runner = resources["google_storage_bucket_iam_member.runner_uses_files"]
    assert "roles/storage.objectUser" in str(runner["for_each"])


def test_what_holds_data_is_not_destroyed_by_mistake_and_takes_a_key(resources: dict[str, dict[str, Any]]) -> None:
    kinds = ("google_storage_bucket.", "google_artifact_registry_repository.")
    holding = [name for name in resources if name.startswith(kinds)]
    assert len(holding) == 3
    for name in holding:
        assert resources[name]["lifecycle"][0]["prevent_destroy"] is True, name
        assert "${google_kms_crypto_key_iam_member.service_agents}" in resources[name]["depends_on"], name
        assert "local.encryption_key" in str(resources[name]), name
    agents = str(resources["google_kms_crypto_key_iam_member.service_agents"]["for_each"])
    for service in ("artifact_registry", "compute_engine", "storage", "vertex_ai"):
        assert service in agents


def test_0_days_is_never_and_not_at_once(resources: dict[str, dict[str, Any]]) -> None:
    images, files = (
        resources[f"google_{kind}"] for kind in ("artifact_registry_repository.images", "storage_bucket.files")
    )
    (policy,) = images["dynamic"]
    assert policy["cleanup_policies"]["for_each"] == "${var.untagged_image_days > 0 ? [var.untagged_image_days] : []}"
    assert "${var.artifact_days > 0 ? [var.artifact_days] : []}" in str(files["dynamic"])


def test_a_role_that_somebody_has_in_two_ways_does_not_go_with_one_of_them(
    resources: dict[str, dict[str, Any]],
) -> None:
    readers = [
        str(resource["for_each"])
        for name, resource in resources.items()
        if name.startswith("google_storage_bucket_iam_member.")
        and re.search(r"legacyBucketReader|_on_bucket", f"{resource['role']} {resource.get('for_each')}")
        and "var." in str(resource.get("for_each"))
    ]
    assert len(readers) == 1
    assert "var.users" in readers[0]
    assert "var.image_builders" in readers[0]


def test_who_creates_vms_may_do_that_and_act_as_the_account_they_run_as(resources: dict[str, dict[str, Any]]) -> None:
    account = resources["google_service_account_iam_member.users_act_as_runner"]
    assert account["service_account_id"] == "${google_service_account.runner.name}"
    assert account["for_each"] == "${setunion(var.users, var.vm_creators)}"
    granted = str(resources["google_project_iam_member.users"]["for_each"])
    assert "setproduct(var.vm_creators, local.roles_of_vm_creators)" in granted
    (names,) = plain(hcl2.loads((MODULE / "users.tf").read_text(encoding="utf-8")))["locals"]
    assert names["roles_of_vm_creators"] == ["roles/compute.instanceAdmin.v1", "roles/logging.viewer"]


def test_people_may_use_the_quota_of_the_project_as_gcloud_builds_asks(resources: dict[str, dict[str, Any]]) -> None:
    granted = str(resources["google_project_iam_member.users"]["for_each"])
    (names,) = plain(hcl2.loads((MODULE / "users.tf").read_text(encoding="utf-8")))["locals"]
    for who in ("users", "image_builders"):
        roles = f"roles_of_{who}"
        assert f"setproduct(var.{who}, local.{roles})" in granted
        assert "roles/serviceusage.serviceUsageConsumer" in names[roles]


def test_users_may_read_the_quotas_that_lists_of_machines_go_by() -> None:
    (names,) = plain(hcl2.loads((MODULE / "users.tf").read_text(encoding="utf-8")))["locals"]
    assert "roles/cloudquotas.viewer" in names["roles_of_users"]
    assert "cloudquotas.googleapis.com" in str(hcl2.loads((MODULE / "main.tf").read_text(encoding="utf-8")))
