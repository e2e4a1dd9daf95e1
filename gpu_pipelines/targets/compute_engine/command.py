"""The `gcloud compute instances create` command of a VM: as a list of arguments, and as text for a shell.

Flags: https://cloud.google.com/sdk/gcloud/reference/compute/instances/create.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from gpu_pipelines.targets.compute_engine.spec import VirtualMachine


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
        f"--network-interface={_network_interface(vm)}",
        *([f"--service-account={vm.service_account}"] if vm.service_account else []),
        f"--scopes={','.join(vm.scopes)}",
        f"--labels={','.join(f'{key}={value}' for key, value in vm.labels.items())}",
        f"--metadata={','.join(f'{key}={value}' for key, value in metadata().items())}",
        f"--metadata-from-file=startup-script={script}",
    ]


def metadata() -> dict[str, str]:
    """Metadata besides the start-up script: Deep Learning VM images without a driver install one, and what is printed
    on the serial port is kept in Cloud Logging."""
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


def _network_interface(vm: VirtualMachine) -> str:
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
