"""What can be asked of Vertex AI on a command line."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_pipelines.targets.options import (
    COMPILED,
    DOCTOR,
    MACHINES,
    PROJECT,
    STARTED,
    CloudOptions,
    compiled_in,
    fixed,
    option,
    setting,
)
from gpu_pipelines.targets.vertex.job_spec import JobOptions

_EVERYWHERE = STARTED | COMPILED | {"job"}


@dataclass(frozen=True, kw_only=True)
class VertexOptions(CloudOptions):
    """What can be asked of Vertex AI."""

    max_wait: float | None = compiled_in(
        None, "With flex-start: wait for machines so long; 0 for ever.", {"job"}, metavar="HOURS"
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
    repository: str | None = setting(
        "Repository of pipelines, https://LOCATION-kfp.pkg.dev/P/R.",
        {"upload", "schedule create", "schedule update"} | DOCTOR,
        "repository",
        metavar="URL",
    )
    service_account: str | None = setting("What jobs run as.", _EVERYWHERE | DOCTOR, "service_account", metavar="EMAIL")
    network: str | None = setting("projects/NUMBER/global/networks/NAME.", _EVERYWHERE, "network", metavar="NAME")
    network_attachment: str | None = setting(
        "projects/P/regions/R/networkAttachments/N.", _EVERYWHERE, "network_attachment", metavar="NAME", in_file=True
    )
    persistent_resource: str | None = setting(
        "Persistent resource whose machines run what has GPUs.",
        COMPILED | {"job"},
        "persistent_resource",
        group=MACHINES,
        metavar="ID",
        in_file=True,
    )
    failure_policy: str | None = setting(
        "Whether steps that do not depend on a failed one still begin.",
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
        None, "A label of the jobs; repeatable.", _EVERYWHERE, group=PROJECT, metavar="KEY=VALUE"
    )
    max_runs: int | None = option(None, "End after so many runs.", {"schedule create", "schedule update"}, minimum=1)
    queue: bool | None = option(
        None,
        "Let a run that is due while others run wait, or leave it out (default).",
        {"schedule create", "schedule update"},
    )
    catch_up: bool = option(False, "Make up for runs that were due in between.", {"schedule resume"})

    @property
    def job(self) -> JobOptions:
        """What the jobs of steps take besides their plan."""
        return JobOptions(self.boot_disk_gb, self.max_wait, self.reduction_server, self.web_access, self.environment)
