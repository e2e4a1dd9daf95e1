"""What a job without a pipeline is asked to be, on a command line and in a file, and the CustomJob that comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.plan import plan_request
from gpu_pipelines.accelerators.request import PlanRequest, require_gpu
from gpu_pipelines.container_registry import shut_down
from gpu_pipelines.data.sources.names import problems_of_place
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.vertex.job_spec import Container, JobOptions, custom_job
from gpu_pipelines.yaml_output import fits_one_line

#: What the API takes for `CustomJob.display_name`.
LONGEST_NAME = 128


@dataclass(frozen=True)
class JobRequest:
    """What the command line says about a job; None and empty: not given.

    Attributes:
        name: display name.
        accelerator: `NAME:COUNT`.
        nodes: number of machines.
        machine_type: machine type.
        strategy: `standard`, `spot`, `flex-start` or `reservation`.
        reservation: full name of a reservation.
        hours: the longest the job may run.
        max_wait_hours: the longest Flex-start waits for machines.
        boot_disk_gb: size of each machine's boot disk, GB.
        reduction_server: add a pool of reduction servers.
        web_access: allow an interactive shell in the containers.
        image: image of the replicas.
        command: what to run in place of the image's entrypoint.
        arguments: the application's own arguments.
        environment: variables of the containers.
        output_directory: `gs://…`, from which Vertex AI makes AIP_MODEL_DIR and its like.
    """

    name: str | None = None
    accelerator: str | None = None
    nodes: int | None = None
    machine_type: str | None = None
    strategy: str | None = None
    reservation: str | None = None
    hours: float | None = None
    max_wait_hours: float | None = None
    boot_disk_gb: int | None = None
    reduction_server: bool = False
    web_access: bool = False
    image: str | None = None
    command: Sequence[str] = ()
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    output_directory: str | None = None

    def options(self) -> JobOptions:
        """Those that `vertex_job_spec` takes beside a plan."""
        options = JobOptions(
            max_wait_hours=self.max_wait_hours,
            reduction_server=self.reduction_server,
            web_access=self.web_access,
            environment=self.environment,
        )
        return options if self.boot_disk_gb is None else replace(options, boot_disk_gb=self.boot_disk_gb)


@dataclass(frozen=True)
class PreparedJob:
    """A checked job, ready to be written or sent.

    Attributes:
        job: the `CustomJob` with the names of the API's protobuf fields.
        plans: what its pools run on, the chief's first; pools without GPUs are left out.
        project: id of the project; None if it is not known.
        region: its region; None if it is open.
        hints: what is to be known of its file.
    """

    job: dict[str, Any]
    plans: tuple[AcceleratorPlan, ...]
    project: str | None
    region: str | None
    hints: tuple[str, ...] = ()

    @property
    def remarks(self) -> list[str]:
        """What is to be known of the job besides its plans."""
        pools = self.spec["worker_pool_specs"]
        return [*self.hints, *filter(None, map(shut_down, dict.fromkeys(map(image_of, pools))))]

    @property
    def name(self) -> str:
        """The display name."""
        return str(self.job["display_name"])

    @property
    def spec(self) -> dict[str, Any]:
        """The `CustomJobSpec`."""
        spec: dict[str, Any] = self.job["job_spec"]
        return spec

    @property
    def labels(self) -> dict[str, str]:
        """The job's labels."""
        return dict(self.job.get("labels", {}))

    @property
    def encryption_key(self) -> str | None:
        """Full name of the Cloud KMS key, if there is one."""
        key: str | None = self.job.get("encryption_spec", {}).get("kms_key_name")
        return key


def prepare_job(flags: JobRequest, settings: ProjectSettings, file: Path | None = None) -> PreparedJob:
    """Checks all that is asked for, and builds the job.

    Args:
        flags: what the command line says; it wins over the file.
        settings: of the project; the file wins over them, unless they were given as flags.
        file: a file as `gcloud ai custom-jobs create --config` takes it.

    Raises:
        UserError: something is wrong, or missing.
        PlanError: the accelerator cannot be had like that.
    """
    _require_output(flags.output_directory)
    _require_text(flags)
    if flags.accelerator is not None:
        require_gpu(flags.accelerator, "Vertex AI")
    if file is not None:
        from gpu_pipelines.targets.vertex.job_file import prepare_from_file

        return prepare_from_file(file, flags, settings)
    if flags.accelerator is None:
        raise UserError("There is no accelerator.", "Give --accelerator NAME:COUNT, such as l4:1, or --config FILE.")
    settings.require("image")
    plan = plan_request(
        PlanRequest(
            spec=flags.accelerator,
            nodes=1 if flags.nodes is None else flags.nodes,
            region=settings.region,
            strategy=flags.strategy,
            machine_type=flags.machine_type,
            reservation=flags.reservation,
            hours=flags.hours,
        )
    )
    container = Container(str(settings.image), flags.command, flags.arguments)
    name = checked_name(flags.name or default_name(plan, container.image))
    job = custom_job(plan, name, container, settings, flags.options(), flags.output_directory)
    return PreparedJob(job, (plan,), settings.project, plan.region)


def image_of(pool: Mapping[str, Any]) -> str:
    """The image that a worker pool runs; empty for none."""
    container = pool.get("container_spec", {})
    return str(container.get("image_uri") or pool.get("python_package_spec", {}).get("executor_image_uri", ""))


def default_name(plan: AcceleratorPlan | None, image: str) -> str:
    """A display name from image and accelerator, such as `trainer-h100-8x2`; without a plan from the image alone."""
    program = image.rpartition("/")[2].partition("@")[0].partition(":")[0] or "job"
    if plan is None:
        return program[:LONGEST_NAME]
    nodes = f"x{plan.nodes}" if plan.nodes > 1 else ""
    return f"{program}-{plan.spec.replace(':', '-')}{nodes}"[:LONGEST_NAME]


def checked_name(name: str) -> str:
    """A display name that the API takes.

    Raises:
        UserError: it takes none like this.
    """
    if not name.strip() or len(name) > LONGEST_NAME:
        raise UserError(f"The name {name[:60]!r} has {len(name)} characters.", f"A job's name has 1 to {LONGEST_NAME}.")
    if not fits_one_line(name):
        raise UserError(f"The name {name[:60]!r} has characters that do not fit on one line.", "Give another.")
    return name


def _require_text(flags: JobRequest) -> None:
    """Bytes of a command line that are not UTF-8 come as lone surrogates, which no file and no request can have."""
    variables = [part for pair in flags.environment.items() for part in pair]
    for text in (*flags.command, *flags.arguments, *variables):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise UserError(f"{text[:80]!a} is not UTF-8, which the request has to be.") from None


def _require_output(directory: str | None) -> None:
    if directory is not None and not directory.startswith("gs://"):
        raise UserError(f"--output-dir is {directory[:100]!r}.", "Give a place in Cloud Storage, gs://BUCKET/FOLDER.")
    if directory is not None and (problems := problems_of_place("--output-dir", directory)):
        raise UserError.of_all(problems)
