"""The events of a session as lines of the log: what happened and how long it took, never what was said.

In: the events of a session, in the threads that emit them (dialog, engine). Out: log records. Turns, devices
and errors are INFO and above, decisions of turn-taking and states DEBUG.
"""

from __future__ import annotations

import logging

from app.session.engine_jobs import FlowStepsSet
from app.session.events import (
    Counters,
    DevicesChanged,
    EchoMeasured,
    EngineReady,
    ErrorRaised,
    Event,
    PlaybackFinished,
    ReplyCut,
    ReplyFinished,
    SampleStarted,
    StateChanged,
    Timing,
    TurnCancelled,
    TurnCommitted,
    TurnExtended,
    TurnOpened,
)
from engine_runtime.timing import TimingEvent

_log = logging.getLogger(__name__)
_DURATIONS = {
    "endpointing": "endpointing",
    "first_audio": "TTFA",
    "playback_hold": "hold",
    "voice_to_voice": "voice-to-voice",
}


class EventLog:
    """Writes one session's log. Remembers the turn in progress, and what is only logged when it changes."""

    def __init__(self) -> None:
        self._turn_id = 0
        self._times: dict[str, float] = {}
        self._reply: ReplyFinished | None = None
        self._devices: tuple[str, str] | None = None
        self._counters = Counters(0, 0)
        self._echo = ""

    def note(self, event: Event) -> None:
        """Log an event, unless it is a meter reading."""
        match event:
            case Timing(timing):
                self._note_timing(timing)
            case StateChanged(state):
                _log.debug("state: %s", state.value)
            case EngineReady(bundle, load_s, rate_in, rate_out):
                _log.info(
                    "engine ready in %.1f s: %s, %d Hz in, %d Hz out", load_s, bundle, rate_in, rate_out
                )
            case FlowStepsSet(flow_steps):
                _log.info("flow steps from the next turn on: %d", flow_steps.chosen)
            case DevicesChanged():
                self._note_devices(event)
            case ErrorRaised():
                level = logging.ERROR if event.is_fatal else logging.WARNING
                turn = "" if event.turn_id is None else f"turn {event.turn_id}: "
                _log.log(level, "%s%s", turn, event.problem)
            case Counters(underruns, dropped):
                if event != self._counters:
                    _log.warning("under-runs %d, dropped input %d samples", underruns, dropped)
                self._counters = event
            case EchoMeasured(echo):
                if echo.state != self._echo:
                    _log.info("echo: %s", echo.state)
                self._echo = echo.state
            case SampleStarted(path, seconds):
                _log.info("sample %s, %.1f s", path.name, seconds)
            case _:
                self._note_turn(event)

    def _note_turn(self, event: Event) -> None:
        match event:
            case TurnOpened(turn_id, source):
                self._turn_id, self._reply = turn_id, None
                self._times = {}
                _log.debug("turn %d opened: %s", turn_id, source)
            case TurnCommitted(turn_id, seconds):
                _log.info("turn %d committed: %.2f s of speech", turn_id, seconds)
            case TurnExtended(turn_id):
                _log.info("turn %d continues", turn_id)
            case TurnCancelled(turn_id, reason):
                _log.log(
                    logging.DEBUG if reason == "too_short" else logging.INFO,
                    "turn %d cancelled: %s",
                    turn_id,
                    reason,
                )
            case ReplyCut(turn_id, reason):
                self._reply = None
                _log.info(
                    "turn %d cut: %s, %.2f of %.2f s heard", turn_id, reason, event.heard_s, event.made_s
                )
            case ReplyFinished(turn_id, _, seconds):
                self._reply = event
                if not seconds:
                    self._log_end(event)
            case PlaybackFinished(turn_id):
                if self._reply is not None and self._reply.turn_id == turn_id:
                    self._log_end(self._reply)

    def _log_end(self, reply: ReplyFinished) -> None:
        """The reply was played, or written. Once: a repetition is not logged."""
        self._reply = None
        times = "".join(f", {name} {ms:.0f} ms" for name, ms in self._times.items())
        _log.info(
            "turn %d finished: %.2f s of reply, %s%s",
            reply.turn_id,
            reply.seconds,
            reply.finish_reason,
            times,
        )

    def _note_timing(self, timing: TimingEvent) -> None:
        if timing.name == "decision":
            details = ", ".join(
                f"{name} {value}" for name, value in timing.attributes.items() if name != "kind"
            )
            _log.debug("turn %d: %s: %s", timing.turn_id, timing.attributes["kind"], details)
        elif timing.name == "outage":
            seconds = timing.duration_ns / 1e9
            _log.warning(
                "turn %d: outage of %.1f s: %s", timing.turn_id, seconds, timing.attributes["reason"]
            )
        elif timing.turn_id == self._turn_id and (name := _DURATIONS.get(timing.name)):
            self._times[name] = timing.duration_ms

    def _note_devices(self, event: DevicesChanged) -> None:
        devices = (event.input, event.output)
        if devices != self._devices and (any(devices) or self._devices is not None):
            _log.info("microphone: %s; loudspeaker: %s", *(name or "closed" for name in devices))
        self._devices = devices
