"""The CustomJob of a request for a job without a pipeline, and its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.container_registry import shut_down
from gpu_pipelines.errors import UserError
from gpu_pipelines.yaml_output import fits_one_line

#: Longest `CustomJob.display_name` of the API.
LONGEST_NAME = 128


@dataclass(frozen=True)
class PreparedJob:
    """A checked job, ready to be written or sent.

    Attributes:
        job: the `CustomJob` with the field names of the API's protobuf types.
        plans: the plans of its pools, that of rank 0 first; pools without GPUs are left out.
        project: id of the project; None if it is not known.
        region: its region; None if it is open.
        hints: remarks about its file.
    """

    job: dict[str, Any]
    plans: tuple[AcceleratorPlan, ...]
    project: str | None
    region: str | None
    hints: tuple[str, ...] = ()

    @property
    def remarks(self) -> list[str]:
        """Remarks about the job besides its plans."""
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


def image_of(pool: Mapping[str, Any]) -> str:
    """The image of a worker pool; empty for none."""
    container = pool.get("container_spec", {})
    return str(container.get("image_uri") or pool.get("python_package_spec", {}).get("executor_image_uri", ""))


def default_name(plan: AcceleratorPlan | None, image: str) -> str:
    """A display name from image and accelerator, such as `trainer-h100-8x2`; without a plan from the image alone."""
    program = image.rpartition("/")[2].partition("@")[0].partition(":")[0] or "job"
    if plan is None:
        return program[:LONGEST_NAME]
    nodes = f"x{plan.nodes}" if plan.nodes > 1 else ""
    return f"{program}-{plan.spec.replace(':', '-').replace('/', '-')}{nodes}"[:LONGEST_NAME]


def checked_name(name: str) -> str:
    """A display name that the API accepts.

    Raises:
        UserError: it does not accept this one.
    """
    if not name.strip() or len(name) > LONGEST_NAME:
        raise UserError(f"The name {name[:60]!r} has {len(name)} characters.", f"A job's name has 1 to {LONGEST_NAME}.")
    if not fits_one_line(name):
        raise UserError(f"The name {name[:60]!r} has characters that do not fit on one line.", "Give another.")
    return name
