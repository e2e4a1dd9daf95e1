"""The kinds of sources: those of this program, those of installed packages, and files for every other name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_pipelines.data.sources.source import Source, SourceFiles
from gpu_pipelines.errors import UserError
from gpu_pipelines.own_class import own_class, said_by_own, told_of_own

if TYPE_CHECKING:
    from gpu_pipelines.data.settings import PrepareSettings

#: A source of this program is one file and one line here. The first that a name matches is asked.
_BUILT_IN = (
    "gpu_pipelines.data.sources.sample_source:Samples",
    "gpu_pipelines.data.sources.bigquery.table:BigQueryTables",
    "gpu_pipelines.data.sources.bigquery.query:BigQueryQueries",
    "gpu_pipelines.data.sources.hub_source:HubDataSets",
)
_FILES = "gpu_pipelines.data.sources.file_source:Files"
#: A source of an installed package is one line in its metadata: `name = package.module:Class`.
ENTRY_POINTS = "gpu_pipelines.sources"


def source_of(uri: str) -> Source:
    """The kind of source that a name is of; one that no other knows is of files."""
    return next(source for source in sources() if _is_of(source, uri))


def _is_of(source: Source, uri: str) -> bool:
    """Whether a name is of a kind; if a package's own cannot say that, it is not, which is said on stderr."""
    try:
        return source.matches(uri)
    except Exception as error:  # other people's code can raise anything
        _warn_of_failing(type(source), told_of_own(source.matches, error))
        return False


@cache
def _warn_of_failing(kind: type[Source], failed: str) -> None:
    """Says once that a source of a package is left out."""
    place = f"{kind.__module__}:{kind.__qualname__}"
    print(f"warning: the source {place} is left out: its matches failed ({failed})", file=sys.stderr)


def open_source(settings: PrepareSettings, scratch: Path) -> SourceFiles:
    """Finds what is to be read of `source`; arguments and errors as those of `Source.open`."""
    return source_of(settings.source).open(settings, scratch)


def problems_of_source(settings: PrepareSettings) -> list[str]:
    """What is wrong with the name of the source, and with parameters that it does not take, each with what to do."""
    source = source_of(settings.source)
    found = said_by_own(f"The source {type(source).__name__}", source.problems, settings, see="See docs/extending.md.")
    if settings.row_filter and "row_filter" not in source.parameters:
        takers = [f"{each.title} ({each.example})" for each in sources() if "row_filter" in each.parameters]
        found.append(f"row_filter is for {' or '.join(takers)}, not for {settings.source}; {source.instead_of_filter}.")
    if settings.source_format != "auto" and "source_format" not in source.parameters:
        found.append(
            f"source_format is {settings.source_format!r}, but {settings.source} is not a file; leave it at auto."
        )
    return found


@cache
def sources() -> tuple[Source, ...]:
    """All kinds of sources, in the order in which they are asked whether a name is theirs.

    One of a package that cannot be loaded, or that would take the names of others, is left out, which is said on
    stderr: files are read without it.
    """
    found = [_made(place) for place in _BUILT_IN]
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            source = _made(point.value)
            _require_names_of_its_own(source, found)
            found.append(source)
        except Exception as error:
            package = point.dist.name if point.dist else "a package"
            print(f"warning: the source {point.name} of {package} is left out: {error}", file=sys.stderr)
    return (*found, _made(_FILES))


def _require_names_of_its_own(source: Source, others: Sequence[Source]) -> None:
    if not source.scheme and type(source).matches is Source.matches:
        raise UserError(
            "it has neither a scheme nor a matches of its own, so every name would be one of its names.",
            "See docs/extending.md.",
        )
    if other := next((each for each in others if source.scheme and each.scheme == source.scheme), None):
        raise UserError(f"{source.scheme} is the scheme of {other.title}.", "Give it another scheme.")


def _made(place: str) -> Source:
    source: Source = own_class(place, Source, f"The source {place}", "See docs/extending.md.")()
    return source
