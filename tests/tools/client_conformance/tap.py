"""A WebSocket relay between a client and a server, which keeps the events of both.

In: connections of a client. Out: the same at the server, with the headers that identify the client; every
event in the order in which it passed. The relay cuts the connections when it is told to. Event loop.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

Json = dict[str, Any]
PASSED = ("authorization", "api-key", "openai-beta", "origin", "user-agent")
_AUDIO = ("response.output_audio.delta", "response.audio.delta", "input_audio_buffer.append")


@dataclass(frozen=True)
class Passed:
    """An event on its way, in the form of the wire but for long audio."""

    from_server: bool
    document: Json


class Tap:
    """The relay; `url` is where the client finds it."""

    def __init__(self, server: str, trusted: ssl.SSLContext | None) -> None:
        """`server` has the scheme and the address, `trusted` verifies its certificate."""
        self.url = ""
        self.passed: list[Passed] = []
        self.refused = ""
        """Why the server did not take the latest connection."""
        self._server, self._trusted = server, trusted
        self._news = asyncio.Condition()
        self._clients: set[ServerConnection] = set()

    @asynccontextmanager
    async def open(self, certificate: ssl.SSLContext | None) -> AsyncIterator[Tap]:
        """Listen, over TLS where there is a certificate."""
        async with serve(
            self._relay, "127.0.0.1", 0, ssl=certificate, max_size=None, select_subprotocol=_chosen
        ) as listener:
            port = next(iter(listener.sockets)).getsockname()[1]
            self.url = f"{'ws' if certificate is None else 'wss'}://127.0.0.1:{port}"
            yield self

    async def wait_for(self, condition: Callable[[], object], limit_s: float) -> None:
        """Until the condition holds, which is looked at after each event. TimeoutError."""
        async with asyncio.timeout(limit_s), self._news:
            await self._news.wait_for(lambda: bool(condition()))

    async def notify(self) -> None:
        """Something else has happened that a condition may depend on."""
        async with self._news:
            self._news.notify_all()

    def cut(self) -> None:
        """Break all connections, without a close frame."""
        for client in self._clients:
            client.transport.abort()

    async def _relay(self, client: ServerConnection) -> None:
        assert client.request is not None
        headers = {name: client.request.headers[name] for name in PASSED if name in client.request.headers}
        offered = [Subprotocol(name.strip()) for name in _offered(client).split(",") if name.strip()]
        user_agent = headers.pop("user-agent", None)
        self._clients.add(client)
        try:
            async with connect(
                self._server + client.request.path,
                additional_headers=headers,
                user_agent_header=user_agent,
                subprotocols=offered or None,
                ssl=self._trusted,
                max_size=None,
            ) as server:
                both = (self._pass(client, server, False), self._pass(server, client, True))
                tasks = [asyncio.create_task(one) for one in both]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await client.close(server.close_code or 1000, server.close_reason or "")
        except Exception as error:
            self.refused = f"{type(error).__name__}: {error}"
            await client.close(1011)
        finally:
            self._clients.discard(client)
            await self.notify()

    async def _pass(
        self,
        source: ServerConnection | ClientConnection,
        target: ServerConnection | ClientConnection,
        from_server: bool,
    ) -> None:
        try:
            async for message in source:
                self.passed.append(Passed(from_server, _shortened(json.loads(message))))
                await target.send(message)
                await self.notify()
        except ConnectionClosed:
            return


def _offered(client: ServerConnection) -> str:
    assert client.request is not None
    return str(client.request.headers.get("Sec-WebSocket-Protocol", ""))


def _chosen(connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    # The key stands behind it as another protocol, which is none.
    return next(iter(offered), None)


def _shortened(document: Json) -> Json:
    if document.get("type") in _AUDIO:
        name = "delta" if "delta" in document else "audio"
        return document | {name: len(document[name]) * 3 // 4}
    return document
