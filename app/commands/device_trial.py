"""A trial of the sound devices: questions are asked by text, one after the other, and nobody speaks.

In: the events of a session that listens. Out: the next question whenever the session is idle, and what the
microphone heard of the loudspeaker: the echo with its delay, replies that interrupted themselves, turns that
were opened although nobody spoke. Main thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from app.audio.echo_cancellation import EchoMeasurement
from app.session.commands import AskText, Command
from app.session.events import (
    Counters,
    DevicesChanged,
    EchoMeasured,
    ErrorRaised,
    Event,
    Levels,
    MicrophoneSilent,
    PlaybackFinished,
    ReplyCut,
    ReplyFinished,
    SessionState,
    StateChanged,
    Timing,
    TurnCommitted,
    TurnOpened,
)

_WITHOUT_MICROPHONE_S = 20.0
"""How long to wait for a microphone."""
_PAUSE_S = 1.0
"""Silence between a reply and the next question: an echo that comes late still belongs to the reply."""


class DeviceTrial:
    """Asks `questions` in turn."""

    def __init__(self, questions: Sequence[str], now_s: Callable[[], float] = time.monotonic) -> None:
        self._questions, self._now_s = questions, now_s
        self._asked = self._replies = self._played = 0
        self._spoken_s = 0.0
        self._idle_since_s: float | None = None
        self._waits_since_s: float | None = None
        self._has_microphone = self._had_microphone = False
        self._of_voice: set[int] = set()
        """Turns that were opened by sound; as nobody spoke, it came from the loudspeaker or was noise."""
        self._opened = self._answered = self._cut = self._paused = 0
        self._echo = EchoMeasurement()
        self._delays_ms: list[float] = []
        self._loudest_dbfs = -120.0
        self._was_silent = False
        self._counters = Counters(0, 0)
        self._errors: list[str] = []

    @property
    def has_given_up(self) -> bool:
        """Whether no microphone has come since the session was ready for one."""
        waits_since_s = self._waits_since_s
        if self._had_microphone or waits_since_s is None:
            return False
        return self._now_s() - waits_since_s >= _WITHOUT_MICROPHONE_S

    def follow(self, event: Event) -> None:
        """The next event of the session."""
        match event:
            case StateChanged(state, is_paused):
                is_idle = state is SessionState.LISTENING and not is_paused
                self._idle_since_s = self._now_s() if is_idle else None
                if is_idle and self._waits_since_s is None:
                    self._waits_since_s = self._idle_since_s
            case DevicesChanged(input=microphone):
                self._has_microphone = bool(microphone)
                self._had_microphone = self._had_microphone or self._has_microphone
            case TurnOpened(turn_id, "voice"):
                self._opened += 1
                self._of_voice.add(turn_id)
            case TurnCommitted(turn_id) if turn_id in self._of_voice:
                self._answered += 1
            case ReplyFinished(seconds=seconds):
                self._replies += 1
                self._spoken_s += seconds
            case PlaybackFinished():
                self._played += 1
            case ReplyCut(reason="barge_in"):
                self._cut += 1
            case Timing(timing) if timing.attributes.get("kind") == "interrupt":
                self._paused += 1
            case EchoMeasured(echo):
                self._echo = echo
                if echo.delay_ms is not None:
                    self._delays_ms.append(echo.delay_ms)
            case Levels(input_dbfs=level):
                self._loudest_dbfs = max(self._loudest_dbfs, level)
            case MicrophoneSilent(on):
                self._was_silent = self._was_silent or on
            case Counters():
                self._counters = event
            case ErrorRaised(problem):
                self._errors.append(str(problem))

    def service(self, send: Callable[[Command], None]) -> None:
        """Ask the next question if the session has been idle for long enough and its microphone is open."""
        idle_since_s = self._idle_since_s
        if idle_since_s is None or not self._has_microphone or self._now_s() - idle_since_s < _PAUSE_S:
            return
        send(AskText(self._questions[self._asked % len(self._questions)]))
        self._asked += 1
        self._idle_since_s = None

    def document(self) -> dict[str, Any]:
        """What was found.

        asked, replies, played: questions, replies that were made, and that were played to their end;
        spoken_s: their length. self_interruptions: replies that were cut by what the microphone heard;
        pauses: those that were held meanwhile, cut or resumed; turns_opened, turns_answered: turns although
        nobody spoke. had_microphone: whether one was open. microphone_silent: whether the microphone
        delivered exact silence for a while; loudest_dbfs: its highest level. echo: the latest
        EchoMeasurement; its delay_ms is the latency of the loop from the loudspeaker's stream to the
        microphone's; delay_spread_ms: largest less smallest delay. underruns, dropped_samples: of playback
        and capture.
        """
        delays = self._delays_ms
        return {
            "asked": self._asked,
            "replies": self._replies,
            "played": self._played,
            "spoken_s": round(self._spoken_s, 1),
            "self_interruptions": self._cut,
            "pauses": self._paused,
            "turns_opened": self._opened,
            "turns_answered": self._answered,
            "had_microphone": self._had_microphone,
            "microphone_silent": self._was_silent,
            "loudest_dbfs": round(self._loudest_dbfs, 1),
            "echo": asdict(self._echo),
            "delay_spread_ms": round(max(delays) - min(delays), 2) if delays else None,
            "underruns": self._counters.underruns,
            "dropped_samples": self._counters.dropped_input,
            "errors": self._errors,
        }
