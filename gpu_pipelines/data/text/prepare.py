"""Prepares texts: reads, checks, splits, tokenizes and writes them in the dataset format."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.dataset import SPLITS, Feature
from gpu_pipelines.artifacts.dataset_writer import DatasetWriter
from gpu_pipelines.artifacts.remote_files import fetched_folder, is_remote
from gpu_pipelines.data.default_tokenizer import TRAIN
from gpu_pipelines.data.preparation import Preparation
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.row_streams import Meter
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.data.splits.content_split import content_number, split_at, split_number
from gpu_pipelines.data.splits.near_duplicates import Signer
from gpu_pipelines.data.splits.record_index import Entry
from gpu_pipelines.data.splits.split_assignments import SplitAssignment, SplitAssignments
from gpu_pipelines.data.text.packing import PackedRows, Packer, packed_rows
from gpu_pipelines.data.text.sources import Text, TextRecord
from gpu_pipelines.data.text.survey import Survey
from gpu_pipelines.data.text.work import RowForm, SingleTexts, TextRows, UsableText
from gpu_pipelines.data.units.host import Host
from gpu_pipelines.data.units.parallel import batches
from gpu_pipelines.data.units.progress import Progress
from gpu_pipelines.data.units.source_shards import SourceShard
from gpu_pipelines.data.units.units import Group, Sizes, UnitWriters, Writing, candidates, leave_out
from gpu_pipelines.data.usable import require_rows
from gpu_pipelines.distributed.pieces import WorkOptions
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.batch_encoding import TYPE_IDS
from gpu_pipelines.tasks.text_encoding import Chat, Composed, TextEncoder, texts_of
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer

TOKENIZER = "tokenizer"
# Records that are looked at for chats where nothing else is to be found out.
FIRST_RECORDS = 1000
# A batch is what a process gets at once: so many records, or characters of them.
RECORDS_AT_ONCE = 2000
CHARACTERS_AT_ONCE = 1 << 20


class TextPreparation(Preparation[Survey]):
    """Rows of tokens; what else is in them, and how they are made, is the task's.

    Attributes:
        reads_all: whether all records are looked through before the first row is made, as for a tokenizer that is
            trained here, or classes.
        ends: whether a tokenizer that is trained here ends each text with the end token.
        work: makes rows of a batch of texts, in a process of its own; as `SingleTexts`.
    """

    reads_all = False
    ends = True
    content = "the texts"
    work: type[Any] = SingleTexts

    @abstractmethod
    def records(self, source: SourceFiles, meter: Meter) -> Iterator[TextRecord]:
        """The records of some files, the unusable ones too."""

    @abstractmethod
    def features(self, length: int) -> dict[str, Feature]:
        """The features of a row of so many tokens."""

    def token_features(self, length: int) -> dict[str, Feature]:
        """The features of a row of one text, or of a pair, besides what is learned."""
        found = {"input_ids": Feature("int32", (length,)), "length": Feature("int32")}
        return {**found, TYPE_IDS: Feature("uint8", (length,))} if self.settings.text_pair_column else found

    def preprocessing(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """What whoever serves the model has to know of how texts become rows."""
        return {"sequence_length": plan["length"], "packing": self.settings.packing and self.packs}

    def names_in(self, record: TextRecord) -> Iterable[str]:
        """The names in a record that are all to be known before the first row is made, such as that of its class."""
        return (record.label,) if self.task.has_classes else ()

    def target_of(self, plan: Mapping[str, Any]) -> Callable[[TextRecord], Any]:
        """What tells what is learned of a record."""
        return lambda record: 0

    def empty_survey(self) -> Survey:
        return Survey()

    @property
    def surveys_all(self) -> bool:
        # Else the beginning of the source is all that matters.
        return self.reads_all or self.task.has_classes or self.settings.tokenizer == TRAIN

    def survey(self, share: SourceFiles, host: Host) -> Survey:
        settings = self.settings
        test_fraction = 0.0 if settings.test_source else settings.test_fraction
        return self._looked_through(
            share, host, lambda number: split_at(number, settings.val_fraction, test_fraction) == "train"
        )

    def survey_of_test(self, share: SourceFiles, host: Host) -> Survey:
        # A tokenizer is trained on none of its texts, which are taken note of so that they can be left out.
        return self._looked_through(share, host, lambda number: True)

    def _looked_through(self, source: SourceFiles, host: Host, is_noted: Callable[[int], bool]) -> Survey:
        meter = Meter(source)
        records = self.records(source, meter)
        if not self.surveys_all:
            records = islice(records, FIRST_RECORDS)
        found, trains = self.empty_survey(), self.settings.tokenizer == TRAIN
        for record in found.usable(records, meter, host.check):
            found.labels.update(self.names_in(record))
            found.has_chats = found.has_chats or _has_messages(record.text)
            if trains:
                seed = self.settings.split_seed
                number = content_number(record.content, seed)
                if is_noted(split_number(number, record.group, seed)):
                    found.training.add(number, texts_of(record.text))
        return found

    def plan(self, found: Survey, of_test: Survey | None, folder: Path) -> dict[str, Any]:
        settings = self.settings
        if not found.rows:
            raise UserError(f"The source {settings.source} holds no texts.")
        labels = self.labels(found, of_test)
        if of_test:
            found.training.leave_out(of_test.training)
        length = settings.sequence_length or self.task.row_tokens
        encoder = _encoder(settings, found, self.ends)
        if (found.has_chats or (of_test and of_test.has_chats)) and encoder.add_plain_chat_template():
            print("the tokenizer has no chat template; a plain one is saved with it", flush=True)
        takes_pairs = bool(settings.text_pair_column)
        if takes_pairs and encoder.add_pair_template() and settings.tokenizer != TRAIN:
            print("the tokenizer puts nothing between two texts; its end is put there, and saved with it", flush=True)
        encoder.save(folder / TOKENIZER, length, takes_pairs)
        return {"labels": labels, "length": length}

    def entries(self, shard: SourceShard, host: Host) -> Iterator[Entry]:
        if not self.settings.near_duplicates:
            yield from super().entries(shard, host)
            return
        waiting = deque[Entry]()

        def texts() -> Iterator[list[str]]:
            usable = (("\n".join(texts_of(record.text)), entry) for record, entry in self.indexed(shard, host))
            for batch in batches(usable, RECORDS_AT_ONCE, CHARACTERS_AT_ONCE, lambda item: len(item[0])):
                waiting.extend(entry for _, entry in batch)
                yield [text for text, _ in batch]

        for signatures in host.executor.in_order(Signer, (), texts()):
            for signature in signatures:
                yield waiting.popleft()._replace(signature=signature)

    def sizes(self, plan: Mapping[str, Any], unit_weight: int) -> Sizes[TextRecord]:
        return Sizes(lambda record: _size(record.text), RECORDS_AT_ONCE, CHARACTERS_AT_ONCE, unit_weight)

    def row_form(self, plan: Mapping[str, Any]) -> tuple[dict[str, Feature], dict[str, Any]]:
        return self.features(plan["length"]), self.preprocessing(plan)

    def tokenizer(self, folder: Path) -> Path:
        return folder / TOKENIZER

    def write(self, plan: Mapping[str, Any], folder: Path, writing: Writing) -> Iterator[None]:
        tokenizer = folder / TOKENIZER
        form = RowForm(plan["length"], TextTokenizer.read(tokenizer).padding, several=self.settings.packing)
        sorter = _Sorter(self.target_of(plan), self.settings.split_seed, writing.assignments)
        progress = Progress("preparing", writing.units.meter)
        options = WorkOptions(check=writing.host.check)
        done = writing.host.executor.in_order(
            self.work, (tokenizer, form), sorter.texts(writing.units.groups()), options
        )
        rows, cut = _UnitRows(form), 0
        for made in done:
            sorted_group = sorter.waiting.popleft()
            rows.write(sorted_group, made, writing.writers)
            cut += made.cut
            progress.advance(len(sorted_group.group.items))
            yield
        if cut:
            print(f"{cut:,} texts fill sequence_length={form.length}; what goes beyond is cut off", flush=True)


def _encoder(settings: PrepareSettings, found: Survey, ends: bool) -> TextEncoder:
    if settings.tokenizer != TRAIN:
        place = settings.tokenizer
        return TextEncoder.load(str(fetched_folder(place)) if is_remote(place) else place)
    texts = list(found.training)
    if not texts:
        require_rows(found.problems, settings)
        raise UserError(f"No row of {settings.source} is left for training a tokenizer.", "Add rows.")
    print(f"training a tokenizer on {len(texts):,} {'' if found.training.is_all else 'of the '}texts", flush=True)
    return TextEncoder.train(texts, settings.vocabulary_size, ends=ends)


def _has_messages(text: Text) -> bool:
    return text.has_messages if isinstance(text, Composed) else isinstance(text, Chat)


def _size(text: Text) -> int:
    return sum(map(len, texts_of(text)))


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
        target: tells what is learned of a record.
        seed: of the split.
        assignments: on the usable records.

    Attributes:
        waiting: the groups whose texts have been given on and not come back yet.
    """

    def __init__(self, target: Callable[[TextRecord], Any], seed: int, assignments: SplitAssignments) -> None:
        self._target = target
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
        known: list[tuple[int, int, str, int]] = []
        for place, record in enumerate(group.items):
            if record.problem:
                sorted_group.rejected.append(record)
                continue
            content = content_number(record.content, self._seed)
            good.append(record)
            known.append((place, content, record.label, split_number(content, record.group, self._seed)))
        texts = []
        assignments = self._assignments.of(group.unit.shard, candidates(group, known))
        for record, assignment in zip(good, assignments, strict=True):
            if not assignment.split:
                sorted_group.left_out.append((record.source, assignment))
                continue
            if assignment.other_label:
                sorted_group.conflicts.append((record.source, record.label, assignment.other_label))
            target = self._target(record)
            texts.append(UsableText(assignment.split, record.source, record.text, target, record.slice_value))
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
