"""One conversation of a simulated user with a session, and its record.

In: a scenario, an engine. Out: a `DuplexRecord`: both channels, the annotations of the user's, and what the
session reported. The session is the one of the window, with a room in place of the sound devices. On the
virtual clock sound runs faster than real time while engine and end-of-turn detector are idle. Runs in the
thread of its caller, beside the threads of the session.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from app.audio.devices import DeviceList, rescan
from app.audio.resample import Resampler
from app.duplex.null_sinks import NullSinks
from app.duplex.room import RATE, EchoRoom
from app.duplex.scenario import RecordedScenario, RoomConditions, Scenario
from app.duplex.segments import UserSegment
from app.duplex.user import Ear, SimulatedUser
from app.session.clocks import Clock
from app.session.commands import NewConversation, Start, Stop
from app.session.end_of_turn_worker import DetectorFactory
from app.session.events import (
    Counters,
    EngineReady,
    ErrorRaised,
    SessionState,
    StateChanged,
    Timing,
    TurnCommitted,
)
from app.session.session import Session
from app.session.session_settings import SessionSettings
from engine_runtime.errors import MossVoiceError
from engine_runtime.timing import TimingEvent
from engine_runtime.types import Pcm

if TYPE_CHECKING:
    from engine_runtime.engine import Engine

_POLL_S = 0.005
_FREE_LIMIT_S = 2.0
"""Time for the engine to free the blocks of a conversation that was forgotten."""


class SimulationError(MossVoiceError):
    """The conversation could not be held."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A turn that the session committed: its place in the user's channel."""

    turn_id: int
    start_s: float
    end_s: float


@dataclass(slots=True)
class DuplexRecord:
    """One conversation. Times are seconds from the first sample of both channels on."""

    name: str
    group: str
    user: Pcm
    """What the users said, without echo and noise, at room.RATE."""
    assistant: Pcm
    """What the loudspeaker played, at room.RATE."""
    segments: tuple[UserSegment, ...]
    room: RoomConditions = field(default_factory=RoomConditions)
    decisions: list[TimingEvent] = field(default_factory=list)
    """`at_s` in the attributes is the time."""
    timings: list[TimingEvent] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    replies: dict[int, Pcm] = field(default_factory=dict)
    """Sound of the replies that were resumed, as made, at room.RATE, by turn."""
    underruns: int = 0
    samples_lost: int = 0
    """On capture."""
    blocks_lost: int = 0
    """KV blocks still in use after the conversation was forgotten."""
    errors: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Length of the conversation."""
        return len(self.assistant) / RATE

    def of(self, kind: str) -> list[TimingEvent]:
        """The decisions of one kind."""
        return [event for event in self.decisions if event.attributes["kind"] == kind]


def simulate(
    scenario: Scenario | RecordedScenario,
    engine: Engine,
    settings: SessionSettings,
    clock: Clock,
    *,
    end_of_turn: DetectorFactory | None = None,
    sinks: NullSinks | None = None,
) -> DuplexRecord:
    """Hold the conversation. The engine stays open. With `sinks` the session uses its sound devices, and the
    clock has to be the real one. SimulationError if the engine fails to warm up or the session ends early."""
    return _Simulation(scenario, engine, settings, clock, end_of_turn, sinks).run()


class _Simulation:
    def __init__(
        self,
        scenario: Scenario | RecordedScenario,
        engine: Engine,
        settings: SessionSettings,
        clock: Clock,
        end_of_turn: DetectorFactory | None,
        sinks: NullSinks | None,
    ) -> None:
        self._engine, self._clock, self._sinks = engine, clock, sinks
        self._ear = Ear()
        conditions = scenario.room
        self._room = EchoRoom(
            conditions.loss_db,
            conditions.delay_ms,
            conditions.skew_ppm,
            conditions.seed,
            noise_rms=conditions.noise_rms,
            listener=self._ear.hear,
        )
        self._user = SimulatedUser(scenario, self._ear, self._room.speak)
        self._room.on_round = self._user.advance
        self._session = Session(
            lambda: nullcontext(engine),
            replace(settings, hear_samples=False),
            self._room if sinks is None else None,
            self._room.speaker if sinks is None else None,
            clock=clock,
            end_of_turn=end_of_turn,
            find_devices=(lambda: DeviceList((), ())) if sinks is None else None,
            look_for_devices=(lambda: None) if sinks is None else rescan,
        )
        self._found = DuplexRecord(scenario.name, scenario.group, _nothing(), _nothing(), (), conditions)
        self._is_ready = self._listens = False

    def run(self) -> DuplexRecord:
        self._session.start()
        try:
            self._wait(lambda: self._is_ready)
            self._session.send(Start())
            if self._sinks is not None:
                self._wait(lambda: self._listens)
                self._room.open(None, 0.0)
            self._wait(lambda: self._user.is_done)
            self._keep_resumed()
            self._session.send(Stop())
            self._session.send(NewConversation())
            self._found.blocks_lost = self._blocks_in_use()
        finally:
            self._session.stop()
            self._collect()
        return self._complete()

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if not self._session.is_running:
                raise SimulationError("The conversation broke off.", "See the log file for details.")
            time.sleep(_POLL_S)
            if self._sinks is not None:
                self._sinks.pump(self._room, self._clock.now_ns())
            self._collect()

    def _keep_resumed(self) -> None:
        for turn_id in {event.turn_id for event in self._found.of("resume")}:
            pcm, rate = self._session.reply_audio(turn_id)
            if len(pcm):
                resampler = Resampler(rate, RATE)
                self._found.replies[turn_id] = np.concatenate([resampler.push(pcm), resampler.finish()])

    def _blocks_in_use(self) -> int:
        give_up_s = time.monotonic() + _FREE_LIMIT_S
        while self._engine.stats.used and time.monotonic() < give_up_s:
            time.sleep(_POLL_S)
        return self._engine.stats.used

    def _collect(self) -> None:
        found = self._found
        for event in self._session.poll():
            match event:
                case EngineReady():
                    self._is_ready = True
                case StateChanged(SessionState.LISTENING):
                    self._listens = True
                case Timing(timing) if timing.name == "decision":
                    at_s = float(timing.attributes["at_s"]) - self._room.origin_s
                    found.decisions.append(replace(timing, attributes=timing.attributes | {"at_s": at_s}))
                case Timing(timing):
                    found.timings.append(timing)
                case TurnCommitted(turn_id, seconds, start_s):
                    found.committed.append(Committed(turn_id, start_s, start_s + seconds))
                case Counters(underruns, lost):
                    found.underruns, found.samples_lost = underruns, lost
                case ErrorRaised(problem, _, is_fatal):
                    if is_fatal:
                        raise SimulationError.from_problem(problem)
                    found.errors.append(problem.what_is_wrong)

    def _complete(self) -> DuplexRecord:
        found, user = self._found, self._user
        found.assistant = np.concatenate([*self._ear.blocks, _nothing()])
        found.user = np.zeros_like(found.assistant)
        for start_s, pcm in user.said:
            start = round(start_s * RATE)
            part = pcm[: max(len(found.user) - start, 0)]
            found.user[start : start + len(part)] += part
        found.segments = tuple(user.segments)
        return found


def _nothing() -> Pcm:
    return np.zeros(0, dtype=np.float32)
