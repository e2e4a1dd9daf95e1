"""What `train_model` is asked to do, checked without importing torch."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.errors import nearest
from gpu_pipelines.numbers import LARGEST_WHOLE_NUMBER
from gpu_pipelines.recipes.tasks import TASKS

CHECKPOINTS_WHERE_NOT_SAID = 8


@dataclass(frozen=True)
class TrainingSettings:
    """The hyperparameters of `train_model`; see the component for what each means."""

    model: str = "convnext-micro"
    epochs: float = 15.0
    max_steps: int = 0
    learning_rate: float = 4e-3
    weight_decay: float = 0.05
    warmup_steps: int = 30
    gradient_clip: float = 1.0
    global_batch_size: int = 64
    checkpoint_every_steps: int = 0
    seed: int = 0

    def problems(self, task: str = "image_classification") -> list[str]:
        """Everything that is wrong with the values, each with what to do."""
        found = []
        models = TASKS[task].models if task in TASKS else ()
        if models and self.model not in models and not _may_be_pretrained(self.model):
            found.append(
                f"There is no model {self.model!r} for {task}. {nearest(self.model, models)} "
                "A directory in Hugging Face layout or a hub id such as organisation/name serves as well."
            )
        if not 0 < self.epochs <= 100_000 and not self.max_steps:
            found.append(f"epochs is {self.epochs}; give more than 0, or give max_steps.")
        if not 0 < self.learning_rate < math.inf:
            found.append(f"learning_rate is {self.learning_rate}; give more than 0, such as 0.001.")
        if self.global_batch_size < 1:
            found.append(f"global_batch_size is {self.global_batch_size}; give at least 1.")
        for name in ("max_steps", "weight_decay", "warmup_steps", "gradient_clip", "checkpoint_every_steps", "seed"):
            value = getattr(self, name)
            if not 0 <= value <= LARGEST_WHOLE_NUMBER:
                found.append(f"{name} is {value}; give 0 to 2^53.")
        return found

    def total_steps(self, rows: int) -> int:
        """Optimizer steps for a training split of `rows` rows: `max_steps`, or enough for `epochs`."""
        return self.max_steps or math.ceil(self.epochs * rows / self.global_batch_size)

    def steps_between_checkpoints(self, total_steps: int) -> int:
        """`checkpoint_every_steps`, or what gives about eight checkpoints."""
        return self.checkpoint_every_steps or max(1, math.ceil(total_steps / CHECKPOINTS_WHERE_NOT_SAID))

    def configuration_hash(self) -> str:
        """Hex SHA-256 of the settings that shape the weights; how often checkpoints are written does not."""
        shaping = {key: value for key, value in asdict(self).items() if key != "checkpoint_every_steps"}
        return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrainingSettings:
        return cls(**content)


def _may_be_pretrained(model: str) -> bool:
    return Path(model).expanduser().is_dir() or model.count("/") == 1
