"""Clients without a complete request: how long they may stay, how many, and what is logged."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn

from app.server.guard import LONGEST_HEADER, FloodFilter, Guard, GuardedLoop, GuardedProtocol
from tests.factories.certificates import self_signed


async def hello(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


@asynccontextmanager
async def listening(guard: Guard, certificate: tuple[Path, Path] | None = None) -> AsyncIterator[int]:
    """A server with this guard, over TLS with a certificate and its key; yields its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        hello,
        http=cast(type[asyncio.Protocol], partial(GuardedProtocol, guard)),
        h11_max_incomplete_event_size=LONGEST_HEADER,
        log_config=None,
        lifespan="off",
        timeout_keep_alive=60,
        ssl_certfile=certificate[0] if certificate else None,
        ssl_keyfile=certificate[1] if certificate else None,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def connect(port: int, said: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    await writer.drain()
    return reader, writer


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes the connection."""
    with suppress(ConnectionResetError):
        return await asyncio.wait_for(reader.read(), 20) == b""
    return True


REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


def test_a_request_has_a_time_to_arrive() -> None:
    async def run() -> None:
        guard = Guard(header_s=0.05)
        async with listening(guard) as port:
            for said in (b"", REQUEST[:-2]):
                reader, writer = await connect(port, said)
                assert await ended(reader)
                writer.close()
            guard.header_s = 60.0
            reader, writer = await connect(port, REQUEST)
            assert b"hello" in await reader.readuntil(b"hello")
            assert guard.waiting == 0, "a connection that has asked is left to uvicorn"
            guard.header_s = 0.05
            writer.write(REQUEST[:9])  # the next one over the same connection
            assert await ended(reader)
            writer.close()

    asyncio.run(run())


@pytest.mark.slow
def test_a_tls_handshake_has_a_time_too(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    trusting = ssl.create_default_context(cafile=str(certificate[0]))

    async def begin_one() -> None:
        async with listening(Guard(60.0), certificate) as port:
            reader, writer = await connect(port, b"\x16\x03\x01")  # the first bytes of a handshake
            assert await ended(reader)
            writer.close()

    async def end_one() -> None:
        async with listening(Guard(60.0), certificate) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            writer.write(REQUEST)
            assert b"hello" in await reader.readuntil(b"hello")
            writer.close()

    with asyncio.Runner(loop_factory=partial(GuardedLoop, 0.1)) as runner:
        runner.run(begin_one())
    with asyncio.Runner(loop_factory=GuardedLoop) as runner:
        runner.run(end_one())


def test_of_too_many_the_oldest_is_closed() -> None:
    async def run() -> None:
        for guard in (Guard(60.0, most=2), Guard(60.0, most_of_an_address=2)):
            async with listening(guard) as port:
                readers = []
                for _ in range(3):
                    readers.append(await connect(port, REQUEST[:5]))
                assert await ended(readers[0][0])
                for reader, writer in readers[1:]:
                    writer.write(REQUEST[5:])
                    assert b"hello" in await reader.readuntil(b"hello")
                for _, writer in readers:
                    writer.close()

    asyncio.run(run())


def test_a_header_has_a_longest_length() -> None:
    async def run() -> None:
        async with listening(Guard(60.0)) as port:
            reader, writer = await connect(port, REQUEST[:-2] + b"x: " + b"y" * 2 * LONGEST_HEADER)
            assert (await reader.readline()).startswith(b"HTTP/1.1 400")
            writer.close()

    asyncio.run(run())


def test_records_that_repeat_are_counted() -> None:
    limit = FloodFilter(most=2, per_s=1e9)
    shown = [limit.filter(record(f"kind {number % 2}")) for number in range(8)]
    assert shown == [True] * 4 + [False] * 4
    limit = FloodFilter(most=1, per_s=1e9)
    for _ in range(5):
        limit.filter(record("one"))
    limit.per_s = 0.0
    last = record("two")
    assert limit.filter(last)
    assert last.getMessage() == "two (4 more records were left out)"


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("name", logging.INFO, "file", 1, message, None, None)
