"""The HTTP side: health and predictions as Vertex AI requires them, KServe's two protocols, and metrics."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException, Request, Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from gpu_pipelines.serving import open_inference
from gpu_pipelines.serving.batching import Batcher
from gpu_pipelines.serving.metrics import CONTENT_TYPE, Metrics
from gpu_pipelines.serving.openapi import openapi_document
from gpu_pipelines.serving.request_body import parsed
from gpu_pipelines.serving.request_log import RequestLog, id_of
from gpu_pipelines.serving.request_work import ClientGoneError, Parse, Predicted, RefusedError, RequestWork
from gpu_pipelines.serving.settings import Contract, ServerSettings

if TYPE_CHECKING:
    from gpu_pipelines.serving.predictor import Predictor


#: Seconds after which a client should try again while the model loads or the server shuts down.
_AWAY_SECONDS = 5
#: The status to count for a client that did not wait for its answer; nginx's, as HTTP itself has none.
_CLIENT_GONE = 499
_LIVE, _READY = "/v2/health/live", "/v2/health/ready"

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Serving:
    """A model behind HTTP; called as an ASGI application.

    Attributes:
        draining: whether the server is about to end: health then says so, and connections are not kept open.
        metrics: the counters of the server.
    """

    def __init__(self, settings: ServerSettings, contract: Contract) -> None:
        self.draining = False
        self.metrics = Metrics()
        self._settings, self._contract = settings, contract
        self._access = Access(settings.tokens)
        self._name = settings.model_name
        self._predictor: Predictor | None = None
        self._batcher: Batcher | None = None
        self._work: RequestWork | None = None
        self._log: RequestLog | None = None
        self._app = self._routed()
        self._open_to_all = {contract.health_route, _LIVE, _READY}
        self._watch()

    def start(self, predictor: Predictor, name: str) -> None:
        """Serves a model from now on.

        Args:
            predictor: the model.
            name: its name if the settings give none.
        """
        limits = self._settings
        self._name = self._name or name
        self._batcher = Batcher(
            predictor.answers,
            limits.max_batch,
            limits.max_wait_ms,
            limits.max_waiting,
            predictor.advance,
            predictor.writes_at_once,
            self.metrics.batch,
        )
        if limits.log_requests:
            self._log = RequestLog(limits, self._name)
        self._predictor = predictor
        self._work = RequestWork(limits, predictor, self._batcher)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request and counts the answer; without a valid token only open routes are answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), _CLIENT_GONE

        async def counting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if scope["path"] in self._open_to_all or self._access.allows(scope["headers"]):
                await self._app(scope, receive, counting)
            else:
                told = "The request needs one of the server's tokens: Authorization: Bearer TOKEN."
                refused = self._refused(RefusedError(401, told), {"www-authenticate": "Bearer"})
                await refused(scope, receive, counting)
        finally:
            self.metrics.answered(self._route_of(scope["path"]), status, time.monotonic() - started)

    def _routed(self) -> FastAPI:
        # No pages of FastAPI's own: they would load scripts from elsewhere.
        app = FastAPI(lifespan=self._lifespan, openapi_url=None, redirect_slashes=False)
        get, contract = ["GET", "HEAD"], self._contract
        for path, answer, methods in (
            (contract.health_route, self._health, get),
            (contract.predict_route, self._predict, ["POST"]),
            ("/v1/models", self._v1_models, get),
            ("/v1/models/{name}:predict", self._predict, ["POST"]),
            ("/v1/models/{name}", self._v1_model, get),
            ("/v2", self._v2_server, get),
            (_LIVE, self._live, get),
            (_READY, self._server_ready, get),
            ("/v2/models/{name}", self._v2_model, get),
            ("/v2/models/{name}/ready", self._v2_ready, get),
            ("/v2/models/{name}/infer", self._infer, ["POST"]),
            ("/metrics", self._metrics, get),
            ("/openapi.json", self._openapi, get),
        ):
            app.add_api_route(path, answer, methods=methods)
        app.add_exception_handler(StarletteHTTPException, self._no_such_route)  # type: ignore[arg-type]
        app.add_exception_handler(RefusedError, self._on_refusal)  # type: ignore[arg-type]
        app.add_exception_handler(Exception, self._on_error)
        return app

    def _watch(self) -> None:
        watch = self.metrics.watch
        watch("ready", "1 if the server predicts.", lambda: float(self._why_not_ready() is None))
        watch("rows_waiting", "Rows that wait for the model.", lambda: self._batcher.waiting if self._batcher else 0)
        watch("rows_writing", "Rows that are being continued.", lambda: self._batcher.writing if self._batcher else 0)
        for name, what in (
            ("requests", "Requests in work."),
            ("bytes", "Bytes of bodies held."),
            ("pixels", "Waiting."),
        ):
            watch(f"held_{name}", what, partial(self._held, name))
        watch("logged_requests", "Requests in files of the log.", lambda: self._log.written if self._log else 0)
        watch("unlogged_requests", "Requests drawn and left out.", lambda: self._log.left_out if self._log else 0)

    def _held(self, name: str) -> float:
        return float(getattr(self._work.admission, name)) if self._work else 0.0

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        yield
        if self._work and self._batcher:
            self._work.close()
            self._batcher.close()
        if self._log:
            self._log.close()

    def _why_not_ready(self) -> RefusedError | None:
        # The thread that loads the model sets `_work` last.
        if self._work is None or self._batcher is None:
            return RefusedError(503, "The model is being loaded.", _AWAY_SECONDS)
        if self.draining:
            return RefusedError(503, "The server is shutting down.", _AWAY_SECONDS)
        return RefusedError(503, "Predictions fail; the log says why.") if self._batcher.is_ill else None

    async def _health(self) -> Response:
        if why := self._why_not_ready():
            raise why
        return self._answer({"status": "ready"})

    async def _server_ready(self) -> Response:
        await self._health()
        return self._answer({"ready": True})

    async def _live(self) -> Response:
        return self._answer({"live": True})

    async def _predict(self, request: Request) -> Response:
        self._require_name(request)
        most = self._settings.max_instances
        found = await self._predicted(request, lambda body: (*parsed(body, most), None))
        return self._answer({"predictions": found.predictions})

    async def _infer(self, request: Request) -> Response:
        self._require_name(request)
        if open_inference.BINARY in request.headers:
            raise RefusedError(400, open_inference.NOT_BINARY)
        model, most = self._model(), self._settings.max_instances
        outputs = [name for name, *_ in model.outputs]
        found = await self._predicted(request, lambda body: open_inference.parsed(body, model.fields, outputs, most))
        return self._answer(open_inference.answer(self._name, found.more, model.tensors(found.predictions)))

    async def _predicted(self, request: Request, parse: Parse) -> Predicted:
        self._model()
        assert self._work is not None
        request_id = id_of(request.headers) if self._log else ""
        kept = _Kept(parse) if self._log and self._log.wants(request_id) else None
        try:
            found = await self._work.predicted(request, kept or parse)
        except ClientGoneError:
            raise RefusedError(_CLIENT_GONE, "The client has gone.") from None
        if self._log and kept:
            self._log.offer(request_id, kept.instances, found.predictions, kept.size)
        return found

    async def _v1_models(self) -> Response:
        self._model()
        return self._answer({"models": [self._name]})

    async def _v1_model(self, request: Request) -> Response:
        self._require_name(request)
        return self._answer({"name": self._name, "ready": self._why_not_ready() is None})

    async def _v2_server(self) -> Response:
        return self._answer(open_inference.SERVER)

    async def _v2_model(self, request: Request) -> Response:
        self._require_name(request)
        return self._answer(open_inference.metadata(self._name, self._model()))

    async def _v2_ready(self, request: Request) -> Response:
        self._require_name(request)
        if why := self._why_not_ready():
            raise why
        return self._answer({"name": self._name, "ready": True})

    async def _metrics(self) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    async def _openapi(self) -> Response:
        document = openapi_document(self._contract, self._model(), self._name, bool(self._settings.tokens))
        return self._answer(document)

    def _model(self) -> Predictor:
        """The model. Raises `RefusedError` while it is being loaded."""
        if self._predictor is None or self._work is None:
            raise RefusedError(503, "The model is being loaded.", _AWAY_SECONDS)
        return self._predictor

    def _require_name(self, request: Request) -> None:
        """Checks the name of the model, if the route has one."""
        given = request.path_params.get("name")
        if given is not None:
            self._model()
            if given != self._name:
                told = f"There is no model {given[:100]!r}; the model is {self._name!r}."
                raise RefusedError(404, told)

    def _route_of(self, path: str) -> str:
        """The route's name in the metrics; all unknown routes share one, so that clients cannot add names."""
        names = {self._contract.health_route: "health", self._contract.predict_route: "predict"}
        if path in names:
            return names[path]
        first = path.split("/", 2)[1] if path.startswith("/") else ""
        return first if first in ("v1", "v2", "metrics", "openapi.json") else "other"

    async def _no_such_route(self, request: Request, error: HTTPException) -> Response:
        contract = self._contract
        told = (
            f"There is no {request.method} {request.url.path[:100]}. Send POST {contract.predict_route} for "
            f"predictions, GET {contract.health_route} for health; GET /openapi.json has all routes."
        )
        return self._refused(RefusedError(error.status_code, told), dict(error.headers or {}))

    async def _on_refusal(self, request: Request, error: RefusedError) -> Response:
        return self._refused(error)

    async def _on_error(self, request: Request, error: Exception) -> Response:
        return self._refused(RefusedError(500, "The server failed; its log says why."))

    def _refused(self, error: RefusedError, headers: dict[str, str] | None = None) -> Response:
        headers = dict(headers or {})
        if error.again_seconds:
            headers["retry-after"] = str(error.again_seconds)
        # A body that comes too slowly is not waited for. The rest of any other is skipped, within the time for a head.
        if error.status == 408:
            headers["connection"] = "close"
        return self._answer({"error": error.message}, error.status, headers)

    def _answer(self, content: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
        closing = {"connection": "close"} if self.draining else {}
        text = json.dumps(content, allow_nan=False)
        return Response(text.encode(), status, {**(headers or {}), **closing}, "application/json")


class _Kept:
    """Parses a request, and keeps its instances for the log.

    Args:
        parse: the parser of its protocol.
    """

    def __init__(self, parse: Parse) -> None:
        self._parse = parse
        self.instances: list[Any] = []
        self.size = 0

    def __call__(self, body: bytes) -> tuple[list[Any], dict[str, Any], Any]:
        found = self._parse(body)
        self.instances, self.size = list(found[0]), len(body)
        return found


class Access:
    """Checks bearer tokens, RFC 6750. They are kept as hashes and compared in constant time.

    Args:
        tokens: the valid tokens; if there are none, every request is allowed.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._hashes = [_hashed(token.encode()) for token in tokens]

    def allows(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request with these headers (names in lower case) may be answered."""
        if not self._hashes:
            return True
        given = [value for name, value in headers if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, token = given[0].strip().partition(b" ")
        hashed = _hashed(token.strip())
        # All are compared, even after a match, so that the time is always the same.
        same = [hmac.compare_digest(hashed, each) for each in self._hashes]
        return scheme.lower() == b"bearer" and any(same)


def _hashed(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
