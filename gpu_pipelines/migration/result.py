"""What a migration gives: the config, the notes, and the commands that submit it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.migration.notes import Note


@dataclass(frozen=True)
class Migration:
    """An old job as one of Vertex AI.

    Attributes:
        name: display name.
        config: what `gcloud ai custom-jobs create --config` takes, a `CustomJobSpec`; with `is_tuning` what
            `gcloud ai hp-tuning-jobs create --config` takes, a `HyperparameterTuningJob`.
        is_tuning: whether the job tunes hyperparameters.
        region: where it runs; None if that is open.
        regions: where it can run, if its region is open and it has GPUs.
        project: id of the project; None if it is not known.
        labels: the job's labels.
        encryption_key: full name of the Cloud KMS key; None for none.
        plans: of the pools with GPUs, by role.
        notes: what was changed, and what is left to do.
        upload: commands to run before, which bring packages to Cloud Storage.
    """

    name: str
    config: dict[str, Any]
    is_tuning: bool
    region: str | None
    regions: tuple[str, ...]
    project: str | None
    labels: Mapping[str, str]
    encryption_key: str | None
    plans: Mapping[str, AcceleratorPlan]
    notes: tuple[Note, ...]
    upload: tuple[str, ...] = field(default=())

    def gcloud_command(self, file: str) -> str:
        """The gcloud command that submits the config.

        Args:
            file: name of the config's file.
        """
        kind = "hp-tuning-jobs" if self.is_tuning else "custom-jobs"
        words = ["gcloud", "ai", kind, "create", *self._project(), f"--region={self.region or 'REGION'}"]
        words += [f"--display-name={self.name}", f"--config={file}"]
        # A HyperparameterTuningJob has places of its own for labels and key, a CustomJobSpec has not.
        if self.labels and not self.is_tuning:
            words.append("--labels=" + ",".join(f"{key}={value}" for key, value in self.labels.items()))
        if self.encryption_key and not self.is_tuning:
            words.append(f"--kms-key={self.encryption_key}")
        return shlex.join(words)

    def own_command(self, file: str) -> str | None:
        """The command of this project that submits the config; None where it has none: for tuning, and without GPUs.

        Args:
            file: name of the config's file.
        """
        if self.is_tuning or "master" not in self.plans:
            return None
        words = ["gpu-pipelines", "job", "submit", f"--config={file}", f"--name={self.name}", *self._project()]
        words.append(f"--region={self.region or 'REGION'}")
        words += [f"--label={key}={value}" for key, value in self.labels.items()]
        if self.encryption_key:
            words.append(f"--encryption-key={self.encryption_key}")
        return shlex.join(words)

    def config_text(self, origin: str, file: str) -> str:
        """The config as YAML, with what it came from and how it is submitted as comments.

        Args:
            origin: what it was migrated from.
            file: name of the config's file.
        """
        head = [
            f"Migrated from {origin} by gpu-pipelines migrate.",
            self.gcloud_command(file),
        ]
        head += [f"To do: {note.field}: {note.text}" for note in self.notes if note.kind == "to do"]
        body = yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True, width=4096)
        return "".join(f"# {_on_one_line(line)}\n" for line in head) + body

    def to_json(self, file: str) -> dict[str, Any]:
        """The migration as a JSON object.

        Args:
            file: name of the config's file, for the commands.
        """
        return {
            "kind": "HyperparameterTuningJob" if self.is_tuning else "CustomJob",
            "name": self.name,
            "project": self.project,
            "region": self.region,
            "regions": list(self.regions),
            "labels": dict(self.labels),
            "encryption_key": self.encryption_key,
            "config": self.config,
            "notes": [note.to_json() for note in self.notes],
            "upload": list(self.upload),
            "commands": {"gpu_pipelines": self.own_command(file), "gcloud": self.gcloud_command(file)},
            "plans": {role: plan.to_json() for role, plan in self.plans.items()},
        }

    def _project(self) -> list[str]:
        return [f"--project={self.project}"] if self.project else []


def _on_one_line(text: str) -> str:
    """A text that a comment in YAML can have: without line breaks and control characters."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
