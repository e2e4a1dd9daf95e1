"""The work between the body of a request and its predictions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import ClientDisconnect

from gpu_pipelines.processors import cores
from gpu_pipelines.serving.admission import Admission, Body, TooBusyError
from gpu_pipelines.serving.batching import Batcher, QueueFullError
from gpu_pipelines.serving.preparation import AT_ONCE, FairDecoder, Pending
from gpu_pipelines.serving.request_body import TooLargeError, WrongRequest, inflated
from gpu_pipelines.serving.settings import ServerSettings

if TYPE_CHECKING:
    from gpu_pipelines.serving.predictor import Predictor

#: The most wrong instances that an answer names.
_MOST_TOLD = 5
#: A request answered within these seconds needs no watch on its client.
_SOON = 0.25
#: Makes instances, parameters and whatever else the answer needs of the text of a body.
Parse = Callable[[bytes], tuple[list[Any], dict[str, Any], Any]]


class RefusedError(Exception):
    """A request that does not get predictions.

    Args:
        status: the HTTP status.
        message: what is wrong and what to do.
        again_seconds: when to try again; 0 for never.
    """

    def __init__(self, status: int, message: str, again_seconds: int = 0) -> None:
        super().__init__(message)
        self.status, self.message, self.again_seconds = status, message, again_seconds


class ClientGoneError(Exception):
    """The client has closed the connection; its answer is no longer needed."""


class Predicted(NamedTuple):
    """Predictions, the parameters of the request, and whatever else the parser returned."""

    predictions: list[Any]
    parameters: dict[str, Any]
    more: Any


class _Read(NamedTuple):
    pending: list[Pending]
    rows: list[Any] | None
    parameters: dict[str, Any]
    more: Any
    inflated: int


class RequestWork:
    """Accepts requests as far as the settings allow and returns their predictions.

    Args:
        settings: limits.
        predictor: the model.
        batcher: takes the rows.
    """

    def __init__(self, settings: ServerSettings, predictor: Predictor, batcher: Batcher) -> None:
        self._settings, self._predictor, self._batcher = settings, predictor, batcher
        self.admission = Admission(
            settings.max_requests, settings.max_megabytes_held << 20, settings.max_pixels_waiting
        )
        threads = cores()
        self._reading = ThreadPoolExecutor(threads, thread_name_prefix="read")
        self._decoder = FairDecoder(threads, settings.max_pixels_at_once)

    def close(self) -> None:
        """Ends the threads after their current images."""
        self._reading.shutdown()
        self._decoder.close()

    async def predicted(self, request: Any, parse: Parse) -> Predicted:
        """The predictions of a request.

        Args:
            request: Starlette's request.
            parse: the parser of its protocol.

        Raises:
            RefusedError: it cannot be answered; with the reason.
            ClientGoneError: nobody waits for the answer.
        """
        most, limits = self._settings.max_request_bytes, self._settings
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > most:
            raise self._too_large()
        compressed = _is_compressed(request.headers.get("content-encoding", ""))
        try:
            with self.admission.body() as body:
                try:
                    content = await asyncio.wait_for(self._body(request, body), limits.read_seconds)
                except (asyncio.TimeoutError, TimeoutError):
                    told = f"The body did not arrive within {limits.read_seconds:g} s."
                    raise RefusedError(408, told) from None
                with self.admission.request():
                    return await _in_time(
                        self._work(content, compressed, body, parse), request, limits.deadline_seconds
                    )
        except (TooBusyError, QueueFullError):
            told = "The server has as many requests as it accepts. Try again."
            raise RefusedError(429, told, again_seconds=1) from None
        except TooLargeError:
            raise self._too_large() from None
        except WrongRequest as wrong:
            raise RefusedError(400, str(wrong)) from None
        except ClientDisconnect:  # it went before the whole body was here
            raise ClientGoneError from None

    async def _body(self, request: Any, body: Body) -> bytes:
        pieces = []
        async for piece in request.stream():
            body.add(len(piece))
            if body.size > self._settings.max_request_bytes:
                raise TooLargeError
            pieces.append(piece)
        return b"".join(pieces)

    async def _work(self, content: bytes, compressed: bool, body: Body, parse: Parse) -> Predicted:
        loop = asyncio.get_running_loop()
        answered = None
        with self._batcher.more_to_come():
            read: _Read = await loop.run_in_executor(self._reading, self._read, content, compressed, parse)
            body.add(read.inflated)
            if read.rows is not None:
                answered = self._batcher.submit(read.rows)
        if answered is None:
            answered = self._batcher.submit(await self._decoded(read.pending))
        try:
            return Predicted(await asyncio.wrap_future(answered), read.parameters, read.more)
        except WrongRequest:
            raise
        except Exception as error:  # any error of the model; the batcher has logged it
            told = f"The prediction failed: {type(error).__name__}. The server's log says why."
            raise RefusedError(500, told) from None

    def _read(self, content: bytes, compressed: bool, parse: Parse) -> _Read:
        """Reads a request; also makes its rows, unless that is much work."""
        if compressed:
            content = inflated(content, self._settings.max_request_bytes)
        instances, given, more = parse(content)
        parameters = self._predictor.checked(given)
        pending = _all_right([partial(self._predictor.read, each, parameters) for each in instances])
        rows = None
        if sum(each.pixels for each in pending) <= AT_ONCE:
            rows = _all_right([each.row for each in pending])
        return _Read(pending, rows, given, more, len(content) if compressed else 0)

    async def _decoded(self, pending: Sequence[Pending]) -> list[Any]:
        """The rows of a request with large images, which takes turns with other requests."""
        with self.admission.decoding(sum(each.pixels for each in pending)):
            flow, futures = self._decoder.submit(pending)
            try:
                done = await asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)
            finally:
                self._decoder.drop(flow)
        return _all_right([partial(_raised, each) for each in done])

    def _too_large(self) -> RefusedError:
        told = f"The body is larger than {self._settings.max_request_megabytes} MiB. Send less."
        return RefusedError(413, told)


async def _in_time(work: Coroutine[Any, Any, Predicted], request: Any, seconds: float) -> Predicted:
    """Waits for the predictions until the deadline, or until the client has gone; rows not begun are dropped."""
    until = time.monotonic() + seconds
    task = asyncio.ensure_future(work)
    gone: asyncio.Future[None] | None = None
    try:
        await asyncio.wait({task}, timeout=min(_SOON, seconds))
        if not task.done():
            gone = asyncio.ensure_future(_disconnected(request))
            await asyncio.wait(
                {task, gone}, timeout=max(0.0, until - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
            )
        if task.done():
            return task.result()
        if gone and gone.done():
            raise ClientGoneError
        told = f"The request was not answered within {seconds:g} s. Send less at once, or try again later."
        raise RefusedError(504, told)
    finally:
        for each in (task, gone):
            if each is not None:
                each.cancel()


async def _disconnected(request: Any) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _is_compressed(encoding: str) -> bool:
    """Whether a body is compressed with gzip. Raises `RefusedError` for any other encoding."""
    encoding = encoding.strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        told = f"The body is encoded as {encoding[:40]!r}. Send it as it is, or with Content-Encoding: gzip."
        raise RefusedError(415, told)
    return encoding.endswith("gzip")


def _all_right(makers: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of all functions, or a `WrongRequest` that names each wrong instance."""
    found, wrong = [], []
    for number, make in enumerate(makers):
        try:
            found.append(make())
        except WrongRequest as error:
            wrong.append(f"instances[{number}]: {error}")
            if len(wrong) == _MOST_TOLD:
                break
    if wrong:
        raise WrongRequest("\n".join(wrong))
    return found


def _raised(result: Any) -> Any:
    if isinstance(result, BaseException):
        raise result
    return result
