"""The HTTP face: health, and predictions, as Vertex AI asks for them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from gpu_pipelines.serving.admission import Admission, TooBusyError
from gpu_pipelines.serving.batching import Batcher, QueueFullError
from gpu_pipelines.serving.request_body import WrongRequest, parsed
from gpu_pipelines.serving.settings import Contract, ServerSettings

if TYPE_CHECKING:
    from gpu_pipelines.serving.predictors import Predictor

#: Wrong instances that are told of in one answer.
_MOST_TOLD = 5
#: Seconds after which a client should try again: when the queue is full; while the model loads or the server ends.
_BUSY_SECONDS, _AWAY_SECONDS = 1, 5


class Serving:
    """A model behind HTTP.

    Attributes:
        app: the ASGI application.
        draining: the server is about to end: health says so, and connections are not kept.
    """

    def __init__(self, settings: ServerSettings, contract: Contract) -> None:
        self.draining = False
        self._settings = settings
        self._predictor: Predictor | None = None
        self._batcher: Batcher | None = None
        self._admission = Admission(settings.max_requests, settings.max_megabytes_held << 20)
        self._preparing = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="prepare")
        # No pages of FastAPI's own: they would load scripts from elsewhere.
        self.app = FastAPI(lifespan=self._lifespan, openapi_url=None)
        self.app.add_api_route(contract.health_route, self._health, methods=["GET"])
        self.app.add_api_route(contract.predict_route, self._predict, methods=["POST"])
        self.app.add_exception_handler(404, _no_such_route(contract))

    def start(self, predictor: Predictor) -> None:
        """Serves a model from now on."""
        limits = self._settings
        self._batcher = Batcher(predictor.predict, limits.max_batch, limits.max_wait_ms, limits.max_waiting)
        self._predictor = predictor

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        yield
        self._preparing.shutdown()
        if self._batcher:
            self._batcher.close()

    async def _health(self) -> Response:
        if self._batcher is None:
            return self._refused(503, "The model is being loaded.", _AWAY_SECONDS)
        if self.draining:
            return self._refused(503, "The server is ending.", _AWAY_SECONDS)
        if self._batcher.is_ill:
            return self._refused(503, "Predictions fail; the log says why.")
        return self._answer({"status": "ready"})

    async def _predict(self, request: Request) -> Response:
        if self._batcher is None or self._predictor is None:
            return self._refused(503, "The model is being loaded.", _AWAY_SECONDS)
        most = self._settings.max_request_bytes
        told = request.headers.get("content-length", "")
        size = int(told) if told.isdecimal() else most
        if size > most:
            return self._too_large()
        try:
            with self._admission.request(size):
                return await self._predicted(request, self._predictor, self._batcher)
        except (TooBusyError, QueueFullError):
            return self._refused(429, "The server has as many requests as it takes. Try again.", _BUSY_SECONDS)

    async def _predicted(self, request: Request, predictor: Predictor, batcher: Batcher) -> Response:
        try:
            body = await asyncio.wait_for(self._body(request), self._settings.read_seconds)
        except (asyncio.TimeoutError, TimeoutError):
            return self._refused(408, f"The body did not arrive within {self._settings.read_seconds:g} s.")
        if body is None:
            return self._too_large()
        with batcher.more_to_come():
            try:
                rows = await _in(self._preparing, self._rows, body, predictor)
            except WrongRequest as wrong:
                return self._refused(400, str(wrong))
            answered = batcher.submit(rows)
        try:
            return self._answer({"predictions": await asyncio.wrap_future(answered)})
        except Exception as error:  # whatever the model raised; the batcher has logged it
            return self._refused(500, f"The prediction failed: {type(error).__name__}. The server's log says why.")

    async def _body(self, request: Request) -> bytes | None:
        """The body; None where it is too long."""
        pieces, size = [], 0
        async for piece in request.stream():
            size += len(piece)
            if size > self._settings.max_request_bytes:
                return None
            pieces.append(piece)
        return b"".join(pieces)

    def _rows(self, body: bytes, predictor: Predictor) -> list[Any]:
        instances, given = parsed(body, self._settings.max_instances)
        parameters = predictor.checked(given)
        rows, wrong = [], []
        for number, instance in enumerate(instances):
            try:
                rows.append(predictor.prepare(instance, parameters))
            except WrongRequest as error:
                wrong.append(f"instances[{number}]: {error}")
                if len(wrong) == _MOST_TOLD:
                    break
        if wrong:
            raise WrongRequest("\n".join(wrong))
        return rows

    def _too_large(self) -> Response:
        return self._refused(413, f"The body is larger than {self._settings.max_request_megabytes} MiB. Send less.")

    def _refused(self, status: int, message: str, again_seconds: int = 0) -> Response:
        headers = {"retry-after": str(again_seconds)} if again_seconds else {}
        # The rest of a body that was not read to its end would be taken for the next request.
        if status in (408, 413):
            headers["connection"] = "close"
        return self._answer({"error": message}, status, headers)

    def _answer(self, content: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
        closing = {"connection": "close"} if self.draining else {}
        text = json.dumps(content, allow_nan=False)
        return Response(text.encode(), status, {**(headers or {}), **closing}, "application/json")


async def _in(executor: Executor, function: Any, *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(executor, function, *arguments)


def _no_such_route(contract: Contract) -> Any:
    text = f"Send POST {contract.predict_route} for predictions, GET {contract.health_route} for health."

    async def answer(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": f"There is no {request.method} {request.url.path[:100]}. {text}"}, 404)

    return answer
