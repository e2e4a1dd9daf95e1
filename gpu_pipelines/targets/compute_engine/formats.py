"""The formats of a VM: a command of gcloud, text for a shell, and Terraform JSON.

Flags: https://cloud.google.com/sdk/gcloud/reference/compute/instances/create.
Arguments: https://registry.terraform.io/providers/hashicorp/google/latest/docs/resources/compute_instance.
Syntax: https://developer.hashicorp.com/terraform/language/syntax/json.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.compute_engine.spec import FLEX_START_WAIT_HOURS, VirtualMachine

_RESERVATION_KEY = "compute.googleapis.com/reservation-name"


def create_command(vm: VirtualMachine, script: str) -> list[str]:
    """The command.

    Args:
        vm: the VM.
        script: file of the start-up script.
    """
    image = vm.boot_image
    return [
        *("gcloud", "compute", "instances", "create", vm.name),
        f"--project={vm.project}",
        f"--zone={vm.zone}",
        f"--machine-type={vm.machine_type}",
        *([f"--accelerator=type={vm.accelerator[0]},count={vm.accelerator[1]}"] if vm.accelerator else []),
        # A GPU cannot be moved to another host while it works.
        "--maintenance-policy=TERMINATE",
        *_provisioning(vm),
        f"--image-family={image.family}",
        f"--image-project={image.project}",
        f"--boot-disk-type={vm.boot_disk_type}",
        f"--boot-disk-size={vm.boot_disk_gb}GB",
        *([f"--boot-disk-kms-key={vm.encryption_key}"] if vm.encryption_key else []),
        f"--network-interface={_network_flag(vm)}",
        *([f"--service-account={vm.service_account}"] if vm.service_account else []),
        f"--scopes={','.join(vm.scopes)}",
        f"--labels={','.join(f'{key}={value}' for key, value in vm.labels.items())}",
        f"--metadata={','.join(f'{key}={value}' for key, value in metadata().items())}",
        f"--metadata-from-file=startup-script={script}",
    ]


def metadata() -> dict[str, str]:
    """Metadata besides the start-up script: Deep Learning VM images without a driver install one, and Cloud Logging
    keeps the output of the serial port."""
    return {"install-nvidia-driver": "True", "serial-port-logging-enable": "true"}


def shell_text(command: Sequence[str]) -> str:
    """A command as it can be pasted into a shell, one flag on a line."""
    head = [word for word in command if not word.startswith("--")]
    flags = [word for word in command if word.startswith("--")]
    return " \\\n  ".join([shlex.join(head), *(shlex.quote(flag) for flag in flags)])


def _provisioning(vm: VirtualMachine) -> list[str]:
    flags = [] if vm.provisioning_model == "STANDARD" else [f"--provisioning-model={vm.provisioning_model}"]
    if vm.termination_action:
        flags.append(f"--instance-termination-action={vm.termination_action}")
    if vm.max_run_seconds is not None:
        flags.append(f"--max-run-duration={vm.max_run_seconds}s")
        if vm.discards_local_ssd and vm.termination_action == "STOP":
            flags.append("--discard-local-ssds-at-termination-timestamp=true")
    if vm.max_wait_seconds is not None:
        flags += [f"--request-valid-for-duration={vm.max_wait_seconds}s", "--reservation-affinity=none"]
    if vm.reservation:
        flags += ["--reservation-affinity=specific", f"--reservation={vm.reservation}"]
    return flags


def _network_flag(vm: VirtualMachine) -> str:
    parts = [f"network={vm.network}"] if vm.network else []
    if vm.subnet:
        parts.append(f"subnet={vm.subnet}")
    if not parts:
        parts.append("network=default")
    if vm.nic_type:
        parts.append(f"nic-type={vm.nic_type}")
    if not vm.external_ip:
        parts.append("no-address")
    return ",".join(parts)


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
            "Terraform's google_compute_instance has no argument for the longest wait of a Flex-start request.",
            "Leave --max-wait out, or create the VM with gcloud.",
        )
    return {
        "terraform": {"required_providers": {"google": {"source": "hashicorp/google"}}},
        "resource": {"google_compute_instance": {vm.name: literal(_instance(vm))}},
    }


def literal(value: Any) -> Any:
    """A value whose `${` and `%{` Terraform does not take for templates."""
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
