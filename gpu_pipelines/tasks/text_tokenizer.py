"""The tokenizer of a dataset: what a model has to know about it, read without torch or transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.errors import UserError

TOKENIZER = "tokenizer.json"
#: In tokenizer_config.json, of a tokenizer that is for pairs of texts; wherever the tokenizer goes it says so.
TEXT_PAIR = "text_pair"
#: Beside its default chat template a tokenizer may have others, such as one for chats with functions.
OTHER_TEMPLATES = "additional_chat_templates/*.jinja"
#: What a tokenizer in Hugging Face layout can consist of, as patterns; all of it is small.
TOKENIZER_FILES = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    OTHER_TEMPLATES,
)


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer directory in Hugging Face layout.

    Attributes:
        directory: where its files are.
        vocabulary_size: one more than the largest token.
        begin: token that begins a text, if it has one.
        end: token that ends a text, if it has one.
        padding: token that pads rows; if it has none, `end`, else 0. Masks decide, not this token.
        takes_pairs: whether it is for pairs of texts.
    """

    directory: Path
    vocabulary_size: int
    begin: int | None
    end: int | None
    padding: int
    takes_pairs: bool = False

    @classmethod
    def read(cls, directory: Path) -> TextTokenizer:
        """Reads tokenizer.json and tokenizer_config.json.

        Raises:
            UserError: they are missing or damaged.
        """
        try:
            tokenizer = load_tokenizer(directory)
            config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        except Exception as error:  # the library raises a bare Exception for all that can be wrong with the file
            raise UserError(f"The tokenizer {directory} cannot be read: {error}.") from None
        begin, end, padding, separator, first = (
            named_token(tokenizer, config, f"{name}_token") for name in ("bos", "eos", "pad", "sep", "cls")
        )
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        return cls(
            directory,
            vocabulary_size=max(vocabulary.values()) + 1,
            begin=begin if begin is not None else first,
            end=end if end is not None else separator,
            padding=next((token for token in (padding, end, separator) if token is not None), 0),
            takes_pairs=config.get(TEXT_PAIR, False),
        )

    def config(self) -> dict[str, int | None]:
        """The same in the terms of a model's config.json."""
        return {
            "vocab_size": self.vocabulary_size,
            "bos_token_id": self.begin,
            "eos_token_id": self.end,
            "pad_token_id": self.padding,
        }

    def copy_to(self, directory: Path) -> None:
        """Puts the tokenizer beside a model."""
        copy_files(TOKENIZER_FILES, self.directory, directory)


def load_tokenizer(directory: Path) -> Any:
    """The tokenizer of a directory, as one of the library `tokenizers`, whose bare errors are passed on."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(directory / TOKENIZER))


def copy_files(patterns: Iterable[str], directory: Path, to: Path, left_out: Container[str] = ()) -> None:
    """Copies files to the same places below another directory.

    Args:
        patterns: which, below `directory`.
        directory: where they are.
        to: where they go.
        left_out: names of those that stay.
    """
    for path in sorted({path for pattern in patterns for path in directory.glob(pattern)}):
        if path.is_file() and path.name not in left_out:
            place = to / path.relative_to(directory)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


def named_token(tokenizer: Any, config: dict[str, Any], name: str) -> int | None:
    """The number of a special token by its name in tokenizer_config.json, such as `eos_token`, if there is one."""
    named = config.get(name)
    text = named.get("content") if isinstance(named, dict) else named
    return tokenizer.token_to_id(text) if isinstance(text, str) else None


def special_tokens_of(tokenizer: Any) -> frozenset[int]:
    """The numbers of the tokens of a tokenizer of `tokenizers` that are not text."""
    return frozenset(n for n, token in tokenizer.get_added_tokens_decoder().items() if token.special)


def tokens_of(tokenizer_directory: Path) -> dict[int, str]:
    """The tokens by their numbers, the added ones too.

    Raises:
        UserError: the file is damaged.
    """
    try:
        tokenizer = load_tokenizer(tokenizer_directory)
    except Exception as error:  # the library raises a bare Exception for all that can be wrong with the file
        raise UserError(f"The tokenizer {tokenizer_directory} cannot be read: {error}.") from None
    return {number: token for token, number in tokenizer.get_vocab(with_added_tokens=True).items()}


def rules_of(tokenizer_directory: Path) -> dict[str, Any]:
    """The rules of a tokenizer: its file without the last settings for cutting and padding of batches."""
    content = json.loads((tokenizer_directory / TOKENIZER).read_text(encoding="utf-8"))
    return {name: value for name, value in content.items() if name not in ("padding", "truncation")}
