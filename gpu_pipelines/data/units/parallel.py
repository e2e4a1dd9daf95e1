"""Work on all cores, in order, with a bounded number of results waiting."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Any, TypeVar

from gpu_pipelines.errors import UserError

In = TypeVar("In")
Out = TypeVar("Out")

# Batches that are done in this process before others are started, which takes seconds.
_TOO_FEW = 4
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def batches(items: Iterable[In], most: int, most_weight: int, weight: Callable[[In], int]) -> Iterator[list[In]]:
    """Groups items, in order, into lists of at most so many that weigh at most so much, or of one that weighs more."""
    batch: list[In] = []
    total = 0
    for item in items:
        here = weight(item)
        if batch and (len(batch) >= most or total + here > most_weight):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += here
    if batch:
        yield batch


def in_order(pool: Executor, work: Callable[[In], Out], items: Iterable[In], ahead: int) -> Iterator[Out]:
    """Like `pool.map`, but takes items only as results are wanted.

    Args:
        pool: threads or processes.
        work: what is done with an item.
        items: taken one by one.
        ahead: how many are in the pool or done and waiting.
    """
    waiting: deque[Future[Out]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


_made: list[Callable[[Any], Any]] = []


def _make(maker: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    # One process for each core; the library's own threads would only be in each other's way.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    # The one that started this process ends it, and its own end is this one's; a Ctrl-C reaches both.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _made.append(maker(*arguments))


def _work(item: Any) -> Any:
    return _made[0](item)


def in_processes(
    maker: Callable[..., Callable[[In], Out]], arguments: tuple[Any, ...], items: Iterable[In]
) -> Iterator[Out]:
    """Does work in one process for each core, or in this one if there is little of it; results come in order.

    Args:
        maker: called once in each process, returns what does the work; importable, like what it is given and returns.
        arguments: of `maker`.
        items: taken as results are wanted.

    Raises:
        UserError: a process was killed.
    """
    left = iter(items)
    first = list(islice(left, _TOO_FEW + 1))
    if len(first) <= _TOO_FEW or cores() == 1:
        yield from map(maker(*arguments), chain(first, left))
        return
    # Forked, a process would inherit locks that the threads of this one hold.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(cores(), mp_context=context, initializer=_make, initargs=(maker, arguments))
    try:
        yield from in_order(pool, _work, chain(first, left), ahead=cores() + 2)
    except BrokenProcessPool:
        raise UserError(
            "A process that prepares data was killed, most probably because the memory of the machine is full.",
            "Give the step more memory or fewer cores.",
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
