"""Work on all cores, in order, with a bounded number of results waiting."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from itertools import chain, islice
from typing import Any, TypeVar

from gpu_pipelines.distributed.processes import cores, killed_is_said, process_pool

In = TypeVar("In")
Out = TypeVar("Out")

# Batches that are done in this process before others are started, which takes seconds.
_TOO_FEW = 4


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
        ProcessKilledError: a process was.
    """
    left = iter(items)
    first = list(islice(left, _TOO_FEW + 1))
    if len(first) <= _TOO_FEW or cores() == 1:
        yield from map(maker(*arguments), chain(first, left))
        return
    pool = process_pool(cores(), _make, (maker, arguments))
    try:
        with killed_is_said("A process that prepares data", "Give the step more memory or fewer cores."):
            yield from in_order(pool, _work, chain(first, left), ahead=cores() + 2)
    finally:
        pool.shutdown(cancel_futures=True)
