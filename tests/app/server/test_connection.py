"""How a connection ends, and how fast a client may send."""

from __future__ import annotations

import asyncio
import json

import pytest
from fastapi import WebSocketDisconnect
from typing_extensions import override

from app.before_ga import event_before_ga
from app.server import connection
from app.server.connection import Connection, ConnectionLimits, RateLimit, encoded
from app.server.metrics import Metrics
from app.session.engine_host import EngineHost
from app.session.engine_jobs import Loaded
from tests.doubles.inline_engine import InlineEngine
from tests.doubles.scripted_engine import OUT_RATE, LoudnessVad, ScriptedEngine


class Socket:
    """A client that sends what is no event, again and again; `reads` whether it takes the answers."""

    def __init__(self, *, reads: bool) -> None:
        self.error: Exception | None = None
        self.sent: list[str] = []
        self.closed: tuple[int, str] | None = None
        self._reads = reads

    async def receive_text(self) -> str:
        if self.error is not None:
            raise self.error
        return "no event"

    async def send_text(self, text: str) -> None:
        if not self._reads:
            await asyncio.Future()
        self.sent.append(text)

    async def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)


def end_of(socket: Socket) -> str:
    """Hold a conversation; returns why it ended."""

    async def hold() -> str:
        held = Connection(
            socket,  # type: ignore[arg-type]
            Loaded("scripted", 0.0, 16_000, OUT_RATE, 1_280),
            LoudnessVad(),
            None,
            ConnectionLimits(),
            Metrics(EngineHost(ScriptedEngine)),
            None,
        )
        return await held.run(InlineEngine(ScriptedEngine()), None, None, None)

    return asyncio.run(hold())


def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MOST_WAITING", 3)
    socket = Socket(reads=False)
    assert end_of(socket) == "slow_client"
    assert socket.closed == (1008, "slow_client"), "without waiting for it to read"


def test_an_error_of_the_server_ends_a_connection_in_order(caplog: pytest.LogCaptureFixture) -> None:
    socket = Socket(reads=True)
    socket.error = ValueError("a defect")
    assert end_of(socket) == "failed"
    assert socket.closed == (1011, "The server failed.")
    assert ["session.created" in text for text in socket.sent] == [True]
    assert "a session failed" in caplog.text


class TwoMessages(Socket):
    """Sends two messages at once when it knows its session, and leaves; notes how much it was told before
    each."""

    def __init__(self) -> None:
        super().__init__(reads=True)
        self.told_before: list[int] = []

    @override
    async def receive_text(self) -> str:
        while len(self.sent) < (1 if len(self.told_before) < 2 else 3):
            await asyncio.sleep(0)
        if len(self.told_before) == 2:
            raise WebSocketDisconnect
        self.told_before.append(len(self.sent))
        return "no event"


def test_messages_that_came_together_are_carried_out_before_they_are_answered() -> None:
    socket = TwoMessages()
    assert end_of(socket) == "client"
    assert socket.told_before == [1, 1]
    assert len(socket.sent) == 3, "session.created, and two errors"


@pytest.mark.parametrize("kind", ["response.output_audio.delta", "response.output_text.delta", "error"])
def test_a_message_is_the_json_of_its_event(kind: str) -> None:
    event = {"event_id": "event_1", "type": kind, "item_id": 'of "ä\ud83d', "delta": "UklGRg+/=="}
    sent = event_before_ga(event)
    assert sent is not None
    assert [json.loads(encoded(each)) for each in (event, sent)] == [event, sent]


def test_live_audio_never_waits() -> None:
    rate = RateLimit(0.0)
    assert not any(rate.wait_s(1_400, 0.02 * block) for block in range(5_000))


def test_a_flood_waits_as_long_as_it_is_ahead() -> None:
    rate = RateLimit(0.0, per_s=100.0, burst=10.0)
    waits = [rate.wait_s(0, 0.0) for _ in range(12)]
    assert waits[:10] == [0.0] * 10
    assert waits[10:] == pytest.approx([0.01, 0.02])
    assert rate.wait_s(4_096, 0.02) == pytest.approx(0.02), "a large message costs more"
    assert rate.wait_s(0, 60.0) == 0.0
