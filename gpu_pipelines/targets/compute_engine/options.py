"""The options of a VM: those that it has as a target too, and those of `gpu-pipelines vm`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.compute_engine.spec import VirtualMachine
    from gpu_pipelines.targets.vertex.job_spec import Container

    Machine = tuple[VirtualMachine, AcceleratorPlan]

_VM = ("vm",)
#: A VM is made for a container of one's own, and for a whole pipeline.
_MADE = ("vm", "run")


@dataclass(frozen=True, kw_only=True)
class MachineOptions(CloudOptions):
    """What a VM takes, whatever it runs."""

    evaluation_accelerator: str | None = None
    zone: str | None = option(None, "Zone; one of the region's that have the GPU if not given.", _MADE, group=MACHINES)
    boot_disk_gb: int = option(200, "Boot disk of each machine.", _MADE, group=MACHINES, metavar="GB")
    at_end: str = option(
        "stop",
        "What becomes of the VM at the end: stop, delete or keep.",
        _MADE,
        group=MACHINES,
        words=fixed("stop", "delete", "keep"),
    )
    service_account: str | None = setting("What jobs, or the VM, run as.", _MADE, "service_account", metavar="EMAIL")
    subnet: str | None = option(None, "Subnet, by name or full name.", _MADE, group=PROJECT, metavar="NAME")
    external_ip: bool = option(True, "Whether the VM has an address on the internet.", _MADE, group=PROJECT)
    encryption_key: str | None = setting("Cloud KMS key, by its full name.", _MADE, "encryption_key", metavar="NAME")
    image_family: str | None = option(
        None, "Boot from this image family instead.", _MADE, group=CONTAINER, metavar="NAME"
    )
    image_project: str | None = option(None, "Project of --image-family.", _MADE, group=CONTAINER, metavar="ID")
    label: list[str] | None = option(
        None, "A label of the jobs, or of the VM; repeatable.", _MADE, group=PROJECT, metavar="KEY=VALUE"
    )

    def machine_for(self, container: Container, settings: ProjectSettings, **more: Any) -> Machine:
        """The VM that runs a container, and its plan; `more` are further fields of `VmOptions`.

        Raises:
            UserError: lists what is wrong or missing.
        """
        from gpu_pipelines.accelerators import plan
        from gpu_pipelines.accelerators.request import require_gpu
        from gpu_pipelines.targets.compute_engine.spec import VmOptions, virtual_machine
        from gpu_pipelines.targets.compute_engine.zones import region_to_plan

        require_gpu(self.accelerator, "Compute Engine")
        # A reservation brings its own zone.
        region = region_to_plan(self.zone, self.region, None if self.reservation else settings.region)
        bought = ("nodes", "strategy", "machine_type", "reservation", "hours")
        planned = plan(self.accelerator, region=region, **{name: getattr(self, name) for name in bought})
        same = ("zone", "boot_disk_gb", "at_end", "subnet", "external_ip", "image_family", "image_project")
        given = {name: getattr(self, name) for name in same}
        wanted = VmOptions(**given, environment=self.environment, **more)
        return virtual_machine(planned, container, settings, wanted), planned


@dataclass(frozen=True, kw_only=True)
class VmFlags(MachineOptions):
    """What a command says of a VM that runs a container."""

    accelerator: str = option("", "GPUs of the VM: NAME:COUNT, as l4:4.", _VM, metavar="SPEC", words=accelerators)
    nodes: int = option(1, "1; several machines are what job submit is for.", _VM, hidden=True)
    max_wait: float | None = option(
        None, "With flex-start: wait for a machine so long, 2 at most.", _VM, group=MACHINES, metavar="HOURS"
    )
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
    name: str | None = option(None, "Name of the VM; made from the accelerator if not given.", _VM)
    network: str | None = option(None, "VPC network, by name or full name.", _VM, group=PROJECT, metavar="NAME")

    def machine(self, arguments: Sequence[str]) -> Machine:
        """The VM and its plan; `arguments` are the application's own.

        Raises:
            UserError: lists what is wrong or missing.
        """
        from gpu_pipelines.targets.vertex.job_spec import Container

        if not self.accelerator:
            raise UserError(
                "A VM needs GPUs.", "Give --accelerator, l4:1 say; gpu-pipelines accelerators list shows them."
            )
        settings = self.project_settings()
        settings.require("project", "image")
        return self.machine_for(
            Container(settings.image or "", words_of("--command", self.command), arguments),
            settings,
            name=self.name,
            network=self.network,
            max_wait_hours=self.max_wait,
            output_directory=self.output_dir,
            sync_directory=self.sync_dir,
        )
