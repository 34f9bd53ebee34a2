"""A Realtime server on loopback with scripted engines, which the test can stall, kill and bring back.

Each connection has a `RealtimeSession` of app.server over an engine of its own, all in one thread.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any, Self

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from app.server.realtime_session import EngineFacts, RealtimeSession
from tests.doubles.inline_engine import InlineEngine
from tests.doubles.scripted_engine import OUT_RATE, LoudnessVad, Script, ScriptedEngine

Event = dict[str, Any]


def unchanged(event: Event) -> Event:
    return event


class RealtimeServer:
    """Attributes:
    clients: the events of each client, by connection.
    engines: the engine of each connection.
    stalls_after: so many events of each reply are made, and no more; None for all.
    refusal: status and reason for every client, None to admit them.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        key: str = "",
        change: Callable[[Event], Event] = unchanged,
        make_session: Callable[[Callable[[Event], None]], Any] | None = None,
    ) -> None:
        """`change` makes what is sent of an event of `RealtimeSession`, in whose place `make_session` puts
        another one."""
        self.sessions: list[Any] = []
        self._make_session = make_session or self._own_session
        self.clients: list[list[Event]] = []
        self.engines: list[ScriptedEngine] = []
        self.stalls_after: int | None = None
        self.refusal: tuple[int, str] | None = None
        self._script, self._key, self._change = script, key, change
        self._port = 0
        self._connections: set[ServerConnection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: Server | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._port}/v1/realtime"

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def start(self) -> None:
        """Listen, at the same port as before."""
        self._run(self._start())

    def kill(self) -> None:
        """Close all sockets without a close frame, and listen no more."""
        self._run(self._kill())

    def send(self, message: str | bytes, count: int = 1) -> None:
        """Send a message, whatever it is, so many times to every client."""

        async def work() -> None:
            for connection in list(self._connections):
                for _ in range(count):
                    await connection.send(message)

        self._run(work())

    def sent(self, kind: str, connection: int = -1) -> list[Event]:
        """What a client sent of a kind."""
        return [event for event in self.clients[connection] if event["type"] == kind]

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _start(self) -> None:
        self._server = await serve(
            self._converse,
            "127.0.0.1",
            self._port,
            process_request=self._admit,
            max_size=4_000_000,
            ping_interval=None,
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def _kill(self) -> None:
        for connection in list(self._connections):
            connection.transport.abort()
        if self._server is not None:
            self._server.close(close_connections=False)
            await self._server.wait_closed()
            self._server = None

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        refusal = self.refusal
        if self._key and request.headers.get("Authorization") != f"Bearer {self._key}":
            refusal = (401, "The API key is missing or wrong.")
        if refusal is None:
            return None
        body = json.dumps({"error": {"code": "refused", "message": refusal[1]}}).encode()
        headers = Headers({"Content-Type": "application/json", "Content-Length": str(len(body))})
        return Response(refusal[0], "refused", headers, body)

    async def _converse(self, connection: ServerConnection) -> None:
        received: list[Event] = []
        outgoing: list[Event] = []
        self.clients.append(received)
        self._connections.add(connection)
        session = self._make_session(outgoing.append)
        self.sessions.append(session)
        try:
            while True:
                for event in outgoing:
                    await connection.send(json.dumps(self._change(event)))
                outgoing.clear()
                text = str(await connection.recv())
                received.append(json.loads(text))
                session.handle(text)
        except ConnectionClosed:
            pass
        finally:
            self._connections.discard(connection)

    def _own_session(self, emit: Callable[[Event], None]) -> _OwnSession:
        self.engines.append(ScriptedEngine(self._script))
        return _OwnSession(self, self.engines[-1], emit, self._loop.time)


class _OwnSession:
    """A session of app.server, whose engine works after each message."""

    def __init__(
        self,
        server: RealtimeServer,
        engine: ScriptedEngine,
        emit: Callable[[Event], None],
        clock_s: Callable[[], float],
    ) -> None:
        self._server, self._slot = server, InlineEngine(engine)
        rates = EngineFacts(16_000, OUT_RATE)
        self._session = RealtimeSession("scripted", rates, self._slot, LoudnessVad(), emit, clock_s)
        self._slot.deliver = self._session.on_result

    def handle(self, text: str) -> None:
        self._session.handle(text)
        stalls_after = self._server.stalls_after
        self._slot.work(1_000 if stalls_after is None else stalls_after)
