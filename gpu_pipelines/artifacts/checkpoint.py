"""The checkpoint directory: `step-00000100/` folders, each complete only when its `checkpoint.json` is there.

The tensors are written by `torch.distributed.checkpoint`; this module knows names, order and completeness and does
not import torch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.checkpoint_blocks import Blocks
from gpu_pipelines.artifacts.documents import (
    fields_in,
    read_as,
    read_document,
    sha256_of_file,
    sha256_of_tree,
    write_document,
)
from gpu_pipelines.errors import DamagedError, NotFoundError, UserError, first_line

MARKER = "checkpoint.json"
#: Name of a marker while its checkpoint does not count, because a training went back to an earlier one.
SET_ASIDE = "checkpoint.json.set-aside"
#: In the name of the first file of each process, as torch.distributed.checkpoint names them.
_FIRST_FILE = "-model-00001-of-"
METRICS = "metrics.jsonl"
CONFIGURATION = "training.json"
TENSORBOARD = "tensorboard"
#: Folders and files that are checkpoints, as most training programs name them; the number gives their order. Accelerate
#: writes checkpoint_0, and Lightning epoch=0-step=20.ckpt, of which the step tells more.
CHECKPOINT_NAME = re.compile(r"(epoch=[0-9]+-)?(step|checkpoint|epoch)[-_=](?P<number>[0-9]{1,15})(?![0-9]).*")


@dataclass(frozen=True)
class CheckpointInfo:
    """The content of `checkpoint.json`.

    Attributes:
        step: optimizer steps taken.
        epoch: passes over the training rows, as a fraction.
        samples_seen: training rows taken so far, with repetition.
        world_size: number of processes that trained.
        dataset_fingerprint: fingerprint of the dataset trained on.
        configuration_hash: SHA-256 of everything that shapes the weights besides the data.
        files: SHA-256 of each file of the checkpoint, by relative path.
        interruption: written because the training was interrupted, or had not been saved for long, and not because a
            checkpoint was due.
        val_loss: loss on val, nats; None if it was not measured, or is not a number.
        best_step: step of the checkpoint with the lowest loss on val so far; None if none was measured.
        best_val_loss: that loss.
        frozen_weights_sha256: of the weights that were not trained and are not in the checkpoint; empty if all are.
        rehearsal: trained on CPU processes in place of the GPUs that were chosen.
        resumed_from_step: step of the older checkpoint from which the training was told to continue; 0 for none.
        blocks: hashes of the parts of its files, by relative path; versions before 0.2 wrote none.
    """

    step: int
    epoch: float
    samples_seen: int
    world_size: int
    dataset_fingerprint: str
    configuration_hash: str
    files: Mapping[str, str]
    interruption: bool = False
    val_loss: float | None = None
    best_step: int | None = None
    best_val_loss: float | None = None
    frozen_weights_sha256: str = ""
    rehearsal: bool = False
    resumed_from_step: int = 0
    blocks: Mapping[str, Blocks] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> CheckpointInfo:
        """Made from the fields that are known here; a field with a default may be missing."""
        blocks = {name: Blocks.from_json(entry) for name, entry in content.get("blocks", {}).items()}
        return cls(**fields_in(cls, content) | {"blocks": blocks})


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its folder and the content of its marker."""

    path: Path
    info: CheckpointInfo

    @property
    def name(self) -> str:
        return self.path.name

    def files(self, weights_only: bool = False) -> list[str]:
        """Relative paths of its files, or of those that are needed to read a model from it.

        These are in the first file of each process; the state of an optimizer is in the second, twice as large.
        """
        weights = [name for name in self.info.files if _FIRST_FILE in name]
        return weights if weights_only and weights else list(self.info.files)

    def damaged_file(self, weights_only: bool = False) -> str | None:
        """Relative path of a file that is missing or no longer has its recorded hash, or None."""
        for name in self.files(weights_only):
            digest = self.info.files[name]
            file = self.path / name
            if not file.is_file() or sha256_of_file(file) != digest:
                return name
        return None


def checkpoint_path(directory: Path, step: int) -> Path:
    """Folder of the checkpoint after `step` steps.

    Args:
        directory: of the checkpoints.
        step: optimizer steps that were taken.
    """
    return directory / f"step-{step:08d}"


def mark_complete(path: Path, files: Mapping[str, str] | None = None, **info: Any) -> Checkpoint:
    """Writes a checkpoint's marker, last.

    Args:
        path: its folder.
        files: SHA-256 of its files by relative path; left out, the files in the folder are hashed.
        info: the other fields of `CheckpointInfo`.
    """
    content = CheckpointInfo(**info, files=sha256_of_tree(path, leave_out=(MARKER,)) if files is None else files)
    write_document(path / MARKER, asdict(content))
    return Checkpoint(path, content)


def complete_checkpoints(directory: Path) -> list[Checkpoint]:
    """All checkpoints of a directory that have their marker, by step, without those whose marker is damaged.

    Args:
        directory: of the checkpoints.

    Raises:
        UserError: a marker has a newer format.
    """
    found = []
    for path in sorted(directory.glob("step-*")):
        if (path / MARKER).is_file():
            try:
                found.append(Checkpoint(path, read_as(path / MARKER, "checkpoint", CheckpointInfo.from_json)))
            except DamagedError as damage:
                print(f"warning: passing over {path.name}: {first_line(damage)}", file=sys.stderr, flush=True)
    return sorted(found, key=lambda checkpoint: checkpoint.info.step)


def write_configuration(directory: Path, configuration: Mapping[str, Any]) -> None:
    """Writes how the checkpoints of a directory were trained (recipe, model, hyperparameters).

    Args:
        directory: of the checkpoints.
        configuration: facts about the training, as JSON.
    """
    write_document(directory / CONFIGURATION, dict(configuration))


def read_configuration(directory: Path) -> dict[str, Any]:
    """Reads what `write_configuration` wrote.

    Raises:
        UserError: the directory holds no training run.
    """
    if not directory.is_dir():
        raise NotFoundError(f"There is no checkpoint directory {directory}.")
    return read_document(directory / CONFIGURATION, "checkpoint directory")


def known_configuration(directory: Path) -> dict[str, Any]:
    """The result of `read_configuration`; empty if the directory does not have it, or its file is damaged."""
    try:
        return read_configuration(directory)
    except UserError:
        return {}


def differing_settings(directory: Path, settings: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings in which two trainings differ: by name, the value of the one in a directory and of the other.

    Args:
        directory: the checkpoint directory; nothing differs if it does not say how it was trained.
        settings: settings of the other training that shape its weights.
    """
    there = known_configuration(directory).get("settings", {})
    return {name: (there[name], here) for name, here in settings.items() if name in there and there[name] != here}


def told_differences(differing: Mapping[str, tuple[Any, Any]]) -> str:
    """The result of `differing_settings` as the end of a sentence; empty if nothing differs."""
    told = [f"{name} is {here!r}, there it was {there!r}" for name, (there, here) in differing.items()]
    return f": {'; '.join(told)}" if told else ""
