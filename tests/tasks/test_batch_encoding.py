"""Texts to tokens in batches: whatever the tokenizer, and whichever library does it, the same as tokenizers gives."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from gpu_pipelines.tasks.batch_encoding import BatchEncoder

SPECIAL = ["<unk>", "<bos>", "<eos>"]
# How Llama 3 splits texts, https://huggingface.co/meta-llama/Meta-Llama-3-8B/blob/main/tokenizer.json.
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
ODD = [
    "<eos>",
    "<end>",
    "'s",
    "'LL",
    "'\u017f",
    "e\u0301",
    "\r\n",
    "\t",
    "\x85",
    "\xa0",
    "\u2028",
    "\u200b",
    "\0",
    "\x1c",
]


def any_text(generator: random.Random) -> str:
    """Up to 200 characters: spaces, ASCII, all of Unicode, and what splitters stumble over."""
    kinds: list[Callable[[], str]] = [
        lambda: " ",
        lambda: chr(generator.randrange(32, 127)),
        lambda: chr(generator.randrange(0xA0, 0x3000)),
        lambda: chr(generator.choice((generator.randrange(0x3000, 0xD800), generator.randrange(0xE000, 0x110000)))),
        lambda: generator.choice(ODD),
    ]
    return "".join(generator.choice(kinds)() for _ in range(generator.randrange(200)))


TEXTS = [any_text(random.Random(number)) for number in range(400)] + ["the cat and the dog " * 50, "x" * 3000]


def byte_level(end: bool = True, split: Any = None, normalizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split is not None:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens(["<end>"])
    if end:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
        )
    return tokenizer


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=1000, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


#: Tokenizers, and whether they are known to the faster library.
FORMS: dict[str, tuple[Callable[[], Tokenizer], bool]] = {
    "GPT-2": (lambda: byte_level(end=False), True),
    "begin and end": (byte_level, True),
    "Llama 3": (lambda: byte_level(split=pre_tokenizers.Split(Regex(LLAMA_3), "isolated")), True),
    "composed": (lambda: byte_level(normalizer=normalizers.NFC()), True),
    "lower case": (lambda: byte_level(normalizer=normalizers.Lowercase()), True),
    "compatible": (lambda: byte_level(normalizer=normalizers.NFKC()), False),
    "WordPiece": (word_piece, False),
}


@pytest.mark.parametrize("form", FORMS)
def test_tokens_are_those_of_tokenizers(form: str, tmp_path: Path) -> None:
    make, is_known = FORMS[form]
    usual = make()
    usual.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": "<bos>", "eos_token": "<eos>", "truncation_side": "left" if is_known else "right"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    usual.encode_special_tokens = True
    encoder = BatchEncoder(tmp_path)
    assert (encoder._fast is not None) == is_known
    ends = usual.post_processor is not None
    for text, document in zip(TEXTS, encoder.documents(TEXTS), strict=True):
        tokens = usual.encode(text).ids
        assert document.tokens.tolist() == (tokens if ends else [*tokens, 2])
        assert document.tokens.dtype == np.int32
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    for (prompt, answer), made in zip(pairs, encoder.completions(pairs), strict=True):
        opening, rest = usual.encode(prompt).ids, usual.encode(answer, add_special_tokens=False).ids
        opening = opening[:-1] if ends else opening
        assert made.tokens.tolist() == [*opening, *rest, 2]
        assert made.targets.tolist() == [0] * len(opening) + [1] * (len(rest) + 1)
    usual.enable_truncation(16, direction=str(config["truncation_side"]))
    cut = [usual.encode(text).ids for text in TEXTS]
    assert [tokens.tolist() for tokens in encoder.classified(TEXTS, 16)] == cut
    assert len(encoder.documents(["x y " * 100])[0].tokens) > 100, "nothing is cut afterwards"
    assert encoder.documents([]) == []
