"""The commands that submit a custom job's file: gcloud's, and this project's own."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Submission:
    """The facts that are not in the file of a job.

    Attributes:
        name: display name.
        project: id of the project; None if it is not known.
        region: its region; None if that is open.
        labels: the job's labels.
        encryption_key: full name of the Cloud KMS key; None for none.
    """

    name: str
    project: str | None = None
    region: str | None = None
    labels: Mapping[str, str] | None = None
    encryption_key: str | None = None

    def gcloud_command(self, file: str, kind: str = "custom-jobs") -> str:
        """The gcloud command.

        Args:
            file: name of the file.
            kind: `custom-jobs`, or `hp-tuning-jobs`, whose files have their own fields for labels and key.
        """
        words = ["gcloud", "ai", kind, "create", *self._place(), f"--display-name={self.name}", f"--config={file}"]
        if self.labels and kind == "custom-jobs":
            words.append("--labels=" + ",".join(f"{key}={value}" for key, value in self.labels.items()))
        if self.encryption_key and kind == "custom-jobs":
            words.append(f"--kms-key={self.encryption_key}")
        return shlex.join(words)

    def own_command(self, file: str) -> str:
        """The command `gpu-pipelines job submit` with the file of a custom job."""
        words = ["gpu-pipelines", "job", "submit", f"--config={file}", f"--name={self.name}", *self._place()]
        words += [f"--label={key}={value}" for key, value in (self.labels or {}).items()]
        if self.encryption_key:
            words.append(f"--encryption-key={self.encryption_key}")
        return shlex.join(words)

    def _place(self) -> list[str]:
        project = [f"--project={self.project}"] if self.project else []
        return [*project, f"--region={self.region or 'REGION'}"]


#: Why gcloud cannot submit a file with an empty pool between two others.
NOT_BY_GCLOUD = (
    "An empty pool stands between two that are used. The API takes it; gcloud ai custom-jobs create refuses it in a "
    "file, so submit the file with gpu-pipelines job submit."
)


def leaves_a_pool_out(pools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a pool is empty, so that those after it keep their places; gcloud refuses that in a file."""
    return not all(pools)
