"""Everything that a conversation sends to its server: speech, questions, requests, cancels, deleted and cut
items.

In: exchanges and responses of `RemoteConversation`. Out: client events, each with an id. While there is no
connection nothing is sent: the next connection begins with the whole conversation. Event loop.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from app.remote.dialect import (
    Json,
    ServerSession,
    flow_steps_update,
    message,
    response_create,
    session_update,
    transcription_update,
    voice_update,
)
from app.remote.exchange import RemoteExchange, new_item_id
from app.remote.response import RemoteResponse
from engine_runtime.types import Pcm

_SILENCE_S = 2.0
"""Silence after a turn, for a server that ends turns itself."""


class Uplink:
    def __init__(self, session: ServerSession, in_rate: int, voice: str = "") -> None:
        """`in_rate` is that of the user's speech, in Hz; `voice` that of the replies, "" for the server's
        choice."""
        self.session = session
        self.voice = voice
        self.voice_event_id = ""
        """Id of the event that asked for the voice."""
        self.ends_turns = False
        """Whether the server ends the turns of the user itself."""
        self.names_items = False
        """Whether the server names the items of the user's speech."""
        self.requested: deque[RemoteResponse] = deque()
        """Responses that the server has not begun."""
        self.committed: deque[RemoteExchange] = deque()
        """Exchanges whose speech was committed, until the server names the items."""
        self._in_rate = in_rate
        self._emit: Callable[[Json], None] | None = None
        self._count = 0

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._emit is not None

    def open(self, session: ServerSession, emit: Callable[[Json], None]) -> None:
        """Begin on a new connection, with a new session of the server."""
        self.session, self._emit = session, emit
        self.ends_turns = self.names_items = False
        self.requested.clear()
        self.committed.clear()
        emit(session_update(session))
        emit(transcription_update(session))
        if self.voice:
            self.voice_event_id = self._send(voice_update(session, self.voice))

    def close(self) -> None:
        """Note that the connection is lost."""
        self._emit = None

    def choose_flow_steps(self, steps: int) -> None:
        """Run this many Euler steps of the flow from the next reply on."""
        self._send(flow_steps_update(steps))

    # ---- items ----

    def say_again(self, exchange: RemoteExchange) -> None:
        """Create the items of a complete exchange."""
        for event in exchange.replay(self.session):
            self._send(event)

    def delete(self, exchange: RemoteExchange) -> None:
        """Delete what the server knows of an exchange."""
        self.delete_items(exchange.items)
        exchange.user_items, exchange.reply_item = [], ""

    def delete_items(self, item_ids: Iterable[str]) -> None:
        """Delete items."""
        for item_id in item_ids:
            self._send({"type": "conversation.item.delete", "item_id": item_id})

    def truncate(self, exchange: RemoteExchange, audio_end_ms: int) -> None:
        """Truncate a spoken reply to what was heard."""
        if exchange.is_replayed:  # its item is a text; it is the last one
            self.delete(exchange)
            self.say_again(exchange)
        elif exchange.reply_item:
            cut: Json = {"type": "conversation.item.truncate", "item_id": exchange.reply_item}
            self._send(cut | {"content_index": 0, "audio_end_ms": audio_end_ms})

    # ---- speech ----

    def append(self, pcm: Pcm) -> None:
        """Send more of the user's speech."""
        known = self.session.input_format
        if known.sample_rate == self._in_rate:
            self._append(known.encode(pcm))
        # Else it goes with the request: a server that came back with another rate is the exception.

    def append_all(self, exchange: RemoteExchange) -> None:
        """Send the speech of an exchange again."""
        for block in exchange.speech_blocks(self.session.input_format):
            self._append(block)

    def clear(self) -> None:
        """Drop the speech that was not committed."""
        self._send({"type": "input_audio_buffer.clear"})

    def _append(self, data: bytes) -> None:
        audio = base64.b64encode(data).decode("ascii")
        self._send({"type": "input_audio_buffer.append", "audio": audio})

    # ---- responses ----

    def request(self, response: RemoteResponse) -> None:
        """Ask for a reply. The speech of the question was sent."""
        turn, session = response.exchange, self.session
        self.requested.append(response)
        if turn.is_spoken:
            if session.input_format.sample_rate != self._in_rate:
                self.clear()
                self.append_all(turn)
            self.committed.append(turn)
            if self.ends_turns:
                silence: Pcm = np.zeros(round(_SILENCE_S * session.input_format.sample_rate), np.float32)
                self._append(session.input_format.encode(silence))
                return
            self._send({"type": "input_audio_buffer.commit"})
        else:
            turn.user_items = [new_item_id()]
            question = turn.text or turn.transcript
            self._send(message("user", question, turn.user_items[0], is_older=session.is_older))
        self.ask(response)

    def ask(self, response: RemoteResponse) -> None:
        """Send the request alone."""
        asked = response_create(self.session, response.modality, finished=response.finished)
        response.event_id = self._send(asked)

    def confirm(self) -> None:
        """Confirm the speculative response."""
        self._send({"type": "moss_voice.response.confirm"})

    def cancel(self, response: RemoteResponse) -> None:
        """Cancel a response."""
        cancel: Json = {"type": "response.cancel"}
        if response.response_id:
            cancel["response_id"] = response.response_id
        self._send(cancel)

    def _send(self, event: Json) -> str:
        """Send an event, if there is a connection; returns its id."""
        self._count += 1
        event_id = f"event_{self._count}"
        if self._emit is not None:
            self._emit(event | {"event_id": event_id})
        return event_id
