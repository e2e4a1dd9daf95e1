"""Tables as wide as the terminal: only the column of text shrinks; names and figures are never broken.

Other output is as wide as `COLUMNS` says, and if that is not set, as wide as it needs: one line for each row.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_UNLIMITED = 100_000
_GAP = 2
_NARROWEST_TEXT = 20
_BELOW = " " * 4


def width_of(stream: TextIO | None = None) -> int:
    """The width of a line of output, in columns.

    Args:
        stream: its destination; stdout if not given.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    stream = stream or sys.stdout
    return os.get_terminal_size(stream.fileno()).columns or 80 if stream.isatty() else _UNLIMITED


def console_on(stream: TextIO | None = None) -> Console:
    """A rich console with the width of `width_of`, bound to the current stream; it follows a terminal's width."""
    from rich.console import Console

    stream = stream or sys.stdout
    # By default `12:100:3` is shown with an emoji.
    return Console(file=stream, width=None if stream.isatty() else width_of(stream), highlight=False, emoji=False)


def wrapped(text: str, first: str = "", then: str | None = None, width: int | None = None) -> str:
    """Prose in lines that fit the terminal; words, and thus names, are never broken.

    Args:
        text: the prose.
        first: the beginning of the first line; if it leaves no room, the prose begins below it.
        then: the beginning of the other lines; spaces as wide as `first` if not given.
        width: the width in columns; that of stdout if not given.
    """
    width = width_of() if width is None else width
    if then is None and len(first) > max(width // 2, len(_BELOW)):
        return f"{first.rstrip()}\n{wrapped(text, _BELOW, width=width)}"
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=" " * len(first) if then is None else then,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines) or first.rstrip()


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        heading: the text above it.
        kind: `name` and `number`, which are never broken, or `text`, which wraps; a table has at most one of text.
        spare: from 1 on, whether it is left out on a narrow terminal, the highest first; 0 for never.
    """

    heading: str
    kind: str = "name"
    spare: int = 0

    @classmethod
    def number(cls, heading: str, spare: int = 0) -> Column:
        """A column of figures, aligned to the right."""
        return cls(heading, "number", spare)

    @classmethod
    def text(cls, heading: str, spare: int = 0) -> Column:
        """The column that shrinks and wraps."""
        return cls(heading, "text", spare)


class Table:
    """Rows under headings.

    Args:
        columns: a text alone is the heading of a column of names.
    """

    def __init__(self, *columns: Column | str) -> None:
        self._columns = [Column(column) if isinstance(column, str) else column for column in columns]
        self._rows: list[tuple[list[str], str]] = []

    def add_row(self, *cells: object, style: str = "") -> None:
        """Adds a row: a cell for each column; `style` is one of rich's."""
        self._rows.append(([str(cell) for cell in cells], style))

    def print(self, console: Console | None = None) -> None:
        """Prints it, and names the columns that did not fit."""
        console = console or console_on()
        shown = self._fitting(console.width)
        below = None if self._least_width(shown) <= console.width else self._place_of_text(shown)
        beside = [place for place in shown if place != below]
        widths = self._widths(beside, console.width)
        headings = [self._columns[place].heading for place in range(len(self._columns))]
        if any(headings):
            self._print_row(console, headings, widths, "bold")
        for cells, style in self._rows:
            self._print_row(console, cells, widths, style)
            if below is not None and cells[below]:
                _print_line(console, wrapped(cells[below], _BELOW, width=console.width), style)
        left_out = [heading for place, heading in enumerate(headings) if heading and place not in shown]
        if left_out:
            told = f"Too narrow for: {', '.join(left_out)}. A wider terminal shows them."
            _print_line(console, wrapped(told, width=console.width), "dim")

    def _fitting(self, width: int) -> list[int]:
        """The indices of the columns to show: those that are not empty, as far as they fit."""
        shown = [place for place in range(len(self._columns)) if self._full_width(place)]
        for place in sorted((p for p in shown if self._columns[p].spare), key=lambda p: -self._columns[p].spare):
            if self._least_width(shown) <= width:
                break
            shown.remove(place)
        return shown

    def _place_of_text(self, shown: Sequence[int]) -> int | None:
        return next((place for place in shown if self._columns[place].kind == "text"), None)

    def _widths(self, shown: Sequence[int], width: int) -> dict[int, int]:
        """The width of each column to show; the column of text gets the rest."""
        widths = {place: self._full_width(place) for place in shown}
        place = self._place_of_text(shown)
        if place is not None:
            others = sum(widths.values()) - widths[place] + _GAP * (len(shown) - 1)
            widths[place] = min(widths[place], max(width - others, self._least_of(place)))
        return widths

    def _least_width(self, shown: Sequence[int]) -> int:
        return sum(self._least_of(place) for place in shown) + _GAP * (len(shown) - 1)

    def _cells_of(self, place: int) -> list[str]:
        return [self._columns[place].heading, *(cells[place] for cells, _ in self._rows)]

    def _full_width(self, place: int) -> int:
        return max(map(_cells, self._cells_of(place)))

    def _least_of(self, place: int) -> int:
        full = self._full_width(place)
        if self._columns[place].kind != "text":
            return full
        words = [_cells(word) for cell in self._cells_of(place) for word in cell.split()]
        return max([min(_NARROWEST_TEXT, full), *words])

    def _print_row(self, console: Console, cells: Sequence[str], widths: dict[int, int], style: str) -> None:
        columns = []
        for place, width in widths.items():
            kind = self._columns[place].kind
            lines = wrapped(cells[place], width=width).split("\n") if kind == "text" else [cells[place]]
            columns.append([_padded(line, width, right=kind == "number") for line in lines])
        height = max(map(len, columns))
        filled = [
            [*lines, *([" " * width] * (height - len(lines)))]
            for lines, width in zip(columns, widths.values(), strict=True)
        ]
        for parts in zip(*filled, strict=True):
            _print_line(console, (" " * _GAP).join(parts).rstrip(), style)


def _padded(cell: str, width: int, *, right: bool) -> str:
    space = " " * (width - _cells(cell))
    return space + cell if right else cell + space


def _print_line(console: Console, line: str, style: str) -> None:
    # Not wrapped by rich: a name that is wider than the terminal must stay one word when it is copied.
    console.print(line, style=style or None, markup=False, highlight=False, soft_wrap=True)


def _cells(text: str) -> int:
    """The width of a text in the terminal; some scripts take two columns for a character."""
    from rich.cells import cell_len

    return cell_len(text)
