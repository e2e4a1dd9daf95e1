"""What a step needs is made while steps before it compute: on a thread, and for a GPU on a stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

Made = TypeVar("Made")


class Ahead:
    """A thread that makes tensors of a device, one after another, in the order in which they were asked for.

    Args:
        device: of the training. For a GPU the thread's copies and computations have a stream of their own; from pinned
            memory, as `on_device` takes it, they are done while the GPU computes a step.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")

    def begin(self, make: Callable[[], Made]) -> Coming[Made]:
        """Begins to make something, once what was begun before is made."""
        return Coming(self._thread.submit(self._made, make))

    def _made(self, make: Callable[[], Made]) -> tuple[Made, torch.cuda.Event | None]:
        if self._stream is None:
            return make(), None
        with torch.cuda.stream(self._stream):  # and of its device, which each thread chooses for itself
            return make(), self._stream.record_event()

    def close(self) -> None:
        """Ends the thread once what it is making is made; what has not been begun is not made."""
        self._thread.shutdown(cancel_futures=True)


class Coming(Generic[Made]):
    """What is being made."""

    def __init__(self, future: Future[tuple[Made, torch.cuda.Event | None]]) -> None:
        self._future = future

    def made(self) -> Made:
        """What was made, for the host; what is on a device may not be there yet. Raises what making it raised."""
        return self._future.result()[0]

    def usable(self, tensors: Iterable[torch.Tensor]) -> None:
        """Lets the device, not the host, wait until tensors of what was made are there; all that is used of it."""
        event = self._future.result()[1]
        if event is None:
            return
        computing = torch.cuda.current_stream()
        computing.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(computing)  # its memory is not given to the next batch before this one was used
