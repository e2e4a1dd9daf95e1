"""A training job as the user describes it: how large the model is, how much it is trained on, and how."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.errors import UserError

PRECISIONS = ("auto", "bf16", "fp16", "fp32")
#: Bytes of optimizer state for each trained parameter, of the optimizers that `train_model` has. AdamW holds two
#: moments in fp32 (Kingma & Ba 2014, arXiv:1412.6980), SGD and Muon a momentum, Adafactor a row and a column of each
#: matrix, which is next to nothing.
OPTIMIZER_BYTES = {"adamw": 8, "adamw_8bit": 2, "sgd": 4, "adafactor": 0, "muon": 4}
#: Numbers that share a scale in adamw_8bit: those that bitsandbytes has kernels for. The moments of weights whose rows
#: are not whole blocks stay in fp32.
BLOCK = 256
#: Optimizers that need whole matrices: PyTorch's Adafactor takes norms in a way that sharded tensors do not have.
NOT_SHARDED = frozenset({"adafactor"})
#: How frozen weights can be held in fewer than 16 bits: not at all, and as QLoRA does.
QUANTIZED = ("", "nf4")
#: Experts for each token if their number is not given: those of Qwen3-30B-A3B, OLMoE and Granite 3. Mixtral has two,
#: and keeps less.
USUAL_EXPERTS = 8
#: Matrices of each layer that get a LoRA adapter: query, key, value and output (Hu et al. 2021, arXiv:2106.09685, 4.2).
LORA_MATRICES = 4
#: Matrices of an MLP with a gate.
MATRICES_OF_MLP = 3
#: The value of `lora_targets` for an adapter on every linear layer but the head; peft calls it so, too.
ALL_LINEAR = "all-linear"
#: Families of which peft names no layers for adapters, so that every linear layer has one without being asked for.
WITHOUT_USUAL_TARGETS = frozenset(
    (
        *("camembert", "distilbert", "gpt_oss", "granite", "granitemoe", "modernbert", "olmo", "olmo2", "olmo3"),
        *("olmoe", "phi3", "phimoe", "qwen2_moe", "qwen3_moe", "smollm3", "starcoder2", "vit"),
    )
)

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e\+?[0-9]{1,3})?)\s*([kmbgt]?)", re.IGNORECASE)
_SCALE = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


@dataclass(frozen=True)
class Workload:
    """A training job.

    Attributes:
        parameters: parameters of the model; None if the job was measured.
        active_parameters: of a model with experts, those that one token passes through; None for all.
        experts_per_token: of each layer of a model with experts; None takes `USUAL_EXPERTS`.
        tokens: tokens to train on, all epochs together.
        samples: samples to train on, all epochs together; for a transformer, `sequence_length` tokens each.
        flops_per_sample: floating-point operations of one forward pass over one sample, if it is not a transformer.
        activation_bytes_per_sample: what a forward pass in fp32 keeps of one sample for the backward pass; None
            estimates it, for other models than transformers by the rule of thumb `ACTIVATION_BYTES_PER_FLOP`.
        sequence_length: tokens of one sample.
        batch: samples that one GPU takes through the model at once; None takes as many as fit.
        steps: optimizer steps, if the number is fixed, as by a global batch; None for one after each `batch`.
        precision: `auto` (bf16 where it exists, else fp16, else fp32) or one of the three.
        optimizer: a key of `OPTIMIZER_BYTES`.
        lora_rank: rank of the LoRA adapters; None trains all parameters.
        lora_targets: the layers that have one: `all-linear`, or empty for those that peft names for the family, mostly
            projections of the attention.
        quantize_base: `nf4` if the frozen linear layers are held in four bits; empty for 16, or 32 in fp32.
        frozen_parameters: those of `parameters` that a trial has counted as frozen.
        nf4_parameters: those of them that it held in four bits.
        layers: transformer layers; None estimates them.
        hidden_size: width of the model; None estimates it.
        attention_size: width of queries and keys together: all heads, with those of keys, times the width of one; None
            takes a Llama's.
        vocabulary: size of the vocabulary; 0 for a model without one, such as one of images.
        tied: whether the head that predicts words shares the weights of their table.
        encoder: whether the model reads words and predicts none, so that it has no head and no logits.
        family: of the model, `model_type` in its config.json; empty if it is not known.
        recompute: whether activations are recomputed in the backward pass (activation checkpointing); None to do so if
            needed.
        ema: whether a moving average of the weights is kept.
        selective: whether recomputation leaves out attention and every second matrix multiplication.
        measured_on: specification that a trial ran on, e.g. `l4:1`.
        measured_samples_per_second: throughput of that trial, all its GPUs together.
        measured_memory_gb: peak memory of one GPU in that trial, GB.
    """

    parameters: float | None = None
    active_parameters: float | None = None
    experts_per_token: int | None = None
    tokens: float | None = None
    samples: float | None = None
    flops_per_sample: float | None = None
    activation_bytes_per_sample: float | None = None
    sequence_length: int = 2048
    batch: int | None = None
    steps: float | None = None
    precision: str = "auto"
    optimizer: str = "adamw"
    lora_rank: int | None = None
    lora_targets: str = ""
    quantize_base: str = ""
    frozen_parameters: float | None = None
    nf4_parameters: float | None = None
    layers: int | None = None
    hidden_size: int | None = None
    attention_size: int | None = None
    vocabulary: int = 32_000
    tied: bool = False
    encoder: bool = False
    family: str = ""
    recompute: bool | None = None
    selective: bool = False
    ema: bool = False
    measured_on: str | None = None
    measured_samples_per_second: float | None = None
    measured_memory_gb: float | None = None

    def __post_init__(self) -> None:
        problems = _problems(self)
        if problems:
            raise UserError.of_all(problems)

    @property
    def is_measured(self) -> bool:
        """Whether time and memory are projected from a trial run rather than estimated."""
        return self.measured_on is not None

    @property
    def is_transformer(self) -> bool:
        """Whether operations and activations follow from parameters, layers and width."""
        return self.flops_per_sample is None

    @property
    def used_parameters(self) -> float:
        """Parameters that one token passes through: all, or with experts those of its own."""
        return self.active_parameters or self.parameters or 0.0

    @property
    def total_samples(self) -> float:
        """Samples to train on."""
        if self.samples is not None:
            return self.samples
        return (self.tokens or 0.0) / self.sequence_length

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and width, estimated if they are not given.

        A transformer has about 12 · layers · width² parameters (Kaplan et al. 2020, arXiv:2001.08361, 2.1); if both
        are open, the width is taken as 128 times the number of layers, as in models of 7 and 13 billion parameters.
        """
        parameters = self.used_parameters
        if self.layers and self.hidden_size:
            return self.layers, self.hidden_size
        if self.layers:
            return self.layers, max(1, round(math.sqrt(parameters / (12 * self.layers))))
        if self.hidden_size:
            return max(1, round(parameters / (12 * self.hidden_size**2))), self.hidden_size
        layers = max(1, round((parameters / (12 * 128**2)) ** (1 / 3)))
        return layers, max(1, round(math.sqrt(parameters / (12 * layers))))

    @property
    def table(self) -> float:
        """Parameters of the table of words, and of a head."""
        return float(self.shape[1] * self.vocabulary if self.is_transformer else 0)

    @property
    def outer_parameters(self) -> float:
        """Parameters of table and head together, which are in no layer."""
        return self.table * (1 if self.tied or self.encoder else 2)

    @property
    def predicts_words(self) -> bool:
        """Whether it is a language model, which has logits."""
        return self.vocabulary > 0 and not self.encoder

    @property
    def trained_parameters(self) -> float:
        """Parameters that the optimizer changes: all, or those of the LoRA adapters.

        An adapter of rank r on a matrix of m rows and n columns has (m + n) · r (Hu et al. 2021, arXiv:2106.09685,
        4.2). Those of all linear layers are on the matrices of the MLP, too, whose other side is as long as the
        parameters of a layer leave: with a gate three of them, of d · f.
        """
        if self.lora_rank is None:
            return (self.parameters or 0.0) - (self.frozen_parameters or 0.0)
        layers, width = self.shape
        sides = 2.0 * LORA_MATRICES
        if self.adapts_all and not self.active_parameters:
            in_layer = (self.used_parameters - self.outer_parameters) / layers / width**2
            sides += MATRICES_OF_MLP + max(in_layer - LORA_MATRICES, 0.0)
        return sides * layers * width * self.lora_rank

    @property
    def adapts_some(self) -> bool:
        """Whether there are adapters, and linear layers without one: those keep nothing of their inputs."""
        return self.lora_rank is not None and not self.adapts_all

    @property
    def adapts_all(self) -> bool:
        """Whether every linear layer has an adapter; the experts of a model are none."""
        named = self.lora_targets == ALL_LINEAR or self.family in WITHOUT_USUAL_TARGETS
        return self.lora_rank is not None and named

    def to_json(self) -> dict[str, Any]:
        """The workload as a JSON object, with what was derived."""
        layers, width = self.shape
        derived = {"layers": layers, "hidden_size": width, "trained_parameters": self.trained_parameters}
        return {**vars(self), **({} if self.is_measured else derived), "total_samples": self.total_samples}


def parse_quantity(text: str, what: str) -> float:
    """`7b`, `1.5T`, `300m` or `2e12` as a number.

    Args:
        text: the user's text.
        what: what it is of, for the message.

    Raises:
        UserError: it is not one.
    """
    match = _QUANTITY.fullmatch(text.strip()[:40])
    if match is None:
        raise UserError(f"{text[:40]!r} is not a number of {what}.", "Write it as 7b, 1.5t, 300m or 2e12.")
    return float(match[1]) * _SCALE[match[2].lower()]


def _problems(workload: Workload) -> list[str]:
    problems = []
    for name, value in vars(workload).items():
        # A vocabulary of 0 is allowed: it leaves the logits out. So is a trial that has frozen nothing.
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        least = 0 if name in ("vocabulary", "frozen_parameters", "nf4_parameters") else math.nextafter(0, 1)
        if not (math.isfinite(value) and least <= value <= 1e24):
            problems.append(f"{name.replace('_', ' ')} is {value:g}; it must be a positive number.")
    if workload.precision not in PRECISIONS:
        problems.append(f"There is no precision {workload.precision!r}. Valid: {', '.join(PRECISIONS)}.")
    if workload.optimizer not in OPTIMIZER_BYTES:
        problems.append(f"There is no optimizer {workload.optimizer!r} here. Valid: {', '.join(OPTIMIZER_BYTES)}.")
    if workload.quantize_base not in QUANTIZED:
        problems.append(f"There is no quantize base {workload.quantize_base[:40]!r} here. Valid: nf4, or leave it out.")
    elif workload.quantize_base and workload.lora_rank is None:
        problems.append(
            f"The base is {workload.quantize_base}, and no weights are frozen: give a LoRA rank, such as 16."
        )
    if workload.lora_targets and workload.lora_rank is None:
        problems.append("LoRA targets are given, and no rank. Give a LoRA rank, such as 16.")
    if workload.lora_targets not in ("", ALL_LINEAR):
        problems.append(
            f"The LoRA targets are {workload.lora_targets[:40]!r}. Valid here: {ALL_LINEAR}, or leave it out."
        )
    if workload.tokens is None and workload.samples is None:
        problems.append("How much to train on is not given: give tokens or samples.")
    if workload.active_parameters and workload.active_parameters > (workload.parameters or 0.0):
        whole = workload.parameters or 0.0
        problems.append(f"Active parameters are {workload.active_parameters:g}, more than the {whole:g} of the model.")
    if workload.experts_per_token and not workload.active_parameters:
        problems.append(
            f"{workload.experts_per_token:g} experts for each token are given, and not how many parameters those are: "
            "give the active parameters."
        )
    if workload.is_measured:
        if workload.measured_samples_per_second is None:
            problems.append("A measured job needs its samples per second.")
    elif workload.parameters is None:
        problems.append("The size of the model is not given: give model or parameters, or what a trial measured.")
    return problems
