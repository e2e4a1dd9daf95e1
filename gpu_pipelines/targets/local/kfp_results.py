"""The keys under which KFP's local runner keeps results: each of several equal steps of a run has its own."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any


def key_of_each_step(original: Callable[..., str]) -> Callable[..., str]:
    """Numbers the steps of a run that have the same key; the first has the key alone.

    Left alone, the second turn of a loop over `[1, 1]` takes what the first has just made, also in a run that takes no
    results: a step that draws lots would draw once for all. A later run gives its second the result of the second.

    Args:
        original: makes the key of a step of what it is told.
    """
    seen, lock = Counter[str](), threading.Lock()

    def compute_key(*given: Any, **named: Any) -> str:
        key = original(*given, **named)
        with lock:
            seen[key] += 1
            number = seen[key]
        return key if number == 1 else hashlib.sha256(f"{key} {number}".encode()).hexdigest()

    return compute_key
