"""Composition root of the server: what is started in which order, and ended in which order.

1. Address, port, keys and certificate are checked; 2. the end-of-turn and engine threads start, and the
engine is loaded; 3. uvicorn listens. At SIGTERM or SIGINT: no client is admitted any more, responses in
progress end, connections are closed, the engine is closed. A second signal ends it at once. Main thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import cast

import uvicorn

from app.server.access import check_address, check_tls
from app.server.guard import (
    LONGEST_HEADER,
    Guard,
    GuardedLoop,
    GuardedProtocol,
    allow_connections,
    limit_logs,
    report_of_loop,
)
from app.server.http_app import PATH, RealtimeApp
from app.server.service import HANG_UP_S, RealtimeService, ServeSettings
from app.session.end_of_turn_worker import DetectorFactory
from app.session.engine_slot import EngineFactory
from engine_runtime.errors import MossVoiceError

_PING_S = 20.0
_log = logging.getLogger(__name__)


class ServeError(MossVoiceError):
    """The server cannot listen."""


def serve(
    settings: ServeSettings,
    factory: EngineFactory,
    detector_factory: DetectorFactory,
    on_listening: Callable[[str], None],
) -> int:
    """Serve until a signal asks for the end; returns the exit status. `on_listening` gets the address.
    MossVoiceError if the engine cannot be loaded, the address is not free or others could connect."""
    check_address(settings.host, settings.access)
    check_tls(settings.tls_certificate, settings.tls_key)
    free_port(settings)  # before the engine is loaded, which takes longer
    if settings.exits_with_stdin:
        threading.Thread(target=_end_with_stdin, name="standard input", daemon=True).start()
    service = RealtimeService(settings, factory, detector_factory)
    try:
        with asyncio.Runner(loop_factory=GuardedLoop) as runner:
            return runner.run(_listen(settings, service.app, on_listening))
    finally:
        service.close()


def _end_with_stdin() -> None:
    """Ask for the end, as a user would, when the standard input ends. In a thread of its own, so that it also
    happens while the engine is loaded."""
    while os.read(0, 1_024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


async def _listen(settings: ServeSettings, app: RealtimeApp, on_listening: Callable[[str], None]) -> int:
    limit_logs()
    allow_connections()
    asyncio.get_running_loop().set_exception_handler(report_of_loop)
    config = uvicorn.Config(
        app.asgi,
        http=cast(type[asyncio.Protocol], partial(GuardedProtocol, Guard())),
        h11_max_incomplete_event_size=LONGEST_HEADER,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        ws="websockets-sansio",
        ws_max_size=settings.limits.message_bytes,
        # Browsers and most libraries offer it, and it takes 0.7 ms of the event loop for each delta.
        ws_per_message_deflate=False,
        ws_ping_interval=_PING_S,
        ws_ping_timeout=_PING_S,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=HANG_UP_S,
    )
    listener = open_listener(config)
    url = url_of(settings, *listener.getsockname()[:2])
    server = _DrainingServer(config, app, settings.drain_s, lambda: on_listening(url))
    await server.serve([listener])
    return 0


def url_of(settings: ServeSettings, host: str, port: int) -> str:
    """Where clients connect."""
    scheme = "ws" if settings.tls_certificate is None else "wss"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{PATH}"


def free_port(settings: ServeSettings) -> int:
    """The port, or any free one for 0. ServeError if the address cannot be listened on."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        with socket.create_server((settings.host, settings.port), family=family) as listener:
            return int(listener.getsockname()[1])
    except OSError as error:
        raise ServeError(
            "Cannot listen on {host}:{port}: {reason}.",
            "Choose another with --port or --host.",
            host=settings.host,
            port=settings.port,
            reason=error.strerror,
        ) from error


def open_listener(config: uvicorn.Config) -> socket.socket:
    """The listening socket; who connects from now on waits and is not refused. ServeError if there is
    none."""
    try:
        listener = config.bind_socket()
    except SystemExit as error:  # uvicorn has logged the reason
        raise ServeError(
            "Cannot listen on {host}:{port}: it is in use, or not an address of this machine.",
            "Choose another with --port or --host.",
            host=config.host,
            port=config.port,
        ) from error
    # Inherited by its connections. asyncio sets it only on sockets that name the protocol, which uvicorn's
    # does not; without it a delta waits up to 40 ms for the acknowledgement of the one before.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.listen(config.backlog)
    return listener


class _DrainingServer(uvicorn.Server):
    """Ends responses before it closes connections."""

    def __init__(
        self, config: uvicorn.Config, app: RealtimeApp, drain_s: float, on_started: Callable[[], None]
    ) -> None:
        """`on_started` is called once signals are handled: from then on SIGTERM drains."""
        super().__init__(config)
        self._app, self._drain_s, self._on_started = app, drain_s, on_started
        self._loop = asyncio.get_running_loop()
        self._drain: asyncio.Task[None] | None = None
        self._is_asked = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second one ends at once."""
        if self._is_asked:
            self.should_exit = self.force_exit = True
            return
        self._is_asked = True
        self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        self._drain = self._loop.create_task(self._end())

    async def _end(self) -> None:
        try:
            await self._app.drain(self._drain_s)
        finally:
            self.should_exit = True
