"""Prepares texts: reads, checks, splits, tokenizes and writes them in the dataset format."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gpu_pipelines.artifacts.dataset import SPLITS, DatasetWriter, Feature, Manifest
from gpu_pipelines.components.data_prep.content_split import split_of
from gpu_pipelines.components.data_prep.packing import PackedRow, Packer, packed_features
from gpu_pipelines.components.data_prep.row_streams import Meter
from gpu_pipelines.components.data_prep.settings import PrepareSettings
from gpu_pipelines.components.data_prep.text_sources import TextRecord, text_records, text_source
from gpu_pipelines.components.data_prep.usable import require_labels, require_usable
from gpu_pipelines.errors import UserError
from gpu_pipelines.recipes.text_encoding import CannotEncodeError, Encoded, TextEncoder, texts_of
from gpu_pipelines.recipes.text_tokenizer import TextTokenizer

CHOSEN_LENGTH = {"text_classification": 128, "causal_lm": 512}
TOKENIZER = "tokenizer"
RECORDS_AT_ONCE = 1000


def prepare_text(settings: PrepareSettings, directory: Path, scratch: Path) -> Manifest:
    """Prepares the dataset of a text task.

    Args:
        settings: what to read and how; already checked.
        directory: where the dataset goes.
        scratch: an empty directory.

    Raises:
        UserError: the source has no usable rows, the tokenizer cannot be had, or a split or class would be empty.
    """
    source = text_source(settings, scratch)
    records = list(text_records(source, settings, Meter(source)))
    labels = require_labels(records, settings) if settings.task == "text_classification" else []
    splits = [
        split_of(record.content, settings.val_fraction, settings.test_fraction, settings.split_seed)
        for record in records
    ]
    length = settings.sequence_length or CHOSEN_LENGTH[settings.task]
    encoder = _encoder(settings, [r for r, split in zip(records, splits, strict=True) if split == "train"])
    if any(isinstance(record.text, list) for record in records) and encoder.add_plain_chat_template():
        print("the tokenizer has no chat template; a plain one is saved with it", flush=True)
    shutil.rmtree(directory / TOKENIZER, ignore_errors=True)
    encoder.save(directory / TOKENIZER, length)
    classifies = bool(labels)
    with DatasetWriter(
        directory,
        task=settings.task,
        source=settings.source,
        features=_classified_features(length) if classifies else packed_features(length),
        labels=labels,
        preprocessing={"sequence_length": length, "packing": settings.packing and not classifies},
        tokenizer=TOKENIZER,
        packed=not classifies,
    ) as writer:
        padding = TextTokenizer.read(directory / TOKENIZER).padding
        if classifies:
            _write_classified(records, splits, labels, encoder, length, padding, writer)
        else:
            _write_packed(records, splits, encoder, Packing(length, settings.packing, padding), writer)
        return writer.finish(check=lambda manifest: require_usable(manifest, settings))


class Packing:
    """How rows of a language model are filled: their length, whether with several documents, and the padding token."""

    def __init__(self, length: int, several: bool, padding: int) -> None:
        self.length = length
        self.several = several
        self.padding = padding


def _encoder(settings: PrepareSettings, training: list[TextRecord]) -> TextEncoder:
    if settings.tokenizer != "train":
        return TextEncoder.load(settings.tokenizer)
    texts = texts_of(record.text for record in training if not record.problem)
    if not texts:
        raise UserError(f"No row of {settings.source} is left for training a tokenizer.", "Add rows.")
    print(f"training a tokenizer on {len(texts):,} texts", flush=True)
    return TextEncoder.train(texts, settings.vocabulary_size, ends=settings.task == "text_classification")


def _classified_features(length: int) -> dict[str, Feature]:
    return {"input_ids": Feature("int32", (length,)), "length": Feature("int32"), "label": Feature("int32")}


def _usable(records: list[TextRecord], splits: list[str], writer: DatasetWriter) -> Iterator[tuple[TextRecord, str]]:
    for record, split in zip(records, splits, strict=True):
        if record.problem:
            writer.reject(record.source, *record.problem)
        else:
            yield record, split


def _write_classified(
    records: list[TextRecord],
    splits: list[str],
    labels: list[str],
    encoder: TextEncoder,
    length: int,
    padding: int,
    writer: DatasetWriter,
) -> None:
    index = {label: number for number, label in enumerate(labels)}
    usable = list(_usable(records, splits, writer))
    filled = 0
    for start in range(0, len(usable), RECORDS_AT_ONCE):
        some = usable[start : start + RECORDS_AT_ONCE]
        encoded = encoder.classified([str(record.text) for record, _ in some], length)
        for (record, split), tokens in zip(some, encoded, strict=True):
            row = np.full(length, padding, dtype=np.int32)
            row[: len(tokens)] = tokens
            filled += len(tokens) == length
            writer.add(split, record.source, {"input_ids": row, "length": len(tokens), "label": index[record.label]})
    if filled:
        print(f"{filled:,} texts fill sequence_length={length}; what goes beyond is cut off", flush=True)


def _write_packed(
    records: list[TextRecord], splits: list[str], encoder: TextEncoder, packing: Packing, writer: DatasetWriter
) -> None:
    packers = {split: Packer(packing.length, packing.several) for split in SPLITS}

    def write(split: str, rows: list[PackedRow]) -> None:
        for row in rows:
            writer.add(split, row.source, row.features(packing.padding), row.records)

    for record, split in _usable(records, splits, writer):
        try:
            encoded = _encoded(record, encoder)
        except CannotEncodeError as error:
            writer.reject(record.source, "chat cannot be rendered", str(error))
            continue
        if not isinstance(record.text, str) and len(encoded.tokens) > packing.length:
            # Cut, an answer would lose its prompt or its end, and the model would learn to ramble.
            detail = f"{len(encoded.tokens):,} tokens"
            writer.reject(record.source, "longer than sequence_length", detail)
        elif not encoded.targets[1:].any():
            writer.reject(record.source, "nothing to predict", f"{len(encoded.tokens)} tokens")
        else:
            write(split, packers[split].add(encoded.tokens, encoded.targets, record.source))
    for split, packer in packers.items():
        write(split, packer.rest())


def _encoded(record: TextRecord, encoder: TextEncoder) -> Encoded:
    if isinstance(record.text, str):
        return encoder.document(record.text)
    return encoder.chat(record.text) if isinstance(record.text, list) else encoder.completion(*record.text)
