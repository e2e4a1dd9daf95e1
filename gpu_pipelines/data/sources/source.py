"""The port of sources: what a kind of source has to do, and the files or parts that it returns."""

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
    """What to read: files in one format, or the parts in which a service returns its rows.

    Attributes:
        format: a format of gpu_pipelines/tasks/formats.py; for a service, a name that is not one of them.
        root: the common beginning of the paths of the files. Folders of images have their classes below it.
        names: the rest of the path of each file; for a service, the name of each part.
        sizes: bytes of each; empty if they were not needed. Units of work and shares of machines are divided by them.
        columns: the columns to read, if they are known before the first row; a service always knows them.
        given: the user's name of the source.
        dialect: how text is to be read.
        image_roots: folders that images named by a table must be in; empty for `root`.
        passed_over: names of other files there that are not read, each with the reason.
        service: the service that reads the rows, if they are not in files of a format.
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
    """A kind of source: the form of its names, and how the data is found.

    Its module is imported wherever a pipeline is compiled, so import what reads data in the methods.

    Attributes:
        title: its name in messages, with the article.
        example: an example of a name.
        scheme: how its names begin.
        form: pattern of the rest of a name, and a text that describes it, as in "a table is …"; None if any name will
            do.
        parameters: which of `source_format` and `row_filter` it takes; the others are refused.
        instead_of_filter: what to do about unwanted rows if it does not take `row_filter`.
        is_repeatable: whether it returns the same parts with the same rows whenever and wherever it is opened, until
            its fingerprint changes. If not, one machine reads it, and an interrupted preparation starts anew.
    """

    title: ClassVar[str]
    example: ClassVar[str]
    scheme: ClassVar[str] = ""
    form: ClassVar[tuple[re.Pattern[str], str] | None] = None
    parameters: ClassVar[tuple[str, ...]] = ()
    instead_of_filter: ClassVar[str] = "filter the files before"
    is_repeatable: ClassVar[bool] = True

    def matches(self, uri: str) -> bool:
        """Whether a name is of this kind, even a malformed one.

        Args:
            uri: the value of `source`.
        """
        return uri.startswith(self.scheme)

    def problems(self, settings: PrepareSettings) -> list[str]:
        """Problems with the name `source` and the parameters beside it, each with what to do; reads nothing.

        A message about a wrong name begins with "source is", which is replaced for a test source.

        Args:
            settings: all parameters of the preparation.
        """
        if self.form is None or self.form[0].fullmatch(settings.source.removeprefix(self.scheme)):
            return []
        return [f"source is {settings.source[:200]!r}; {self.form[1]}"]

    def is_read_anywhere(self, uri: str) -> bool:
        """Whether the name means the same on every machine.

        Args:
            uri: the value of `source`.
        """
        return True

    def is_seen_from_afar(self, uri: str) -> bool:
        """Whether a machine that only sends a run can check the data with `require_readable` free of charge.

        Args:
            uri: the value of `source`.
        """
        return False

    @abstractmethod
    def require_readable(self, settings: PrepareSettings) -> None:
        """Checks in seconds, from this machine, what can be known before all rows are read.

        Args:
            settings: all parameters of the preparation.

        Raises:
            UserError: something is wrong, such as a missing column.
        """

    @abstractmethod
    def open(self, settings: PrepareSettings, scratch: Path) -> SourceFiles:
        """Finds the files or parts to read.

        Args:
            settings: checked; `source` is of this kind.
            scratch: a directory that may be created, and is deleted afterwards.

        Raises:
            UserError: there is nothing, or nothing that the task reads.
        """

    @abstractmethod
    def state(self, uri: str, billing_project: str) -> list[Any]:
        """JSON values that differ between versions of the data; reads no rows.

        If the version is not known, the values always differ: a training too many is better than one too few.

        Args:
            uri: the value of `source`.
            billing_project: the project that pays for the request; empty for that of the environment.

        Raises:
            UserError: the version cannot be read.
        """


class Service(Source):
    """A source whose rows are not in files: `open` names parts of it, with itself as their `service`."""

    instead_of_filter = "filter the rows before"

    @abstractmethod
    def rows(self, files: SourceFiles, columns: list[str], meter: Meter) -> Iterator[tuple[SourceFile, Row]]:
        """Reads the rows of some parts.

        Args:
            files: all parts, or the share of a machine or a unit of work.
            columns: the columns to read, among those of `open`; empty for all.
            meter: takes how much of a part has been read, and when each part has ended.

        Returns:
            Each row with its part, and with its place for people.

        Raises:
            UserError: they cannot be read.
        """
