"""What `train_model` is asked to do, checked without importing torch."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.remote_files import is_remote, listed
from gpu_pipelines.data.sources.names import problems_of_place
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.numbers import LARGEST_WHOLE_NUMBER
from gpu_pipelines.tasks.tasks import task_named

CHECKPOINTS_WHERE_NOT_SAID = 8
CHOICES = {
    "learning_rate_schedule": ("cosine", "linear", "constant"),
    "precision": ("auto", "bf16", "fp16", "fp32"),
    "parallelism": ("auto", "ddp", "fsdp"),
}
#: What says how a training is carried out, not what comes of it: it may change when a training is continued.
NOT_SHAPING = (
    "micro_batch_size",
    "parallelism",
    "activation_checkpointing",
    "compile_model",
    "checkpoint_every_steps",
    "keep_last",
    "keep_every_steps",
    "early_stopping_patience",
)
WHOLE_NUMBERS_FROM_0 = (
    "max_steps",
    "warmup_steps",
    "micro_batch_size",
    "lora_rank",
    "checkpoint_every_steps",
    "keep_last",
    "keep_every_steps",
    "early_stopping_patience",
    "seed",
)


@dataclass(frozen=True)
class TrainingSettings:
    """The hyperparameters of `train_model`; see the component for what each means."""

    model: str = "convnext-micro"
    recipe: str = ""
    epochs: float = 15.0
    max_steps: int = 0
    learning_rate: float = 4e-3
    learning_rate_schedule: str = "cosine"
    weight_decay: float = 0.05
    warmup_steps: int = 30
    gradient_clip: float = 1.0
    global_batch_size: int = 64
    micro_batch_size: int = 0
    precision: str = "auto"
    parallelism: str = "auto"
    activation_checkpointing: bool = False
    compile_model: bool = False
    lora_rank: int = 0
    lora_alpha: float = 16.0
    checkpoint_every_steps: int = 0
    keep_last: int = 0
    keep_every_steps: int = 0
    early_stopping_patience: int = 0
    seed: int = 0

    def problems(self, task: str = "image_classification") -> list[str]:
        """Everything that is wrong with the values, each with what to do."""
        found = [*self._model_problems(task), *self._choice_problems()]
        if not 0 < self.epochs <= 100_000 and not self.max_steps:
            found.append(f"epochs is {self.epochs}; give more than 0, or give max_steps.")
        if not 0 < self.learning_rate < math.inf:
            found.append(f"learning_rate is {self.learning_rate}; give more than 0, such as 0.001.")
        if self.global_batch_size < 1:
            found.append(f"global_batch_size is {self.global_batch_size}; give at least 1.")
        if self.lora_rank and not 0 < self.lora_alpha < math.inf:
            found.append(f"lora_alpha is {self.lora_alpha}; give more than 0, such as twice lora_rank.")
        for name in ("weight_decay", "gradient_clip", *WHOLE_NUMBERS_FROM_0):
            value = getattr(self, name)
            if not 0 <= value <= LARGEST_WHOLE_NUMBER:
                found.append(f"{name} is {value}; give 0 to 2^53.")
        return found

    def problems_here(self, task: str = "image_classification") -> list[str]:
        """What is wrong where this runs: a model that is not there, a recipe that cannot be imported."""
        if self.recipe:
            from gpu_pipelines.tasks.building import load_recipe

            try:
                load_recipe(self.recipe, task)
            except UserError as error:
                return [f"{error.problem} {error.remedy}".strip()]
        return _missing_model(self.model)

    def problems_on(self, processes: int) -> list[str]:
        """What is wrong with the values on that many processes of all nodes together; 0 if that is not known."""
        batch = self.global_batch_size
        if batch < 1 or not processes or batch % processes == 0:
            return []
        lower, upper = batch // processes * processes, -(-batch // processes) * processes
        return [
            f"global_batch_size is {batch}, which {processes} processes cannot share equally. "
            f"Give {f'{lower} or ' if lower else ''}{upper}."
        ]

    def _model_problems(self, task: str) -> list[str]:
        if self.recipe:
            module, colon, name = self.recipe.partition(":")
            if colon and name.isidentifier() and all(part.isidentifier() for part in module.split(".")):
                return []
            return [f"recipe is {self.recipe!r}; give the class as package.module:ClassName, or leave it empty."]
        if found := problems_of_place("model", self.model):
            return found
        models = task_named(task).models
        if models and self.model not in models and not _may_be_pretrained(self.model):
            return [
                f"There is no model {self.model!r} for {task}. {nearest(self.model, models)} "
                "A directory in Hugging Face layout or a hub id such as organisation/name serves as well."
            ]
        return []

    def _choice_problems(self) -> list[str]:
        return [
            f"{name} is {getattr(self, name)!r}. {nearest(getattr(self, name), valid)}"
            for name, valid in CHOICES.items()
            if getattr(self, name) not in valid
        ]

    def total_steps(self, rows: int) -> int:
        """Optimizer steps for a training split of `rows` rows: `max_steps`, or enough for `epochs`."""
        return self.max_steps or math.ceil(self.epochs * rows / self.global_batch_size)

    def steps_between_checkpoints(self, total_steps: int) -> int:
        """`checkpoint_every_steps`, or what gives about eight checkpoints."""
        return self.checkpoint_every_steps or max(1, math.ceil(total_steps / CHECKPOINTS_WHERE_NOT_SAID))

    def configuration_hash(self) -> str:
        """Hex SHA-256 of the settings that shape the weights."""
        shaping = {key: value for key, value in asdict(self).items() if key not in NOT_SHAPING}
        return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrainingSettings:
        return cls(**content)


def _may_be_pretrained(model: str) -> bool:
    return is_remote(model) or _is_path(model) or Path(model).is_dir() or model.count("/") == 1


def _is_path(model: str) -> bool:
    return model.startswith((".", "/", "~"))


def _missing_model(model: str) -> list[str]:
    """What is wrong with a model that is named by its place; nothing with the name of an architecture or a hub id."""
    layout = "A model is a directory in Hugging Face layout: config.json, and *.safetensors unless it is untrained."
    if is_remote(model):
        configuration = f"{model.rstrip('/')}/config.json"
        return [] if listed(configuration) else [f"There is no {configuration}. {layout}"]
    directory = Path(model).expanduser()
    if not (_is_path(model) or directory.is_dir()):
        return []
    if not directory.is_dir():
        return [f"model is {model}, and there is no such directory. {layout}"]
    return [] if (directory / "config.json").is_file() else [f"{model} has no config.json. {layout}"]
