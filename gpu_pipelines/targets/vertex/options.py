"""The options of Vertex AI on a command line: for pipelines, and for a job without a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_pipelines.targets.options import (
    COMPILED,
    CONTAINER,
    DOCTOR,
    MACHINES,
    PROJECT,
    STARTED,
    CloudOptions,
    accelerators,
    command_of_container,
    compiled_in,
    fixed,
    option,
    setting,
    words_of,
)
from gpu_pipelines.targets.vertex.placement.job_spec import JobOptions
from gpu_pipelines.targets.vertex.placement.mounts import dns_peerings, lustre_mounts

_JOB = ("job",)
_EVERYWHERE = STARTED | COMPILED | {"job"}


@dataclass(frozen=True, kw_only=True)
class VertexOptions(CloudOptions):
    """The options of Vertex AI."""

    max_wait: float | None = compiled_in(
        None, "With flex-start: longest wait for machines; 0 waits for ever.", {"job"}, metavar="HOURS"
    )
    boot_disk_gb: int = compiled_in(200, "Boot disk of each machine.", {"job"}, metavar="GB")
    reduction_server: bool = compiled_in(
        False, "Add reduction servers, which sum up gradients of several machines.", {"job"}
    )
    web_access: bool = compiled_in(False, "Allow an interactive shell in the containers.", {"job"})
    data_nodes: int = compiled_in(1, "Machines that prepare the data together.")
    data_machine_type: str | None = compiled_in(
        None, "Type of these machines; n2-standard-16 if not given.", metavar="TYPE"
    )
    data_strategy: str | None = compiled_in(
        None, "How these machines are bought: standard or spot.", metavar="HOW", words=fixed("standard", "spot")
    )
    repository: str | None = setting(
        "Repository of pipelines, https://LOCATION-kfp.pkg.dev/P/R.",
        {"run", "upload", "schedule create", "schedule update"} | DOCTOR,
        "repository",
        metavar="URL",
    )
    service_account: str | None = setting(
        "Service account that jobs run as.", _EVERYWHERE | DOCTOR, "service_account", metavar="EMAIL"
    )
    network: str | None = setting("projects/NUMBER/global/networks/NAME.", _EVERYWHERE, "network", metavar="NAME")
    network_attachment: str | None = setting(
        "projects/P/regions/R/networkAttachments/N.", _EVERYWHERE, "network_attachment", metavar="NAME", in_file=True
    )
    dns_peering: list[str] | None = compiled_in(
        None,
        "Resolve a domain in a network of the attachment; repeatable.",
        {"job"},
        group=PROJECT,
        metavar="DOMAIN.=PROJECT/NETWORK",
    )
    lustre: list[str] | None = compiled_in(
        None,
        "Mount a Lustre file system below /mnt/lustre: ip=…,filesystem=…,volume=…,mount=NAME; repeatable.",
        {"job"},
        metavar="FIELDS",
    )
    persistent_resource: str | None = setting(
        "Persistent resource that runs the steps with GPUs.",
        COMPILED | {"job"},
        "persistent_resource",
        group=MACHINES,
        metavar="ID",
        in_file=True,
    )
    failure_policy: str | None = setting(
        "Whether steps that do not depend on a failed step still start.",
        STARTED,
        "failure_policy",
        group="",
        metavar="fast|slow",
        words=fixed("fast", "slow"),
    )
    encryption_key: str | None = setting(
        "Cloud KMS key, by its full name.", _EVERYWHERE, "encryption_key", metavar="NAME"
    )
    tensorboard: str | None = setting(
        "Vertex AI TensorBoard, by its full name.", COMPILED | {"job"}, "tensorboard", metavar="NAME", in_file=True
    )
    label: list[str] | None = option(
        None, "A label of the jobs. Repeatable.", _EVERYWHERE, group=PROJECT, metavar="KEY=VALUE"
    )
    max_runs: int | None = option(
        None, "End the schedule after this many runs.", {"schedule create", "schedule update"}, minimum=1
    )
    queue: bool | None = option(
        None,
        "Queue a run that is due while others run, or skip it (default).",
        {"schedule create", "schedule update"},
    )
    emulate: bool = option(
        False,
        "Run it here, on an emulator, with CPU processes in place of GPUs; see docs/emulator.md.",
        {"run"},
        group=MACHINES,
    )
    catch_up: bool = option(False, "Also start the runs that were due in between.", {"schedule resume"})

    @property
    def job(self) -> JobOptions:
        """The options of steps' jobs besides their plan."""
        return self._job(self.boot_disk_gb)

    def _job(self, boot_disk_gb: int) -> JobOptions:
        return JobOptions(
            boot_disk_gb,
            self.max_wait,
            self.reduction_server,
            self.web_access,
            self.environment,
            lustre_mounts(self.lustre),
            dns_peerings(self.dns_peering),
        )


@dataclass(frozen=True, kw_only=True)
class JobFlags(VertexOptions):
    """The options of a job; None: not given, so that a file's own value stays."""

    config: Path | None = option(
        None, "Start from this config of gcloud ai custom-jobs create. Flags win over it.", _JOB, metavar="FILE"
    )
    accelerator: str | None = option(  # type: ignore[assignment]
        None, "GPUs of each machine, NAME:COUNT, such as h100:8.", _JOB, metavar="SPEC", words=accelerators
    )
    nodes: int | None = option(None, "Machines; 1 if not given.", _JOB, group=MACHINES)  # type: ignore[assignment]
    boot_disk_gb: int | None = option(  # type: ignore[assignment]
        None, "Boot disk of each machine; 200 if not given.", _JOB, group=MACHINES, metavar="GB"
    )
    image: str | None = setting("Image of the replicas.", _JOB, "image", group=CONTAINER)
    command: str | None = command_of_container(_JOB)
    output_dir: str | None = option(
        None, "gs://… that AIP_MODEL_DIR and the like are derived from.", _JOB, group=CONTAINER, metavar="URI"
    )
    name: str | None = option(None, "Display name; by default made from image and accelerator.", _JOB)

    #: The application's own.
    arguments: Sequence[str] = ()

    @property
    def words(self) -> list[str]:
        """The command in place of the image's entrypoint.

        Raises:
            UserError: a quotation mark is left open.
        """
        return words_of("--command", self.command)

    @property
    def job(self) -> JobOptions:
        """The options of the job besides its plan."""
        return self._job(JobOptions.boot_disk_gb if self.boot_disk_gb is None else self.boot_disk_gb)
