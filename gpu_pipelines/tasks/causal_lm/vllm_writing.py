"""Writes text with vLLM, which keeps a GPU busier than the writer of this program, and takes minutes to begin."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.evaluation.generation.port import Written

#: Rules of a model's generation_config.json that change which token is the most probable one; vLLM has these three.
_RULES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


def written_by_vllm(
    model: Path, tokenizer: Path, prompts: Sequence[np.ndarray], most: int, ends: Collection[int]
) -> list[Written]:
    """The text that a model writes after prompts: the most probable token each time.

    Args:
        model: in Hugging Face layout.
        tokenizer: directory of the tokenizer of the prompts.
        prompts: tokens of each.
        most: most tokens to write for each; fewer if the model has no more room.
        ends: tokens that end a text, besides those that the model names.
    """
    from vllm import LLM, SamplingParams

    longest, named = _limits(model)
    ends = {*ends, *named}
    room = [max(0, min(most, longest - len(prompt))) for prompt in prompts]
    asked = [place for place, tokens in enumerate(room) if tokens]
    written = [Written((), False)] * len(prompts)
    if not asked:
        return written
    # For a context as long as the model's own there may not be the memory.
    needed = max(len(prompts[place]) + room[place] for place in asked)
    engine = LLM(model=str(model), tokenizer=str(tokenizer), max_model_len=needed, seed=0)
    rules = engine.get_default_sampling_params()
    kept = {name: getattr(rules, name) for name in _RULES}
    answers = engine.generate(
        [{"prompt_token_ids": prompts[place].tolist()} for place in asked],
        [SamplingParams(temperature=0, max_tokens=room[place], stop_token_ids=sorted(ends), **kept) for place in asked],
        use_tqdm=False,
    )
    for place, answer in zip(asked, answers, strict=True):
        written[place] = _written(answer.outputs[0], ends)
    return written


def _written(output: Any, ends: Collection[int]) -> Written:
    tokens = tuple(output.token_ids)
    # The token that ended it stands among them.
    return Written(tokens[:-1] if tokens and tokens[-1] in ends else tokens, output.finish_reason == "stop")


def _limits(model: Path) -> tuple[int, set[int]]:
    """The tokens that a model takes in all, and those that end a text by what it says."""
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(model, local_files_only=True)
    try:
        named = GenerationConfig.from_pretrained(model, local_files_only=True).eos_token_id
    except OSError:  # a model need not have one
        named = getattr(config, "eos_token_id", None)
    ends = {*(named if isinstance(named, list) else [named])} - {None}
    return getattr(config, "max_position_embeddings", None) or 2**31, ends
