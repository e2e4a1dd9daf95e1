"""The port of sources: what a kind of source is asked, and the files or parts that it gives."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gpu_pipelines.data.sources.files import Dialect, SourceFile
from gpu_pipelines.data.sources.listing import shown_path

if TYPE_CHECKING:
    from gpu_pipelines.data.settings import PrepareSettings
    from gpu_pipelines.data.sources.row_streams import Meter, Row


@dataclass(frozen=True)
class SourceFiles:
    """What is read: files in one format, or the parts in which a service gives its rows.

    Attributes:
        format: one of those in gpu_pipelines/tasks/formats.py; of a service, a name that is none of them.
        root: what the place of each file begins with. Of images, each has its class below it.
        names: the rest of the place of each file; of a service, of each part.
        sizes: bytes of each; empty where nobody asked. Units of work and shares of machines are cut by them.
        columns: those that are read, where that is known before the first row; a service always knows.
        given: as the user named it.
        dialect: how text is to be read.
        image_roots: folders that images named by a table must be in; empty for `root`.
        passed_over: names of what lies there too and is not read, each with the reason.
        service: what reads the rows, where no files of a format hold them.
    """

    format: str
    root: str
    names: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    given: str = ""
    dialect: Dialect = field(default_factory=Dialect)
    image_roots: tuple[str, ...] = ()
    passed_over: Mapping[str, str] = field(default_factory=dict, compare=False)
    service: Service | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[SourceFile]:
        for number, name in enumerate(self.names):
            size = self.sizes[number] if self.sizes else 0
            yield SourceFile(f"{self.root}{name}", shown_path(name), size, self.dialect)


class Source(ABC):
    """A kind of source: what its names look like, and how what they stand for is found.

    Its module is imported wherever a pipeline is compiled: what reads data is imported where it is used.

    Attributes:
        title: what messages call one, with its article.
        example: how its names look.
        scheme: what its names begin with.
        form: what is behind that, and how it is told in "a table is …"; None where any name will do.
        parameters: those of `source_format` and `row_filter` that it takes; they are refused for others.
        instead_of_filter: what to do about rows that are not wanted, where it takes no `row_filter`.
        is_repeatable: whether it gives the same parts with the same rows whenever and wherever it is opened, until its
            fingerprint changes. One that does not is read by one machine, and an interrupted preparation begins anew.
    """

    title: ClassVar[str]
    example: ClassVar[str]
    scheme: ClassVar[str] = ""
    form: ClassVar[tuple[re.Pattern[str], str] | None] = None
    parameters: ClassVar[tuple[str, ...]] = ()
    instead_of_filter: ClassVar[str] = "filter the files before"
    is_repeatable: ClassVar[bool] = True

    def matches(self, uri: str) -> bool:
        """Whether a name is of this kind, wrong ones included.

        Args:
            uri: the name, as `source` has it.
        """
        return uri.startswith(self.scheme)

    def problems(self, settings: PrepareSettings) -> list[str]:
        """What is wrong with the name `source`, and with parameters beside it, each with what to do; reads nothing.

        What is said of a wrong name begins with "source is", in which place a test source is named.

        Args:
            settings: all parameters of the preparation.
        """
        if self.form is None or self.form[0].fullmatch(settings.source.removeprefix(self.scheme)):
            return []
        return [f"source is {settings.source[:200]!r}; {self.form[1]}"]

    def is_read_anywhere(self, uri: str) -> bool:
        """Whether the name means the same on every machine.

        Args:
            uri: the name, as `source` has it.
        """
        return True

    def is_seen_from_afar(self, uri: str) -> bool:
        """Whether whoever sends a run elsewhere can look at the data by `require_readable`, without cost.

        Args:
            uri: the name, as `source` has it.
        """
        return False

    @abstractmethod
    def require_readable(self, settings: PrepareSettings) -> None:
        """Checks in seconds, from this machine, what can be known before all rows are read.

        Args:
            settings: all parameters of the preparation.

        Raises:
            UserError: what is wrong, such as a column that is not there.
        """

    @abstractmethod
    def open(self, settings: PrepareSettings, scratch: Path) -> SourceFiles:
        """Finds what is to be read.

        Args:
            settings: checked; `source` is of this kind.
            scratch: a directory that may be made, and is deleted afterwards.

        Raises:
            UserError: there is nothing, or nothing that the task reads.
        """

    @abstractmethod
    def state(self, uri: str, billing_project: str) -> list[Any]:
        """What tells one version of the data from another, in the terms of JSON; reads no rows.

        Where that is not known it is never the same: a training too many is better than one too few.

        Args:
            uri: the name, as `source` has it.
            billing_project: the project that pays for the look; empty for that of the environment.

        Raises:
            UserError: it cannot be asked.
        """


class Service(Source):
    """A source whose rows are in no files: `open` names parts of it, with itself as their `service`."""

    instead_of_filter = "filter the rows before"

    @abstractmethod
    def rows(self, files: SourceFiles, columns: list[str], meter: Meter) -> Iterator[tuple[SourceFile, Row]]:
        """Reads the rows of some parts.

        Args:
            files: all parts, or the share of a machine or a unit of work.
            columns: those that are read, of the ones that `open` gave; empty for all.
            meter: is told how much of a part has been read, and when each has ended.

        Returns:
            Each row with the part that it is of, and with its place for people.

        Raises:
            UserError: they cannot be read.
        """
