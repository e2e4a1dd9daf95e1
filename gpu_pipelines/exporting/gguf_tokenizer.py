"""The tokenizer of a model in GGUF: tokens, merges, pre-tokenizer, special tokens, chat template."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.text_tokenizer import OTHER_TEMPLATES, TOKENIZER, load_tokenizer, named_token

_SPACE = "\u2581"
#: llama.cpp's names of the pre-tokenizers of byte-level tokenizers, by their regular expressions.
_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    rf"{_LETTERS}|\p{{N}}{{1,3}}|{_REST}": "llama-bpe",
    rf"{_LETTERS}|\p{{N}}|{_REST}": "qwen2",
}
#: The score of a token that no merge makes; it is never used.
_NO_MERGE = 0.0


@dataclass(frozen=True)
class GgufTokenizer:
    """A tokenizer in the terms of GGUF.

    Attributes:
        model: `gpt2`, which merges bytes, or `llama`, which merges characters like SentencePiece.
        split: the pre-tokenizer; `default` for none.
        tokens: the tokens, one for each row of the embeddings.
        kinds: GGUF's type of each token.
        merges: for `gpt2`, two tokens each with a space between them, the first to merge first.
        scores: for `llama`, one for each token, the highest to merge first.
        special: ids of special tokens: `bos`, `eos`, `unk`, `pad`.
        adds: whether `bos` and `eos` are put around a text.
        adds_space: whether a text gets a space before it.
        chat_templates: the templates by name, one of which is `default`; empty for none.
    """

    model: str
    split: str
    tokens: list[str]
    kinds: list[int]
    merges: list[str]
    scores: list[float]
    special: dict[str, int]
    adds: dict[str, bool]
    adds_space: bool
    chat_templates: dict[str, str]

    @classmethod
    def read(cls, directory: Path, rows: int) -> GgufTokenizer:
        """Reads the tokenizer of a model.

        Args:
            directory: the directory of the model.
            rows: the rows of its embeddings.

        Raises:
            UserError: GGUF has no such tokenizer, or it has more tokens than the model.
        """
        content = json.loads((directory / TOKENIZER).read_text(encoding="utf-8"))
        config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        tokenizer = load_tokenizer(directory)
        rules = content["model"]
        if rules.get("type") != "BPE":
            raise _unknown(f"it is {rules.get('type')}, not BPE")
        pairs = [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ", 1)) for pair in rules["merges"]]
        by_bytes = not rules.get("byte_fallback")
        tokens, kinds = _words(content, rows)
        names = {"bos": "bos", "eos": "eos", "pad": "pad"}
        special = {to: named_token(tokenizer, config, f"{name}_token") for to, name in names.items()}
        special["unk"] = rules["vocab"].get(rules.get("unk_token"))
        around = tokenizer.encode("a").ids
        return cls(
            model="gpt2" if by_bytes else "llama",
            split=_split(content) if by_bytes else "default",
            tokens=tokens,
            kinds=kinds,
            merges=[" ".join(pair) for pair in pairs] if by_bytes else [],
            scores=[] if by_bytes else _scores(tokens, pairs),
            special={name: number for name, number in special.items() if number is not None},
            adds={
                "bos": special["bos"] is not None and around[:1] == [special["bos"]],
                "eos": special["eos"] is not None and around[-1:] == [special["eos"]],
            },
            adds_space=not by_bytes and _adds_space(content),
            chat_templates=_chat_templates(directory, config),
        )

    def write(self, writer: Any) -> None:
        """Adds the tokenizer to a file."""
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.split)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.kinds)
        if self.merges:
            writer.add_token_merges(self.merges)
        if self.scores:
            writer.add_token_scores(self.scores)
        for name, number in self.special.items():
            getattr(writer, f"add_{name}_token_id")(number)
        writer.add_add_bos_token(self.adds["bos"])
        writer.add_add_eos_token(self.adds["eos"])
        if self.model == "llama":
            writer.add_add_space_prefix(self.adds_space)
        if self.chat_templates:
            writer.add_chat_template([{"name": name, "template": each} for name, each in self.chat_templates.items()])


def _words(content: dict[str, Any], rows: int) -> tuple[list[str], list[int]]:
    """The tokens by id, and the type of each; rows of the embeddings without a token get one of their own."""
    import gguf

    kinds = gguf.TokenType
    by_number = {number: word for word, number in content["model"]["vocab"].items()}
    kind_of = {number: kinds.BYTE if _is_byte(word) else kinds.NORMAL for number, word in by_number.items()}
    if content["model"].get("unk_token") in content["model"]["vocab"]:
        kind_of[content["model"]["vocab"][content["model"]["unk_token"]]] = kinds.UNKNOWN
    for added in content.get("added_tokens", []):
        by_number[added["id"]] = added["content"]
        if kind_of.get(added["id"]) != kinds.UNKNOWN:
            kind_of[added["id"]] = kinds.CONTROL if added["special"] else kinds.USER_DEFINED
    if max(by_number) >= rows:
        raise UserError(f"The tokenizer has {max(by_number) + 1:,} words, but the model has {rows:,}.")
    tokens = [by_number.get(number, f"[PAD{number}]") for number in range(rows)]
    return tokens, [int(kind_of.get(number, kinds.UNUSED)) for number in range(rows)]


def _is_byte(word: str) -> bool:
    return len(word) == 6 and word.startswith("<0x") and word.endswith(">")


def _scores(tokens: list[str], pairs: list[tuple[str, ...]]) -> list[float]:
    """The negative rank of the first merge that makes each token, so that SentencePiece merges in the same order."""
    rank: dict[str, int] = {}
    for number, pair in enumerate(pairs):
        rank.setdefault("".join(pair), number)
    return [-float(rank[token]) if token in rank else _NO_MERGE for token in tokens]


def _split(content: dict[str, Any]) -> str:
    """llama.cpp's name of the pre-tokenizer of a byte-level tokenizer.

    Raises:
        UserError: it has no name for it.
    """
    if content.get("normalizer") not in (None, {"type": "NFC"}):
        raise _unknown(f"it changes texts by {content['normalizer']['type']}")
    said = content.get("pre_tokenizer") or {}
    steps = said.get("pretokenizers", [said])
    kinds = [step.get("type") for step in steps]
    if kinds[-1:] == ["ByteLevel"] and not steps[-1].get("add_prefix_space"):
        own = steps[-1].get("use_regex", True)
        if kinds == ["ByteLevel"] and own:
            return "gpt-2"
        if kinds == ["Digits", "ByteLevel"] and own and steps[0].get("individual_digits"):
            return "smollm"
        if kinds == ["Split", "ByteLevel"] and not own:
            found = _SPLITS.get(steps[0].get("pattern", {}).get("Regex", ""))
            if found:
                return found
    raise _unknown("llama.cpp has no name for the way it splits texts")


def _adds_space(content: dict[str, Any]) -> bool:
    """Whether a text gets a space before it, by the normalizer or by the pre-tokenizer."""
    said = content.get("normalizer") or {}
    if {"type": "Prepend", "prepend": _SPACE} in said.get("normalizers", [said]):
        return True
    return (content.get("pre_tokenizer") or {}).get("prepend_scheme") in ("always", "first")


def _chat_templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    files = {path.stem: path for path in sorted(directory.glob(OTHER_TEMPLATES))}
    if (default := directory / "chat_template.jinja").is_file():
        files["default"] = default
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    held = config.get("chat_template") or []
    return {"default": held} if isinstance(held, str) else {each["name"]: each["template"] for each in held}


def _unknown(why: str) -> UserError:
    return UserError(f"The tokenizer of the model cannot be written as GGUF: {why}.", "Give --format onnx.")
