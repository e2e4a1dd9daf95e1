"""Prepares texts: reads, checks, splits, tokenizes and writes them in the dataset format."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gpu_pipelines.artifacts.dataset import REJECTED, SPLITS, DatasetWriter, Feature, Manifest
from gpu_pipelines.artifacts.remote_files import fetched_folder, is_remote
from gpu_pipelines.components.data_prep.content_split import content_number, split_at
from gpu_pipelines.components.data_prep.duplicates import SeenRecords, record_number
from gpu_pipelines.components.data_prep.packing import PackedRows, Packer, packed_features, packed_rows
from gpu_pipelines.components.data_prep.parallel import batches, in_processes
from gpu_pipelines.components.data_prep.progress import Progress
from gpu_pipelines.components.data_prep.row_streams import Meter
from gpu_pipelines.components.data_prep.settings import PrepareSettings
from gpu_pipelines.components.data_prep.source_files import Source
from gpu_pipelines.components.data_prep.text_sources import TextRecord, text_records, text_source
from gpu_pipelines.components.data_prep.text_survey import Survey, survey
from gpu_pipelines.components.data_prep.text_work import ClassifiedWork, PackedWork, RowForm, TextRows, UsableText
from gpu_pipelines.components.data_prep.usable import require_labels, require_usable
from gpu_pipelines.errors import UserError
from gpu_pipelines.recipes.text_encoding import TextEncoder
from gpu_pipelines.recipes.text_tokenizer import TextTokenizer
from gpu_pipelines.sources.listing import shown_path

CHOSEN_LENGTH = {"text_classification": 128, "causal_lm": 512}
TOKENIZER = "tokenizer"
RECORDS_CHECKED_AT_ONCE = 1000
# A batch is what a process gets at once: so many records, or characters of them.
RECORDS_AT_ONCE = 2000
CHARACTERS_AT_ONCE = 1 << 20


def prepare_text(settings: PrepareSettings, directory: Path, scratch: Path, fingerprint: str = "") -> Manifest:
    """Prepares the dataset of a text task.

    Args:
        settings: what to read and how; already checked.
        directory: where the dataset goes.
        scratch: a directory with the empty directories `sample` and `seen`.
        fingerprint: of the source's files; empty if not known.

    Raises:
        UserError: the source has no usable rows, the tokenizer cannot be had, or a split or class would be empty.
    """
    source = text_source(settings, scratch / "sample")
    found = survey(source, settings)
    labels = require_labels(found.labels, settings) if settings.task == "text_classification" else []
    length = settings.sequence_length or CHOSEN_LENGTH[settings.task]
    encoder = _encoder(settings, found)
    if found.has_chats and encoder.add_plain_chat_template():
        print("the tokenizer has no chat template; a plain one is saved with it", flush=True)
    shutil.rmtree(directory / TOKENIZER, ignore_errors=True)
    encoder.save(directory / TOKENIZER, length)
    classifies = bool(labels)
    features = _classified_features(length) if classifies else packed_features(length)
    with DatasetWriter(
        directory,
        task=settings.task,
        source=shown_path(settings.source),
        features=features,
        labels=labels,
        preprocessing={"sequence_length": length, "packing": settings.packing and not classifies},
        tokenizer=TOKENIZER,
        packed=not classifies,
        slice_by=settings.slice_by,
        rows_per_shard=settings.rows_per_shard(features),
        source_fingerprint=fingerprint,
    ) as writer:
        padding = TextTokenizer.read(directory / TOKENIZER).padding
        form = RowForm(length, padding, several=settings.packing)
        reader = _Reader(source, settings, labels, writer, scratch)
        work = ClassifiedWork if classifies else PackedWork
        done = in_processes(work, (directory / TOKENIZER, form), reader.batches())
        _write(done, form, writer, reader.progress)
        return writer.finish(
            lambda manifest: require_usable(manifest, settings, [directory / REJECTED]), rows_read=reader.read
        )


def _encoder(settings: PrepareSettings, found: Survey) -> TextEncoder:
    if settings.tokenizer != "train":
        place = settings.tokenizer
        return TextEncoder.load(str(fetched_folder(place)) if is_remote(place) else place)
    texts = list(found.training)
    if not texts:
        raise UserError(f"No row of {settings.source} is left for training a tokenizer.", "Add rows.")
    print(f"training a tokenizer on {len(texts):,} {'' if found.training.is_all else 'of the '}texts", flush=True)
    return TextEncoder.train(texts, settings.vocabulary_size, ends=settings.task == "text_classification")


def _classified_features(length: int) -> dict[str, Feature]:
    return {"input_ids": Feature("int32", (length,)), "length": Feature("int32"), "label": Feature("int32")}


class _Reader:
    """The second pass: records are read and checked; those that are usable and new are given on in batches.

    Args:
        source: the files.
        settings: the split and the columns are read.
        labels: class names.
        writer: is told of rejected rows and duplicates.
        scratch: a directory for what does not fit into memory.

    Attributes:
        read: records so far.
        progress: of the whole preparation.
    """

    def __init__(
        self, source: Source, settings: PrepareSettings, labels: list[str], writer: DatasetWriter, scratch: Path
    ) -> None:
        self._meter = Meter(source)
        self._records = text_records(source, settings, self._meter)
        self._settings = settings
        self._index = {label: number for number, label in enumerate(labels)}
        self._writer = writer
        self._seen = SeenRecords(scratch / "seen")
        self.read = 0
        self.progress = Progress("preparing", self._meter)

    def batches(self) -> Iterator[list[UsableText]]:
        """Lists of records for one process."""
        return batches(self._usable(), RECORDS_AT_ONCE, CHARACTERS_AT_ONCE, _size)

    def _usable(self) -> Iterator[UsableText]:
        while some := list(islice(self._records, RECORDS_CHECKED_AT_ONCE)):
            self.read += len(some)
            good = []
            for record in some:
                if record.problem:
                    self._writer.reject(record.source, *record.problem)
                else:
                    good.append(record)
            yield from self._new(good)

    def _new(self, records: list[TextRecord]) -> Iterator[UsableText]:
        settings = self._settings
        contents = [content_number(record.content, settings.split_seed) for record in records]
        numbers = [record_number(c, record.label) for c, record in zip(contents, records, strict=True)]
        for record, content, is_new in zip(records, contents, self._seen.add(numbers), strict=True):
            if is_new or not settings.remove_duplicates:
                split = split_at(content, settings.val_fraction, settings.test_fraction)
                label = self._index.get(record.label, 0)
                yield UsableText(split, record.source, record.text, label, record.slice_value)
            else:
                self._writer.leave_out_duplicates()


def _size(record: UsableText) -> int:
    if isinstance(record.text, str):
        return len(record.text)
    return sum(len(part) if isinstance(part, str) else len(part["content"]) for part in record.text)


def _write(done: Iterator[TextRows], form: RowForm, writer: DatasetWriter, progress: Progress) -> None:
    packers = {split: Packer(form.length, form.several) for split in SPLITS}
    cut = 0

    def write(split: str, rows: PackedRows) -> None:
        writer.add_rows(split, rows.sources, rows.columns, sum(rows.records), rows.slice_values)

    for made in done:
        for source, problem in made.rejected:
            writer.reject(source, *problem)
        for split, rows in made.rows.items():
            write(split, rows)
        for split, pieces in made.rest.items():
            full = [row for piece in pieces for row in packers[split].place(piece)]
            if full:
                write(split, packed_rows(full, form.length, form.padding))
        cut += made.cut
        progress.advance(made.read)
    for split, packer in packers.items():
        if rest := packer.rest():
            write(split, packed_rows(rest, form.length, form.padding))
    if cut:
        print(f"{cut:,} texts fill sequence_length={form.length}; what goes beyond is cut off", flush=True)
