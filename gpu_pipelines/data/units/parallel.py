"""Records in batches, and work with them on threads, in order, with a bounded number of results waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


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
