"""The size of a Hugging Face model from its config.json alone; neither weights nor transformers are needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.errors import UserError

#: Families by how the MLP of their layers is made: of three matrices, of two, or of experts with three each.
_GATED = frozenset(
    (
        *("gemma", "gemma2", "gemma3_text", "granite", "llama", "mistral", "modernbert"),
        *("olmo", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "smollm3"),
    )
)
_PLAIN = frozenset(
    (
        *("bert", "camembert", "deberta-v2", "distilbert", "gpt2", "gpt_neox", "opt", "phi", "roberta"),
        *("starcoder2", "vit", "xlm-roberta"),
    )
)
_OF_EXPERTS = frozenset(("gpt_oss", "granitemoe", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"))
#: Families that predict no words, and those that read images.
_ENCODERS = frozenset(("bert", "camembert", "deberta-v2", "distilbert", "modernbert", "roberta", "xlm-roberta"))
_OF_IMAGES = frozenset(("vit",))
#: Families that learn a row for each position, and those of them whose first two rows are not for tokens.
_WITH_POSITIONS = _ENCODERS - {"deberta-v2", "modernbert"} | {"gpt2", "opt"}
_BEHIND_PADDING = frozenset(("camembert", "roberta", "xlm-roberta"))
#: Families whose head is the table if the config.json does not say.
_TIED = frozenset(("gemma", "gemma2", "gemma3_text", "gpt2", "opt", "smollm3", "starcoder2"))
#: Other names for a number in some families.
_NAMES = {
    "hidden_size": ("n_embd", "dim"),
    "num_hidden_layers": ("n_layer", "n_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "intermediate_size": ("n_inner", "ffn_dim", "hidden_dim"),
    "max_position_embeddings": ("n_positions",),
    "num_local_experts": ("num_experts",),
}
#: Tokens of a row if nothing limits them, as in a `Workload`.
_USUAL_LENGTH = 2048


def fields_of_config(config: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Fields of a `Workload` from a config.json.

    Parameters are those of matrices and tables, without norms and biases, which are less than a hundredth.

    Args:
        config: the config.json.
        model: what the user called the model.

    Raises:
        UserError: the model is of a family that is not counted here, or the config.json lacks a number.
    """
    family = str(config.get("model_type", ""))
    if family not in _GATED | _PLAIN | _OF_EXPERTS:
        raise UserError(
            f"The model {model} is of the family {family[:40]!r}, whose parameters cannot be counted from its "
            "config.json.",
            "Give --parameters, --layers, --hidden-size and --vocabulary instead of --model, and with experts "
            "--active-parameters and --experts-per-token. "
            f"Families that can be counted: {', '.join(sorted(_GATED | _PLAIN | _OF_EXPERTS))}.",
        )
    numbers = _Numbers(config, model)
    layers, width = numbers["num_hidden_layers"], numbers["hidden_size"]
    fields: dict[str, Any] = {"family": family, "layers": layers, "hidden_size": width}
    if family in _OF_IMAGES:
        patch, tokens = numbers["patch_size"], (numbers["image_size"] // numbers["patch_size"]) ** 2 + 1
        outside = (numbers["num_channels"] * patch**2 + tokens) * width
        fields |= {"vocabulary": 0, "sequence_length": tokens}
    else:
        words, longest = numbers["vocab_size"], numbers.get("max_position_embeddings", _USUAL_LENGTH)
        is_encoder = family in _ENCODERS
        is_tied = not is_encoder and bool(config.get("tie_word_embeddings", family in _TIED))
        outside = words * width * (1 if is_encoder or is_tied else 2) + _beside_the_table(family, numbers)
        longest -= 2 if family in _BEHIND_PADDING else 0
        fields |= {"vocabulary": words, "tied": is_tied, "encoder": is_encoder}
        fields["sequence_length"] = min(longest, _USUAL_LENGTH)
        if not is_encoder:
            fields["attention_size"] = numbers.attention_size
    whole, used = _of_all_layers(family, numbers)
    fields["parameters"] = outside + whole
    if used != whole:
        fields |= {"active_parameters": outside + used, "experts_per_token": numbers["num_experts_per_tok"]}
    return fields


class _Numbers:
    """The numbers of a config.json, by the names that most families use."""

    def __init__(self, config: Mapping[str, Any], model: str) -> None:
        self._config, self._model = config, model

    def get(self, name: str, otherwise: int) -> int:
        """A number, or `otherwise` if there is none."""
        for each in (name, *_NAMES.get(name, ())):
            value = self._config.get(each)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return otherwise

    def __getitem__(self, name: str) -> int:
        if found := self.get(name, 0):
            return found
        raise UserError(f"The config.json of {self._model} has no {name} that is a whole number above 0.")

    @property
    def attention_size(self) -> int:
        """Width of queries and keys together; outputs and values are as wide."""
        heads = self["num_attention_heads"]
        of_head = self.get("head_dim", self["hidden_size"] // heads)
        return of_head * (heads + self.get("num_key_value_heads", heads))

    def is_dense(self, layer: int) -> bool:
        """Whether a layer of a model with experts has none."""
        listed = self._config.get("mlp_only_layers") or ()
        return layer in listed or bool((layer + 1) % self.get("decoder_sparse_step", 1))

    def of_relative_positions(self, width: int) -> tuple[int, int]:
        """Parameters of DeBERTa's relative positions: of their table, and of each layer."""
        if not self._config.get("relative_attention"):
            return 0, 0
        rows = self.get("position_buckets", self.get("max_relative_positions", self["max_position_embeddings"]))
        kinds = self._config.get("pos_att_type") or ()
        kinds = kinds.split("|") if isinstance(kinds, str) else kinds
        return 2 * rows * width, 0 if self._config.get("share_att_key") else len(kinds) * width**2

    @property
    def learns_positions(self) -> bool:
        """Whether a DeBERTa has a row for each position."""
        return bool(self._config.get("position_biased_input", True))


def _beside_the_table(family: str, numbers: _Numbers) -> int:
    """Parameters of positions and of kinds of sentences, and of the layer that pools an encoder's outputs."""
    width, rows = numbers["hidden_size"], 0
    if family in _WITH_POSITIONS or (family == "deberta-v2" and numbers.learns_positions):
        rows = numbers["max_position_embeddings"]
    pooled = width**2 if family in _ENCODERS else 0
    return (rows + numbers.get("type_vocab_size", 0)) * width + pooled + numbers.of_relative_positions(width)[0]


def _of_all_layers(family: str, numbers: _Numbers) -> tuple[int, int]:
    """Parameters of all layers, and those of them that one token passes through."""
    layers, width = numbers["num_hidden_layers"], numbers["hidden_size"]
    attention = 2 * width * numbers.attention_size + numbers.of_relative_positions(width)[1]
    matrices = 2 if family in _PLAIN else 3
    if family not in _OF_EXPERTS:
        # GPT-2's default is four times the width.
        whole = layers * (attention + matrices * width * numbers.get("intermediate_size", 4 * width))
        return whole, whole
    experts, used = numbers["num_local_experts"], numbers["num_experts_per_tok"]
    dense = sum(numbers.is_dense(layer) for layer in range(layers))
    expert = matrices * width * numbers.get("moe_intermediate_size", numbers["intermediate_size"])
    shared = width * experts + matrices * width * numbers.get("shared_expert_intermediate_size", 0)
    alike = layers * attention + dense * matrices * width * numbers["intermediate_size"] + (layers - dense) * shared
    return alike + (layers - dense) * experts * expert, alike + (layers - dense) * used * expert
