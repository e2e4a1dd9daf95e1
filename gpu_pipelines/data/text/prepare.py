"""Prepares texts: reads, checks, splits, tokenizes and writes them in the dataset format."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.dataset import SPLITS, DatasetWriter, Feature
from gpu_pipelines.artifacts.remote_files import fetched_folder, is_remote
from gpu_pipelines.data.preparation import Preparation
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.source_check import require_usable_source
from gpu_pipelines.data.sources.files import Source
from gpu_pipelines.data.sources.listing import shown_path
from gpu_pipelines.data.sources.row_streams import Meter
from gpu_pipelines.data.splits.content_split import content_number
from gpu_pipelines.data.splits.near_duplicates import Signer
from gpu_pipelines.data.splits.record_index import Entry
from gpu_pipelines.data.splits.split_assignments import SplitAssignment, SplitAssignments
from gpu_pipelines.data.text.packing import PackedRows, Packer, packed_features, packed_rows
from gpu_pipelines.data.text.sources import Text, TextRecord, text_columns, text_records, text_source
from gpu_pipelines.data.text.survey import Survey, survey
from gpu_pipelines.data.text.work import ClassifiedWork, PackedWork, RowForm, TextRows, UsableText
from gpu_pipelines.data.units.parallel import batches, in_processes
from gpu_pipelines.data.units.progress import Progress
from gpu_pipelines.data.units.replicas import Replicas
from gpu_pipelines.data.units.source_shards import SourceShard
from gpu_pipelines.data.units.units import Group, Sizes, Units, UnitWriters, candidates, leave_out
from gpu_pipelines.data.usable import require_labels, require_labels_of_test, require_rows
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.text_encoding import TextEncoder, texts_of
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer

CHOSEN_LENGTH = {"text_classification": 128, "causal_lm": 512}
TOKENIZER = "tokenizer"
# A batch is what a process gets at once: so many records, or characters of them.
RECORDS_AT_ONCE = 2000
CHARACTERS_AT_ONCE = 1 << 20


class TextPreparation(Preparation[Survey]):
    """Texts of a classifier or of a language model.

    Args:
        settings: what to read and how; already checked.
        scratch: an empty directory.

    Raises:
        UserError: the source does not exist or has no texts.
    """

    def __init__(self, settings: PrepareSettings, scratch: Path) -> None:
        self.settings = settings
        self._classifies = settings.task == "text_classification"
        self.source = self._found(settings, scratch / "source")
        self.test_source = self._found(settings.of_test_source(), scratch / "test") if settings.test_source else None
        if self.test_source and self.test_source.columns != self.source.columns:
            raise UserError(
                f"test_source has the texts in {', '.join(self.test_source.columns)}, and source in "
                f"{', '.join(self.source.columns)}.",
                "Give both in the same form.",
            )

    def _found(self, settings: PrepareSettings, scratch: Path) -> Source:
        found = text_source(settings, scratch)
        require_usable_source(found, settings)
        # Told by the first file, and the same for all.
        return found if self._classifies else replace(found, columns=text_columns(found, settings))

    def survey(self, share: Source, replicas: Replicas) -> Survey:
        if self._classifies or self.settings.tokenizer == "train":
            return survey(share, self.settings, share.columns, replicas.check)
        # Only the beginning of the source matters, whoever has it.
        return (
            survey(self.source, self.settings, self.source.columns, replicas.check) if replicas.is_rank_0 else Survey()
        )

    def survey_of_test(self, share: Source, replicas: Replicas) -> Survey:
        # No tokenizer is trained on its texts.
        settings = replace(self.settings.of_test_source(), tokenizer="none is trained")
        return survey(share, settings, share.columns, replicas.check)

    def save_survey(self, found: Survey, folder: Path) -> dict[str, Any]:
        return found.save(folder)

    def join_surveys(self, saved: list[tuple[Path, Mapping[str, Any]]]) -> Survey:
        return Survey.joined([Survey.read(folder, said) for folder, said in saved])

    def plan(self, found: Survey, of_test: Survey | None, folder: Path) -> dict[str, Any]:
        settings = self.settings
        if not found.rows:
            raise UserError(f"The source {settings.source} holds no texts.")
        labels = require_labels(found.labels, settings, found.problems) if self._classifies else []
        if of_test and self._classifies:
            require_labels_of_test(of_test.labels, labels, settings)
        length = settings.sequence_length or CHOSEN_LENGTH[settings.task]
        encoder = _encoder(settings, found)
        if (found.has_chats or (of_test and of_test.has_chats)) and encoder.add_plain_chat_template():
            print("the tokenizer has no chat template; a plain one is saved with it", flush=True)
        encoder.save(folder / TOKENIZER, length)
        return {"labels": labels, "length": length}

    def records(self, source: Source, meter: Meter) -> Iterator[TextRecord]:
        return text_records(source, self.settings, meter, source.columns)

    def entries(self, shard: SourceShard, replicas: Replicas) -> Iterator[Entry]:
        meter = Meter(shard.source)
        progress = Progress("looking for duplicates", meter)
        seed, waiting = self.settings.split_seed, deque[Entry]()

        def usable() -> Iterator[tuple[Entry, str]]:
            for position, record in enumerate(self.records(shard.source, meter)):
                progress.advance()
                replicas.check()
                if not record.problem:
                    content = content_number(record.content, seed)
                    text = "\n".join(texts_of(record.text)) if self.settings.near_duplicates else ""
                    yield Entry(position, content, record.label, record.source), text

        if not self.settings.near_duplicates:
            yield from (entry for entry, _ in usable())
            return

        def texts() -> Iterator[list[str]]:
            for batch in batches(usable(), RECORDS_AT_ONCE, CHARACTERS_AT_ONCE, lambda item: len(item[1])):
                waiting.extend(entry for entry, _ in batch)
                yield [text for _, text in batch]

        for signatures in in_processes(Signer, (), texts()):
            for signature in signatures:
                yield waiting.popleft()._replace(signature=signature)

    def sizes(self, plan: Mapping[str, Any], unit_weight: int) -> Sizes[TextRecord]:
        return Sizes(lambda record: _size(record.text), RECORDS_AT_ONCE, CHARACTERS_AT_ONCE, unit_weight)

    def form(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        length = plan["length"]
        features = _classified_features(length) if self._classifies else packed_features(length)
        return {
            "task": self.settings.task,
            "source": shown_path(self.settings.source),
            "features": features,
            "labels": plan["labels"],
            "preprocessing": {
                "sequence_length": length,
                "packing": self.settings.packing and not self._classifies,
            },
            "packed": not self._classifies,
            "slice_by": self.settings.slice_by,
            "rows_per_shard": self.settings.rows_per_shard(features),
        }

    def tokenizer(self, folder: Path) -> Path:
        return folder / TOKENIZER

    def write(
        self,
        plan: Mapping[str, Any],
        folder: Path,
        units: Units[TextRecord],
        writers: UnitWriters,
        assignments: SplitAssignments,
    ) -> Iterator[None]:
        tokenizer = folder / TOKENIZER
        form = RowForm(plan["length"], TextTokenizer.read(tokenizer).padding, several=self.settings.packing)
        sorter = _Sorter(plan["labels"], self.settings.split_seed, assignments)
        progress = Progress("preparing", units.meter)
        work = ClassifiedWork if self._classifies else PackedWork
        done = in_processes(work, (tokenizer, form), sorter.texts(units.groups()))
        rows, cut = _UnitRows(form), 0
        for made in done:
            sorted_group = sorter.waiting.popleft()
            rows.write(sorted_group, made, writers)
            cut += made.cut
            progress.advance(len(sorted_group.group.items))
            yield
        if cut:
            print(f"{cut:,} texts fill sequence_length={form.length}; what goes beyond is cut off", flush=True)


def _encoder(settings: PrepareSettings, found: Survey) -> TextEncoder:
    if settings.tokenizer != "train":
        place = settings.tokenizer
        return TextEncoder.load(str(fetched_folder(place)) if is_remote(place) else place)
    texts = list(found.training)
    if not texts:
        require_rows(found.problems, settings)
        raise UserError(f"No row of {settings.source} is left for training a tokenizer.", "Add rows.")
    print(f"training a tokenizer on {len(texts):,} {'' if found.training.is_all else 'of the '}texts", flush=True)
    return TextEncoder.train(texts, settings.vocabulary_size, ends=settings.task == "text_classification")


def _classified_features(length: int) -> dict[str, Feature]:
    return {"input_ids": Feature("int32", (length,)), "length": Feature("int32"), "label": Feature("int32")}


def _size(text: Text) -> int:
    if isinstance(text, str):
        return len(text)
    return sum(len(part) if isinstance(part, str) else len(part["content"]) for part in text)


@dataclass
class _Sorted:
    """A group of records while its usable ones become tokens: what is left out of it."""

    group: Group[TextRecord]
    rejected: list[TextRecord] = field(default_factory=list)
    left_out: list[tuple[str, SplitAssignment]] = field(default_factory=list)
    conflicts: list[tuple[str, str, str]] = field(default_factory=list)


class _Sorter:
    """Sorts out what is not used of groups of records; the rest is given on.

    Args:
        labels: class names.
        seed: of the split.
        assignments: on the usable records.

    Attributes:
        waiting: the groups whose texts have been given on and not come back yet.
    """

    def __init__(self, labels: list[str], seed: int, assignments: SplitAssignments) -> None:
        self._index = {label: number for number, label in enumerate(labels)}
        self._seed = seed
        self._assignments = assignments
        self.waiting: deque[_Sorted] = deque()

    def texts(self, groups: Iterator[Group[TextRecord]]) -> Iterator[list[UsableText]]:
        """For each group its texts that go into the dataset."""
        for group in groups:
            self.waiting.append(_Sorted(group))
            yield self._usable(group, self.waiting[-1])

    def _usable(self, group: Group[TextRecord], sorted_group: _Sorted) -> list[UsableText]:
        good: list[TextRecord] = []
        known: list[tuple[int, int, str]] = []
        for place, record in enumerate(group.items):
            if record.problem:
                sorted_group.rejected.append(record)
                continue
            content = content_number(record.content, self._seed)
            good.append(record)
            known.append((place, content, record.label))
        texts = []
        assignments = self._assignments.of(group.unit.shard, candidates(group, known))
        for record, assignment in zip(good, assignments, strict=True):
            if not assignment.split:
                sorted_group.left_out.append((record.source, assignment))
                continue
            if assignment.other_label:
                sorted_group.conflicts.append((record.source, record.label, assignment.other_label))
            label = self._index.get(record.label, 0)
            texts.append(UsableText(assignment.split, record.source, record.text, label, record.slice_value))
        return texts


class _UnitRows:
    """Writes the rows of units; what does not fill a row is packed with that of other batches of the same unit."""

    def __init__(self, form: RowForm) -> None:
        self._form = form
        self._begin()

    def _begin(self) -> None:
        self._packers = {split: Packer(self._form.length, self._form.several) for split in SPLITS}

    def write(self, sorted_group: _Sorted, made: TextRows, writers: UnitWriters) -> None:
        """Writes what became of a group of records."""
        unit = sorted_group.group.unit
        writer = writers.of(unit)
        for record in sorted_group.rejected:
            assert record.problem
            writer.reject(record.source, *record.problem)
        for source, assignment in sorted_group.left_out:
            leave_out(assignment, source, writer)
        for conflict in sorted_group.conflicts:
            writer.note_label_conflict(*conflict)
        for source, problem in made.rejected:
            writer.reject(source, *problem)
        for split, rows in made.rows.items():
            _write(writer, split, rows)
        for split, pieces in made.rest.items():
            full = [row for piece in pieces for row in self._packers[split].place(piece)]
            if full:
                _write(writer, split, packed_rows(full, self._form.length, self._form.padding))
        if sorted_group.group.ends:
            self._end(writer)
            writers.finish(unit)

    def _end(self, writer: DatasetWriter) -> None:
        for split, packer in self._packers.items():
            if rest := packer.rest():
                _write(writer, split, packed_rows(rest, self._form.length, self._form.padding))
        self._begin()


def _write(writer: DatasetWriter, split: str, rows: PackedRows) -> None:
    writer.add_rows(split, rows.sources, rows.columns, sum(rows.records), rows.slice_values)
