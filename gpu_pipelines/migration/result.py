"""The result of a migration: the config, the notes, and the commands that submit it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.migration.notes import Note
from gpu_pipelines.migration.study import MigratedStudy
from gpu_pipelines.submit_commands import Submission, leaves_a_pool_out
from gpu_pipelines.yaml_output import comment, yaml_text


def space_file(config: str) -> str:
    """The name of the search space's file beside a config."""
    return str(Path(config).with_name(f"{Path(config).stem}-space.yaml"))


@dataclass(frozen=True)
class Migration:
    """An old job as a job of Vertex AI.

    Attributes:
        name: display name.
        config: the config for `gcloud ai custom-jobs create --config`, a `CustomJobSpec`; with `is_tuning` the config
            for `gcloud ai hp-tuning-jobs create --config`, a `HyperparameterTuningJob`.
        is_tuning: whether the job tunes hyperparameters.
        region: its region; None if that is open.
        regions: the possible regions, if its region is open and it has GPUs.
        project: id of the project; None if it is not known.
        labels: the job's labels.
        encryption_key: full name of the Cloud KMS key; None for none.
        plans: the plans of the pools with GPUs, by role.
        notes: what was changed, and what is left to do.
        upload: commands to run before, which upload packages to Cloud Storage.
        study: a search of this project in place of a tuning job; None for another job, or if none of its
            hyperparameters is a parameter of `train_model`.
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
    study: MigratedStudy | None = None

    def gcloud_command(self, file: str) -> str | None:
        """The gcloud command that submits the config; None if gcloud would refuse it.

        Args:
            file: name of the config's file.
        """
        if self.is_tuning:
            return self._submission.gcloud_command(file, "hp-tuning-jobs")
        if leaves_a_pool_out(self.config["workerPoolSpecs"]):
            return None
        return self._submission.gcloud_command(file)

    def own_command(self, file: str) -> str | None:
        """The command of this project that submits the config; None for tuning, for which there is none.

        Args:
            file: name of the config's file.
        """
        return None if self.is_tuning else self._submission.own_command(file)

    def config_text(self, origin: str, file: str) -> str:
        """The config as YAML, with its origin and the commands that submit it as comments.

        Args:
            origin: the origin of the migration.
            file: name of the config's file.
        """
        head = [
            f"Migrated from {origin} by gpu-pipelines migrate.",
            self.gcloud_command(file) or self.own_command(file) or "",
        ]
        head += [f"To do: {note.field}: {note.text}" for note in self.notes if note.kind == "to do"]
        return "".join(comment(line) for line in head) + yaml_text(self.config)

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
            **({"study": self.study.to_json(space_file(file))} if self.study else {}),
        }

    @property
    def _submission(self) -> Submission:
        return Submission(self.name, self.project, self.region, self.labels, self.encryption_key)
