"""The options of a job without a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_pipelines.targets.options import CONTAINER, MACHINES, accelerators, option, setting, words_of
from gpu_pipelines.targets.vertex.job_request import JobRequest
from gpu_pipelines.targets.vertex.options import VertexOptions

_JOB = ("job",)


@dataclass(frozen=True, kw_only=True)
class JobFlags(VertexOptions):
    """What a command says of a job; None: not given, so that a file's own value stays."""

    config: Path | None = option(
        None, "Begin with this config of gcloud ai custom-jobs create; flags win over it.", _JOB, metavar="FILE"
    )
    accelerator: str | None = option(  # type: ignore[assignment]
        None, "GPUs of each machine: NAME:COUNT, as h100:8.", _JOB, metavar="SPEC", words=accelerators
    )
    nodes: int | None = option(None, "Machines; 1 if not given.", _JOB, group=MACHINES)  # type: ignore[assignment]
    boot_disk_gb: int | None = option(  # type: ignore[assignment]
        None, "Boot disk of each machine; 200 if not given.", _JOB, group=MACHINES, metavar="GB"
    )
    image: str | None = setting("Image of the replicas.", _JOB, "image", group=CONTAINER)
    command: str | None = option(
        None,
        'Runs in place of the image\'s entrypoint, in quotes: "python -m trainer".',
        _JOB,
        group=CONTAINER,
        metavar="WORDS",
    )
    output_dir: str | None = option(
        None, "gs://…, from which AIP_MODEL_DIR and its like are made.", _JOB, group=CONTAINER, metavar="URI"
    )
    name: str | None = option(None, "Display name; made from image and accelerator if not given.", _JOB)

    def request(self, arguments: Sequence[str]) -> JobRequest:
        """The job that is asked for; `arguments` are the application's own.

        Raises:
            UserError: a command or a variable is not of its form.
        """
        same = ("name", "accelerator", "nodes", "machine_type", "strategy", "reservation", "hours", "boot_disk_gb")
        return JobRequest(
            **{name: getattr(self, name) for name in (*same, "reduction_server", "web_access", "image")},
            max_wait_hours=self.max_wait,
            command=words_of("--command", self.command),
            arguments=arguments,
            environment=self.environment,
            output_directory=self.output_dir,
        )
