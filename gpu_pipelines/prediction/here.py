"""This process as what predicts: the model is held here, and pieces are predicted one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol


class Executor(Protocol):
    """Who does work in pieces."""

    def map(
        self,
        maker: Callable[..., Callable[[Any], Any]],
        arguments: tuple[Any, ...],
        pieces: Iterable[Any],
        check: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[int, Any]]:
        """The number of each piece with its result, as they are done."""
        ...


class Here:
    """This process."""

    def map(
        self,
        maker: Callable[..., Callable[[Any], Any]],
        arguments: tuple[Any, ...],
        pieces: Iterable[Any],
        check: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[int, Any]]:
        """As `Executor.map`."""
        work = maker(*arguments)
        for number, piece in enumerate(pieces):
            check()
            yield number, work(piece)
