"""How much memory of each GPU a training job needs, broken down; each formula with its source.

Everything is in GB of 10⁹ bytes; a GPU's nominal memory is taken as the same, which errs on the safe side by some
percent on the large ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_pipelines.accelerators.workload import BLOCK, OPTIMIZER_BYTES, USUAL_EXPERTS, Workload

#: Bytes of a trained weight and of its gradient: both stay in fp32 in every precision, because mixed precision is
#: autocast's (gpu_pipelines/training/model/precision.py).
BYTES_PER_WEIGHT, BYTES_PER_GRADIENT = 4, 4
#: Bytes by which the training engine chooses between DDP and FSDP: those of a trained parameter with AdamW.
BYTES_PER_TRAINED = BYTES_PER_WEIGHT + BYTES_PER_GRADIENT + OPTIMIZER_BYTES["adamw"]
#: Bytes of a frozen parameter, by the precision of the forward pass (gpu_pipelines/training/model/frozen_weights.py).
BYTES_PER_FROZEN = {"bf16": 2, "fp16": 2, "fp32": 4}
#: CUDA context, library workspaces and NCCL buffers, GB. An assumption.
RUNTIME_GB = 1.5
#: Most bytes in fp32 that a forward pass of another model than a transformer keeps for each operation: 0.0105 for
#: ResNet-50, 0.0123 for ConvNeXt-T and Swin-T; ViT-B/16 keeps 0.0035. `python benchmarks/activations.py` counts them.
ACTIVATION_BYTES_PER_FLOP = 0.0125
#: Bytes in 16 bits that a layer of an encoder keeps for each token and unit of its width, if attention scores are not
#: stored: 34 of ViT and BERT (34 by Korthikanti et al. 2022, arXiv:2205.05198, equation 2, too). The second number is
#: what stays if the layer is recomputed except attention and every second matrix multiplication; then what stays of any
#: layer if all of it is. Logits take 12.3 for each token and word: in 16 bits, in fp32, and their gradients.
#: tests/training/test_on_a_fake_cluster.py counts them.
KEPT_BY_ENCODERS, KEPT_OF_RECOMPUTED, KEPT_OF_LOGITS = (34, 16), 2, 12.3
#: The same of an encoder with adapters on queries and values, whose other layers keep no inputs: BERT and RoBERTa.
KEPT_BY_ENCODERS_BESIDE_ADAPTERS = 27
#: Width of queries and keys together, in parts of the model's, if it is not known: a Llama's, whose keys are a quarter.
USUAL_ATTENTION = 1.25
#: Parameters of a layer in parts of the square of the width, if the shape is estimated: a Llama's.
PARAMETERS_OF_LLAMAS = 13
#: The same as `KEPT_BY_ENCODERS` of language models whose MLP has no gate, and what stays beside adapters.
#: tests/training/test_language_model_memory.py counts them.
KEPT_WITHOUT_GATE = {
    "gpt2": ((60, 18), (50, 24)),
    "gpt_neox": ((36, 18), (24, 24)),
    "opt": ((28, 16), (26, 20)),
    "phi": ((54, 16), (52, 28)),
    "starcoder2": ((28, 14), (28, 24)),
}


@dataclass(frozen=True)
class Norms:
    """The norms of a layer of a language model, which keep in fp32 what they get.

    Attributes:
        count: norms of what is as wide as the model.
        scaled: bytes of what is multiplied by the weights of a norm, which is kept if those are trained.
        of_heads: whether queries and keys have norms, too.
    """

    count: int = 2
    scaled: int = 2
    of_heads: bool = False


#: Norms of families that have others than a Llama.
NORMS = {
    "gemma": Norms(scaled=4),
    "gemma3_text": Norms(count=4, scaled=4, of_heads=True),
    "olmo": Norms(scaled=0),
    "olmo2": Norms(scaled=4, of_heads=True),
    "olmo3": Norms(scaled=4, of_heads=True),
    "qwen3": Norms(of_heads=True),
}
#: Families in which one matrix gives queries, keys and values.
FUSED = frozenset(("gpt2", "gpt_neox", "phi3"))
#: Families that need a mask for packed rows on each device; the others attend by the lengths of the documents
#: (gpu_pipelines/tasks/packed_attention.py). Each layer has a copy, of 2 bytes for each pair of tokens.
MASKED = frozenset(("gemma", "gemma3_text", "gpt_neox", "olmo", "olmo3", "phi"))
#: What each layer keeps beside that where nothing is sharded. If all weights are trained, what goes from layer to layer
#: is in fp32, and so is what a norm scales. With adapters on all linear layers, attention's output has a copy. Each
#: linear layer has its own copy of its input in 16 bits, three more than sharded ones unless they are fused. The last
#: number is of adapters on some layers.
KEPT_OF_WHOLE, KEPT_OF_ALL_ADAPTERS, KEPT_OF_COPIES, KEPT_OF_SOME_ADAPTERS = 3, 2, 6, 2
#: Families that scale or cap what their head gives, so that all logits are made at once.
LOGITS_NOT_LAST = frozenset(("gemma2", "granite", "granitemoe"))
#: What one layer that is recomputed holds when its gradients are made, adapters or not, in parts of what it would keep
#: if all weights were trained: 1.2 of a Llama's by fake tensors.
HELD_BY_RECOMPUTED = 1.25
#: The same of a layer with experts: bytes; those for each expert of a token, which has a copy of its row and an output
#: of its own; and those for each of the layer's parameters that a token passes through, in parts of the square of the
#: width: an expert keeps four rows as wide as its three matrices, 8 / 3. Fitted to Mixtral, Qwen3-30B-A3B, OLMoE,
#: Qwen1.5-MoE and Granite 3. Recomputed it keeps the scores of the router, too.
KEPT_WITH_EXPERTS, KEPT_OF_RECOMPUTED_EXPERTS = (18, 5, 8 / 3), (12, 3)
#: The same beside adapters: frozen experts keep neither the copy of a row nor what their last matrix multiplies, and
#: frozen norms not what they scale.
KEPT_WITH_FROZEN_EXPERTS = (14, 3, 2)
#: Logits that a step makes at once, at most, where it has more (gpu_pipelines/tasks/causal_lm/chunked_loss.py): 128 MiB
#: in fp32. What each of them takes then; and each weight of a head that is trained: its gradient in fp32, and what a
#: chunk adds to that. Its copy in 16 bits is one of those of all weights, or gathered.
LOGITS_AT_ONCE, BYTES_IN_CHUNKS, BYTES_OF_TRAINED_HEAD = 1 << 25, 10, 4 + 2
#: Share of the weights whose moments are not in 8 bits if the width is not a multiple of a block: 0.79 of Qwen2.5 0.5B,
#: 0.76 of Gemma 3 1B. Rows of the rest are as long as the MLP is wide.
OUT_OF_8_BITS = 0.8
#: Bytes of a frozen weight in NF4: four bits, and an fp32 scale for each 64 (gpu_pipelines/tasks/nf4.py).
BYTES_IN_NF4 = 0.5 + 4 / 64
#: Bytes of the moving average of a weight, which is in fp32.
BYTES_OF_AVERAGE = 4
#: The part of a GPU's memory that a job can plan with; the rest goes to fragmentation and peaks. An assumption.
USABLE = 0.9
_PARTS = ("weights", "copies", "gradients", "optimizer", "average", "activations", "gathered", "runtime")


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of one GPU at the moment when it needs the most, GB.

    Attributes:
        parallelism: `ddp` (every GPU holds everything), `fsdp` (weights, gradients and optimizer are sharded over all)
            or `hsdp` (over those of a node).
        weights: all weights, frozen ones too.
        gradients: gradients of the trained parameters.
        optimizer: the optimizer's moments.
        activations: what the forward pass keeps for the backward pass.
        gathered: weights and gradients of the layers at work, whole, while the rest is sharded.
        average: the moving average of the weights.
        copies: the trained weights in 16 bits, if each GPU holds them whole.
        runtime: CUDA context, workspaces, NCCL.
    """

    parallelism: str
    weights: float
    gradients: float
    optimizer: float
    activations: float
    gathered: float
    average: float = 0.0
    copies: float = 0.0
    runtime: float = RUNTIME_GB

    @property
    def total(self) -> float:
        """All of it."""
        return sum(getattr(self, part) for part in _PARTS)

    def told(self) -> str:
        """The parts that are worth naming, GB."""
        return ", ".join(f"{part} {getattr(self, part):.1f}" for part in _PARTS if getattr(self, part) >= 0.05)


def estimate_memory(workload: Workload, precision: str, gpus: int, parallelism: str) -> MemoryEstimate:
    """The memory that one GPU needs.

    Weights, gradients and optimizer take 4 + 4 + 8 bytes for each trained parameter, because the engine keeps all of
    them in fp32 and casts where it computes: as many as the 2 + 2 + 12 of training with an fp32 copy. A frozen one
    takes 2 bytes in 16 bits, and 0.56 in NF4. Sharding divides all three by the number of GPUs (Rajbhandari et al.
    2020, ZeRO, arXiv:1910.02054, 3.1 and 5).

    Where nothing is sharded, autocast copies each trained weight to 16 bits once and keeps the copies to the end of the
    forward pass, when the activations are the most. DDP holds the gradients then, too: they are parts of its buckets.

    A sharded model is whole where it computes. It takes the most at one of five moments, whose parts are given: when
    the logits are there, with all activations; when the last layer but one computes, itself there twice, and the last
    one is gathered; when the backward pass begins, with those of all layers but one, which
    is whole in 16 bits, its gradient in fp32, and once more to be reduced; at its end, with all gradients, when one
    layer is so and the next unit, the embedding, is gathered; or, with adapters, whose gradients are few, when the
    first layer is recomputed and the embedding gathered.

    Args:
        workload: the job; not a measured one.
        precision: `bf16`, `fp16` or `fp32`.
        gpus: over which it is sharded: of all nodes together, or of one for `hsdp`.
        parallelism: `ddp`, `hsdp` or `fsdp`.
    """
    width = 4 if precision == "fp32" else 2
    shards = 1 if parallelism == "ddp" else gpus
    trained = workload.trained_parameters
    parts = {
        "weights": (_frozen_bytes(workload, precision) + trained * BYTES_PER_WEIGHT) / shards,
        "gradients": trained * BYTES_PER_GRADIENT / shards,
        "optimizer": _optimizer_bytes(workload) / shards,
        "average": trained * BYTES_OF_AVERAGE / shards if workload.ema else 0.0,
        "activations": activation_bytes(workload, width),
        "gathered": 0.0,
    }
    if parallelism == "ddp":
        if width < BYTES_PER_WEIGHT:
            # In a table that is no head, words are looked up in fp32.
            looked_up = 0.0 if workload.tied or workload.lora_rank is not None else workload.table
            parts["copies"] = max(trained - looked_up, 0.0) * width
            parts["activations"] += _kept_in_fp32(workload)
    else:
        parts |= _moment_of_the_most(workload, width, parts["gradients"])
    return MemoryEstimate(parallelism=parallelism, **{name: size / 1e9 for name, size in parts.items()})


def _optimizer_bytes(workload: Workload) -> float:
    """Bytes of the optimizer's moments; with Muon, which is only for matrices of hidden layers, some are AdamW's."""
    trained, left = workload.trained_parameters, 0.0
    if workload.optimizer == "adamw_8bit" and (workload.hidden_size or 0) % BLOCK:
        left = trained * OUT_OF_8_BITS
    if workload.optimizer == "muon" and workload.lora_rank is None:
        left = trained if workload.active_parameters else min(workload.outer_parameters, trained)
    return (trained - left) * OPTIMIZER_BYTES[workload.optimizer] + left * OPTIMIZER_BYTES["adamw"]


def _frozen_bytes(workload: Workload, precision: str) -> float:
    """Bytes of the weights that are not trained; in NF4 are those of the layers, not the table and the head."""
    frozen, in_nf4 = workload.frozen_parameters or 0.0, workload.nf4_parameters or 0.0
    if workload.lora_rank is not None:
        frozen = workload.parameters or 0.0
        in_nf4 = max(frozen - workload.outer_parameters, 0.0) if workload.quantize_base else 0.0
    return (frozen - in_nf4) * BYTES_PER_FROZEN[precision] + in_nf4 * BYTES_IN_NF4


def _logits(workload: Workload, tokens: float) -> float:
    """Bytes of the logits that exist at once, and of what is computed from them."""
    logits = tokens * workload.vocabulary if workload.predicts_words else 0.0
    if logits <= LOGITS_AT_ONCE or workload.family in LOGITS_NOT_LAST:
        return KEPT_OF_LOGITS * logits
    head = workload.table if workload.lora_rank is None else 0
    return BYTES_IN_CHUNKS * LOGITS_AT_ONCE + BYTES_OF_TRAINED_HEAD * head


def _moment_of_the_most(workload: Workload, width: int, gradients: float) -> dict[str, float]:
    """Bytes of the temporary parts of a sharded model, at the moment when their sum is the largest."""
    layers, _ = workload.shape
    parameters, trained, table = workload.parameters or 0.0, workload.trained_parameters, workload.table
    layer = max(parameters - workload.outer_parameters, 0.0) / layers
    share = min(1.0, trained / max(parameters, 1))
    gathered = BYTES_IN_NF4 if workload.quantize_base else width
    # Of a layer in four bits one matrix at a time is whole, the largest of which is about a quarter of it.
    held = gathered + width / 4 if workload.quantize_base else gathered
    # While the gradients of one layer are made, the next one is gathered; where gradients are few, that one counts.
    worked = held + 2 * BYTES_PER_GRADIENT * share + held * (1 - share)
    kept, again, logits = _kept(workload, width)
    # In the forward pass the parts of a unit stay beside it, as they came, until the next one is there: of a layer,
    # when the next is on its way; of the last one, mostly the head, to the end. A table that is the head, too, is in
    # the unit of the whole model, which stays gathered for all of the step.
    tied = table * width if workload.tied else 0.0
    has_head = workload.predicts_words and not workload.tied
    last = (table if has_head else layer) * width * (2 if has_head or workload.lora_rank is not None else 1)
    moments = (
        (kept + logits, 0.0, last + tied),
        (kept * (layers - 1) / layers, 0.0, layer * (held + 2 * gathered) + tied),
        (kept * (layers - 1) / layers + again, 0.0, layer * worked + tied),
        (0.0, gradients, max(layer * worked + table * width, table * worked)),
        (kept / layers + again, gradients, layer * held + table * width),
    )
    return dict(zip(("activations", "gradients", "gathered"), max(moments, key=sum), strict=True))


def host_memory_gb(workload: Workload) -> float:
    """The main memory that one machine needs before its GPUs have the model, GB.

    Rank 0 builds all of the model and sends each GPU its part: in fp32, or beside adapters in bf16, as large models are
    stored. A fifth is for the rest.

    Args:
        workload: the job; not a measured one.
    """
    in_bf16 = workload.lora_rank is not None and workload.precision != "fp32"
    return 1.2 * (workload.parameters or 0.0) * (2 if in_bf16 else BYTES_PER_WEIGHT) / 1e9


def activation_bytes(workload: Workload, width: int) -> float:
    """Bytes of activations of one GPU.

    Those of a transformer grow with the tokens of the batch: with the layers and their width, and with the vocabulary.
    The layer being recomputed is held whole, when the logits are gone. For other models, a trial has counted them, or
    the rule of thumb of `ACTIVATION_BYTES_PER_FLOP` gives a bound.
    """
    kept, again, logits = _kept(workload, width)
    return kept + max(again, logits)


def _kept(workload: Workload, width: int) -> tuple[float, float, float]:
    """Bytes between the passes, of a layer that is recomputed, and of the logits."""
    batch = workload.batch or 1
    counted = workload.activation_bytes_per_sample
    if counted is None and workload.flops_per_sample is not None:
        counted = workload.flops_per_sample * ACTIVATION_BYTES_PER_FLOP
    if counted is not None:
        return counted * batch * width / 4, 0.0, 0.0
    layers, hidden = workload.shape
    tokens = workload.sequence_length * batch
    unit, logits = tokens * hidden * width / 2, _logits(workload, tokens)
    whole, selective = _of_layer(workload)
    if not workload.recompute:
        return layers * whole * unit, 0.0, logits
    least = KEPT_OF_RECOMPUTED_EXPERTS[1] if workload.active_parameters else KEPT_OF_RECOMPUTED
    partly = selective if workload.selective else least
    again, _ = _of_layer(replace(workload, lora_rank=None, lora_targets="", quantize_base=""))
    return layers * partly * unit, HELD_BY_RECOMPUTED * again * unit, logits


def _kept_in_fp32(workload: Workload) -> float:
    """Bytes that layers keep where nothing is sharded, beside what they keep of weights in 16 bits."""
    if workload.activation_bytes_per_sample is not None or not workload.is_transformer:
        return 0.0
    layers, hidden = workload.shape
    copies = 0 if workload.family in FUSED else KEPT_OF_COPIES
    if workload.lora_rank is None:
        kept = KEPT_OF_RECOMPUTED if workload.recompute else KEPT_OF_WHOLE + copies
    elif workload.recompute:
        kept = 0
    else:
        kept = KEPT_OF_ALL_ADAPTERS + copies if workload.adapts_all else KEPT_OF_SOME_ADAPTERS
    return layers * kept * workload.sequence_length * (workload.batch or 1) * hidden


def _of_layer(workload: Workload) -> tuple[float, float]:
    """Bytes that a layer keeps for each token and unit of its width: of all it computes, and recomputed selectively."""
    layers, hidden = workload.shape
    has_shape = (workload.layers and workload.hidden_size) or workload.active_parameters
    in_layer = (workload.used_parameters - workload.outer_parameters) / layers
    used = in_layer / hidden**2 if has_shape else PARAMETERS_OF_LLAMAS
    if workload.active_parameters:
        of_layer, of_expert, of_parameter = (
            KEPT_WITH_EXPERTS if workload.lora_rank is None else KEPT_WITH_FROZEN_EXPERTS
        )
        experts = workload.experts_per_token or USUAL_EXPERTS
        return of_layer + of_expert * experts + of_parameter * used, KEPT_OF_RECOMPUTED_EXPERTS[0]
    if not workload.predicts_words:
        of_all = KEPT_BY_ENCODERS_BESIDE_ADAPTERS if workload.adapts_some else KEPT_BY_ENCODERS[0]
        return of_all, KEPT_BY_ENCODERS[1]
    mask = 2 * workload.sequence_length / hidden if workload.family in MASKED else 0.0
    if workload.family in KEPT_WITHOUT_GATE:
        trained, adapted = KEPT_WITHOUT_GATE[workload.family]
        of_all = (adapted if workload.adapts_some else trained)[0]
        return of_all + mask, (trained if workload.lora_rank is None else adapted)[1]
    kept, selective = _with_gate(workload, used)
    return kept + mask, selective


def _with_gate(workload: Workload, used: float) -> tuple[float, float]:
    """The same of a language model whose MLP has a gate, by what PyTorch saves.

    Queries, keys and values are kept, and the output of attention; of the MLP its gate before and after the activation,
    the other input of their product, and the product. Norms keep their input in fp32. An input of linear layers is kept
    if these are trained or have adapters. Of frozen layers without adapters neither that nor the product is; of norms
    not what they scale. If one matrix gives several of them, all of its output is kept for the last.

    Args:
        workload: the job.
        used: parameters of a layer, in parts of the square of the width.
    """
    norms, fused = NORMS.get(workload.family, Norms()), workload.family in FUSED
    heads = workload.attention_size / workload.shape[1] if workload.attention_size else USUAL_ATTENTION
    mlp = max(used - 2 * heads, 0.0) / 3
    normed = norms.count + heads * norms.of_heads
    kept = 4 * normed + 4 * heads + (2 * heads + 2) * fused
    # Every second multiplication is that of a base, or of the second matrix of an adapter.
    if workload.adapts_some:
        return kept + 2 + 6 * mlp, 5.6 * heads + 2 * mlp + 4
    if workload.adapts_all:
        return kept + 4 + 8 * mlp, 5.6 * heads + 4 * mlp * (1 + fused) + 6
    return kept + norms.scaled * normed + 4 + 8 * mlp, 3.6 * heads + 2 * mlp * (1 + fused) + 4
