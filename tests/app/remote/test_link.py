"""Connections that fail, in words for the user."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import threading
from pathlib import Path

import pytest

from app.remote.link import Link, LinkError
from app.server_address import ServerAddress
from tests.doubles.realtime_server import RealtimeServer
from tests.factories.certificates import self_signed


def refusal(url: str) -> LinkError:
    with pytest.raises(LinkError) as caught:
        asyncio.run(Link.open(ServerAddress(url)))
    return caught.value


def _answer(listener: socket.socket, data: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4_096)
        connection.sendall(data)


@pytest.mark.parametrize("data", [b"SSH-2.0-OpenSSH\r\n", b"\x15\x03\x03\x00\x02\x02\x46", b""])
def test_a_server_of_another_protocol(data: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer, args=(listener, data), daemon=True)
        thread.start()
        error = refusal(f"ws://127.0.0.1:{listener.getsockname()[1]}/v1/realtime")
        thread.join(60)
    assert "is not a WebSocket server" in error.what_is_wrong
    assert "wss://" in error.what_to_do


def test_tls_where_there_is_none() -> None:
    with RealtimeServer() as server:
        error = refusal(server.url.replace("ws:", "wss:"))
    assert "TLS" in error.what_is_wrong
    assert "ws://" in error.what_to_do


@pytest.mark.slow
def test_a_certificate_of_somebody_else(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "127.0.0.2")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def attempt() -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        async with server:
            with pytest.raises(LinkError, match="certificate") as caught:
                await Link.open(ServerAddress(f"wss://127.0.0.1:{port}/v1/realtime"))
            assert caught.value.is_final
            assert "SSL_CERT_FILE" in caught.value.what_to_do

    asyncio.run(attempt())


def test_a_host_without_an_address() -> None:
    error = refusal("ws://moss-voice.invalid:8000/v1/realtime")
    assert "moss-voice.invalid:8000" in error.what_is_wrong
    assert not error.is_final


def test_no_log_has_the_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def connect(url: str) -> float | None:
        link = await Link.open(ServerAddress(url, "a-key-nobody-may-see"))
        await link.close()
        return link.round_trip_s

    with RealtimeServer(key="a-key-nobody-may-see") as server:
        asyncio.run(connect(server.url))
    records = [record for record in caplog.records if "server" not in record.name]
    assert not [record for record in records if "a-key-nobody-may-see" in record.getMessage()]


@pytest.mark.parametrize(("code", "is_expected"), [("session_expired", True), ("server_error", False)])
def test_a_connection_that_ends_with_its_session_is_no_loss(code: str, is_expected: bool) -> None:
    async def listen(link: Link, server: RealtimeServer) -> None:
        async for event in link.events():
            if event is not None and event["type"] == "error":
                await asyncio.to_thread(server.kill)

    async def lose(server: RealtimeServer) -> LinkError:
        link = await Link.open(ServerAddress(server.url))
        told = json.dumps({"type": "error", "error": {"code": code, "message": "It is over."}})
        await asyncio.to_thread(server.send, told)
        with pytest.raises(LinkError) as caught:
            await listen(link, server)
        return caught.value

    with RealtimeServer() as server:
        error = asyncio.run(lose(server))
    assert "was lost" in error.what_is_wrong
    assert error.is_expected is is_expected
