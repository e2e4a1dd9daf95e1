"""Work that is cut in pieces: what whoever has some asks for, whatever machines do it.

A piece is given to a worker when one is free. One whose worker is lost is given to another; one that kills worker after
worker is an error that names it. What the pieces are depends on whoever cuts them, never on the workers.
"""

from __future__ import annotations

import os
import pickle
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, TypeVar

from gpu_pipelines.errors import (
    Interrupted,
    NodeLostError,
    NotFoundError,
    ProcessFailedError,
    ProcessKilledError,
    UserError,
    as_data,
    from_data,
)

In = TypeVar("In")
Out = TypeVar("Out")

#: Workers that a piece may kill, and machines that may vanish below it: a machine that is taken away is not its fault.
MOST_KILLED, MOST_NODES_LOST = 3, 20
_SECONDS_BETWEEN_LOOKS = 0.25


@dataclass(frozen=True)
class Needs:
    """What one worker needs of its machine.

    Attributes:
        cpus: processor cores.
        gpus: GPUs; 0.5 puts two workers on one.
    """

    cpus: float = 1
    gpus: float = 0


class Work(NamedTuple):
    """What is done: `maker(*arguments)` is called once in each worker, and what it returns with each piece."""

    maker: Callable[..., Callable[[Any], Any]]
    arguments: tuple[Any, ...]


class Answer(NamedTuple):
    """What a worker says of a piece.

    Attributes:
        result: what became of it.
        error: why it failed, as `error_as_data` describes it; None if it did not.
    """

    result: Any
    error: dict[str, Any] | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a piece that was given to a worker.

    Attributes:
        number: of the piece.
        answer: what the worker said; None if it was lost.
        lost: of a worker that was lost, which one; empty for a piece that it had, and did not do at that moment.
        is_node: whether its machine was lost, too.
    """

    number: int
    answer: Answer | None
    lost: str = ""
    is_node: bool = False


class Workers(ABC):
    """The workers of one `map`."""

    @property
    @abstractmethod
    def room(self) -> int:
        """How many pieces may be with workers at this moment; it may change."""

    @abstractmethod
    def give(self, number: int, piece: Any) -> None:
        """Gives a piece to a worker; there is room."""

    @abstractmethod
    def outcomes(self, seconds: float) -> list[Outcome]:
        """Waits until something became of a piece, for so long at most."""

    @abstractmethod
    def close(self, *, is_over: bool) -> None:
        """Lets the workers go. If it is not over, what they do is of no use any more."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class WorkOptions:
    """How pieces are worked on.

    Attributes:
        check: is called again and again; ends the work by raising.
        needs: what one worker needs.
        named: the name of a piece, for messages; None for its number.
    """

    check: Callable[[], None] = _nothing
    needs: Needs = Needs()
    named: Callable[[Any], str] | None = None


class Executor(ABC):
    """Does work in pieces. A context manager; at its end all workers have ended.

    Attributes:
        few: so many pieces are done in this process, before workers are started, which takes seconds.
        is_cluster: whether workers may be on other machines, which see shared places alone.
    """

    few = 0
    is_cluster: ClassVar[bool] = False

    @abstractmethod
    def _workers(self, work: Work, needs: Needs, check: Callable[[], None]) -> Workers:
        """Workers for some work.

        Raises:
            UserError: there can be none.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends all workers."""

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def map(
        self,
        maker: Callable[..., Callable[[In], Out]],
        arguments: tuple[Any, ...],
        pieces: Iterable[In],
        options: WorkOptions = WorkOptions(),
    ) -> Iterator[tuple[int, Out]]:
        """Does work with each piece and gives the number of the piece, from 0, and its result, as they are done.

        Args:
            maker: called once in each worker, returns what does the work, which may hold a model; importable on all
                machines, like what it is given and returns.
            arguments: of `maker`.
            pieces: taken one by one, in this thread, as workers become free.
            options: how.

        Raises:
            UserError: the work has raised it, in whatever worker, or a piece killed worker after worker.
        """
        return self._done(Work(maker, arguments), pieces, options, window=0)

    def in_order(
        self,
        maker: Callable[..., Callable[[In], Out]],
        arguments: tuple[Any, ...],
        pieces: Iterable[In],
        options: WorkOptions = WorkOptions(),
    ) -> Iterator[Out]:
        """As `map`, but the results alone, in the order of the pieces; few wait, however long one of them takes."""
        waiting: dict[int, Out] = {}
        following = 0
        for number, result in self._done(Work(maker, arguments), pieces, options, window=2):
            waiting[number] = result
            while following in waiting:
                yield waiting.pop(following)
                following += 1

    def _done(self, work: Work, pieces: Iterable[Any], options: WorkOptions, window: int) -> Iterator[tuple[int, Any]]:
        left = iter(pieces)
        first = list(islice(left, self.few + 1))
        if not first:
            return
        if len(first) <= self.few or self._is_alone(options.needs):
            do = work.maker(*work.arguments)
            for number, piece in enumerate(chain(first, left)):
                options.check()
                yield number, do(piece)
            return
        workers = self._workers(work, options.needs, options.check)
        is_over = False
        try:
            yield from _Course(workers, chain(first, left), options, window).run()
            is_over = True
        finally:
            workers.close(is_over=is_over)

    def _is_alone(self, needs: Needs) -> bool:
        """Whether a worker would be the only one, and no better than this process."""
        return False


class _Course:
    """The course of one `map`: which pieces are with workers, and which were lost how often."""

    def __init__(self, workers: Workers, pieces: Iterator[Any], options: WorkOptions, window: int) -> None:
        self._workers, self._options, self._window = workers, options, window
        self._left = enumerate(pieces)
        self._following: tuple[int, Any] | None = None
        self._is_empty = False
        self._given: dict[int, Any] = {}
        self._again: list[int] = []
        self._killed: Counter[int] = Counter()
        self._nodes_lost: Counter[int] = Counter()

    def run(self) -> Iterator[tuple[int, Any]]:
        while True:
            self._give()
            if self._is_empty and not self._given:
                return
            self._options.check()
            for outcome in self._workers.outcomes(_SECONDS_BETWEEN_LOOKS):
                if outcome.answer is None:
                    self._note_lost(outcome)
                    continue
                if outcome.answer.error is not None:
                    raise_error(outcome.answer.error)
                del self._given[outcome.number]
                yield outcome.number, outcome.answer.result

    def _give(self) -> None:
        while self._again and len(self._given) - len(self._again) < self._workers.room:
            number = self._again.pop(0)
            self._workers.give(number, self._given[number])
        while len(self._given) < (room := self._workers.room):
            self._following = self._following or next(self._left, None)
            if self._following is None:
                self._is_empty = True
                return
            number, piece = self._following
            if self._window and self._given and number - min(self._given) >= self._window * room:
                return
            self._following = None
            self._given[number] = piece
            self._workers.give(number, piece)
            self._options.check()

    def _note_lost(self, outcome: Outcome) -> None:
        number = outcome.number
        self._again.append(number)
        if not outcome.lost:
            return
        name = self._options.named(self._given[number]) if self._options.named else f"piece {number}"
        counter, most = (self._nodes_lost, MOST_NODES_LOST) if outcome.is_node else (self._killed, MOST_KILLED)
        counter[number] += 1
        print(f"{outcome.lost} is gone; {name} is done again", flush=True)
        if counter[number] < most:
            return
        if outcome.is_node:
            raise NodeLostError(f"{most} machines were lost one after the other during {name}.")
        raise ProcessKilledError(
            f"{most} processes ended one after the other during {name}, the last of them {outcome.lost}; most "
            "probably the memory of the machine is full.",
            "Give the step more memory or fewer cores.",
        )


def leave_cores_to_workers() -> None:
    """Keeps the threads of tokenizers out of each other's way: there is a worker for each core. Called in a worker."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"


class Bench:
    """What a worker works at: makes the work when the first piece comes, and answers for each.

    Args:
        work: gives what is done.
    """

    def __init__(self, work: Callable[[], Work]) -> None:
        self._work = work
        self._do: Callable[[Any], Any] | None = None

    def answer(self, piece: Callable[[], Any]) -> Answer:
        """What became of a piece, or why nothing did."""
        try:
            if self._do is None:
                maker, arguments = _loaded(self._work)
                self._do = maker(*arguments)
            return Answer(self._do(_loaded(piece)))
        except Exception as error:
            return Answer(None, error_as_data(error))


def _loaded(content: Callable[[], Any]) -> Any:
    """What was sent to a worker."""
    try:
        return content()
    except ImportError as error:
        raise NotFoundError(
            f"A worker cannot import what its work needs: {error}.",
            "Install the same packages, of the same versions, on all machines.",
        ) from error


class _InWorker(Exception):  # noqa: N818 (as of concurrent.futures: it is shown, and never caught)
    """Where an error that nobody has explained comes from: the traceback in the worker."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def error_as_data(error: Exception) -> dict[str, Any]:
    """What a worker says of an error: `said`, or of one that nobody has explained, `raised` and its `traceback`."""
    if isinstance(error, (UserError, Interrupted)):
        return {"said": as_data(error)}
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        raised = pickle.dumps(error)
        # One whose class wants other arguments comes back from no pickle.
        pickle.loads(raised)  # noqa: S301 (its own)
    except Exception:
        raised = pickle.dumps(ProcessFailedError(f"{type(error).__name__}: {error}"))
    return {"raised": raised, "traceback": text}


def raise_error(data: dict[str, Any]) -> None:
    """Raises the error that a worker has described."""
    if (said := from_data(data.get("said"))) is not None:
        raise said
    # Of a worker that this process has started, or that is behind the token of the cluster.
    raised = pickle.loads(data["raised"])  # noqa: S301
    raise raised from _InWorker(data["traceback"])
