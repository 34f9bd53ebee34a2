"""One WebSocket connection: its session, and the messages to and from the client.

In: text messages. Out: server events, in order. The reader slows down a client that sends too fast; a client
that does not read, or whose session is as long as it may be, is disconnected. Event loop; results of the
engine and answers of the detector arrive from their threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import WebSocket, WebSocketDisconnect

from app.before_ga import event_before_ga
from app.dialog.vad import Vad
from app.server.metrics import Metrics
from app.server.protocol import Json, ProtocolError
from app.server.realtime_session import EngineFacts, RealtimeSession
from app.session.end_of_turn_worker import EndOfTurnWorker, Pause, PauseRated
from app.session.engine_jobs import FlowSteps, Heard, JobQueue, Loaded, Result
from app.session.transcriber import Speech, Transcriber, TranscriptListener
from engine_runtime.timing import TimingBus

if TYPE_CHECKING:  # it may import torch
    from engine_runtime.conversation.context_window import TurnRoom

_MOST_WAITING = 2_000
"""Events that wait for a client that does not read: about a minute of speech."""
_GOING_AWAY, _POLICY, _TOO_BIG, _FAILED, _RESTART = 1001, 1008, 1009, 1011, 1012
_BYTES_OF_A_UNIT = 4_096
_UNITS_PER_S = 1_000.0
"""An event costs one unit, and one more for each 4,096 bytes. Live audio in blocks of 20 ms takes 50 a second
and a recording that is sent at once is accepted about twenty times as fast as it plays."""
_BURST = 2_000.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may take."""

    session_s: float = 3_600.0
    idle_s: float = 600.0
    """Without any message."""
    message_bytes: int = 2_500_000
    """Largest message: more than the longest turn as PCM16 in base64."""


class Connection:
    """One WebSocket and the session that it carries."""

    def __init__(
        self,
        socket: WebSocket,
        facts: Loaded,
        vad: Vad,
        detector: EndOfTurnWorker | None,
        limits: ConnectionLimits,
        metrics: Metrics,
        seed: int | None,
        transcriber: Transcriber | None = None,
        *,
        speaks_beta: bool = False,
    ) -> None:
        """`seed` is that of the sampling, None for the bundle's or else one for each conversation.
        `speaks_beta`: the client wants events as they were before GA."""
        self._transcriber = transcriber
        self._socket = socket
        self._seed = seed
        self._speaks_beta = speaks_beta
        self._facts, self._vad, self._detector = facts, vad, detector
        self._limits, self._metrics = limits, metrics
        self._loop = asyncio.get_running_loop()
        self._outgoing: asyncio.Queue[Json] = asyncio.Queue(_MOST_WAITING)
        self._session: RealtimeSession | None = None
        self._is_stuck = False
        self._end: asyncio.Future[tuple[int, str]] = self._loop.create_future()
        """Close code and reason, once the server ends the connection."""
        self._is_leaving = False

    @property
    def session_id(self) -> str:
        """For the log; empty before the session begins."""
        return self._session.ids.session_id if self._session is not None else ""

    def deliver(self, result: Result) -> None:
        """A result of the engine. Engine thread."""
        # No event of the protocol tells of speech that was encoded. At 64 users its results would wake the
        # event loop 250 times a second.
        if not isinstance(result, Heard):
            self._call(lambda: self._on_result(result))

    def leave(self) -> None:
        """The server shuts down: end when no response is in progress."""
        self._is_leaving = True
        self._leave_if_quiet()

    def finish(self, code: int, reason: str) -> None:
        """End the connection with this close code."""
        if not self._end.done():
            self._end.set_result((code, reason))

    async def run(
        self,
        slot: JobQueue,
        flow_steps: FlowSteps | None,
        timing: TimingBus | None,
        room: TurnRoom | None,
    ) -> str:
        """Hold the conversation until one side ends it; returns why it ended. The client may choose the
        `flow_steps` if there are any; `room` is that of a turn in the context."""
        began_s = self._loop.time()
        facts = EngineFacts(
            self._facts.input_sample_rate,
            self._facts.output_sample_rate,
            room,
            self._facts.card.follows_instructions,
            self._facts.card.tools,
        )
        session = self._session = RealtimeSession(
            self._facts.bundle,
            facts,
            slot,
            self._vad,
            self._emit,
            self._loop.time,
            ask_detector=self._ask if self._detector is not None else None,
            seed=self._seed,
            flow_steps=flow_steps,
            timing=timing,
            transcriber=self._transcriber.name if self._transcriber is not None else None,
            transcribe=self._have_transcribed if self._transcriber is not None else None,
        )
        reader = asyncio.create_task(self._read(session))
        writer = asyncio.create_task(self._write())
        tasks: set[asyncio.Future[object]] = {reader, writer, self._end}  # type: ignore[arg-type]
        try:
            await asyncio.wait(tasks, timeout=self._limits.session_s, return_when=asyncio.FIRST_COMPLETED)
            return await self._close(reader, writer, self._loop.time() - began_s)
        finally:
            reader.cancel()
            writer.cancel()
            await asyncio.wait({reader, writer})

    async def _close(self, reader: asyncio.Task[str], writer: asyncio.Task[None], seconds: float) -> str:
        if reader.done() and not reader.cancelled():
            if (error := reader.exception()) is not None:
                _log.error("a session failed", exc_info=error)
                await self._say_goodbye(_FAILED, "The server failed.")
                return "failed"
            return reader.result()
        if writer.done():
            return "disconnected"
        if self._end.done():
            code, reason = self._end.result()
            await self._say_goodbye(code, reason)
            return reason
        if self._session is not None:
            self._session.end_response()
            expired = ProtocolError(
                "session_expired",
                "A session lasts {minutes:.0f} minutes at most.",
                "Connect again.",
                minutes=seconds / 60,
            )
            self._session.refuse(expired)
        await self._say_goodbye(_GOING_AWAY, "session_expired")
        return "session_expired"

    async def _read(self, session: RealtimeSession) -> str:
        rate = RateLimit(self._loop.time())
        while True:
            try:
                async with asyncio.timeout(self._limits.idle_s):
                    text = await self._socket.receive_text()
            except TimeoutError:
                if session.is_responding:
                    continue
                session.refuse(
                    ProtocolError(
                        "session_idle",
                        "The client has sent nothing for {minutes:.0f} minutes.",
                        "Connect again.",
                        minutes=self._limits.idle_s / 60,
                    )
                )
                self.finish(_GOING_AWAY, "idle")
                return await asyncio.Future()
            except KeyError:  # a binary message
                session.refuse(ProtocolError("invalid_event", "Messages are text: JSON, audio in base64."))
                continue
            except (WebSocketDisconnect, RuntimeError):  # the latter where the writer has noticed it before
                return "client"
            if len(text) > self._limits.message_bytes:  # where uvicorn has another limit
                self.finish(_TOO_BIG, "message_too_big")
                return await asyncio.Future()
            session.handle(text)
            # Also with nothing to wait for: other sessions get their turn, however much this client has sent.
            await asyncio.sleep(rate.wait_s(len(text), self._loop.time()))

    async def _write(self) -> None:
        while True:
            if self._outgoing.empty():
                event = await self._outgoing.get()
                # What the client has sent meanwhile comes first: the response.create after a commit reaches
                # the engine before anything about the commit is written.
                await asyncio.sleep(0)
            else:
                event = self._outgoing.get_nowait()
            try:
                await self._socket.send_text(encoded(event))
            except (RuntimeError, WebSocketDisconnect):  # the client has gone
                return
            self._outgoing.task_done()

    async def _say_goodbye(self, code: int, reason: str) -> None:
        try:
            async with asyncio.timeout(2.0):
                if not self._is_stuck:
                    await self._outgoing.join()
                await self._socket.close(code, reason[:100])
        except (TimeoutError, RuntimeError, WebSocketDisconnect):
            _log.info("a client was gone before its connection was closed")

    def _emit(self, event: Json) -> None:
        if event["type"] == "response.done":
            self._metrics.responses.labels(event["response"]["status"]).inc()
        elif event["type"] == "error":
            self._metrics.errors.labels(event["error"]["code"]).inc()
        sent = event_before_ga(event) if self._speaks_beta else event
        if sent is None:
            return
        try:
            self._outgoing.put_nowait(sent)
        except asyncio.QueueFull:
            self._is_stuck = True
            self.finish(_POLICY, "slow_client")

    def _on_result(self, result: Result) -> None:
        if self._session is not None and not self._end.done():
            self._session.on_result(result)
            self._leave_if_quiet()

    def _leave_if_quiet(self) -> None:
        if self._is_leaving and (self._session is None or not self._session.is_responding):
            self.finish(_RESTART, "shutting_down")

    def _ask(self, pause: Pause) -> None:
        if self._detector is not None:
            self._detector.submit(pause, lambda rated: self._call(lambda: self._rate(rated)))

    def _have_transcribed(self, speech: Speech, give: TranscriptListener) -> None:
        if self._transcriber is not None:
            self._transcriber.submit(speech, lambda transcript: self._call(lambda: give(transcript)))

    def _rate(self, rated: PauseRated) -> None:
        if self._session is not None:
            self._session.take_rating(rated)

    def _call(self, action: Callable[[], None]) -> None:
        """Any thread: run `action` in the event loop, unless that has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action)


def encoded(event: Json) -> str:
    """The message of a server event."""
    if not event["type"].endswith("audio.delta"):
        return json.dumps(event)
    # The encoder would look twice at each character of the base64, of which it has to escape none: 50 us.
    rest = json.dumps({name: value for name, value in event.items() if name != "delta"})
    return f'{rest[:-1]}, "delta": "{event["delta"]}"}}'


class RateLimit:
    """How fast a client may send: a token bucket. The reader waits, and with it the client by the flow
    control of TCP: nothing is dropped."""

    def __init__(self, now_s: float, per_s: float = _UNITS_PER_S, burst: float = _BURST) -> None:
        self._per_s, self._burst = per_s, burst
        self._left, self._at_s = burst, now_s

    def wait_s(self, num_bytes: int, now_s: float) -> float:
        """Take a message of this size; returns the seconds to wait before the next one is read."""
        refilled = self._left + (now_s - self._at_s) * self._per_s
        self._left = min(refilled, self._burst) - 1.0 - num_bytes / _BYTES_OF_A_UNIT
        self._at_s = now_s
        return max(-self._left / self._per_s, 0.0)
