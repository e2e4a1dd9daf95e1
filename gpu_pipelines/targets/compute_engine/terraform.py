"""A VM as Terraform JSON: one `google_compute_instance`.

Arguments: https://registry.terraform.io/providers/hashicorp/google/latest/docs/resources/compute_instance.
Syntax: https://developer.hashicorp.com/terraform/language/syntax/json.
"""

from __future__ import annotations

import json
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.compute_engine.command import metadata
from gpu_pipelines.targets.compute_engine.spec import FLEX_START_WAIT_HOURS, VirtualMachine

_RESERVATION_KEY = "compute.googleapis.com/reservation-name"


def terraform_text(vm: VirtualMachine) -> str:
    """The text of a `.tf.json` file.

    Raises:
        UserError: Terraform cannot express it.
    """
    return json.dumps(terraform(vm), indent=2, ensure_ascii=False) + "\n"


def terraform(vm: VirtualMachine) -> dict[str, Any]:
    """The configuration as plain data.

    Raises:
        UserError: Terraform cannot express it.
    """
    if vm.max_wait_seconds not in (None, round(FLEX_START_WAIT_HOURS * 3600)):
        raise UserError(
            "Terraform's google_compute_instance has no argument for how long a Flex-start request waits.",
            "Leave --max-wait out, or create the VM with gcloud.",
        )
    return {
        "terraform": {"required_providers": {"google": {"source": "hashicorp/google"}}},
        "resource": {"google_compute_instance": {vm.name: literal(_instance(vm))}},
    }


def literal(value: Any) -> Any:
    """A value in which Terraform finds no template, although `${` and `%{` stand in its texts."""
    if isinstance(value, str):
        return value.replace("${", "$${").replace("%{", "%%{")
    if isinstance(value, dict):
        return {key: literal(each) for key, each in value.items()}
    if isinstance(value, list):
        return [literal(each) for each in value]
    return value


def _instance(vm: VirtualMachine) -> dict[str, Any]:
    image = vm.boot_image
    instance: dict[str, Any] = {
        "name": vm.name,
        "project": vm.project,
        "zone": vm.zone,
        "machine_type": vm.machine_type,
        "boot_disk": {
            "initialize_params": {
                "image": f"projects/{image.project}/global/images/family/{image.family}",
                "type": vm.boot_disk_type,
                "size": vm.boot_disk_gb,
            },
            **({"kms_key_self_link": vm.encryption_key} if vm.encryption_key else {}),
        },
        "scheduling": _scheduling(vm),
        "network_interface": _network_interface(vm),
        "service_account": {
            **({"email": vm.service_account} if vm.service_account else {}),
            "scopes": list(vm.scopes),
        },
        "labels": dict(vm.labels),
        "metadata": {**metadata(), "startup-script": vm.script},
    }
    if vm.accelerator:
        instance["guest_accelerator"] = [{"type": vm.accelerator[0], "count": vm.accelerator[1]}]
    if vm.reservation:
        instance["reservation_affinity"] = {
            "type": "SPECIFIC_RESERVATION",
            "specific_reservation": {"key": _RESERVATION_KEY, "values": [vm.reservation]},
        }
    elif vm.provisioning_model == "FLEX_START":
        instance["reservation_affinity"] = {"type": "NO_RESERVATION"}
    return instance


def _scheduling(vm: VirtualMachine) -> dict[str, Any]:
    scheduling: dict[str, Any] = {
        "on_host_maintenance": "TERMINATE",
        "provisioning_model": vm.provisioning_model,
        "automatic_restart": vm.provisioning_model == "STANDARD",
    }
    if vm.provisioning_model == "SPOT":
        scheduling["preemptible"] = True
    if vm.termination_action:
        scheduling["instance_termination_action"] = vm.termination_action
    if vm.max_run_seconds is not None:
        scheduling["max_run_duration"] = {"seconds": vm.max_run_seconds}
        if vm.discards_local_ssd and vm.termination_action == "STOP":
            scheduling["on_instance_stop_action"] = {"discard_local_ssd": True}
    return scheduling


def _network_interface(vm: VirtualMachine) -> dict[str, Any]:
    interface: dict[str, Any] = {}
    if vm.network or not vm.subnet:
        interface["network"] = vm.network or "default"
    if vm.subnet:
        interface["subnetwork"] = vm.subnet
    if vm.nic_type:
        interface["nic_type"] = vm.nic_type
    if vm.external_ip:
        interface["access_config"] = {}
    return interface
