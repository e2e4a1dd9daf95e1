"""Makes the inputs of a step while earlier steps compute: for a GPU in a thread, and on a stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Generic, TypeVar

import torch

Made = TypeVar("Made")


class Ahead:
    """Makes tensors of a device, one after another, in the order in which they were asked for.

    Args:
        device: of the training. For a GPU that is done by a thread, whose copies and computations have a stream of
            their own; from pinned memory, as `on_device` takes it, they are done while the GPU computes a step. On CPUs
            that compute steps a thread would only interrupt them: there it is done when `make_begun` is called.
        on_thread: whether there is one; left out, for a GPU.
    """

    def __init__(self, device: torch.device, on_thread: bool | None = None) -> None:
        is_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if is_cuda else None
        has_thread = is_cuda if on_thread is None else on_thread
        self._thread: Executor = ThreadPoolExecutor(1, thread_name_prefix="batches") if has_thread else _WhenAsked()

    def begin(self, make: Callable[[], Made]) -> Coming[Made]:
        """Begins to make something, after everything that was begun before."""
        return Coming(self._thread.submit(self._made, make))

    def make_begun(self) -> None:
        """Makes what was begun, if there is no thread; whatever is needed earlier is made at that time."""
        if isinstance(self._thread, _WhenAsked):
            self._thread.catch_up()

    def _made(self, make: Callable[[], Made]) -> tuple[Made, torch.cuda.Event | None]:
        if self._stream is None:
            return make(), None
        with torch.cuda.stream(self._stream):  # and of its device, which each thread chooses for itself
            return make(), self._stream.record_event()

    def close(self) -> None:
        """Ends the thread after what it is making now; the rest is not made."""
        self._thread.shutdown(cancel_futures=True)


class Coming(Generic[Made]):
    """Something that is being made."""

    def __init__(self, future: Future[tuple[Made, torch.cuda.Event | None]]) -> None:
        self._future = future

    def is_made(self, seconds: float) -> bool:
        """Waits for at most so long; returns whether it is made, or making it has failed."""
        if isinstance(self._future, _Asked):
            self._future.work()
        return bool(wait([self._future], seconds).done)

    def made(self) -> Made:
        """The result, for the host; tensors on a device may not be there yet. Raises what making it raised."""
        return self._future.result()[0]

    def usable(self, tensors: Iterable[torch.Tensor]) -> None:
        """Makes the device, not the host, wait for `tensors`: all those of the result that will be used."""
        event = self._future.result()[1]
        if event is None:
            return
        computing = torch.cuda.current_stream()
        computing.wait_event(event)
        for tensor in tensors:
            if tensor.is_cuda:  # lengths that PyTorch wants on the CPU, say, have no stream
                tensor.record_stream(computing)  # its memory is not given to the next batch before this one was used


class _Asked(Future[Any]):
    """Work that is done by whoever wants its result."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def work(self) -> None:
        if self.done():
            return
        try:
            self.set_result(self._work())
        except Exception as error:
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        self.work()
        return super().result(timeout)


class _WhenAsked(Executor):
    """Does what is submitted when it is asked to."""

    def __init__(self) -> None:
        self._submitted: list[_Asked] = []

    def submit(self, work: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        self._submitted.append(_Asked(partial(work, *arguments, **named)))
        return self._submitted[-1]

    def catch_up(self) -> None:
        for each in self._submitted:
            each.work()
        self._submitted.clear()
