"""The properties of a metric."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """Whether more of a metric is better, and the values between which it lies."""

    more_is_better: bool = True
    largest: float = 1.0
    smallest: float = 0.0


#: An error or a loss.
ERROR = Metric(more_is_better=False, largest=math.inf)
