"""One WebSocket to a Realtime server.

In: an address. Out: a connection with the session that the server described, its events; every failure as a
`LinkError` in words for the user. The only file that imports websockets. Event loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI, ProxyError

from app.remote.dialect import Json, ServerSession, event_name, read_session
from app.server_address import ServerAddress
from engine_runtime.errors import MossVoiceError

OPEN_S = 10.0
"""Limit for the handshake, and for the session of the server after it."""
_PING_S = 5.0
"""Interval of pings, and limit for their answers: a silent loss is noticed within twice this time."""
_CLOSE_S = 1.0
_LARGEST_EVENT = 16 * 1024 * 1024
_SHOWN = 300
_MOST_GARBAGE = 100
"""Messages that are not events which one connection may have; then another connection is tried."""
_GOING_AWAY = 1001
_RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


class LinkError(MossVoiceError):
    """The connection failed or was lost."""

    def __init__(
        self,
        cause: str,
        remedy: str = "",
        /,
        *,
        is_final: bool = False,
        is_expected: bool = False,
        **values: object,
    ) -> None:
        """`is_final`: another attempt would fail in the same way. `is_expected`: the server has ended a
        session that was long or idle, and takes another one."""
        super().__init__(cause, remedy, **values)
        self.is_final, self.is_expected = is_final, is_expected


class Link:
    """A connection whose session has begun."""

    def __init__(self, address: ServerAddress, socket: ClientConnection, session: ServerSession) -> None:
        self.session = session
        self._address, self._socket = address, socket

    @classmethod
    async def open(cls, address: ServerAddress) -> Self:
        """Connect, and wait for the session of the server. LinkError says why there is none."""
        quiet = logging.Logger("websockets")
        quiet.disabled = True  # its debug records have the headers, and with them the key
        headers = {"Authorization": f"Bearer {address.key}"} if address.key else {}
        try:
            connection = await connect(
                address.url,
                additional_headers=headers,
                logger=quiet,
                proxy=None if address.is_loopback else True,
                open_timeout=OPEN_S,
                ping_interval=_PING_S,
                ping_timeout=_PING_S,
                close_timeout=_CLOSE_S,
                max_size=_LARGEST_EVENT,
                compression=None,  # it takes longer than it saves: audio does not shrink much
            )
        except (OSError, EOFError, InvalidHandshake, InvalidURI) as error:
            raise _refusal(address, error) from error
        try:
            async with asyncio.timeout(OPEN_S):
                while True:
                    event = _event_of(address, await connection.recv())
                    if event_name(event) == "session.created":
                        return cls(address, connection, read_session(event))
                    if event_name(event) == "error":
                        raise LinkError(
                            "{address} refused a session: {said}.",
                            address=address.name,
                            said=_message_of(event),
                        )
        except TimeoutError:
            await connection.close()
            raise LinkError(
                "{address} did not begin a session within {seconds:g} s.",
                "Check that it is a Realtime server, and its log.",
                address=address.name,
                seconds=OPEN_S,
            ) from None
        except ConnectionClosed as error:
            raise _loss(address, error) from error
        except BaseException:
            await connection.close()
            raise

    @property
    def round_trip_s(self) -> float | None:
        """Round trip of the latest ping, None before the first one was answered."""
        return self._socket.latency or None

    async def events(self) -> AsyncIterator[Json | None]:
        """The events of the server until the connection is lost, which is a LinkError; None for a message
        that is no event."""
        garbage, is_over = 0, False
        try:
            while garbage < _MOST_GARBAGE:
                event = _parsed(await self._socket.recv())
                garbage += event is None
                is_over = is_over or (event is not None and _ends_session(event))
                yield event
        except ConnectionClosed as error:
            raise _loss(self._address, error, is_expected=is_over) from error
        raise LinkError(
            "{address} sends messages that are not events of the Realtime protocol.",
            address=self._address.name,
        )

    async def send(self, event: Json) -> None:
        """Send an event. LinkError if the connection is lost."""
        try:
            await self._socket.send(json.dumps(event))
        except ConnectionClosed as error:
            raise _loss(self._address, error) from error

    async def close(self) -> None:
        """Close the connection; waits a second at most."""
        await self._socket.close()


def _refuse_constant(constant: str) -> None:
    """Refuse NaN and the infinities, which JSON does not have."""
    raise ValueError(f"{constant} is no number")


def _parsed(data: str | bytes) -> Json | None:
    """The event of a message, None if it is not an event: a server may send anything."""
    try:
        event = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):  # RecursionError: nested too deeply
        return None
    return event if isinstance(event, dict) else None


def _event_of(address: ServerAddress, data: str | bytes) -> Json:
    event = _parsed(data)
    if event is None:
        raise LinkError(
            "{address} sent a message that is not an event of the Realtime protocol.",
            "Check the address.",
            is_final=True,
            address=address.name,
        )
    return event


def _message_of(event: Json) -> str:
    error = event.get("error")
    said = error.get("message") if isinstance(error, dict) else None
    return str(said or "no reason given")[:_SHOWN].rstrip(".")


def _ends_session(event: Json) -> bool:
    """Whether the server says that the session has lasted as long as it may. It closes the connection then,
    with whatever code."""
    error = event.get("error")
    return isinstance(error, dict) and error.get("code") == "session_expired"


def _loss(address: ServerAddress, error: ConnectionClosed, *, is_expected: bool = False) -> LinkError:
    if error.rcvd is None:
        return LinkError(
            "The connection to {address} was lost.", is_expected=is_expected, address=address.name
        )
    reason = error.rcvd.reason[:_SHOWN] or "no reason given"
    return LinkError(
        "{address} closed the connection ({code}: {reason}).",
        is_expected=is_expected or error.rcvd.code == _GOING_AWAY,
        address=address.name,
        code=error.rcvd.code,
        reason=reason,
    )


def _refusal(address: ServerAddress, error: Exception) -> LinkError:
    """Why there is no connection, and what to do about it."""
    name = address.name
    if isinstance(error, InvalidStatus):
        return _of_status(name, error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return LinkError(
            "The certificate of {name} cannot be verified: {reason}.",
            "Use the host name that it was issued for; for a certificate of your own, set SSL_CERT_FILE.",
            is_final=True,
            name=name,
            reason=error.verify_message,
        )
    if isinstance(error, ssl.SSLError):
        return LinkError(
            "{name} does not speak TLS as expected ({reason}).",
            "If it has no certificate, use ws://.",
            is_final=True,
            name=name,
            reason=error.reason,
        )
    if isinstance(error, TimeoutError):
        return LinkError(
            "{name} did not answer within {seconds:g} s.",
            "Check the address and the network.",
            name=name,
            seconds=OPEN_S,
        )
    if isinstance(error, socket.gaierror):
        return LinkError("The host of {name} was not found.", "Check the address and the network.", name=name)
    if isinstance(error, ConnectionRefusedError):
        return LinkError(
            "{name} refused the connection.", "Check that the server runs, and its port.", name=name
        )
    if isinstance(error, ProxyError):
        return LinkError(
            "The proxy refused a connection to {name}: {error}.",
            "Check HTTPS_PROXY and NO_PROXY.",
            name=name,
            error=error,
        )
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        return LinkError(
            "{name} cannot be reached: {reason}.",
            "Check the network.",
            name=name,
            reason=error.strerror or error,
        )
    if address.is_encrypted:
        return LinkError(
            "{name} closed the connection before TLS was set up.",
            "Check the address; without a certificate it begins with ws://.",
            name=name,
        )
    return LinkError(
        "{name} is not a WebSocket server, or it requires TLS.",
        "Check the address; with a certificate it begins with wss://.",
        name=name,
    )


def _of_status(name: str, error: InvalidStatus) -> LinkError:
    status = error.response.status_code
    try:
        said = _message_of(json.loads(error.response.body or b"{}"))
    except (ValueError, AttributeError):
        said = "no reason given"
    if status == 401:
        return LinkError(
            "{name} does not accept the key: {said}.",
            "Check the key of the server.",
            is_final=True,
            name=name,
            said=said,
        )
    if status == 403:
        return LinkError(
            "{name} refuses this client: {said}.",
            "Ask the operator of the server.",
            is_final=True,
            name=name,
            said=said,
        )
    if status == 503:
        return LinkError(
            "{name} accepts no conversation now: {said}.", "Try again later.", name=name, said=said
        )
    is_final = status not in _RETRY_STATUS
    return LinkError(
        "{name} answered with HTTP {status}: {said}.",
        "Check the address; its path is usually /v1/realtime.",
        is_final=is_final,
        name=name,
        status=status,
        said=said,
    )
