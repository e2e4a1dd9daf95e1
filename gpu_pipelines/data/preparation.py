"""The port of preparations: how a task prepares its data, and what all tasks have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from gpu_pipelines.artifacts.dataset import Feature
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.source_check import require_usable_source
from gpu_pipelines.data.sources.listing import shown_path
from gpu_pipelines.data.sources.row_streams import Meter, Problem
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.data.sources.sources import open_source
from gpu_pipelines.data.splits.content_split import content_number, split_number
from gpu_pipelines.data.splits.record_index import Entry
from gpu_pipelines.data.units.host import Host
from gpu_pipelines.data.units.progress import Progress
from gpu_pipelines.data.units.source_shards import SourceShard
from gpu_pipelines.data.units.units import Sizes, Writing
from gpu_pipelines.data.usable import require_labels, require_labels_of_test
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.tasks import task_named


class Surveyed(Protocol):
    """What a survey needs to know about a record: its place, for people, and what is wrong with it."""

    @property
    def source(self) -> str: ...

    @property
    def problem(self) -> Problem | None: ...


Item = TypeVar("Item", bound=Surveyed)


@dataclass
class Survey:
    """What the first pass finds: the names of the classes, and the first row with each problem."""

    rows: int = 0
    labels: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)

    def usable(self, records: Iterable[Item], meter: Meter, check: Callable[[], None]) -> Iterator[Item]:
        """Counts records, notes what is wrong with some, and yields the others.

        Args:
            records: of a source.
            meter: follows how much of it has been read.
            check: called for each record; ends the survey by raising.
        """
        progress = Progress("looking through", meter)
        for record in records:
            check()
            progress.advance()
            self.rows += 1
            if record.problem:
                said = ": ".join(filter(None, (record.source, record.problem.detail)))
                self.problems.setdefault(record.problem.reason, said)
            else:
                yield record

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes what is large to files in `folder`, and returns the rest."""
        return {"rows": self.rows, "labels": sorted(self.labels), "problems": self.problems}

    def add(self, folder: Path, said: Mapping[str, Any]) -> None:
        """Adds what another survey found, from what its `save` wrote and returned."""
        self.rows += said["rows"]
        self.labels.update(said["labels"])
        self.problems.update({**said["problems"], **self.problems})


Found = TypeVar("Found", bound=Survey)


class Preparation(ABC, Generic[Found]):
    """The part of a preparation that differs between tasks.

    Args:
        settings: what to read and how; already checked.
        scratch: an empty directory.
        source: the files, if they have been found already.

    Attributes:
        settings: what to read and how.
        task: the task.
        source: all files.
        test_source: the files of the test split; None if it is taken from the source.
        packs: whether a row may hold several records.
        content: name of the content of the columns that are read, for messages.

    Raises:
        UserError: the source does not exist, or cannot be used.
    """

    packs: bool = False
    content: ClassVar[str] = "the values"

    def __init__(self, settings: PrepareSettings, scratch: Path, source: SourceFiles | None = None) -> None:
        self.settings = settings
        self.task = task_named(settings.task)
        self.source = self._found(settings, scratch / "source", source)
        self.test_source: SourceFiles | None = None
        if not settings.test_source:
            return
        self.test_source = self._found(settings.of_test_source(), scratch / "test")
        here, there = self.source.columns, self.test_source.columns
        if here and there and set(here) != set(there):
            raise UserError(
                f"test_source has {self.content} in {', '.join(there)}, and source in {', '.join(here)}.",
                "Give both in the same form.",
            )

    def _found(self, settings: PrepareSettings, scratch: Path, source: SourceFiles | None = None) -> SourceFiles:
        found = source or open_source(settings, scratch)
        require_usable_source(found, settings)
        return replace(found, columns=columns) if (columns := self.columns_of(found, settings)) else found

    def columns_of(self, source: SourceFiles, settings: PrepareSettings) -> tuple[str, ...]:
        """The columns that are read, if the first file shows them; else none.

        Args:
            source: the files.
            settings: how they are read; may differ for a test source.

        Raises:
            UserError: a column is missing.
        """
        return ()

    @property
    def surveys_all(self) -> bool:
        """Whether a survey reads all files, and several machines share it; if not, this process makes it alone."""
        return True

    @abstractmethod
    def survey(self, share: SourceFiles, host: Host) -> Found:
        """Reads some files once.

        Args:
            share: the files to read.
            host: where this runs; its `check` ends the survey by raising.

        Returns:
            What the files hold: for a task with classes their names.
        """

    @abstractmethod
    def survey_of_test(self, share: SourceFiles, host: Host) -> Found:
        """Reads some files of the test source once; the plan of the rows does not depend on them.

        Args:
            share: the files to read.
            host: where this runs; its `check` ends the survey by raising.
        """

    @abstractmethod
    def empty_survey(self) -> Found:
        """A survey before anything is read."""

    def join_surveys(self, saved: Sequence[tuple[Path, Mapping[str, Any]]]) -> Found:
        """Joins the surveys of several processes.

        Args:
            saved: the folder and the returned value of each `Survey.save`, in the order of the source.
        """
        whole = self.empty_survey()
        for folder, said in saved:
            whole.add(folder, said)
        return whole

    def labels(self, found: Found, of_test: Found | None) -> list[str]:
        """The classes in the order in which people sort them; empty if the task has none.

        Args:
            found: the survey of the source.
            of_test: the survey of the test source; None without one.

        Raises:
            UserError: there are fewer than two, or the test source has others.
        """
        if not self.task.has_classes:
            return []
        labels = require_labels(found.labels, self.settings, found.problems)
        if of_test:
            require_labels_of_test(of_test.labels, labels, self.settings)
        return labels

    @abstractmethod
    def plan(self, found: Found, of_test: Found | None, folder: Path) -> dict[str, Any]:
        """Decides what the rows become. The next steps know only what is returned and written here.

        Args:
            found: the survey of the source.
            of_test: the survey of the test source; None without one.
            folder: for large results, such as a tokenizer.

        Returns:
            The plan as a JSON object; `labels` holds the classes.
        """

    def entries(self, shard: SourceShard, host: Host) -> Iterator[Entry]:
        """What is known about the usable records of a shard before they are prepared.

        Args:
            shard: a part of the source.
            host: where this runs; its `check` ends the reading by raising.
        """
        return (entry for _, entry in self.indexed(shard, host))

    def indexed(self, shard: SourceShard, host: Host) -> Iterator[tuple[Any, Entry]]:
        """The usable records of a shard, each with what is known about it.

        Args:
            shard: a part of the source, whose records have a `content`.
            host: where this runs; its `check` ends the reading by raising.
        """
        meter = Meter(shard.source)
        progress = Progress("looking for duplicates", meter)
        for position, record in enumerate(self.records(shard.source, meter)):
            progress.advance()
            host.check()
            if not record.problem:
                seed = self.settings.split_seed
                content = content_number(record.content, seed)
                split = split_number(content, record.group, seed)
                yield record, Entry(position, content, record.label, record.source, split)

    @abstractmethod
    def records(self, source: SourceFiles, meter: Meter) -> Iterator[Any]:
        """The records of some files, including the unusable ones.

        Args:
            source: the files to read.
            meter: follows how much of them has been read.
        """

    @abstractmethod
    def sizes(self, plan: Mapping[str, Any], unit_weight: int) -> Sizes[Any]:
        """How records are grouped.

        Args:
            plan: what `plan` returned.
            unit_weight: bytes of the records of a unit of work.
        """

    @abstractmethod
    def row_form(self, plan: Mapping[str, Any]) -> tuple[dict[str, Feature], dict[str, Any]]:
        """The features of a row, and what a server has to know about how rows are made.

        Args:
            plan: what `plan` returned.

        Returns:
            The features by name, and `preprocessing` of dataset.json.
        """

    def form(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of `DatasetWriter` besides the directory.

        Args:
            plan: what `plan` returned.
        """
        features, preprocessing = self.row_form(plan)
        return {
            "task": self.settings.task,
            "source": shown_path(self.settings.source),
            "features": features,
            "labels": plan["labels"],
            "preprocessing": preprocessing,
            "packed": self.packs,
            "slice_by": self.settings.slice_by,
            "rows_per_shard": self.settings.rows_per_shard(features),
        }

    @abstractmethod
    def write(self, plan: Mapping[str, Any], folder: Path, writing: Writing) -> Iterator[None]:
        """Prepares units; yields after each group of records.

        Args:
            plan: what `plan` returned.
            folder: the folder that `plan` wrote to.
            writing: the records, and where their rows go.
        """

    def tokenizer(self, folder: Path) -> Path | None:
        """The tokenizer in the folder of the plan; None if the task has none.

        Args:
            folder: the folder that `plan` wrote to.
        """
        return None
