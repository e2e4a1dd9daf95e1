"""Many texts to tokens at once with a saved tokenizer; but for chats without transformers, which takes seconds.

fastokens encodes byte-level BPE, which nearly all language models have, tens of times as fast as tokenizers does. It
refuses a tokenizer that it does not know in full; that one, and one that it encodes differently, is left to tokenizers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from gpu_pipelines.tasks.text_encoding import Chat, Encoded, TextEncoder
from gpu_pipelines.tasks.text_tokenizer import TEXT_PAIR, TOKENIZER, load_tokenizer, named_token, special_tokens_of

#: The feature that a dataset of pairs has and no other, and the name of it as an input of models.
TYPE_IDS = "token_type_ids"
# Both libraries must give the same tokens for these: contractions, white space of all kinds, digits, letters of many
# scripts, marks, emoji, what Unicode folds or composes, control characters, words that no merge covers.
_PROBES = (
    "", " ", "  a", "a  b ", "\n\n a\r\n\tb \n", "I'm, we'LL; it's 'x' \u2019s '\u017f", "0 12 345 6789 1,234.5 ²³ ½ Ⅻ",
    "naïve café e\u0301 \ufb01 ǅ İ ß", "Ωμέγα Привет שלום سلام नमस्ते ไทย 한국어 日本語。",
    "🙂\U0001f469\u200d\U0001f467\U0001f3fd \u200b\u2028\ufeff\xa0\u3000\x85\x1c\0",
    "def f(x):\n    return {'a': x[0] ** 2}  # …\n", "qzxjkvqzxjkvbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb" * 20,
)  # fmt: skip


class TextRow(NamedTuple):
    """A text, or a pair of texts, as a model gets it.

    Attributes:
        tokens: int32.
        types: of a pair, which of the two texts each token belongs to, as the tokenizer has it; uint8.
    """

    tokens: np.ndarray
    types: np.ndarray | None = None


def columns_of_rows(rows: Sequence[TextRow], length: int, padding: int) -> dict[str, np.ndarray]:
    """Rows as a dataset has them: `input_ids`, their `length`, and of pairs `token_type_ids`.

    Args:
        rows: all of texts, or all of pairs.
        length: tokens of a row.
        padding: the token that fills it.
    """
    tokens = np.full((len(rows), length), padding, dtype=np.int32)
    types = np.zeros((len(rows), length), dtype=np.uint8)
    for place, row in enumerate(rows):
        tokens[place, : len(row.tokens)] = row.tokens
        if row.types is not None:
            types[place, : len(row.types)] = row.types
    found = {"input_ids": tokens, "length": np.array([len(row.tokens) for row in rows], dtype=np.int32)}
    return {**found, TYPE_IDS: types} if rows and rows[0].types is not None else found


def rows_in_columns(columns: Mapping[str, np.ndarray]) -> list[TextRow]:
    """What `columns_of_rows` was given."""
    types = columns.get(TYPE_IDS)
    return [
        TextRow(tokens[:length], None if types is None else types[place, :length])
        for place, (tokens, length) in enumerate(zip(columns["input_ids"], columns["length"], strict=True))
    ]


class BatchEncoder:
    """A tokenizer directory in Hugging Face layout, for encoding.

    Special tokens that stand in a text are text; those that begin and end one are added.

    Args:
        directory: as `TextEncoder.save` wrote it.

    Attributes:
        takes_pairs: whether it is for pairs of texts.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tokenizer = load_tokenizer(directory)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True
        self._config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        self.takes_pairs: bool = self._config.get(TEXT_PAIR, False)
        self._end = named_token(self._tokenizer, self._config, "eos_token")
        self._ends = {self._end, named_token(self._tokenizer, self._config, "sep_token")} - {None}
        self._chats: TextEncoder | None = None
        self._fast = self._load_fast()

    def classified(self, texts: Sequence[str], longest: int) -> list[np.ndarray]:
        """Tokens of each text with the tokenizer's own begin and end, cut to `longest`; int32."""
        encoder = self._fast or self._tokenizer
        encoder.enable_truncation(longest, direction=self._config.get("truncation_side", "right"))
        try:
            return self._tokens(texts)
        finally:
            encoder.no_truncation()

    def rows(self, texts: Sequence[str] | Sequence[tuple[str, str]], longest: int) -> list[TextRow]:
        """Texts, or pairs for a tokenizer that takes them, with the tokenizer's own form, cut to `longest`.

        Of a pair the longer text is cut, until both are of one length.
        """
        if not self.takes_pairs:
            return [TextRow(tokens) for tokens in self.classified(cast(Sequence[str], texts), longest)]
        direction = self._config.get("truncation_side", "right")
        self._tokenizer.enable_truncation(longest, strategy="longest_first", direction=direction)
        try:
            # fastokens has no pairs.
            found = self._tokenizer.encode_batch_fast(list(texts))
        finally:
            self._tokenizer.no_truncation()
        return [TextRow(np.array(each.ids, dtype=np.int32), np.array(each.type_ids, dtype=np.uint8)) for each in found]

    def documents(self, texts: Sequence[str]) -> list[Encoded]:
        """Texts that begin as the tokenizer begins texts and end with its end token; all of each is to be learned."""
        made = [self._opening(tokens) for tokens in self._tokens(texts)]
        if self._end is not None:
            made = [np.append(tokens, np.int32(self._end)) for tokens in made]
        return [Encoded(tokens, np.ones(len(tokens), dtype=np.uint8)) for tokens in made]

    def completions(self, pairs: Sequence[tuple[str, str]]) -> list[Encoded]:
        """Prompts and what follows them; the completion and the end token alone are to be learned.

        The two are encoded apart, because a model that is asked for a completion gets the prompt encoded alone.
        """
        prompts = self._tokens([prompt for prompt, _ in pairs])
        answers = self._tokens([answer for _, answer in pairs], add_special_tokens=False)
        closing = np.array([] if self._end is None else [self._end], dtype=np.int32)
        made = []
        for prompt, answer in zip(prompts, answers, strict=True):
            opening = self._opening(prompt)
            tokens = np.concatenate([opening, answer, closing])
            targets = np.ones(len(tokens), dtype=np.uint8)
            targets[: len(opening)] = 0
            made.append(Encoded(tokens, targets))
        return made

    def chat(self, chat: Chat) -> Encoded:
        """A conversation, as `TextEncoder.chat` encodes it.

        Raises:
            CannotEncodeError: the chat template refuses it, or its answers cannot be told from the rest.
        """
        return self._of_chats.chat(chat)

    def conversation(self, chat: Chat, *, asks: bool = False) -> np.ndarray:
        """The tokens of a conversation, as `TextEncoder.conversation` gives them.

        Raises:
            CannotEncodeError: the chat template refuses it.
        """
        return self._of_chats.conversation(chat, asks=asks)

    @property
    def has_chat_template(self) -> bool:
        """Whether it can encode conversations."""
        return bool(self._config.get("chat_template")) or (self._directory / "chat_template.jinja").is_file()

    @property
    def special_tokens(self) -> frozenset[int]:
        """The numbers of the tokens that are no text."""
        return special_tokens_of(self._tokenizer)

    @property
    def _of_chats(self) -> TextEncoder:
        if self._chats is None:
            self._chats = TextEncoder.load(str(self._directory))
        return self._chats

    def _opening(self, tokens: np.ndarray) -> np.ndarray:
        length = len(tokens)
        while length > 1 and tokens[length - 1] in self._ends:
            length -= 1
        return tokens[:length]

    def _tokens(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[np.ndarray]:
        return self._encoded(texts, add_special_tokens, self._fast)

    def _encoded(self, texts: Sequence[str], add_special_tokens: bool, fast: Any) -> list[np.ndarray]:
        """Tokens of each text, int32; by `fast`, or if that is None by tokenizers."""
        if fast is None:
            found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
            return [np.array(encoding.ids, dtype=np.int32) for encoding in found]
        tokens, bounds = fast.encode_batch_flat(
            list(texts), add_special_tokens=add_special_tokens, split_special_tokens=True
        )
        together = np.frombuffer(tokens, dtype="<u4").astype(np.int32)
        return [together[start:end] for start, end in pairwise(np.frombuffer(bounds, dtype="<u8").tolist())]

    def _load_fast(self) -> Any:
        """The same tokenizer in fastokens; None if it cannot load it or gives other tokens."""
        from fastokens import Tokenizer

        usual = self._probed(None)
        try:
            fast = Tokenizer.from_file(str(self._directory / TOKENIZER))
            fast.no_padding()
            fast.no_truncation()
            found = self._probed(fast)
        except Exception:  # a ValueError says what it does not support; what damage raises is not documented
            return None
        return fast if all(map(np.array_equal, found, usual)) else None

    def _probed(self, fast: Any) -> list[np.ndarray]:
        return [tokens for special in (True, False) for tokens in self._encoded(_PROBES, special, fast)]
