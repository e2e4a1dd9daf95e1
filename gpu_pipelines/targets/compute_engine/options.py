"""The options of a VM: those that it has as a target too, and those of `gpu-pipelines vm`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.options import (
    CONTAINER,
    MACHINES,
    PROJECT,
    CloudOptions,
    accelerators,
    fixed,
    option,
    setting,
    words_of,
)

if TYPE_CHECKING:
    from gpu_pipelines.accelerators import AcceleratorPlan
    from gpu_pipelines.targets.compute_engine.spec import VirtualMachine

_VM = ("vm",)


@dataclass(frozen=True, kw_only=True)
class VmFlags(CloudOptions):
    """What a command says of a VM."""

    accelerator: str = option("", "GPUs of the VM: NAME:COUNT, as l4:4.", _VM, metavar="SPEC", words=accelerators)
    nodes: int = option(1, "1; several machines are what job submit is for.", _VM, hidden=True)
    zone: str | None = option(None, "Zone; one of the region's that have the GPU if not given.", _VM, group=MACHINES)
    max_wait: float | None = option(
        None, "With flex-start: wait for a machine so long, 2 at most.", _VM, group=MACHINES, metavar="HOURS"
    )
    boot_disk_gb: int = option(200, "Boot disk of each machine.", _VM, group=MACHINES, metavar="GB")
    image: str | None = setting("Container image to run.", _VM, "image", group=CONTAINER)
    command: str | None = option(
        None,
        'Runs in place of the image\'s entrypoint, in quotes: "python -m trainer".',
        _VM,
        group=CONTAINER,
        metavar="WORDS",
    )
    output_dir: str | None = option(
        None,
        "gs://…, from which AIP_CHECKPOINT_DIR and its like are made.",
        _VM,
        group=CONTAINER,
        metavar="URI",
    )
    sync_dir: str | None = option(
        None,
        "A directory in the container to copy to checkpoints/ of --output-dir.",
        _VM,
        group=CONTAINER,
        metavar="DIR",
    )
    at_end: str = option(
        "stop",
        "What becomes of the VM at the end: stop, delete or keep.",
        _VM,
        words=fixed("stop", "delete", "keep"),
    )
    name: str | None = option(None, "Name of the VM; made from the accelerator if not given.", _VM)
    service_account: str | None = setting("What the VM runs as.", _VM, "service_account", metavar="EMAIL")
    network: str | None = option(None, "VPC network, by name or full name.", _VM, group=PROJECT, metavar="NAME")
    subnet: str | None = option(None, "Subnet, by name or full name.", _VM, group=PROJECT, metavar="NAME")
    external_ip: bool = option(True, "Whether the VM has an address on the internet.", _VM, group=PROJECT)
    encryption_key: str | None = setting("Cloud KMS key, by its full name.", _VM, "encryption_key", metavar="NAME")
    image_family: str | None = option(
        None, "Boot from this image family instead.", _VM, group=CONTAINER, metavar="NAME"
    )
    image_project: str | None = option(None, "Project of --image-family.", _VM, group=CONTAINER, metavar="ID")
    label: list[str] | None = option(None, "A label of the VM; repeatable.", _VM, group=PROJECT, metavar="KEY=VALUE")

    def machine(self, arguments: Sequence[str]) -> tuple[VirtualMachine, AcceleratorPlan]:
        """The VM and its plan; `arguments` are the application's own.

        Raises:
            UserError: lists what is wrong or missing.
        """
        from gpu_pipelines.accelerators import plan
        from gpu_pipelines.accelerators.request import require_gpu
        from gpu_pipelines.targets.compute_engine.spec import VmOptions, virtual_machine
        from gpu_pipelines.targets.compute_engine.zones import region_to_plan
        from gpu_pipelines.targets.vertex.job_spec import Container

        if not self.accelerator:
            raise UserError(
                "A VM needs GPUs.", "Give --accelerator, l4:1 say; gpu-pipelines accelerators list shows them."
            )
        require_gpu(self.accelerator, "Compute Engine")
        settings = self.project_settings()
        settings.require("project", "image")
        # A reservation brings its own zone.
        region = region_to_plan(self.zone, self.region, None if self.reservation else settings.region)
        bought = ("nodes", "strategy", "machine_type", "reservation", "hours")
        planned = plan(self.accelerator, region=region, **{name: getattr(self, name) for name in bought})
        same = ("name", "zone", "boot_disk_gb", "at_end", "network", "subnet", "external_ip", "image_family")
        wanted = VmOptions(
            **{name: getattr(self, name) for name in (*same, "image_project")},
            max_wait_hours=self.max_wait,
            environment=self.environment,
            output_directory=self.output_dir,
            sync_directory=self.sync_dir,
        )
        container = Container(settings.image or "", words_of("--command", self.command), arguments)
        return virtual_machine(planned, container, settings, wanted), planned
