"""Work that is cut into pieces: the interface for callers, whatever machines do it.

A piece goes to a free worker. If the worker is lost, the piece goes to another; a piece that kills worker after worker
is an error that names it. The pieces depend only on the code that cuts them, never on the workers.
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

#: Most workers that a piece may kill, and machines that may vanish under it, which is not its fault.
MOST_KILLED, MOST_NODES_LOST = 3, 20
_SECONDS_BETWEEN_LOOKS = 0.25


@dataclass(frozen=True)
class Needs:
    """Resources that one worker needs of its machine.

    Attributes:
        cpus: processor cores.
        gpus: GPUs; 0.5 puts two workers on one.
    """

    cpus: float = 1
    gpus: float = 0


class Work(NamedTuple):
    """The work: `maker(*arguments)` is called once in each worker, and its result with each piece."""

    maker: Callable[..., Callable[[Any], Any]]
    arguments: tuple[Any, ...]


class Answer(NamedTuple):
    """A worker's answer about a piece.

    Attributes:
        result: result of the piece.
        error: why it failed, in the form of `error_as_data`; None if it did not.
    """

    result: Any
    error: dict[str, Any] | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a piece that was given to a worker.

    Attributes:
        number: number of the piece.
        answer: the worker's answer; None if the worker was lost.
        lost: name of the lost worker; empty for a piece that it had and was not working on.
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
        """How many more pieces may go to workers at this moment; it may change."""

    @abstractmethod
    def give(self, number: int, piece: Any) -> None:
        """Gives a piece to a worker; there must be room."""

    @abstractmethod
    def outcomes(self, seconds: float) -> list[Outcome]:
        """Waits until there is an outcome, for so long at most."""

    @abstractmethod
    def close(self, *, is_over: bool) -> None:
        """Lets the workers go. If the work is not over, their current results are of no use any more."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class WorkOptions:
    """Options of the work on pieces.

    Attributes:
        check: called repeatedly; raises to end the work.
        needs: what one worker needs.
        named: the name of a piece, for messages; None for its number.
    """

    check: Callable[[], None] = _nothing
    needs: Needs = Needs()
    named: Callable[[Any], str] | None = None


class Executor(ABC):
    """Does work in pieces. A context manager; at its end all workers have ended.

    Attributes:
        few: up to so many pieces are done in this process, because starting workers takes seconds.
        is_cluster: whether workers may be on other machines, which see only shared places.
    """

    few = 0
    is_cluster: ClassVar[bool] = False

    @abstractmethod
    def _workers(self, work: Work, needs: Needs, check: Callable[[], None]) -> Workers:
        """Workers for some work.

        Raises:
            UserError: there cannot be any.
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
        """Does work with each piece; yields the number of the piece, from 0, and its result, as they are done.

        Args:
            maker: called once in each worker, returns the function that does the work, which may hold a model; can be
                imported on all machines, like its arguments and results.
            arguments: of `maker`.
            pieces: taken one by one, in this thread, as workers become free.
            options: see `WorkOptions`.

        Raises:
            UserError: the work raised it in a worker, or a piece killed worker after worker.
        """
        return self._done(Work(maker, arguments), pieces, options, window=0)

    def in_order(
        self,
        maker: Callable[..., Callable[[In], Out]],
        arguments: tuple[Any, ...],
        pieces: Iterable[In],
        options: WorkOptions = WorkOptions(),
    ) -> Iterator[Out]:
        """As `map`, but only the results, in the order of the pieces; few wait, even if one piece takes long."""
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
        """Whether there would be only one worker, and no better than this process."""
        return False


class _Course:
    """The state of one `map`: which pieces are with workers, and how often each was lost."""

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
    """Keeps tokenizers from using several threads: there is a worker for each core. Called in a worker."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"


class Bench:
    """A worker's side: makes the work when the first piece comes, and answers for each piece.

    Args:
        work: gives the work.
    """

    def __init__(self, work: Callable[[], Work]) -> None:
        self._work = work
        self._do: Callable[[Any], Any] | None = None

    def answer(self, piece: Callable[[], Any]) -> Answer:
        """The result of a piece, or why there is none."""
        try:
            if self._do is None:
                maker, arguments = _loaded(self._work)
                self._do = maker(*arguments)
            return Answer(self._do(_loaded(piece)))
        except Exception as error:
            return Answer(None, error_as_data(error))


def _loaded(content: Callable[[], Any]) -> Any:
    """The content that was sent to a worker."""
    try:
        return content()
    except ImportError as error:
        raise NotFoundError(
            f"A worker cannot import what its work needs: {error}.",
            "Install the same packages, of the same versions, on all machines.",
        ) from error


class _InWorker(Exception):  # noqa: N818 (as of concurrent.futures: it is shown, and never caught)
    """The origin of an unexplained error: the traceback in the worker."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def error_as_data(error: Exception) -> dict[str, Any]:
    """An error as a worker reports it: `said`, or for an unexplained one `raised` and its `traceback`."""
    if isinstance(error, (UserError, Interrupted)):
        return {"said": as_data(error)}
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        raised = pickle.dumps(error)
        # An exception whose class takes other arguments cannot be unpickled.
        pickle.loads(raised)  # noqa: S301 (its own)
    except Exception:
        raised = pickle.dumps(ProcessFailedError(f"{type(error).__name__}: {error}"))
    return {"raised": raised, "traceback": text}


def raise_error(data: dict[str, Any]) -> None:
    """Raises the error that a worker reported."""
    if (said := from_data(data.get("said"))) is not None:
        raise said
    # It is from a worker that this process started, or that knows the token of the cluster.
    raised = pickle.loads(data["raised"])  # noqa: S301
    raise raised from _InWorker(data["traceback"])
