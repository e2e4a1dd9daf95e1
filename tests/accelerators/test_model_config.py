"""The size of a model by its config.json, against what transformers builds of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from command_line import command

import gpu_pipelines
from gpu_pipelines.accelerators.model_config import _GATED, _OF_EXPERTS, _PLAIN, fields_of_config
from gpu_pipelines.accelerators.workload import Workload
from gpu_pipelines.errors import UserError

#: What the defaults of a family leave open.
OTHERWISE: dict[str, dict[str, Any]] = {
    "deberta-v2": {"relative_attention": True, "position_buckets": 256, "pos_att_type": ["p2c", "c2p"]},
    "qwen2_moe": {"mlp_only_layers": [1]},
    "qwen3_moe": {"decoder_sparse_step": 2},
}


def built(config: Any) -> Any:
    """The model of a family, without weights: of words, or for classification."""
    kinds = (transformers.AutoModelForCausalLM, transformers.AutoModelForImageClassification)
    family = config.model_type
    kind: Any = transformers.AutoModelForSequenceClassification
    if family == "vit":
        kind = kinds[1]
    elif not fields_of_config(config.to_dict(), family)["encoder"]:
        kind = kinds[0]
    with torch.device("meta"):
        return kind.from_config(config)


@pytest.mark.parametrize("family", sorted(_GATED | _PLAIN | _OF_EXPERTS))
def test_parameters_are_those_that_transformers_builds(family: str, tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(family, num_hidden_layers=4, **OTHERWISE.get(family, {}))
    config.save_pretrained(tmp_path)
    model = built(config)
    found = gpu_pipelines.workload_of_model(str(tmp_path), samples=1e6)
    assert found.parameters == pytest.approx(model.num_parameters(), rel=0.01)
    assert (found.layers, found.family) == (4, family)
    if found.predicts_words:
        tables = {id(each.weight): each.weight.numel() for each in (model.get_input_embeddings(), model.lm_head)}
        assert found.outer_parameters == sum(tables.values())
    else:
        assert found.encoder or found.vocabulary == 0


#: As they are on the hub: which names they have, and which they lack.
QWEN = {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864, "model_type": "qwen2"} | {
    "max_position_embeddings": 32_768,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": 151_936,
}
MIXTRAL = {"hidden_size": 4096, "intermediate_size": 14_336, "model_type": "mixtral", "num_attention_heads": 32} | {
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "tie_word_embeddings": False,
    "vocab_size": 32_000,
}
XLM_R = {"hidden_size": 768, "intermediate_size": 3072, "max_position_embeddings": 514, "model_type": "xlm-roberta"} | {
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 1,
    "vocab_size": 250_002,
}
VIT = {"hidden_size": 768, "intermediate_size": 3072, "image_size": 224, "patch_size": 16, "model_type": "vit"} | {
    "num_attention_heads": 12,
    "num_channels": 3,
    "num_hidden_layers": 12,
}


def told(place: Path, config: dict[str, Any]) -> str:
    (place / "config.json").write_text(json.dumps(config))
    return str(place)


@pytest.mark.parametrize(
    ("config", "by_hand"),
    [
        (
            QWEN,
            [
                *("--parameters", "493961216", "--vocabulary", "151936", "--layers", "24", "--hidden-size", "896"),
                *("--attention-size", "1024", "--tied"),
            ],
        ),
        (
            MIXTRAL,
            [
                *("--parameters", "46702526464", "--active-parameters", "12879659008", "--experts-per-token", "2"),
                *("--layers", "32", "--hidden-size", "4096", "--attention-size", "5120"),
            ],
        ),
        (
            XLM_R,
            [
                *("--parameters", "277921536", "--vocabulary", "250002", "--layers", "12", "--hidden-size", "768"),
                *("--encoder", "--sequence-length", "512"),
            ],
        ),
        (
            VIT,
            [
                *("--parameters", "85675776", "--vocabulary", "0", "--layers", "12", "--hidden-size", "768"),
                *("--sequence-length", "197"),
            ],
        ),
    ],
    ids=["tied", "experts", "encoder", "images"],
)
def test_a_model_gives_what_its_numbers_give(config: dict[str, Any], by_hand: list[str], tmp_path: Path) -> None:
    asked = ["accelerators", "advise", "--samples", "100k", "--lora-rank", "8", "--json"]
    by_name = json.loads(command(*asked, "--model", told(tmp_path, config)).out)
    numbers = json.loads(command(*asked, *by_hand, "--family", config["model_type"]).out)
    assert by_name == numbers
    assert by_name["options"]


def test_what_is_given_counts_and_not_the_config(tmp_path: Path) -> None:
    place = told(tmp_path, MIXTRAL)
    job = gpu_pipelines.workload_of_model(place, tokens=1e9, layers=5, sequence_length=512, experts_per_token=4)
    assert (job.layers, job.hidden_size, job.sequence_length, job.experts_per_token) == (5, 4096, 512, 4)
    done = command("accelerators", "advise", "--tokens", "1b", "--model", place, "--no-tied", "--layers", "5", "--json")
    assert json.loads(done.out)["workload"]["layers"] == 5


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (QWEN | {"model_type": "mamba"}, "is of the family 'mamba', whose parameters cannot be counted"),
        ({"hidden_size": 896}, "is of the family ''"),
        ({"model_type": "qwen2", "hidden_size": "wide"}, "has no num_hidden_layers that is a whole number above 0"),
    ],
)
def test_a_model_that_is_not_counted_is_refused(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    done = command("accelerators", "advise", "--tokens", "1b", "--model", told(tmp_path, config))
    assert (done.status, done.out) == (2, "")
    assert said in done.err
    if "family" in said:
        assert "Give --parameters, --layers" in done.err


@pytest.mark.parametrize("text", ["{", "[]", None])
def test_a_place_without_a_config_is_told(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json"):
        gpu_pipelines.workload_of_model(str(tmp_path), tokens=1e9)


def test_the_layers_of_a_tied_model_are_all_but_one_table() -> None:
    size = {"parameters": 494e6, "vocabulary": 151_936, "hidden_size": 896, "layers": 24, "tokens": 1e9}
    assert Workload(**size).outer_parameters == 2 * Workload(**size, tied=True).outer_parameters  # type: ignore[arg-type]
