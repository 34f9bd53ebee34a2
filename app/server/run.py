"""Composition root of the server: what is started in which order, and ended in which order.

1. Addresses, keys and certificate are checked; 2. the end-of-turn and engine threads start, and the engine is
loaded; 3. uvicorn listens. At SIGTERM or SIGINT: nobody is admitted any more, responses in progress end,
connections are closed, the engine is closed. A second signal ends it at once. Main thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import uvicorn

from app.dialog.vad import SileroVad
from app.server.access import Access, check_address, check_tls
from app.server.connection import ConnectionLimits
from app.server.engine_pool import EnginePool
from app.server.http_app import PATH, RealtimeApp
from app.server.metrics import Metrics
from app.session.end_of_turn_worker import DetectorFactory, EndOfTurnWorker
from app.session.engine_source import EngineFactory
from app.session.pending_work import PendingWork
from engine_runtime.errors import MossVoiceError

_PING_S = 20.0
_HANG_UP_S = 5
_log = logging.getLogger(__name__)


class ServeError(MossVoiceError):
    """The server cannot listen."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """What the command line says."""

    host: str = "127.0.0.1"
    port: int = 8_000
    """0 for any free one."""
    conversations: int | None = None
    """At once; None for as many as the engine is measured to serve."""
    batch_invariant: bool = False
    """Whether no reply depends on what else runs, not even by rounding."""
    seed: int | None = None
    """Of the sampling in every conversation; None for the bundle's, or else one for each."""
    access: Access = field(default_factory=Access)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    message_bytes: int = 2_500_000
    """Of one message: more than the longest turn as PCM16 in base64."""
    drain_s: float = 30.0
    """For responses in progress at the end."""
    exits_with_stdin: bool = False
    """Whether the end of the standard input asks for the end: the program that started this one is gone."""


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
    new_vad = SileroVad
    new_vad()  # fails here and not at the first connection
    detector = EndOfTurnWorker(detector_factory, PendingWork())
    pool = EnginePool(
        factory,
        settings.conversations,
        lambda engine: metrics.watch(engine.timing),
        batch_invariant=settings.batch_invariant,
    )
    metrics = Metrics(pool)
    threads = [
        threading.Thread(target=pool.run, name="engine", daemon=True),
        threading.Thread(target=detector.run, name="end of turn", daemon=True),
    ]
    if settings.exits_with_stdin:
        threading.Thread(target=_end_with_stdin, name="standard input", daemon=True).start()
    for thread in threads:
        thread.start()
    try:
        pool.loaded.wait()
        if pool.problem is not None:
            raise pool.problem
        return asyncio.run(_listen(settings, pool, metrics, detector, on_listening))
    finally:
        pool.close()
        detector.close()
        for thread in threads:
            thread.join(_HANG_UP_S)


def _end_with_stdin() -> None:
    """Ask for the end, as a user would, when the standard input ends. In a thread of its own, so that it also
    happens while the engine is loaded."""
    while os.read(0, 1_024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


async def _listen(
    settings: ServeSettings,
    pool: EnginePool,
    metrics: Metrics,
    detector: EndOfTurnWorker,
    on_listening: Callable[[str], None],
) -> int:
    app = RealtimeApp(pool, settings.access, settings.limits, metrics, detector, SileroVad, settings.seed)
    config = uvicorn.Config(
        app.asgi,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        ws="websockets-sansio",
        ws_max_size=settings.message_bytes,
        ws_ping_interval=_PING_S,
        ws_ping_timeout=_PING_S,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=_HANG_UP_S,
    )
    listener = open_listener(config)
    server = _DrainingServer(config, app, settings.drain_s)
    scheme = "ws" if settings.tls_certificate is None else "wss"
    host, port = listener.getsockname()[:2]
    on_listening(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{PATH}")
    await server.serve([listener])
    return 0


def open_listener(config: uvicorn.Config) -> socket.socket:
    """The listening socket; who connects from now on waits and is not refused. ServeError if there is
    none."""
    try:
        listener = config.bind_socket()
    except SystemExit as error:  # uvicorn has logged the reason
        raise ServeError(
            f"{config.host}:{config.port} cannot be listened on: it is in use, or not an address of this "
            "machine. Choose another with --port or --host."
        ) from error
    # Inherited by its connections. asyncio sets it only on sockets that name the protocol, which uvicorn's
    # does not; without it a delta waits up to 40 ms for the acknowledgement of the one before.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.listen(config.backlog)
    return listener


class _DrainingServer(uvicorn.Server):
    """Ends responses before it closes connections."""

    def __init__(self, config: uvicorn.Config, app: RealtimeApp, drain_s: float) -> None:
        super().__init__(config)
        self._app, self._drain_s = app, drain_s
        self._loop = asyncio.get_running_loop()
        self._drain: asyncio.Task[None] | None = None
        self._is_asked = False

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
