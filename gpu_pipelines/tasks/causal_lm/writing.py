"""Continues many texts at the same time, token by token, so that new ones can join between two tokens.

This is what vLLM calls continuous batching (after Orca, OSDI 2022), with the key-value cache that transformers' models
take everywhere. The continuous batching that transformers itself has pages its cache for CUDA.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from typing import Any, Protocol

import torch

#: Tokens that are written at least before new texts are let in: joining copies what is in the cache.
_TOKENS_BETWEEN_JOINS = 4
#: Tokens of prompts that are read between two such moments, at least those of one prompt: nobody waits long for them.
_PROMPT_TOKENS_AT_ONCE = 1024
#: What a generation_config.json may say without any effect on the most probable continuation.
_WITHOUT_EFFECT = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "transformers_version", "use_cache"),
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("max_length", "max_new_tokens", "cache_implementation", "return_dict_in_generate", "num_return_sequences"),
    *("output_attentions", "output_hidden_states", "output_logits", "output_scores", "_from_model_config"),
}


class Text:
    """A prompt and the text that is written after it.

    Args:
        prompt: its tokens.
        most: tokens that are written at most.

    Attributes:
        tokens: the prompt, and the tokens written so far.
        begun: where the written tokens begin.
        is_done: nothing more is written.
        cache: keys and values of each layer, of shape (1, heads, tokens but for the last, size); None before the prompt
            was read.
    """

    def __init__(self, prompt: list[int], most: int) -> None:
        self.tokens, self.begun, self.most = prompt, len(prompt), most
        self.is_done = False
        self.cache: list[tuple[torch.Tensor, torch.Tensor]] | None = None


class Writer(Protocol):
    """Writes the most probable continuation of texts: each token is the one with the highest score.

    Attributes:
        joins_rows: several texts take about as long as one.
    """

    joins_rows: bool

    def write(self, texts: Sequence[Text], others_wait: Callable[[], bool]) -> None:
        """Continues texts until one is done, or others wait. Without a gradient; in one thread.

        If it raises, each text is as it was, or a whole step further.
        """


def writer_of(
    model: Any, padding: int, ends: Collection[int] = (), prompt_tokens: int = _PROMPT_TOKENS_AT_ONCE
) -> Writer:
    """The way in which a model can continue texts.

    Args:
        model: of transformers.
        padding: a token that fills rows.
        ends: tokens that end a text besides those that the model names.
        prompt_tokens: how many of prompts are read before those are continued that were read, at least one prompt.
    """
    config = model.generation_config
    own = {name for name, value in config.to_diff_dict().items() if value is not None} - _WITHOUT_EFFECT
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    if own or not takes_positions or not _caches_keys_and_values(model):
        return GenerateWriter(model, padding, ends)
    return JoinedWriter(model, ends_of(model) | set(ends), prompt_tokens)


def ends_of(model: Any) -> set[int]:
    """The tokens that end a text, according to a model."""
    named = model.generation_config.eos_token_id
    return {*(named if isinstance(named, list) else [named])} - {None}


class GenerateWriter:
    """One text after the other, by the library: for a generation_config.json with rules, and other kinds of caches."""

    joins_rows = False

    def __init__(self, model: Any, padding: int, ends: Collection[int] = ()) -> None:
        self._model, self._padding = model, padding
        self._ends = {"eos_token_id": sorted(ends_of(model) | set(ends))} if ends else {}

    def write(self, texts: Sequence[Text], others_wait: Callable[[], bool]) -> None:
        text = texts[0]
        tokens = torch.tensor([text.tokens], device=self._model.device)
        written = self._model.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=text.most,
            do_sample=False,
            use_cache=True,
            pad_token_id=self._padding,
            **self._ends,
        )
        text.tokens, text.is_done = written[0].tolist(), True


class JoinedWriter:
    """All texts in one batch; each brings its own part of the cache and takes it away again."""

    joins_rows = True

    def __init__(self, model: Any, ends: set[int], prompt_tokens: int = _PROMPT_TOKENS_AT_ONCE) -> None:
        self._model, self._ends, self._prompt_tokens = model, ends, prompt_tokens
        takes = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._cache = _name_of_cache(model)

    def write(self, texts: Sequence[Text], others_wait: Callable[[], bool]) -> None:
        self._read_prompts([text for text in texts if text.cache is None])
        if any(text.is_done for text in texts):
            return
        going = [text for text in texts if text.cache is not None]
        lengths = [len(text.tokens) - 1 for text in going]
        width = max(lengths)
        cache = _stacked([text.cache or [] for text in going], width)
        mask = torch.zeros((len(going), width + 1), dtype=torch.long)
        for row, length in enumerate(lengths):
            mask[row, width - length :] = 1
        mask = mask.to(self._model.device)
        written = [text.tokens[-1:] for text in going]
        step, done = 0, False
        while not done and not (step >= _TOKENS_BETWEEN_JOINS and others_wait()):
            last = torch.tensor([tokens[-1:] for tokens in written], device=mask.device)
            positions = torch.tensor([[length + step] for length in lengths], device=mask.device)
            chosen = self._next_tokens(last, positions, mask, cache)
            for tokens, text, token in zip(written, going, chosen, strict=True):
                tokens.append(token)
                done = done or self._is_last(text, len(text.tokens) + len(tokens) - 1, token)
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            step += 1
        for row, (text, tokens) in enumerate(zip(going, written, strict=True)):
            text.tokens = text.tokens + tokens[1:]
            text.is_done = self._is_last(text, len(text.tokens), tokens[-1])
            text.cache = None if text.is_done else _row_of(cache, row, len(text.tokens) - 1)

    def _read_prompts(self, texts: Sequence[Text]) -> None:
        """Fills the caches of some texts and writes their first tokens; those of one length together, without padding.

        The others are read the next time, so that those that are being written do not wait for all of them.
        """
        left = self._prompt_tokens
        for length, same in groupby(sorted(texts, key=lambda text: text.begun), key=lambda text: text.begun):
            group = list(same)[: max(1, left // length)]
            cache = _new_cache()
            tokens = torch.tensor([text.tokens for text in group], device=self._model.device)
            positions = torch.arange(length, device=tokens.device).expand(len(group), -1)
            chosen = self._next_tokens(tokens, positions, torch.ones_like(tokens), cache)
            for row, (text, token) in enumerate(zip(group, chosen, strict=True)):
                text.tokens = [*text.tokens, token]
                text.is_done = self._is_last(text, length + 1, token)
                text.cache = _row_of(cache, row, length)
            left -= length * len(group)
            if left <= 0:
                return

    def _next_tokens(self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: Any) -> list[int]:
        outputs = self._model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            **{self._cache: cache},
            **self._last_only,
        )
        found: list[int] = outputs.logits[:, -1].argmax(dim=-1).tolist()
        return found

    def _is_last(self, text: Text, length: int, token: int) -> bool:
        return token in self._ends or length - text.begun >= text.most


def _name_of_cache(model: Any) -> str:
    """The argument that takes what a model keeps: transformers 5.24 has renamed it."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _new_cache() -> Any:
    from transformers import DynamicCache

    # Without a configuration it keeps all keys; models with a window hide those that are too far away.
    return DynamicCache()


def _stacked(caches: Sequence[Sequence[tuple[torch.Tensor, torch.Tensor]]], width: int) -> Any:
    """The caches of several texts in one, which ends with the last token of each; zeros stand before the shorter."""
    found = _new_cache()
    for number, parts in enumerate(zip(*caches, strict=True)):
        keys, values = (
            torch.cat([torch.nn.functional.pad(part[of], (0, 0, width - part[of].shape[2], 0)) for part in parts])
            for of in (0, 1)
        )
        found.update(keys, values, number)
    return found


def _row_of(cache: Any, row: int, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The last so many tokens of a row, as a copy, so that what they are taken from can go."""
    return [
        (layer.keys[row : row + 1, :, -length:].clone(), layer.values[row : row + 1, :, -length:].clone())
        for layer in cache.layers
    ]


def _caches_keys_and_values(model: Any) -> bool:
    """Whether all that the model keeps of a text is keys and values: tries it with one token."""
    from transformers.cache_utils import DynamicLayer

    cache = _new_cache()
    token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    try:
        with torch.inference_mode():
            model(input_ids=token, position_ids=token, use_cache=True, **{_name_of_cache(model): cache})
        layers = cache.layers
        return bool(layers) and all(type(layer) is DynamicLayer and layer.keys.shape[2] == 1 for layer in layers)
    except Exception:  # a model that takes no such cache raises whatever it likes
        return False
