"""The parameters of `train_model`, checked without importing torch."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpu_pipelines.accelerators.workload import NOT_SHARDED, OPTIMIZER_BYTES
from gpu_pipelines.artifacts.remote_files import is_remote, listed, problems_of_place
from gpu_pipelines.component_interface.parameter import parameter, parameters_in
from gpu_pipelines.errors import UserError, nearest, said_by
from gpu_pipelines.numbers import LARGEST_WHOLE_NUMBER
from gpu_pipelines.tasks.model_places import ADAPTERS, is_path, is_pretrained, may_be_pretrained
from gpu_pipelines.tasks.tasks import task_named
from gpu_pipelines.training.machine.idle_stop import IDLE_STOP, IDLE_STOP_TEXT, problems_of_idle_stop

CHECKPOINTS_WHERE_NOT_SAID = 8
#: Beyond it each share is about a half.
MOST_ALPHA = 100
#: Of pairs that may be the wrong way round: at a half they would say nothing.
MOST_WRONG = 0.5
#: What says how a training is carried out, not what comes of it: it may change when a training is continued.
NOT_SHAPING = (
    "micro_batch_size",
    "parallelism",
    "activation_checkpointing",
    "recompute",
    "attention",
    "compile_model",
    "checkpoint_every_steps",
    "keep_last",
    "keep_every_steps",
    "early_stopping_patience",
    "idle_stop",
    "resume_from_step",
    "cache_gb",
    "profile_steps",
)
#: What makes weights of other shapes, other tensors of a checkpoint, another order of the rows, or another loss on val.
_OF_THE_WHOLE_TRAINING = (
    "model",
    "recipe",
    "optimizer",
    "lora_rank",
    "lora_alpha",
    "lora_targets",
    "quantize_base",
    "freeze",
    "ema_decay",
    "global_batch_size",
    "seed",
    "preference_loss",
    "beta",
)
#: The folder beside the checkpoints that profiles are in.
PROFILE = "profile"
#: A profile of more steps is of hundreds of MB.
MOST_PROFILED = 100
#: What says in which order streamed rows come; it says nothing where they are not streamed.
_OF_STREAMING = ("streaming", "shuffle_shards")
#: The values that leave these to the task, and to whether the model is pretrained.
TASKS_OWN = {"learning_rate": 0, "epochs": 0, "weight_decay": -1}
#: Aids to training, off by default. Only for some of them a task has to be of a kind: such a task has them among its
#: `parameters`. Where an aid is off, checkpoints are those of a version that did not have it.
OFF = {
    "augmentation": "",
    "mixup_alpha": 0.0,
    "cutmix_alpha": 0.0,
    "label_smoothing": 0.0,
    "ema_decay": 0.0,
    "freeze": "",
    "layer_decay": 0.0,
    "lora_targets": "",
    "quantize_base": "",
    "fp8": False,
    "preference_loss": "sigmoid",
    "beta": 0.1,
}
#: Losses of pairs that take into account that some were judged wrongly; of the others TRL knows no such form.
_SMOOTHED_LOSSES = ("sigmoid", "ipo")
_SOME_TASKS = {
    "augmentation": "which changes images, and it has none",
    "mixup_alpha": "which mixes images and their classes",
    "cutmix_alpha": "which mixes images and their classes",
    "label_smoothing": "which is for tasks that predict classes, tags, tokens or preferences",
    "preference_loss": "which is for tasks that learn preferences",
    "beta": "which is for tasks that learn preferences",
}
WHOLE_NUMBERS_FROM_0 = (
    "max_steps",
    "warmup_steps",
    "micro_batch_size",
    "lora_rank",
    "checkpoint_every_steps",
    "keep_last",
    "keep_every_steps",
    "early_stopping_patience",
    "resume_from_step",
    "seed",
)
#: Each shard of a window takes two open files, of which a process has 1,024.
MOST_SHUFFLED = 256


def compile_model_of(given: Any) -> Any:
    """A value of `compile_model`, which runs and compiled files of versions before 0.2 have as true or false."""
    return ("on" if given else "off") if isinstance(given, bool) else given


@dataclass(frozen=True)
class TrainingSettings:
    """The hyperparameters of `train_model`."""

    model: str = parameter(
        "convnext-micro",
        "Architecture to train from scratch (image_classification: convnext-micro, convnext-tiny, vit-micro, "
        "vit-base), a directory with a config.json alone to train that architecture from scratch, or pretrained "
        "weights to start from: a directory in Hugging Face layout, local or gs://, or a hub id such as "
        "organisation/name, with @REVISION for another than the newest.",
        common=True,
    )
    recipe: str = parameter(
        "",
        "A recipe of your own as package.module:ClassName; empty for the recipe of the dataset's task.",
    )
    epochs: float = parameter(
        0.0,
        "Passes over the training rows; not used if max_steps is given. 0 for the task's default: 15 from scratch, 1 "
        "to 10 for pretrained weights.",
        common=True,
    )
    max_steps: int = parameter(0, "Optimizer steps; 0 to go by epochs.")
    learning_rate: float = parameter(
        0.0,
        "Peak learning rate, reached after the warm-up. 0 for the task's default: 0.004 from scratch, 0.00002 or "
        "0.00005 for pretrained weights (0.0000005 for preferences), more for adapters.",
        common=True,
    )
    learning_rate_schedule: str = parameter(
        "cosine",
        "cosine or linear: how the learning rate falls to 0; constant: it stays.",
        choices=("cosine", "linear", "constant"),
    )
    optimizer: str = parameter(
        "adamw",
        "adamw, adamw_8bit (keeps its moments in eight bits), sgd (with momentum), adafactor (keeps a row and a column "
        "of each matrix), or muon (for the matrices of hidden layers, adamw for the rest).",
        choices=tuple(OPTIMIZER_BYTES),
    )
    momentum: float = parameter(0.9, "For sgd and muon: at least 0 and less than 1.")
    weight_decay: float = parameter(
        -1.0,
        "Decoupled weight decay, on matrices only. -1 for the task's default: 0.05 from scratch, 0 or 0.01 for "
        "pretrained weights.",
    )
    warmup_steps: int = parameter(30, "Steps of linear warm-up, at most a tenth of all steps.")
    gradient_clip: float = parameter(1.0, "Largest norm of the gradient; 0 does not clip.")
    global_batch_size: int = parameter(
        64,
        "Rows per optimizer step, over all processes of all nodes; a multiple of the number of processes. It is halved "
        "while it is more than the training rows.",
        common=True,
    )
    micro_batch_size: int = parameter(
        0,
        "Rows that one process takes through the model at once. It accumulates the gradients of its share of the "
        "global batch over such micro-batches. 0 takes the whole share at once.",
    )
    precision: str = parameter(
        "auto",
        "bf16, fp16 (with loss scaling) or fp32; auto takes bf16 if the GPU has it, else fp16, and fp32 on CPUs.",
        choices=("auto", "bf16", "fp16", "fp32"),
    )
    fp8: bool = parameter(
        False,
        "Multiply the matrices of the repeated layers in fp8 (torchao), on H100 and later GPUs; precision applies to "
        "everything else.",
    )
    parallelism: str = parameter(
        "auto",
        "ddp (every process holds the model), fsdp (weights, gradients and optimizer are sharded over all processes), "
        "hsdp (sharded over the processes of each node); auto takes the first of ddp, hsdp and fsdp that fits.",
        choices=("auto", "ddp", "hsdp", "fsdp"),
    )
    activation_checkpointing: bool = parameter(
        False,
        "Recompute the activations of each layer in the backward pass, to save memory.",
    )
    recompute: str = parameter(
        "layers",
        "What activation_checkpointing recomputes: layers (all of each), or selective (all but attention and every "
        "second matrix multiplication, whose outputs are kept).",
        choices=("layers", "selective"),
    )
    attention: str = parameter(
        "auto",
        "Attention of transformers models: flash_attention_2 (of the package flash-attn), sdpa, flex or eager; auto "
        "takes a kernel for packed documents if the GPU has one, else sdpa.",
        choices=("auto", "flash_attention_2", "sdpa", "flex", "eager"),
    )
    compile_model: str = parameter(
        "auto",
        "on or off: whether to compile the layers with torch.compile; auto does so on GPUs for images and causal_lm, "
        "if the training is long enough to be worth it.",
        choices=("auto", "on", "off"),
    )
    profile_steps: str = parameter(
        "",
        "Steps that rank 0 profiles, such as 10-12, at most 100. It writes a Chrome trace, and on GPUs a memory "
        "snapshot, to profile/ beside the checkpoints. Empty for none.",
    )
    lora_rank: int = parameter(
        0,
        "Rank of LoRA adapters; only the adapters are then trained. 0 trains all weights.",
        common=True,
    )
    lora_alpha: float = parameter(16.0, "Scale of the adapters: their output is multiplied by lora_alpha / lora_rank.")
    lora_targets: str = parameter(
        "",
        "Layers that get adapters: all-linear for every linear layer but the head, or the ends of their names with "
        "commas between them, such as q_proj,v_proj. Empty for those that peft names for the architecture, mostly "
        "queries and values.",
    )
    quantize_base: str = parameter(
        "",
        "nf4 holds the frozen linear layers in four bits (QLoRA); empty holds them in 16 bits if the training computes "
        "in 16 bits.",
        choices=("", "nf4"),
    )
    augmentation: str = parameter(
        "",
        "Random changes of each image in each epoch: flip (left and right), crop-flip (also takes a part of the "
        "image), randaugment (also two changes of colour or shape); empty for none.",
        choices=("", "flip", "crop-flip", "randaugment"),
    )
    mixup_alpha: float = parameter(
        0.0,
        "Mixes images in pairs, and their classes with them. The share is drawn from the beta distribution with this "
        "parameter, such as 0.2; 0 mixes none.",
    )
    cutmix_alpha: float = parameter(
        0.0,
        "As mixup_alpha, but pastes a rectangle of the other image of the pair, such as 1. With both, each pair gets "
        "one of them.",
    )
    label_smoothing: float = parameter(
        0.0,
        "Share of the target that is spread over all classes, tags or tokens, such as 0.1; less than 1. For "
        "preference, the share of pairs that may be the wrong way round, less than 0.5. Not used in the loss on val.",
    )
    preference_loss: str = parameter(
        "sigmoid",
        "Loss for preferences. Pairs: sigmoid (DPO), ipo (IPO) or orpo (ORPO, which needs no reference). Completions "
        "judged one by one: kto (KTO).",
        choices=("sigmoid", "ipo", "kto", "orpo"),
    )
    beta: float = parameter(
        0.1,
        "For preferences, the penalty for moving away from the model that the training began with; a larger value "
        "keeps closer to it. For orpo, the weight of the odds ratio beside the likelihood.",
    )
    ema_decay: float = parameter(
        0.0,
        "Decay of an exponential moving average of the weights, such as 0.9999, and less in the first steps. The "
        "average is evaluated beside the weights. 0 keeps none.",
    )
    freeze: str = parameter(
        "",
        "Weights that are not trained, as patterns of their names separated by commas, such as "
        "embeddings.*,encoder.layer.[0-5].*; empty for none.",
    )
    layer_decay: float = parameter(
        0.0,
        "Learning rate of each layer as a share of that of the layer above it, such as 0.75. The head has "
        "learning_rate. 0 for the same rate everywhere.",
    )
    checkpoint_every_steps: int = parameter(0, "Optimizer steps between two checkpoints; 0 for about eight in all.")
    keep_last: int = parameter(
        0,
        "Number of newest checkpoints to keep, besides the one with the lowest loss on val; 0 keeps all.",
    )
    keep_every_steps: int = parameter(0, "Also keep the checkpoints at multiples of this step; 0 for none.")
    early_stopping_patience: int = parameter(
        0,
        "Stop the training after this many checkpoints in a row without a lower loss on val; 0 never.",
    )
    idle_stop: float = parameter(IDLE_STOP, IDLE_STOP_TEXT)
    resume_from_step: int = parameter(
        0,
        "Step of an earlier checkpoint to continue from, with these parameters; later checkpoints are set aside. 0 "
        "continues from the newest.",
    )
    streaming: str = parameter(
        "auto",
        "on: fetch each shard of a dataset in object storage into a cache when its rows are due; off: copy the whole "
        "dataset to each machine before the training. auto is on if the dataset is larger than half of the free disk. "
        "Streamed rows come in another order, the same wherever the dataset is.",
        choices=("auto", "on", "off"),
    )
    cache_gb: float = parameter(
        0.0,
        "Most GB (10^9 bytes) that streamed shards may take on each machine's disk; 0 for half of the free space.",
    )
    shuffle_shards: int = parameter(
        0, "Shards whose rows are shuffled together if rows are streamed; 0 for a 32nd of all, at most 64."
    )
    seed: int = parameter(0, "Seed of the initial weights, the order of the rows, dropout, and augmentation.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "compile_model", compile_model_of(self.compile_model))

    def problems(self, task: str = "image_classification") -> list[str]:
        """All problems with the values, each with what to do."""
        found = [*self._model_problems(task), *self._aid_problems(task), *self.problems_of_reading()]
        if not 0 <= self.momentum < 1:
            found.append(f"momentum is {self.momentum}; give at least 0 and less than 1, such as 0.9.")
        if not 0 <= self.epochs <= 100_000 and not self.max_steps:
            found.append(f"epochs is {self.epochs}; give more than 0, 0 for the task's own, or give max_steps.")
        if not 0 <= self.learning_rate < math.inf:
            found.append(
                f"learning_rate is {self.learning_rate}; give more than 0, such as 0.001, or 0 for the task's own."
            )
        if self.weight_decay != TASKS_OWN["weight_decay"] and not 0 <= self.weight_decay < math.inf:
            found.append(f"weight_decay is {self.weight_decay}; give at least 0, or -1 for the task's own.")
        if self.optimizer in NOT_SHARDED and self.parallelism in ("fsdp", "hsdp"):
            found.append(
                f"optimizer is {self.optimizer}, which needs whole matrices, and parallelism is {self.parallelism}. "
                "Give adamw_8bit or muon, or parallelism=ddp."
            )
        if self.profile_steps and not 0 < len(self.profiled) <= MOST_PROFILED:
            found.append(
                f"profile_steps is {self.profile_steps!r}; give the first and the last one, such as 10-12, at most "
                f"{MOST_PROFILED} steps."
            )
        if self.global_batch_size < 1:
            found.append(f"global_batch_size is {self.global_batch_size}; give at least 1.")
        found += problems_of_idle_stop(self.idle_stop)
        if self.lora_rank and not 0 < self.lora_alpha < math.inf:
            found.append(f"lora_alpha is {self.lora_alpha}; give more than 0, such as twice lora_rank.")
        for name in ("gradient_clip", *WHOLE_NUMBERS_FROM_0):
            value = getattr(self, name)
            if not 0 <= value <= LARGEST_WHOLE_NUMBER:
                found.append(f"{name} is {value}; give 0 to 2^53.")
        return found + (self.problems_of_steps(self.max_steps) if self.max_steps else [])

    def problems_of_steps(self, total: int) -> list[str]:
        """Problems of the values with the number of all steps: what is left out would be set aside for nothing."""
        if self.resume_from_step <= total:
            return []
        return [
            f"resume_from_step is {self.resume_from_step:,}, and the training has {total:,} steps. Give a larger "
            f"{'max_steps' if self.max_steps else 'epochs'}, or an earlier step."
        ]

    def problems_here(
        self,
        task: str = "image_classification",
        sequence_length: int | None = None,
        tokenizer: str = "",
        *,
        packing: bool = False,
    ) -> list[str]:
        """Problems that can be seen where this runs: a missing or unsuitable model, a class that is not a recipe.

        Args:
            task: of the dataset.
            sequence_length: the preparation's parameter; None if the dataset exists and says it.
            tokenizer: of the preparation; empty if it is not known.
            packing: the preparation's parameter.
        """
        if self.recipe:
            from gpu_pipelines.tasks.building import load_recipe

            if wrong := said_by(lambda: load_recipe(self.recipe, task)):
                return wrong
        found = _missing_model(self.model)
        if found or self.recipe or sequence_length is None:
            return found
        from gpu_pipelines.tasks.model_check import problems_of_configuration

        return problems_of_configuration(
            task_named(task), self.model, sequence_length, tokenizer, packing=packing, training=asdict(self)
        )

    def problems_on(self, processes: int) -> list[str]:
        """Problems of the values with that many processes on all nodes together; 0 if the number is not known."""
        batch = self.global_batch_size
        if batch < 1 or not processes or batch % processes == 0:
            return self._problems_of_pairs(processes)
        lower, upper = batch // processes * processes, -(-batch // processes) * processes
        return [
            f"global_batch_size is {batch}, which {processes} processes cannot share equally. "
            f"Give {f'{lower} or ' if lower else ''}{upper}."
        ]

    def _problems_of_pairs(self, processes: int) -> list[str]:
        """Images are mixed in pairs, which must not depend on the number of processes."""
        batch = self.global_batch_size
        if not (self.mixup_alpha or self.cutmix_alpha) or processes < 2 or batch % (2 * processes) == 0:
            return []
        return [
            f"global_batch_size is {batch}, so each of {processes} processes gets an odd number of images, and they "
            f"are mixed in pairs. Give a multiple of {2 * processes}, or leave mixup_alpha and cutmix_alpha at 0."
        ]

    def _aid_problems(self, task: str) -> list[str]:
        found = [
            f"{name} is {getattr(self, name)!r}, {why}; the task is {task}. Leave it at {off!r}."
            for name, why in _SOME_TASKS.items()
            if getattr(self, name) != (off := OFF[name]) and name not in task_named(task).parameters
        ]
        for name in ("mixup_alpha", "cutmix_alpha"):
            if not 0 <= getattr(self, name) <= MOST_ALPHA:
                found.append(f"{name} is {getattr(self, name)}; give 0 to {MOST_ALPHA}.")
        for name, such in (("label_smoothing", 0.1), ("ema_decay", 0.9999)):
            if not 0 <= getattr(self, name) < 1:
                found.append(f"{name} is {getattr(self, name)}; give at least 0 and less than 1, such as {such}.")
        if not 0 < self.beta < math.inf:
            found.append(f"beta is {self.beta}; give more than 0, such as 0.1.")
        if self.label_smoothing and "preference_loss" in task_named(task).parameters:
            if self.preference_loss not in _SMOOTHED_LOSSES:
                found.append(
                    f"label_smoothing is {self.label_smoothing}, which {self.preference_loss} has no form of. Leave it "
                    f"at 0, or give preference_loss {' or '.join(_SMOOTHED_LOSSES)}."
                )
            elif self.label_smoothing >= MOST_WRONG:
                found.append(f"label_smoothing is {self.label_smoothing}; of preferences give less than {MOST_WRONG}.")
        if not 0 <= self.layer_decay <= 1:
            found.append(f"layer_decay is {self.layer_decay}; give 0 to 1, such as 0.75.")
        if self.freeze and self.lora_rank:
            found.append("freeze and lora_rank are both given; adapters freeze the model anyway. Leave freeze empty.")
        if self.lora_targets and not self.lora_rank:
            found.append(
                f"lora_targets is {self.lora_targets!r}, and there are no adapters. Give lora_rank, such as 16."
            )
        if self.quantize_base and self.fp8:
            found.append(
                "fp8 and quantize_base are both given; a layer in four bits is not multiplied in fp8. Give one."
            )
        if self.quantize_base and not (self.lora_rank or self.freeze):
            found.append(
                f"quantize_base is {self.quantize_base}, and no weights are frozen. Give lora_rank, such as 16."
            )
        return found

    def _model_problems(self, task: str) -> list[str]:
        if self.recipe:
            module, colon, name = self.recipe.partition(":")
            if colon and name.isidentifier() and all(part.isidentifier() for part in module.split(".")):
                return []
            return [f"recipe is {self.recipe!r}; give the class as package.module:ClassName, or leave it empty."]
        if found := problems_of_place("model", self.model):
            return found
        models = task_named(task).models
        if models and self.model not in models and not may_be_pretrained(self.model):
            return [
                f"There is no model {self.model!r} for {task}. {nearest(self.model, models)} "
                "A directory in Hugging Face layout or a hub id such as organisation/name serves as well."
            ]
        if self.lora_rank and self.model in task_named(task).without_adapters:
            return [f"{self.model} has no linear layers that adapters could be added to. Leave lora_rank at 0."]
        return []

    def problems_of_reading(self) -> list[str]:
        """Problems with the values about reading rows, and with all values that are a choice."""
        found = self._choice_problems()
        if not 0 <= self.shuffle_shards <= MOST_SHUFFLED:
            found.append(f"shuffle_shards is {self.shuffle_shards}; give 0 to {MOST_SHUFFLED}.")
        if not 0 <= self.cache_gb < math.inf:
            found.append(f"cache_gb is {self.cache_gb}; give more than 0, or 0 for half of the free disk.")
        return found

    def _choice_problems(self) -> list[str]:
        return [
            f"{name} is {getattr(self, name)!r}. {nearest(str(getattr(self, name)), declared.choices)}"
            for name, declared in parameters_in(type(self)).items()
            if declared.choices and getattr(self, name) not in declared.choices
        ]

    def resolved(self, task: str, rows: int | None = None) -> TrainingSettings:
        """These settings with the task's defaults filled in, and with at most as many rows to a step as there are.

        The global batch is halved until it fits, so that an even number of processes can still share it. It does not
        depend on the number of processes, so that any number of them trains on the same batches.

        Args:
            task: of the dataset.
            rows: of the training split; None if that is not known.
        """
        chosen = task_named(task).hyperparameters(
            is_pretrained=is_pretrained(self.model), has_adapters=self.lora_rank > 0
        )
        left = {name: getattr(chosen, name) for name, value in TASKS_OWN.items() if getattr(self, name) == value}
        batch = self.global_batch_size
        while rows and batch > rows:
            batch //= 2
        return replace(self, **left, global_batch_size=batch)

    def told(self, resolved: TrainingSettings, task: str, rows: int) -> list[str]:
        """Lines about the values that `resolved` filled in."""
        names = [name for name, value in TASKS_OWN.items() if getattr(self, name) == value]
        kind = "adapters" if self.lora_rank else "pretrained weights"
        of = f"{task} for {kind if is_pretrained(self.model) else 'models from scratch'}"
        values = ", ".join(f"{name} {getattr(resolved, name):g}" for name in names)
        lines = [f"not given, so those of {of}: {values}"] if names else []
        if self.global_batch_size != resolved.global_batch_size:
            lines.append(
                f"warning: global_batch_size is {self.global_batch_size}, and there are {rows:,} rows to train on; a "
                f"step takes {resolved.global_batch_size}"
            )
        total = resolved.total_steps(rows)
        if self.profiled and self.profiled[0] > total:
            lines.append(f"warning: profile_steps is {self.profile_steps}; of {total:,} steps none is profiled")
        return lines

    def total_steps(self, rows: int) -> int:
        """Optimizer steps for a training split of `rows` rows: `max_steps`, or enough for `epochs`."""
        return self.max_steps or math.ceil(self.epochs * rows / self.global_batch_size)

    def rows_at_once(self, processes: int) -> int:
        """Rows that each of a number of processes takes through the model at once."""
        return self.micro_batch_size or max(1, self.global_batch_size // processes)

    @property
    def profiled(self) -> range:
        """Numbers of the steps to profile, counted from 1; empty for none."""
        window = re.fullmatch(r"([1-9]\d{0,15})-([1-9]\d{0,15})", self.profile_steps)
        return range(int(window[1]), int(window[2]) + 1) if window else range(0)

    def steps_between_checkpoints(self, total_steps: int) -> int:
        """`checkpoint_every_steps`, or a number that gives about eight checkpoints."""
        return self.checkpoint_every_steps or max(1, math.ceil(total_steps / CHECKPOINTS_WHERE_NOT_SAID))

    def end_of(self, until: int, total_steps: int) -> int:
        """The last step of a part of a training, which ends with a checkpoint of the whole training.

        Args:
            until: its last step; 0 for the last of the training.
            total_steps: of the whole training.

        Raises:
            UserError: there is no checkpoint after that step.
        """
        between = self.steps_between_checkpoints(total_steps)
        if not until or until == total_steps or (0 < until < total_steps and until % between == 0):
            return until or total_steps
        raise UserError(
            f"The training of {total_steps:,} steps is to go to step {until:,}; it has a checkpoint every {between:,}.",
            f"Give a multiple of {between:,} below {total_steps:,}, or 0 for the whole training.",
        )

    def shaping(self) -> dict[str, Any]:
        """The settings that shape the weights, without the choice of streaming while it is open."""
        without = {*NOT_SHAPING, *(_OF_STREAMING if self.streaming == "auto" else ())}
        return {key: value for key, value in asdict(self).items() if key not in without}

    def fixed_in(self, differing: Mapping[str, tuple[Any, Any]]) -> list[str]:
        """Those of some settings in which a checkpoint differs that no training from it may change.

        Args:
            differing: by name, the value of the checkpoint and that of this training.
        """
        fixed = [name for name in differing if name in _OF_THE_WHOLE_TRAINING]
        # SGD keeps a state for its momentum alone.
        if self.optimizer == "sgd" and 0 in differing.get("momentum", ()):
            fixed.append("momentum")
        return fixed

    def fixed_before_rows_are_known(self, differing: Mapping[str, tuple[Any, Any]]) -> list[str]:
        """The same, without a batch size that few rows may make of this one.

        Args:
            differing: as `fixed_in` takes it.
        """
        batch, _ = differing.get("global_batch_size", (0, 0))
        return [name for name in self.fixed_in(differing) if name != "global_batch_size" or batch not in self._batches]

    @property
    def _batches(self) -> list[int]:
        """The global batch size, and what few rows may make of it."""
        return [self.global_batch_size >> times for times in range(self.global_batch_size.bit_length())]

    def possible_hashes(self, task: str) -> frozenset[str]:
        """All `configuration_hash`es that these settings can have once the rows are known."""
        settings = self.resolved(task)
        orders = ["on", "off"] if self.streaming == "auto" else [self.streaming]
        return frozenset(
            replace(settings, global_batch_size=batch, streaming=order).configuration_hash()
            for batch in settings._batches
            for order in orders
        )

    def configuration_hash(self) -> str:
        """Hex SHA-256 of the settings that shape the weights.

        Raises:
            ValueError: some of them are not resolved yet.
        """
        if left := [name for name, value in TASKS_OWN.items() if getattr(self, name) == value]:
            raise ValueError(f"{' and '.join(left)} of the training are not resolved")
        # A training without aids, or one that does not stream, is what it was before there was a choice.
        unsaid = {name for name, off in OFF.items() if getattr(self, name) == off}
        unsaid |= set() if self.streaming == "on" else {*_OF_STREAMING}
        said = {name: value for name, value in self.shaping().items() if name not in unsaid}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrainingSettings:
        return cls(**content)


def _missing_model(model: str) -> list[str]:
    """What is wrong with a model that is named by its place; nothing with the name of an architecture or a hub id."""
    layout = "A model is a directory in Hugging Face layout: config.json, and *.safetensors unless it is untrained."
    if is_remote(model):
        configuration = f"{model.rstrip('/')}/config.json"
        return [] if listed(configuration) else [f"There is no {configuration}. {layout}"]
    directory = Path(model).expanduser()
    if not (is_path(model) or directory.is_dir()):
        return []
    if not directory.is_dir():
        return [f"model is {model}, and there is no such directory. {layout}"]
    if (directory / "config.json").is_file():
        return []
    if (directory / ADAPTERS).is_file():
        return [f"{model} has adapters alone. Save the model that they are for with them in it (merge_and_unload)."]
    return [f"{model} has no config.json. {layout}"]
