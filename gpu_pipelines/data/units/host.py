"""The process that prepares data: what it may use of its machine, and what it asks again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_pipelines.distributed.pieces import Executor
from gpu_pipelines.distributed.process_executor import ProcessExecutor
from gpu_pipelines.processors import cores


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Host:
    """The process that prepares data, or a part of it.

    Attributes:
        executor: does what is done with batches of records.
        cores: threads that may compute at once.
        check: is called again and again; ends the work by raising.
    """

    executor: Executor
    cores: int = field(default_factory=cores)
    check: Callable[[], None] = _nothing

    @classmethod
    def alone(cls) -> Host:
        """One of several workers of a machine: a core, and no process besides this one."""
        return cls(ProcessExecutor(1), 1)
