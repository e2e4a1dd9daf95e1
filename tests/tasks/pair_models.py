"""Small models for pairs of texts, each of an architecture with a tokenizer as the pretrained ones of it have."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

_BERT = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
_ROBERTA = {
    **{f"{name}_token": f"<{name}>" for name in ("pad", "unk", "mask")},
    "bos_token": "<s>",
    "cls_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
}
_XLNET = {**{f"{name}_token": f"<{name}>" for name in ("pad", "unk", "mask", "cls", "sep")}, "eos_token": "</s>"}
_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
_DEBERTA = {
    **_SIZES,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["p2c", "c2p"],
}
_DISTILBERT = {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 64}


def _word_pieces(texts: Sequence[str]) -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = list(_BERT.values())
    made.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    )
    made.post_processor = processors.BertProcessing(*(_numbered(made, token) for token in ("[SEP]", "[CLS]")))
    made.decoder = decoders.WordPiece()
    return made


def _bytes(texts: Sequence[str], special: list[str]) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=letters, show_progress=False)
    made.train_from_iterator(texts, trainer)
    return made


def _roberta(texts: Sequence[str]) -> Tokenizer:
    made = _bytes(texts, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    ends = (_numbered(made, token) for token in ("</s>", "<s>"))
    made.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    return made


def _gpt2(texts: Sequence[str]) -> Tokenizer:
    return _bytes(texts, ["<|endoftext|>"])


def _pieces(texts: Sequence[str], special: list[str], unknown: str) -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.train_from_iterator(
        texts, trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token=unknown, show_progress=False)
    )
    return made


def _unigram(texts: Sequence[str]) -> Tokenizer:
    made = _pieces(texts, ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"], "[UNK]")
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[_numbered(made, token) for token in ("[CLS]", "[SEP]")],
    )
    return made


def _xlnet(texts: Sequence[str]) -> Tokenizer:
    special = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    made = _pieces(texts, special, "<unk>")
    made.post_processor = processors.TemplateProcessing(
        single="$A <sep> <cls>:2",
        pair="$A <sep> $B:1 <sep>:1 <cls>:2",
        special_tokens=[_numbered(made, token) for token in ("<sep>", "<cls>")],
    )
    return made


def _numbered(tokenizer: Tokenizer, token: str) -> tuple[str, int]:
    return token, tokenizer.token_to_id(token)


class Family(NamedTuple):
    """How a model and its tokenizer are made."""

    tokenizer: Callable[[Sequence[str]], Tokenizer]
    special: dict[str, str]
    tokenizer_class: str
    sizes: dict[str, Any]


FAMILIES = {
    "bert": Family(_word_pieces, _BERT, "BertTokenizer", _SIZES),
    "electra": Family(_word_pieces, _BERT, "ElectraTokenizer", {**_SIZES, "embedding_size": 16}),
    "distilbert": Family(_word_pieces, _BERT, "DistilBertTokenizer", _DISTILBERT),
    "roberta": Family(_roberta, _ROBERTA, "RobertaTokenizer", {**_SIZES, "type_vocab_size": 1, "pad_token_id": 1}),
    "deberta-v2": Family(_unigram, _BERT, "DebertaV2Tokenizer", _DEBERTA),
    "albert": Family(_unigram, _BERT, "AlbertTokenizer", {**_SIZES, "embedding_size": 16}),
    "modernbert": Family(_word_pieces, _BERT, "PreTrainedTokenizerFast", {**_SIZES, "pad_token_id": 0}),
    "xlnet": Family(_xlnet, _XLNET, "XLNetTokenizer", {"d_model": 32, "d_inner": 48, "n_layer": 2, "n_head": 2}),
    "gpt2": Family(
        _gpt2,
        {"eos_token": "<|endoftext|>"},
        "GPT2Tokenizer",
        {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
    ),
}


def pretrained(family: str, texts: Sequence[str], directory: Path) -> Path:
    """A model of a family in Hugging Face layout, whose weights are random; its tokenizer knows the texts."""
    made = FAMILIES[family]
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made.tokenizer(texts), **made.special)
    tokenizer.save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": made.tokenizer_class}))
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, vocab_size=len(tokenizer), num_labels=3, **made.sizes)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(directory)
    return directory
