"""The HTTP side: /v1/realtime (WebSocket, also at Azure's paths), /v1/models, /health, /metrics, a page at /.

In: requests. Out: a `Connection` for each admitted conversation; a refusal with its reason for every other
request, before the WebSocket is accepted. Event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse

from app.dialog.vad import Vad
from app.server.access import Access
from app.server.connection import Connection, ConnectionLimits
from app.server.metrics import Metrics, merged
from app.server.web_page import HEADERS, PageFile, page_files
from app.session.end_of_turn_worker import EndOfTurnWorker
from app.session.engine_host import EngineHost, HostFullError
from app.session.transcriber import Transcriber

PATH = "/v1/realtime"
_AZURE_PATHS = ("/openai/v1/realtime", "/openai/realtime")
_SUBPROTOCOL = "realtime"
_BETA_HEADER, _BETA_SUBPROTOCOL = "realtime=v1", "openai-beta.realtime-v1"
"""How a client asks for the events of before GA."""
_WRONG_PATH = f"There is nothing at this path. Conversations are WebSockets at {PATH}; there is a page at /."
_OWNER = "moss-voice"
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """How one process is doing."""

    replica: str
    """Its name; "" where it is the only one."""
    status: str
    conversations: int
    capacity: int
    metrics: bytes
    """In the text format of Prometheus."""


Reports = Callable[[], Awaitable[list[Report]]]
"""Asks every process of a service."""


class RealtimeApp:
    """All connections of one process; `asgi` serves them."""

    def __init__(
        self,
        host: EngineHost,
        access: Access,
        limits: ConnectionLimits,
        metrics: Metrics,
        detector: EndOfTurnWorker | None,
        new_vad: Callable[[], Vad],
        seed: int | None = None,
        reports: Reports | None = None,
        transcriber: Transcriber | None = None,
    ) -> None:
        """The host has loaded its engine. `seed` is that of the sampling in every conversation; `reports`
        asks all processes of the service, None if this is the only one; `transcriber` hears what users say,
        None if nothing does."""
        self._host, self._access, self._limits, self._metrics = host, access, limits, metrics
        self._detector = detector
        self._new_vad = new_vad
        self._seed = seed
        self._transcriber = transcriber
        self._reports = reports
        self._connections: set[Connection] = set()
        self._is_draining = False
        self._all_left = asyncio.Event()
        app = self.asgi = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        app.add_api_route("/health", self._health, methods=["GET"])
        app.add_api_route("/metrics", self._render_metrics, methods=["GET"])
        app.add_api_route("/v1/models", self._models, methods=["GET"])
        for path, file in page_files().items():
            app.add_api_route(path, partial(self._page, file), methods=["GET", "HEAD"])
        for path in (PATH, *_AZURE_PATHS):
            app.add_api_websocket_route(path, self._realtime)
        app.add_api_websocket_route("/{path:path}", self._no_such_path)
        app.add_exception_handler(404, self._not_found)

    async def drain(self, limit_s: float) -> None:
        """Admit nobody, let responses in progress end, then close all connections, after `limit_s` in any
        case."""
        self._is_draining = True
        self._host.drain()
        _log.info("drain", extra={"fields": {"conversations": len(self._connections)}})
        for connection in list(self._connections):
            connection.leave()
        if self._connections:
            try:
                async with asyncio.timeout(limit_s):
                    await self._all_left.wait()
            except TimeoutError:
                for connection in list(self._connections):
                    connection.finish(1012, "shutting_down")

    def report(self, replica: str = "") -> Report:
        """How this process is doing."""
        host = self._host
        return Report(replica, self._status, host.conversations, host.capacity, self._metrics.render())

    async def _all_reports(self) -> list[Report]:
        return [self.report()] if self._reports is None else await self._reports()

    async def _page(self, file: PageFile, request: Request) -> Response:
        content = Response(file.content, media_type=file.media_type, headers=HEADERS)
        return self._wrong_host(request) or content

    def _wrong_host(self, request: Request) -> Response | None:
        refused = self._access.wrong_host(request.headers)
        return None if refused is None else _refusal(refused)

    async def _health(self, request: Request) -> Response:
        if (refused := self._wrong_host(request)) is not None:
            return refused
        reports = await self._all_reports()
        # A service is as ready as the best of its processes.
        statuses = {report.status for report in reports}
        status = "ready" if "ready" in statuses else min(statuses)
        shown: dict[str, str | int] = {
            "status": status,
            "conversations": sum(report.conversations for report in reports),
            "capacity": sum(report.capacity for report in reports),
        }
        if self._reports is not None:
            shown["replicas"] = len(reports)
        return JSONResponse(shown, status_code=200 if status == "ready" else 503)

    @property
    def _status(self) -> str:
        if self._host.problem is not None:
            return "failed"
        return "shutting_down" if self._is_draining else "ready"

    async def _render_metrics(self, request: Request) -> Response:
        if (refused := self._access.refusal(request.headers)) is not None:
            return _refusal(refused)
        reports = await self._all_reports()
        text = merged({report.replica: report.metrics for report in reports})
        return PlainTextResponse(text, media_type=_METRICS_TYPE)

    async def _models(self, request: Request) -> Response:
        if (refused := self._access.refusal(request.headers)) is not None:
            return _refusal(refused)
        names = [] if self._host.facts is None else [self._host.facts.bundle]
        models = [{"id": name, "object": "model", "created": 0, "owned_by": _OWNER} for name in names]
        return JSONResponse({"object": "list", "data": models})

    async def _not_found(self, request: Request, error: Exception) -> Response:
        return JSONResponse(_error("not_found", _WRONG_PATH), status_code=404)

    async def _no_such_path(self, socket: WebSocket) -> None:
        await self._refuse(socket, 404, "not_found", _WRONG_PATH)

    async def _realtime(self, socket: WebSocket) -> None:
        if (refused := self._access.refusal(socket.headers)) is not None:
            await self._refuse(socket, refused[0], "access_denied", refused[1])
            return
        facts = self._host.facts
        if facts is None:
            raise RuntimeError("the engine is not loaded")
        offered = socket.scope.get("subprotocols", [])
        connection = Connection(
            socket,
            facts,
            self._new_vad(),
            self._detector,
            self._limits,
            self._metrics,
            self._seed,
            self._transcriber,
            speaks_beta=_BETA_SUBPROTOCOL in offered or _BETA_HEADER in socket.headers.get("openai-beta", ""),
        )
        try:
            slot = self._host.open_slot(connection.deliver)
        except HostFullError as error:
            await self._refuse(socket, 503, "no_capacity", str(error))
            return
        end, began_s = "failed", time.monotonic()
        self._connections.add(connection)
        try:
            await socket.accept(_SUBPROTOCOL if _SUBPROTOCOL in offered else None)
            _log.info("session_opened", extra={"fields": {"conversations": self._host.conversations}})
            end = await connection.run(slot, self._host.flow_steps, self._host.timing, self._host.turn_room)
        except asyncio.CancelledError:  # by Ray, whose HAProxy has lost the client
            end = "client"
            raise
        finally:
            slot.close()
            self._connections.discard(connection)
            if self._is_draining and not self._connections:
                self._all_left.set()
            self._metrics.sessions.labels(end).inc()
            seconds = round(time.monotonic() - began_s, 1)
            fields = {"session": connection.session_id, "end": end, "seconds": seconds}
            _log.info("session_closed", extra={"fields": fields})

    async def _refuse(self, socket: WebSocket, status: int, code: str, message: str) -> None:
        self._metrics.refused.labels(str(status)).inc()
        _log.info("refused", extra={"fields": {"status": status, "code": code}})
        headers = {"retry-after": "5"} if status == 503 else None
        await socket.send_denial_response(
            JSONResponse(_error(code, message), status_code=status, headers=headers)
        )


def _refusal(refused: tuple[int, str]) -> Response:
    status, message = refused
    return JSONResponse(_error("access_denied", message), status_code=status)


def _error(code: str, message: str) -> dict[str, dict[str, str]]:
    return {"error": {"type": "invalid_request_error", "code": code, "message": message}}
