"""Machines that prepare the data of a run together: their limits, and the way to buy them."""

from __future__ import annotations

#: Ways to buy machines without GPUs.
STANDARD, SPOT = STRATEGIES = ("standard", "spot")
_MOST = 256


def problems_of_data_nodes(nodes: int, strategy: str, called: str) -> tuple[list[str], list[str]]:
    """Problems with the number of data nodes, and with how they are bought.

    Args:
        nodes: number of machines.
        strategy: the way to buy them.
        called: the target's word for several of them.
    """
    number = [] if 1 <= nodes <= _MOST else [f"Data cannot be prepared on {nodes} {called}; give 1 to {_MOST}."]
    known = strategy in STRATEGIES
    bought = [] if known else [f"Data cannot be prepared on {called} by {strategy[:60]!r}; give standard or spot."]
    return number, bought
