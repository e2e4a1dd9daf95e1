"""The server's counters, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

_PREFIX = "gpu_pipelines_serving"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Seconds, from the time of a small model to the longest usual deadline.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        made: dict[str, Any] = {"registry": self._registry}
        self._requests = Counter(f"{_PREFIX}_requests", "Requests answered.", ["route", "status"], **made)
        self._seconds = Histogram(
            f"{_PREFIX}_request_seconds",
            "From the head of a request to its answer.",
            ["route"],
            buckets=_SECONDS,
            **made,
        )
        self._instances = Counter(f"{_PREFIX}_instances", "Instances predicted.", **made)
        self._batch_rows = Histogram(f"{_PREFIX}_batch_rows", "Rows that the model got at once.", buckets=_ROWS, **made)
        self._batch_seconds = Histogram(
            f"{_PREFIX}_batch_seconds", "What the model took for them.", buckets=_SECONDS, **made
        )

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Counts an answer."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, rows: int, seconds: float) -> None:
        """Counts a batch of the model."""
        self._batch_rows.observe(rows)
        self._batch_seconds.observe(seconds)
        self._instances.inc(rows)

    def watch(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Shows a value that is read when the metrics are requested."""
        Gauge(f"{_PREFIX}_{name}", what, registry=self._registry).set_function(value)

    def watch_closed(self, closed: dict[str, int]) -> None:
        """Shows the connections that were closed early, by reason."""
        self._registry.register(_Closed(closed))

    def text(self) -> bytes:
        """All metrics, in Prometheus's text format."""
        found: bytes = generate_latest(self._registry)
        return found


class _Closed(Collector):
    def __init__(self, closed: dict[str, int]) -> None:
        self._closed = closed

    def collect(self) -> list[CounterMetricFamily]:
        found = CounterMetricFamily(
            f"{_PREFIX}_connections_closed", "Connections that the server closed early.", labels=["reason"]
        )
        for reason, count in self._closed.items():
            found.add_metric([reason], count)
        return [found]
