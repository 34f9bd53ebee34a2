"""Clients that have not sent a complete request yet: how long and how many, and how much is logged of them.

In: the connections of uvicorn, log records. Out: connections that are closed, because their request takes too
long or too many others begin; records that are left out, because they repeat. Whoever reaches the port may do
this much before any key is looked at. Event loop; records come from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import threading
import time
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

LONGEST_HEADER = 16_384
"""Bytes."""
HEADER_S = 10.0
"""For a TLS handshake, and then for a request."""
_MOST_WAITING = 512
_MOST_OF_AN_ADDRESS = 64
_log = logging.getLogger(__name__)


class Guard:
    """All connections of a server without a request in progress."""

    def __init__(
        self,
        header_s: float = HEADER_S,
        most: int = _MOST_WAITING,
        most_of_an_address: int = _MOST_OF_AN_ADDRESS,
    ) -> None:
        """A request has `header_s` to arrive. Of more than `most` connections, or `most_of_an_address`, the
        oldest is closed: who means it has sent a request by then."""
        self.header_s = header_s
        self._most, self._most_of_an_address = most, most_of_an_address
        self._waiting: dict[GuardedProtocol, asyncio.TimerHandle] = {}
        """Oldest first."""

    @property
    def waiting(self) -> int:
        """Connections whose request is awaited."""
        return len(self._waiting)

    def begin(self, connection: GuardedProtocol) -> None:
        """A request is awaited."""
        if connection in self._waiting:
            return
        loop = asyncio.get_running_loop()
        self._waiting[connection] = loop.call_later(self.header_s, self._close, connection)
        own = [known for known in self._waiting if known.address == connection.address]
        if len(own) > self._most_of_an_address:
            self._close(own[0])
        elif len(self._waiting) > self._most:
            self._close(next(iter(self._waiting)))

    def end(self, connection: GuardedProtocol) -> None:
        """The request is there, or the connection is gone."""
        if (timer := self._waiting.pop(connection, None)) is not None:
            timer.cancel()

    def _close(self, connection: GuardedProtocol) -> None:
        self.end(connection)
        _log.info("unfinished_request", extra={"fields": {"address": connection.address}})
        connection.transport.abort()


class GuardedProtocol(H11Protocol):
    """A connection of uvicorn."""

    def __init__(self, guard: Guard, **options: Any) -> None:
        super().__init__(**options)
        self._guard = guard

    @property
    def address(self) -> str:
        """The host at the other end."""
        return self.client[0] if self.client is not None else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._guard.begin(self)

    def data_received(self, data: bytes) -> None:
        self._guard.begin(self)
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._guard.end(self)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._guard.end(self)
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.end(self)
        super().connection_lost(exc)


class GuardedLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers bound TLS handshakes. Until one ends there is no connection that a `Guard`
    could close; asyncio would wait a minute, and uvicorn has no setting for it."""

    def __init__(self, handshake_s: float = HEADER_S) -> None:
        super().__init__()
        self._handshake_s = handshake_s

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
        """As of asyncio."""
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", self._handshake_s)
        return await super().create_server(*arguments, **options)


class FloodFilter(logging.Filter):
    """Passes the first records of a kind in a minute, and says in the next one how many it left out."""

    def __init__(self, most: int = 20, per_s: float = 60.0) -> None:
        super().__init__()
        self.per_s = per_s
        self._most = most
        self._lock = threading.Lock()
        self._since_s = time.monotonic()
        self._counts: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is passed."""
        with self._lock:
            if time.monotonic() - self._since_s >= self.per_s:
                left_out = sum(max(count - self._most, 0) for count in self._counts.values())
                self._since_s = time.monotonic()
                self._counts.clear()
                if left_out:
                    record.msg = f"{record.msg} ({left_out} more records were left out)"
            self._counts[str(record.msg)] += 1
            return self._counts[str(record.msg)] <= self._most


_LIMIT = FloodFilter()


def limit_logs() -> None:
    """What anybody who reaches the port can cause is logged within limits."""
    for name in ("uvicorn.error", "asyncio", "app.server.http_app", __name__):
        logging.getLogger(name).addFilter(_LIMIT)


def report_of_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A fault of the event loop, such as a connection that could not be accepted, in one line."""
    error = context.get("exception")
    _log.error("event_loop", extra={"fields": {"what": context.get("message"), "error": repr(error)[:200]}})


def allow_connections() -> None:
    """As many file descriptors as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
