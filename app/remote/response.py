"""One response of a server: from its events to the events of a reply, and to durations.

In: the events of the response. Out: reply events for the session; the timings commit, first_audio, server,
network and reply, and those of the stages in the server where it sends them. Pure apart from the clock of the
timing bus; one thread.

    network  Request to first audio, minus the server's own time to first audio where the server sends that
             (moss_voice.response.timings), else the round trip of a ping.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np

from app.audio.resample import Resampler
from app.audio.wire_format import AudioFormat
from app.remote.dialect import Json
from app.remote.exchange import RemoteExchange
from engine_runtime.timing import REPLY_FIGURES, REPLY_STAGES, STAGE_FIGURES, TimingBus, TimingEvent
from engine_runtime.types import (
    CancelScope,
    FinishReason,
    Modality,
    Pcm,
    ReplyAudio,
    ReplyDone,
    ReplyEvent,
    ReplyText,
    TurnEndPrediction,
)

TIMINGS = "moss_voice.response.timings"
TURN_END = "moss_voice.response.turn_end"
_MOST_STAGES = 4096
_LONGEST_MS = 3_600_000.0
LONGEST_S = 600.0
MOST_CHARACTERS = 20_000
"""Limits of a reply: a server may never end one."""


class RemoteResponse:
    """The reply to one commit."""

    def __init__(
        self,
        exchange: RemoteExchange,
        modality: Modality,
        scope: CancelScope,
        out_rate: int,
        timing: TimingBus,
        give: Callable[[ReplyEvent], None],
        finished: float | None = None,
    ) -> None:
        """`out_rate` is that of the reply audio for the session, in Hz. With `finished` the response is
        speculative, as in `Commit`."""
        self.exchange = exchange
        self.modality = modality
        self.scope = scope
        """Cancel scope of the commit, cancelled when the reply is not wanted any more."""
        self.response_id = ""
        """The id that the server gave it; "" until it does."""
        self.event_id = ""
        """Id of the request event."""
        self.is_over = False
        self.is_reopened = False
        """Whether the user continued the turn that it answers."""
        self.finished = finished
        """None once it is confirmed."""
        self._out_rate, self._timing, self._give = out_rate, timing, give
        self._asked_ns = timing.clock_ns()
        self._first_ns: int | None = None
        self._held: list[str] = []
        """Text that came before the first audio: it counts as output with that."""
        self._resampler: Resampler | None = None
        self._chunks = self._characters = 0
        self._is_streamed = False
        """Whether the text since the last complete one came in parts."""
        timing.emit("commit", exchange.turn_id, self._asked_ns, 0)

    @property
    def has_output(self) -> bool:
        """Whether a part of the reply was given to the session."""
        return self._first_ns is not None

    @property
    def is_too_long(self) -> bool:
        """Whether the server sent more than a reply may hold."""
        is_long = self.exchange.samples >= LONGEST_S * self._out_rate
        return is_long or self._characters >= MOST_CHARACTERS

    def predict(self, probability: float | None) -> None:
        """Take the server's prediction that the user has finished."""
        if probability is not None and probability <= 1.0:
            self._give(TurnEndPrediction(self.exchange.turn_id, probability))

    def add_text(self, text: str) -> None:
        """Add to the text or the transcript."""
        text = text[: MOST_CHARACTERS - self._characters]
        self._characters += len(text)
        self._is_streamed = True
        if self.modality is Modality.SPEECH and self._first_ns is None:
            self._held.append(text)
            return
        if self._first_ns is None:
            self._first_ns = self._timing.clock_ns()
        self._say(text)

    def complete_text(self, text: str) -> None:
        """Take a complete text, which may not have come in parts; some servers send one for each sentence."""
        if text and not self._is_streamed:
            follows = bool(self.exchange.said or self._held) and not text[0].isspace()
            self.add_text(f" {text}" if follows else text)
        self._is_streamed = False

    def add_audio(self, data: object, known: AudioFormat) -> None:
        """Add base64 speech; what cannot be decoded is ignored."""
        try:
            sound = base64.b64decode(str(data), validate=True)
        except (binascii.Error, ValueError):
            return
        whole = sound[: len(sound) // known.sample_bytes * known.sample_bytes]
        if self._resampler is None or self._resampler.in_rate != known.sample_rate:
            self._resampler = Resampler(known.sample_rate, self._out_rate)
        if len(whole):
            self._play(self._resampler.push(known.decode(whole)))

    def end(self, reason: FinishReason) -> None:
        """End the reply."""
        if self._resampler is not None and reason != "cancelled":
            self._play(self._resampler.finish())
        self._release()
        self.is_over = self.exchange.is_answered = True
        exchange = self.exchange
        self._give(ReplyDone(exchange.turn_id, self.modality, reason, exchange.reply, (), exchange.samples))

    def report(self, event: Json, round_trip_s: float | None) -> None:
        """Publish where the time went: with the server's own timings, or without them."""
        if self._first_ns is None:
            return
        own = event if event.get("type") == TIMINGS else {}
        waited_ns = self._first_ns - self._asked_ns
        own_ms = figure_of(own.get("ttfa_ms"))
        network_ns = round((round_trip_s or 0.0) * 1e9)
        if own_ms is not None:
            network_ns = waited_ns - round(own_ms * 1e6)
        network_ns = min(max(network_ns, 0), waited_ns)
        turn_id = self.exchange.turn_id
        server_ns = waited_ns - network_ns
        self._timing.emit("server", turn_id, self._asked_ns, server_ns)
        if own or round_trip_s is not None:
            self._timing.emit("network", turn_id, self._asked_ns + server_ns, network_ns)
        for stage in _stages(own.get("stages"), turn_id, self._asked_ns):
            self._timing.publish(stage)
        attributes = _figures(own, REPLY_FIGURES)
        audio_s = self.exchange.samples / self._out_rate
        elapsed_ns = self._timing.clock_ns() - self._asked_ns
        self._timing.emit("reply", turn_id, self._asked_ns, elapsed_ns, audio_s=audio_s, **attributes)

    def _say(self, text: str) -> None:
        exchange = self.exchange
        exchange.said.add(exchange.samples, text)
        is_subtitle = self.modality is Modality.SPEECH
        self._give(ReplyText(exchange.turn_id, text, is_subtitle, exchange.samples))

    def _release(self) -> None:
        """Release the text that waited for sound."""
        held, self._held = self._held, []
        for text in held:
            self._say(text)

    def _play(self, pcm: Pcm) -> None:
        if not len(pcm):
            return
        exchange = self.exchange
        if self._first_ns is None:
            self._first_ns = self._timing.clock_ns()
            self._timing.emit(
                "first_audio", exchange.turn_id, self._asked_ns, self._first_ns - self._asked_ns
            )
        self._release()
        self._give(ReplyAudio(exchange.turn_id, np.ascontiguousarray(pcm), self._out_rate, self._chunks))
        exchange.samples += len(pcm)
        self._chunks += 1


def _stages(described: object, turn_id: int, asked_ns: int) -> Iterator[TimingEvent]:
    """The stages of a timings event; malformed ones are ignored."""
    for stage in islice(described, _MOST_STAGES) if isinstance(described, list) else ():
        if not isinstance(stage, dict) or stage.get("name") not in REPLY_STAGES:
            continue
        start_ms, length_ms = figure_of(stage.get("start_ms")), figure_of(stage.get("ms"))
        if start_ms is None or length_ms is None:
            continue
        start_ns = asked_ns + round(start_ms * 1e6)
        yield TimingEvent(
            stage["name"], turn_id, start_ns, round(length_ms * 1e6), "server", _figures(stage, STAGE_FIGURES)
        )


def _figures(described: Json, names: Iterable[str]) -> dict[str, float | int | str]:
    """The named figures that are valid numbers."""
    return {name: figure for name in names if (figure := figure_of(described.get(name))) is not None}


def figure_of(value: object) -> float | None:
    """A number that a server sent, None if it is not one or is out of range."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= _LONGEST_MS else None  # type: ignore[arg-type, operator]
