"""The benchmark that measures what a training of a language model takes, on four layers of real width."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from gpu_pipelines.accelerators.memory_estimate import MASKED
from gpu_pipelines.accelerators.model_config import fields_of_config
from gpu_pipelines.accelerators.workload import Workload
from gpu_pipelines.tasks import packed_attention

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "training"))
from language_model_memory import JOBS, Job, measured

measured = cache(measured)
FOUR = {name: replace(job, layers=4) for name, job in JOBS.items()}
#: The usual GPUs' memory, less what CUDA takes and what is kept free, GB.
L4, H100 = 0.9 * 24 - 1.5, 0.9 * 80 - 1.5


@pytest.mark.slow_but_for(
    "8B, LoRA 16, one L4",
    "8B, LoRA 16, one H100, nothing recomputed",
    "8B, LoRA 16 on NF4, one L4",
    "8B, LoRA 16, 8 L4, nothing recomputed",
)
@pytest.mark.parametrize("name", JOBS)
def test_advise_says_what_a_step_takes_within_a_tenth(name: str) -> None:
    found = measured(FOUR[name])
    assert found["advise_gb"] == pytest.approx(found["peak_gb"], rel=0.1)


@dataclass(frozen=True)
class OfFamily(Job):
    """A training of a model of another family."""

    family: str = ""

    @classmethod
    def of_few_layers(cls, family: str, gpus: int, **how: Any) -> OfFamily:
        """With as few layers as tell: beside what is gathered for the next ones, those of shards have to weigh more."""
        return cls(4 if gpus == 1 else 8, 0, 0, 4096, gpus, family=family, **how)

    def configuration(self) -> Any:
        return AutoConfig.for_model(self.family, num_hidden_layers=self.layers, use_cache=False, **SHAPES[self.family])

    def workload(self) -> Workload:
        said = fields_of_config(self.configuration().to_dict(), self.family)
        how: dict[str, Any] = {"lora_rank": self.lora_rank or None, "lora_targets": self.lora_targets}
        how |= {"recompute": self.recompute, "selective": self.selective}
        return Workload(**{**said, **how, "sequence_length": self.tokens, "samples": 1e6, "batch": 1})


#: Of the config.json of Qwen2.5 1.5B, Qwen3 8B, OLMo 2 7B, Granite 3.3 8B, Phi-3 mini, SmolLM3 3B, Gemma 3 1B, GPT-2
#: XL, Pythia 6.9B, OLMo 7B, OPT 6.7B, Phi-2 and StarCoder2 7B. CPUs store the scores of attention that drops out.
SHAPES: dict[str, dict[str, Any]] = {
    "qwen2": {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2}
    | {"vocab_size": 151_936, "tie_word_embeddings": True},
    "qwen3": {"hidden_size": 4096, "intermediate_size": 12_288, "num_attention_heads": 32, "num_key_value_heads": 8}
    | {"vocab_size": 151_936, "head_dim": 128},
    "olmo2": {"hidden_size": 4096, "intermediate_size": 11_008, "vocab_size": 100_352},
    "granite": {"hidden_size": 4096, "intermediate_size": 12_800, "num_attention_heads": 32, "num_key_value_heads": 8}
    | {"vocab_size": 49_159, "logits_scaling": 16.0, "tie_word_embeddings": True},
    "phi3": {"hidden_size": 3072, "intermediate_size": 8192, "vocab_size": 32_064},
    "smollm3": {"hidden_size": 2048, "intermediate_size": 11_008, "num_attention_heads": 16, "num_key_value_heads": 4}
    | {"vocab_size": 128_256},
    "gemma3_text": {"hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4, "num_key_value_heads": 1}
    | {"vocab_size": 262_144, "head_dim": 256},
    "gpt2": {"n_embd": 1600, "n_head": 25, "n_positions": 4096, "attn_pdrop": 0.0},
    "gpt_neox": {"hidden_size": 4096, "intermediate_size": 16_384, "num_attention_heads": 32, "vocab_size": 50_432},
    "olmo": {"hidden_size": 4096, "intermediate_size": 11_008, "vocab_size": 50_304},
    "opt": {"hidden_size": 4096, "ffn_dim": 16_384, "num_attention_heads": 32, "vocab_size": 50_272}
    | {"word_embed_proj_dim": 4096, "max_position_embeddings": 4096},
    "phi": {"hidden_size": 2560, "intermediate_size": 10_240, "num_attention_heads": 32, "vocab_size": 51_200},
    "starcoder2": {"hidden_size": 4608, "intermediate_size": 18_432, "num_attention_heads": 36}
    | {"num_key_value_heads": 4, "vocab_size": 49_152},
}
SHAPES["olmo3"] = SHAPES["olmo2"]


@pytest.mark.slow_but_for("False-1-16")
@pytest.mark.parametrize(
    ("recompute", "gpus", "lora_rank"),
    [*((recompute, gpus, 16) for recompute in (False, True) for gpus in (1, 8)), (False, 1, 0), (False, 8, 0)],
)
def test_a_table_that_is_the_head_too_is_counted_once(gpus: int, recompute: bool, lora_rank: int) -> None:
    found = measured(OfFamily(4, 0, 0, 4096, gpus, lora_rank=lora_rank, recompute=recompute, family="qwen2"))
    assert found["advise_gb"] == pytest.approx(found["peak_gb"], rel=0.1)


@pytest.mark.slow_but_for("smollm3-16-1")
@pytest.mark.parametrize(
    ("family", "lora_rank", "gpus"),
    # Each fails without what is counted for the family: of others it is less than a tenth of all that is held.
    [
        *((family, 0, 8) for family in ("gemma3_text", "gpt2", "olmo", "olmo2", "olmo3", "opt", "phi", "qwen3")),
        *((family, 16, 1) for family in ("gemma3_text", "gpt2", "granite", "olmo", "olmo2", "phi", "phi3", "smollm3")),
        *((family, 16, 8) for family in ("gemma3_text", "gpt2", "olmo", "olmo2", "phi", "phi3", "qwen3", "smollm3")),
        *(("starcoder2", 16, gpus) for gpus in (1, 8)),
        # Of these it is that their MLP has no gate.
        *(("gpt_neox", lora_rank, 8) for lora_rank in (0, 16)),
        ("opt", 16, 8),
        ("starcoder2", 0, 8),
    ],
)
def test_what_layers_of_a_family_keep_is_counted(family: str, lora_rank: int, gpus: int) -> None:
    job = OfFamily.of_few_layers(family, gpus, lora_rank=lora_rank, recompute=False)
    if (family, lora_rank) == ("qwen3", 0):  # of shorter rows its layers keep too little beside the weights to tell
        job = replace(job, tokens=16_384)
    if (family, lora_rank) == ("gemma3_text", 0):  # beside its table few layers are too little
        job = replace(job, layers=26)
    found = measured(job)
    assert found["advise_gb"] == pytest.approx(found["peak_gb"], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt_neox", "olmo2", "phi", "phi3", "smollm3", "starcoder2"])
def test_what_layers_of_a_family_keep_beside_adapters_is_counted_if_they_are_recomputed_selectively(
    family: str,
) -> None:
    found = measured(OfFamily.of_few_layers(family, 8, lora_rank=16, selective=True))
    assert found["advise_gb"] == pytest.approx(found["peak_gb"], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "gpus"),
    [
        *((family, 1) for family in ("gemma3_text", "olmo2", "opt", "phi3", "qwen3", "starcoder2")),
        *((family, 8) for family in ("gemma3_text", "granite", "olmo2", "qwen3", "smollm3")),
    ],
)
def test_adapters_on_all_linear_layers_are_counted(family: str, gpus: int) -> None:
    job = OfFamily.of_few_layers(family, gpus, lora_rank=16, lora_targets="all-linear", recompute=False)
    found = measured(job)
    assert found["advise_gb"] == pytest.approx(found["peak_gb"], rel=0.1)


def test_a_mask_is_counted_for_families_that_do_not_attend_by_lengths() -> None:
    assert packed_attention._FAMILIES.isdisjoint(MASKED)


@pytest.mark.slow
def test_what_goes_between_layers_is_in_fp32_where_trained_weights_are_whole() -> None:
    # Most of what is held are weights, whatever the tokens.
    few, more = (measured(Job(4, 4096, 32, tokens, recompute=False)) for tokens in (1024, 2048))
    kept = {name: more[name] - few[name] for name in few}
    assert kept["advise_gb"] == pytest.approx(kept["peak_gb"], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "most"),
    [("8B, LoRA 16, one L4", L4), ("8B, LoRA 16 on NF4, one L4", 10.0), ("8B, all weights, 8 H100", H100)],
)
def test_whole_models_fit(name: str, most: float) -> None:
    assert measured(JOBS[name])["peak_gb"] <= most


def test_frozen_weights_in_fp32_and_all_logits_would_take_more_by_what_they_are() -> None:
    job = FOUR["8B, LoRA 16, one L4"]
    before = measured(replace(job, is_held=False))["peak_gb"]
    weights = job.workload().parameters
    logits = job.tokens * job.words
    assert weights is not None
    more = before - measured(job)["peak_gb"]
    # Two bytes of each weight; of each logit, in fp32 and its gradient at least.
    assert 2 * weights / 1e9 + 8 * logits / 1e9 < more < 2 * weights / 1e9 + 13 * logits / 1e9


@pytest.mark.slow
def test_the_benchmark_of_adapters_on_a_gpu_runs_on_a_small_shape() -> None:
    shape = "--device cpu --layers 2 --hidden 64 --tokens 64 --words 300 --steps 2 --rows 2"
    program = Path(__file__).parents[2] / "benchmarks" / "training" / "gpu_language.py"
    done = subprocess.run([sys.executable, program, *shape.split()], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert all(found["tokens_per_second"] > 0 for found in told["results"].values())
