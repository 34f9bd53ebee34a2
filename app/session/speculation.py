"""Speculative reply: generated at the candidate pause and held, then released or discarded.

In: pauses, confirmations and roll backs of `TurnDriver`, the events of the speculative reply. Out: jobs for
the engine; the held events, once confirmed; what was discarded, as `SpeculationStats` and as the timing
roll_back. Nothing is speculated by an engine that could not keep up with the conversation. Dialog thread, or
event loop.

Until the turn is confirmed nobody else sees the reply: its events are held here, its durations in
`HeldTimings`, and a roll back removes it from the history of the engine's conversation.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median

from app.dialog.turn_events import TurnEvent
from app.session.engine_jobs import (
    HELD_S,
    Commit,
    Confirm,
    Interrupt,
    JobQueue,
    Reopen,
    ReplyMade,
    RolledBack,
)
from app.session.events import OffReason, SpeculationStats
from app.settings import SpeculationMode
from engine_runtime.timing import TimingBus, TimingEvent
from engine_runtime.types import CancelScope, ReplyAudio, ReplyDone, ReplyEvent

_SLOW_RTF, _FAST_RTF = 1.0, 0.8
"""Median real-time factor of the latest replies: nothing is speculated from the first on, again below the
second."""
_SLOW_ROLL_BACK_MS = 100.0
"""Median delay from which on nothing is speculated."""
TRY_AGAIN_TURNS = 5
"""Turns after which slow roll backs are forgotten, because none is measured while nothing is speculated."""
_LATEST = 3


class HeldTimings(TimingBus):
    """A bus that keeps its events until `release`, and passes them on from then on. Any thread."""

    def __init__(self, target: TimingBus) -> None:
        super().__init__(target.clock_ns)
        self._target = target
        self._events: list[TimingEvent] = []
        self._is_released = False
        self._order = threading.Lock()
        self.subscribe(self._take)

    def count(self, name: str) -> int:
        """How many events of this name are held."""
        with self._order:
            return sum(event.name == name for event in self._events)

    def release(self) -> None:
        """Pass on all events: the reply is heard."""
        with self._order:
            for event in self._events:
                self._target.publish(event)
            self._events.clear()
            self._is_released = True

    def _take(self, event: TimingEvent) -> None:
        with self._order:
            if self._is_released:
                self._target.publish(event)
            else:
                self._events.append(event)


@dataclass(slots=True)
class HeldReply:
    """A speculative reply, with its events so far and their arrival, by the session's clock."""

    turn_id: int
    scope: CancelScope
    speech_end_ms: float
    """End of the speech that it answers."""
    silence_ms: float
    """Silence since then, when it was asked for."""
    asked_ns: int
    timings: HeldTimings
    events: list[tuple[ReplyEvent, int]] = field(default_factory=list)
    made: ReplyMade | None = None
    """Its ReplyMade, once it is complete."""
    rolled_back_ns: int = 0
    """Time of the roll back, by the clock of the timing bus."""

    @property
    def audio_s(self) -> float:
        """Speech of the reply so far, in seconds."""
        audio = [event for event, _ in self.events if isinstance(event, ReplyAudio)]
        return sum(len(event.pcm) / event.sample_rate for event in audio)

    @property
    def is_waiting(self) -> bool:
        """Whether the engine has made the most that is held, and waits."""
        return self.audio_s >= HELD_S


class Speculation:
    """One speculative reply at a time: `begin`, `hold` for each event, then `confirm`, `roll_back` or
    `drop`."""

    def __init__(
        self, jobs: JobQueue, now_ns: Callable[[], int], on_stats: Callable[[SpeculationStats], None]
    ) -> None:
        """`now_ns` is the session's clock."""
        self._jobs = jobs
        self._now_ns = now_ns
        self._on_stats = on_stats
        self._policy = SpeculationPolicy()
        self._stats = SpeculationStats()
        self._held: HeldReply | None = None
        self._discarded: list[HeldReply] = []
        """Replies that the engine has not rolled back yet."""

    def use_engine(self, *, can_speculate: bool) -> None:
        """Another engine is ready: how fast the one before was says nothing about it."""
        self._policy = SpeculationPolicy(can_speculate=can_speculate)

    @property
    def is_held(self) -> bool:
        """Whether a speculative reply is made or held."""
        return self._held is not None

    def is_wanted(self, mode: SpeculationMode) -> bool:
        """Whether the next reply should be made speculatively."""
        reason: OffReason | None = self._policy.off_reason if mode == "auto" else None
        self._count(off_reason="setting" if mode == "off" else reason)
        return self._stats.off_reason is None

    def is_overtaken(self, speech_end_ms: float) -> bool:
        """Whether the user has continued since the speculative reply began."""
        return self._held is not None and self._held.speech_end_ms != speech_end_ms

    def begin(self, commit: Commit, pause: TurnEvent, timing: TimingBus) -> None:
        """The user may have finished: make the reply to what was said before this pause."""
        held = HeldReply(
            commit.turn_id,
            commit.scope,
            pause.speech_end_ms,
            pause.silence_ms,
            self._now_ns(),
            HeldTimings(timing),
        )
        self._held = held
        self._jobs.submit(replace(commit, timings=held.timings))
        self._count(speculated=self._stats.speculated + 1)

    def held_of(self, scope: CancelScope) -> HeldReply | None:
        """The speculative reply, if it is that of this commit."""
        return self._held if self._held is not None and self._held.scope is scope else None

    def hold(self, scope: CancelScope, event: ReplyEvent) -> bool:
        """Keep the next event if it is of the speculative reply; whether it is."""
        held = self.held_of(scope)
        if held is not None:
            held.events.append((event, self._now_ns()))
        return held is not None

    def keep(self, made: ReplyMade) -> bool:
        """Keep what was measured of the speculative reply, if all of that was made; whether it was."""
        held = self._held
        if held is None or not any(isinstance(event, ReplyDone) for event, _ in held.events):
            return False
        held.made = made
        return True

    def confirm(self) -> HeldReply:
        """The user has finished: the reply, the rest of which follows. Its durations count from now on."""
        held = self._take()
        self._jobs.submit(Confirm(held.turn_id))
        held.timings.release()
        self._count(confirmed=self._stats.confirmed + 1)
        return held

    def roll_back(self) -> HeldReply:
        """The user continues the turn: drop the held reply."""
        held = self._discard()
        self._jobs.submit(Reopen(held.turn_id, held.scope))
        return held

    def drop(self) -> None:
        """Drop the held reply together with its turn. The caller cancels the scope of the turn."""
        held = self._discard()
        self._jobs.submit(Interrupt(held.turn_id, 0, 0))

    # ---- what it is worth ----

    def note_reply(self, rtf_total: float) -> None:
        """A reply was made, speculative or not, with this real-time factor."""
        self._policy.note_reply(rtf_total)

    def note_turn(self) -> None:
        """A turn was confirmed."""
        self._policy.note_turn()

    def note_roll_back(self, result: RolledBack, timing: TimingBus) -> None:
        """The engine has discarded a reply. One that was not speculative does not count."""
        held = next((held for held in self._discarded if held.scope is result.scope), None)
        if held is None:
            return
        self._discarded.remove(held)
        ready_ns = result.ready_ns - held.rolled_back_ns
        steps = held.timings.count("step")
        timing.emit(
            "roll_back",
            held.turn_id,
            held.rolled_back_ns,
            ready_ns,
            engine_ms=result.work_ns / 1e6,
            audio_s=held.audio_s,
            steps=steps,
        )
        self._policy.note_roll_back(ready_ns / 1e6)
        stats = self._stats
        self._count(
            engine_ms=stats.engine_ms + result.work_ns / 1e6,
            audio_s=stats.audio_s + held.audio_s,
            steps=stats.steps + steps,
            roll_back_ms=max(stats.roll_back_ms, ready_ns / 1e6),
        )

    def _discard(self) -> HeldReply:
        held = self._take()
        held.scope.cancel()
        held.rolled_back_ns = time.perf_counter_ns()
        self._discarded.append(held)
        self._count(rolled_back=self._stats.rolled_back + 1)
        return held

    def _take(self) -> HeldReply:
        held, self._held = self._held, None
        if held is None:
            raise RuntimeError("there is no speculative reply")
        return held

    def _count(self, **changes: float | OffReason | None) -> None:
        stats = replace(self._stats, **changes)  # type: ignore[arg-type]
        if stats != self._stats:
            self._stats = stats
            self._on_stats(stats)


class SpeculationPolicy:
    """Judges the engine by the latest replies and roll backs; until there are any, it is trusted."""

    def __init__(self, *, can_speculate: bool = True) -> None:
        """`can_speculate`: the engine can take back a reply."""
        self._can_speculate = can_speculate
        self._rtf: deque[float] = deque(maxlen=_LATEST)
        self._roll_backs_ms: deque[float] = deque(maxlen=_LATEST)
        self._is_slow = False
        self._turns_since_roll_back = 0

    @property
    def off_reason(self) -> OffReason | None:
        """Why nothing should be speculated, None if it should."""
        if not self._can_speculate:
            return "server"
        if self._is_slow:
            return "slow_engine"
        too_late = len(self._roll_backs_ms) == _LATEST and median(self._roll_backs_ms) > _SLOW_ROLL_BACK_MS
        return "slow_roll_back" if too_late else None

    def note_reply(self, rtf_total: float) -> None:
        """A reply was made, with this real-time factor."""
        self._rtf.append(rtf_total)
        typical = median(self._rtf)
        self._is_slow = typical >= (_FAST_RTF if self._is_slow else _SLOW_RTF)

    def note_roll_back(self, ready_ms: float) -> None:
        """A speculative reply was rolled back; the engine was ready for more speech after `ready_ms`."""
        self._roll_backs_ms.append(ready_ms)
        self._turns_since_roll_back = 0

    def note_turn(self) -> None:
        """A turn was committed."""
        self._turns_since_roll_back += 1
        if self._turns_since_roll_back >= TRY_AGAIN_TURNS:
            self._roll_backs_ms.clear()
