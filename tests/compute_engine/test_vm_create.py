"""`vm create`: the real gcloud, and a server that parses what it sends with the Compute API's own types."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from command_line import command
from compute_api import ComputeApi
from google.cloud import compute_v1
from google.protobuf import json_format

import gpu_pipelines
from gpu_pipelines.errors import UnavailableError, UserError

if TYPE_CHECKING:
    from pathlib import Path

HERE = ("--project", "my-project", "--image", "us-docker.pkg.dev/p/r/t:1")


pytestmark = pytest.mark.usefixtures("no_project_settings")


def as_json(instance: compute_v1.Instance) -> dict[str, Any]:
    document: dict[str, Any] = json_format.MessageToDict(compute_v1.Instance.pb(instance))
    return document


def metadata(instance: compute_v1.Instance) -> dict[str, str]:
    return {item.key: item.value for item in instance.metadata.items}


@pytest.mark.slow
def test_a_gpu_on_n1_is_attached_in_the_next_zone_where_the_first_has_none_left(compute_api: ComputeApi) -> None:
    compute_api.exhausted = {"us-central1-a"}
    done = command(
        "vm",
        *("create", "--accelerator", "t4:2", "--region", "us-central1", "--json", "--label", "team=vision", *HERE),
        *("--output-dir", "gs://bucket/run", "--", "--name", "it's"),
    )
    assert done.status == 0, done.err
    answer = json.loads(done.out)
    assert answer["status"] == "RUNNING"
    assert answer["zone"] != "us-central1-a"
    (instance,) = compute_api.instances
    assert instance.zone == answer["zone"]
    assert "us-central1-a has none left" in done.err
    (gpus,) = instance.guest_accelerators
    assert gpus.accelerator_type.endswith("/nvidia-tesla-t4")
    assert gpus.accelerator_count == 2
    assert "/machineTypes/n1-" in instance.machine_type
    assert instance.scheduling.on_host_maintenance == "TERMINATE"
    assert instance.labels == {"created-by": "gpu-pipelines", "team": "vision"}
    (disk,) = instance.disks
    assert disk.initialize_params.source_image.endswith(
        "/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580"
    )
    assert disk.initialize_params.disk_type.endswith("/pd-ssd")
    script = metadata(instance)["startup-script"]
    assert f"readonly zone={answer['zone']}\n" in script
    assert """readonly words=(--name 'it'"'"'s')\n""" in script
    (account,) = instance.service_accounts
    assert {scope.rpartition("/")[2] for scope in account.scopes} == {
        "devstorage.read_write",
        "logging.write",
        "monitoring.write",
    }


def test_what_is_told_is_wrapped_between_words_and_commands_are_one_line(compute_api: ComputeApi) -> None:
    done = command("vm", "create", "--accelerator", "h100:2", "--zone", "us-central1-a", *HERE, columns=80)
    assert done.status == 0, done.err
    assert "Compute Engine sells this shape" in " ".join(done.err.split())
    assert max(map(len, done.err.splitlines())) <= 80
    assert re.search(r"^delete: gcloud compute instances delete .* --project=my-project$", done.out, re.MULTILINE)


@pytest.mark.slow
def test_a_spot_vm_without_an_external_address_and_with_a_time_limit(compute_api: ComputeApi) -> None:
    account = "trainer@my-project.iam.gserviceaccount.com"
    done = command(
        "vm",
        *("create", "--accelerator", "h100:2", "--strategy", "spot", "--zone", "us-central1-a", "--hours", "5"),
        *("--network", "net", "--subnet", "sub", "--no-external-ip", "--service-account", account, *HERE),
    )
    assert done.status == 0, done.err
    (instance,) = compute_api.instances
    assert instance.machine_type.endswith("/a3-highgpu-2g")
    assert not instance.guest_accelerators, "they are part of the machine type"
    assert as_json(instance)["scheduling"] == {
        "provisioningModel": "SPOT",
        "preemptible": True,
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "instanceTerminationAction": "STOP",
        "maxRunDuration": {"seconds": "18000"},
        "onInstanceStopAction": {"discardLocalSsd": True},
    }
    (interface,) = instance.network_interfaces
    assert not interface.access_configs
    assert interface.nic_type == "GVNIC"
    assert interface.subnetwork.endswith("/regions/us-central1/subnetworks/sub")
    assert instance.service_accounts[0].email == account
    assert "--tunnel-through-iap" in done.out


@pytest.mark.slow
def test_a_vm_from_a_shared_reservation_that_deletes_itself_may_call_compute_engine(compute_api: ComputeApi) -> None:
    done = command(
        "vm",
        *("create", "--accelerator", "h200:8", "--at-end", "delete", *HERE),
        *("--reservation", "projects/owner/zones/us-central1-b/reservations/mine"),
    )
    assert done.status == 0, done.err
    (instance,) = compute_api.instances
    assert instance.zone == "us-central1-b"
    assert as_json(instance)["reservationAffinity"] == {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["projects/owner/reservations/mine"],
    }
    assert instance.disks[0].initialize_params.disk_type.endswith("/hyperdisk-balanced")
    assert "https://www.googleapis.com/auth/compute" in instance.service_accounts[0].scopes


def test_what_compute_engine_refuses_is_told_and_no_other_zone_is_tried(compute_api: ComputeApi) -> None:
    compute_api.refusal = "Quota 'GPUS_ALL_REGIONS' exceeded. Limit: 0.0 globally."
    done = command("vm", "create", "--accelerator", "l4:1", "--region", "us-central1", *HERE)
    assert done.status == 1
    assert compute_api.refusal in done.err
    assert done.err.count("creating train-l4-1") == 1
    assert done.out == ""
    assert "Traceback" not in done.err


def test_a_program_creates_a_vm_or_is_told_by_an_error_why_not(
    compute_api: ComputeApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"project": "my-project", "image": "us-docker.pkg.dev/p/r/t:1", "zone": "us-central1-a"}
    made = gpu_pipelines.create_vm("l4:1", command=["python", "a b.py"], label={"team": "vision"}, **given)
    (instance,) = compute_api.instances
    assert (made.vm.name, made.vm.zone, made.status) == (instance.name, instance.zone, "RUNNING")
    assert repr(made) == "CreatedVm train-l4-1 in us-central1-a: RUNNING"
    assert instance.labels["team"] == "vision"
    assert "'a b.py'" in metadata(instance)["startup-script"]
    told = capsys.readouterr()
    assert (told.out, "creating train-l4-1 in us-central1-a" in told.err) == ("", True)
    with pytest.raises(UserError, match="There is no option 'gpus'"):
        gpu_pipelines.create_vm("l4:1", gpus=1, **given)
    compute_api.exhausted = {"us-central1-a"}
    with pytest.raises(UnavailableError, match="No machine of type g2-standard-8 is left"):
        gpu_pipelines.create_vm("l4:1", progress=False, name="another", **given)
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_a_zone_without_the_type_of_machine_is_passed_over(compute_api: ComputeApi) -> None:
    compute_api.without = {"us-central1-a"}
    done = command("vm", "create", "--accelerator", "l4:1", "--region", "us-central1", *HERE)
    assert done.status == 0, done.err
    (instance,) = compute_api.instances
    assert instance.zone.startswith("us-central1-")
    assert done.err.count("creating train-l4-1") == 2


@pytest.mark.slow
def test_flex_start_is_asked_for_or_a_gcloud_from_before_it_is_found_out(compute_api: ComputeApi) -> None:
    done = command(
        "vm", "create", "--accelerator", "l4:1", "--strategy", "flex-start", "--zone", "us-central1-a", *HERE
    )
    if done.status == 0:
        (instance,) = compute_api.instances
        assert as_json(instance)["params"] == {"requestValidForDuration": {"seconds": "7200"}}
        return
    assert done.status == 2
    assert "gcloud components update" in done.err
    assert compute_api.instances == []


@pytest.mark.slow
def test_a_flex_start_vm_as_far_as_alpha_of_an_old_gcloud_knows_it(compute_api: ComputeApi, tmp_path: Path) -> None:
    place = ("--strategy", "flex-start", "--zone", "us-central1-a", "-o", ".")
    assert command("vm", "config", "--accelerator", "l4:1", *place, *HERE).status == 0
    text = (tmp_path / "create.sh").read_text()
    assert "  --request-valid-for-duration=7200s \\\n" in text
    text = text.replace("  --request-valid-for-duration=7200s \\\n", "").replace("gcloud", "gcloud alpha", 1)
    subprocess.run(["bash", "-c", text], check=True, capture_output=True)
    (instance,) = compute_api.instances
    scheduling = as_json(instance)["scheduling"]
    assert scheduling["provisioningModel"] == "FLEX_START"
    assert scheduling["instanceTerminationAction"] == "STOP"
    assert scheduling["maxRunDuration"] == {"seconds": str(7 * 24 * 3600)}
    assert instance.reservation_affinity.consume_reservation_type == "NO_RESERVATION"


def test_without_gcloud_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = command("vm", "create", "--accelerator", "l4:1", "--zone", "us-central1-a", *HERE)
    assert done.status == 2
    assert "--format terraform" in done.err


@pytest.mark.slow
def test_the_boot_disk_is_encrypted_with_the_key(compute_api: ComputeApi) -> None:
    key = "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k"
    done = command("vm", "create", "--accelerator", "l4:1", "--zone", "us-central1-a", "--encryption-key", key, *HERE)
    assert done.status == 0, done.err
    (instance,) = compute_api.instances
    assert instance.disks[0].disk_encryption_key.kms_key_name == key
