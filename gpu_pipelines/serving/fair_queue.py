"""Decides what is served next, so that no request keeps the others waiting."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Flow:
    """The work of one request."""

    def __init__(self) -> None:
        self.waiting = 0
        self.added = 0
        self.finish = 0.0
        self.dropped = False


class FairQueue(Generic[Item]):
    """Items of many requests, served in turns that depend on the amount of work of each.

    After start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): an item is due when all earlier items of its
    request would be done if the machine were shared evenly among the requests. The first item of a new request is due
    at once, however many items others have in the queue. The clock advances with the work that is done, so that nothing
    waits for ever, however many requests come. Turns are by request, not by client: behind a load balancer, all clients
    have one address. Used under a lock of its owner.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, float, Flow, Item]] = []
        self._now = 0.0
        self._added = 0
        self._waiting = self._flows = 0

    def __len__(self) -> int:
        return self._waiting

    def add(self, flow: Flow, item: Item, cost: float) -> None:
        """Adds an item.

        Args:
            flow: the request of the item.
            item: the work to do.
            cost: its amount of work, in any unit.
        """
        self._flows += not flow.waiting
        self._added += 1
        start = max(self._now, flow.finish)
        flow.finish = start + cost
        # If two are due at the same time, the one whose request has been served less goes first.
        heapq.heappush(self._heap, (start, flow.added, self._added, cost, flow, item))
        flow.added += 1
        flow.waiting += 1
        self._waiting += 1

    def first(self) -> tuple[Flow, Item] | None:
        """The next item, without taking it; None if there is none."""
        while self._heap and self._heap[0][4].dropped:
            heapq.heappop(self._heap)
        return self._heap[0][4:] if self._heap else None

    def pop(self) -> tuple[Flow, Item]:
        """Takes the next item. Raises IndexError if there is none."""
        self.first()
        return self._took(heapq.heappop(self._heap))

    def pop_if(self, wanted: Callable[[Flow], bool]) -> tuple[Flow, Item] | None:
        """Takes the next item of the wanted requests; None if there is none."""
        entry = min((entry for entry in self._heap if not entry[4].dropped and wanted(entry[4])), default=None)
        if entry is None:
            return None
        self._heap.remove(entry)
        heapq.heapify(self._heap)
        return self._took(entry)

    def _took(self, entry: tuple[float, int, int, float, Flow, Item]) -> tuple[Flow, Item]:
        start, _, _, cost, flow, item = entry
        self._now = max(start, self._now + cost / self._flows)
        self._take(flow, 1)
        return flow, item

    def drop(self, flow: Flow) -> None:
        """Forgets all items of a request."""
        flow.dropped = True
        self._take(flow, flow.waiting)

    def _take(self, flow: Flow, items: int) -> None:
        self._waiting -= items
        flow.waiting -= items
        self._flows -= items > 0 and not flow.waiting
