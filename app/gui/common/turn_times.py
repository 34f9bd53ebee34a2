"""The times of one turn, and its waterfall: where the time went until the first sound of the reply.

In: timing events of the turn. Out: bars in ms, answers of the end-of-turn detector. Qt-free and pure: no
clock is read. GUI thread.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from engine_runtime.timing import TimingEvent

_MAX_SPANS = 4096


class LatencyStage(str, Enum):
    """The stages between the end of a question and the first sound of its reply, in order."""

    ENDPOINTING = "endpointing"
    PREFILL = "prefill"
    STEP = "step"
    TOKEN2MEL = "token2mel"
    VOCODER = "vocoder"
    SERVER = "server"
    NETWORK = "network"
    HOLD = "hold"
    DEVICE = "device"


_SPANS = {
    "prefill": LatencyStage.PREFILL,
    "step": LatencyStage.STEP,
    "token2mel": LatencyStage.TOKEN2MEL,
    "vocoder": LatencyStage.VOCODER,
    "server": LatencyStage.SERVER,
    "network": LatencyStage.NETWORK,
}
REMOTE_STAGES = (
    LatencyStage.ENDPOINTING,
    LatencyStage.SERVER,
    LatencyStage.NETWORK,
    LatencyStage.HOLD,
    LatencyStage.DEVICE,
)
"""Spans of a turn that was answered by a server."""
REPORTED_STAGES = tuple(stage for stage in LatencyStage if stage is not LatencyStage.SERVER)
"""Spans of a turn that was answered by a server which reports its own timings."""
LOCAL_STAGES = tuple(
    stage for stage in LatencyStage if stage not in (LatencyStage.SERVER, LatencyStage.NETWORK)
)
"""Spans of a turn that was answered by an engine of this process."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One span of a waterfall, in ms after the last speech sample (after the commit for a typed question).
    `is_speculative` if it began before the end of the turn was confirmed."""

    stage: LatencyStage
    start_ms: float
    duration_ms: float
    is_speculative: bool = False


@dataclass(frozen=True, slots=True)
class Rating:
    """An answer of the end-of-turn detector or of the language model: the probability that the user has
    finished, the result (`Stage` of app.dialog.end_of_turn), and the silence when it was asked and when it
    answered."""

    probability: float
    stage: str
    asked_ms: float
    answered_ms: float
    by: str = "detector"


@dataclass(frozen=True, slots=True)
class Waterfall:
    """How the time between the end of the question and the first sound of the answer was spent."""

    turn_id: int
    is_spoken: bool
    reaches_device: bool
    end_ms: float
    bars: tuple[Bar, ...]
    ratings: tuple[Rating, ...] = ()
    is_complete: bool = True
    """Whether the first sample was ready; else the last bar is what was done so far."""
    """Ratings of the pause that ended the question."""

    def total_ms(self, stage: LatencyStage) -> float:
        """Sum of the spans of one stage."""
        return sum(bar.duration_ms for bar in self.bars if bar.stage is stage)

    @property
    def stages(self) -> tuple[LatencyStage, ...]:
        """The stages that the reply went through."""
        if self.total_ms(LatencyStage.SERVER):
            return REMOTE_STAGES
        return REPORTED_STAGES if self.total_ms(LatencyStage.NETWORK) else LOCAL_STAGES

    @property
    def is_speculative(self) -> bool:
        """Whether the reply was begun before the turn was confirmed."""
        return any(bar.is_speculative for bar in self.bars)

    @property
    def other_ms(self) -> float:
        """Time in which none of the stages ran: waiting, queueing, Python between the stages."""
        covered, reached = 0.0, 0.0
        for bar in sorted(self.bars, key=lambda bar: bar.start_ms):
            end = bar.start_ms + bar.duration_ms
            covered += max(0.0, end - max(reached, bar.start_ms))
            reached = max(reached, end)
        return max(0.0, self.end_ms - covered)


@dataclass(slots=True)
class TurnTimes:
    """Times of one turn; None until their event has arrived."""

    turn_id: int
    ttfa_ms: float | None = None
    voice_to_voice_ms: float | None = None
    rtf_total: float | None = None
    commit_ns: int | None = None
    """When the reply was requested from the engine; a speculative one before the end of the endpointing."""
    endpointing: tuple[int, int] | None = None
    first_audio_ns: int | None = None
    hold_ns: int = 0
    voice_ns: int | None = None
    ratings: list[Rating] = field(default_factory=list)
    spans: deque[tuple[LatencyStage, int, int]] = field(default_factory=lambda: deque(maxlen=_MAX_SPANS))

    def add_event(self, event: TimingEvent) -> None:
        """Take an event of the turn; unknown names are ignored."""
        end_ns = event.start_ns + event.duration_ns
        if (stage := _SPANS.get(event.name)) is not None:
            if self.first_audio_ns is None or event.start_ns < self.first_audio_ns:
                self.spans.append((stage, event.start_ns, end_ns))
        elif event.name == "commit":
            # A reopened turn is committed again: discard the events after the earlier commit.
            self.commit_ns, self.first_audio_ns, self.voice_ns = event.start_ns, None, None
            self.hold_ns = 0
        elif event.name == "end_of_turn":
            self._note_rating(event)
        elif event.name == "endpointing":
            self.endpointing = (event.start_ns, end_ns)
        elif event.name == "first_audio":
            self.first_audio_ns, self.ttfa_ms = end_ns, event.duration_ms
            self.commit_ns = event.start_ns if self.commit_ns is None else self.commit_ns
        elif event.name == "playback_hold":
            self.hold_ns = event.duration_ns
        elif event.name == "voice_to_voice":
            self.voice_ns, self.voice_to_voice_ms = end_ns, event.duration_ms

    @property
    def prefill_at_commit_ms(self) -> float:
        """Time in the prefill calls since the commit, as in the waterfall."""
        asked = self.commit_ns or 0
        spans = [
            stop - start
            for stage, start, stop in self.spans
            if stage is LatencyStage.PREFILL and start >= asked
        ]
        return sum(spans) / 1e6

    def waterfall(self, *, so_far: bool = False) -> Waterfall | None:
        """Its waterfall; None before the first sample of its reply is ready, with `so_far` before the
        commit."""
        first_ns = self.first_audio_ns
        if self.commit_ns is None or (first_ns is None and not so_far):
            return None
        begin, sure = self.endpointing or (self.commit_ns, self.commit_ns)
        if first_ns is None:
            reached = max((stop for _, _, stop in self.spans), default=0)
            spans = self._stage_spans(self.commit_ns, max(reached, self.commit_ns))
            ready = max(reached, sure)
        else:
            ready = max(first_ns, sure)
            spans = [*self._stage_spans(self.commit_ns, first_ns), *self._playback_spans(ready)]
        bars = [
            Bar(stage, (start - begin) / 1e6, (stop - start) / 1e6, is_speculative=start < sure)
            for stage, start, stop in spans
        ]
        if self.endpointing is not None:
            bars.insert(0, Bar(LatencyStage.ENDPOINTING, 0.0, (sure - begin) / 1e6))
        end = max([ready, *(stop for _, _, stop in spans)])
        return Waterfall(
            self.turn_id,
            self.endpointing is not None,
            any(bar.stage is LatencyStage.DEVICE for bar in bars),
            (end - begin) / 1e6,
            tuple(bars),
            tuple(self.ratings),
            is_complete=first_ns is not None,
        )

    def _stage_spans(self, asked: int, ready: int) -> list[tuple[LatencyStage, int, int]]:
        """What the engine did from the commit to the first sample; of a server its time as a whole if it does
        not say more."""
        spans = [
            (stage, start, min(stop, ready)) for stage, start, stop in self.spans if asked <= start < ready
        ]
        is_reported = any(stage not in REMOTE_STAGES for stage, _, _ in spans)
        return [span for span in spans if span[0] is not LatencyStage.SERVER or not is_reported]

    def _playback_spans(self, ready: int) -> list[tuple[LatencyStage, int, int]]:
        """Hold and device. The hold counts from `ready`: first sample generated and turn confirmed."""
        heard = self.voice_ns if self.voice_ns is not None and self.voice_ns >= ready else None
        played = ready + max(0, self.hold_ns)
        played = played if heard is None else min(played, heard)
        spans = [(LatencyStage.HOLD, ready, played)] if played > ready else []
        return spans if heard is None else [*spans, (LatencyStage.DEVICE, played, heard)]

    def _note_rating(self, event: TimingEvent) -> None:
        """Keep the answers about the current pause: the silence of a new pause is shorter than before."""
        known = event.attributes
        probability, asked_ms, answered_ms = (
            float(known[name]) for name in ("probability", "asked_ms", "answered_ms")
        )
        by = str(known.get("by", "detector"))
        if any(rating.by == by and asked_ms <= rating.asked_ms for rating in self.ratings):
            self.ratings.clear()
        if known["stage"] != "late":
            self.ratings.append(Rating(probability, str(known["stage"]), asked_ms, answered_ms, by))


def finite(value: object) -> float | None:
    """A value of an event, None unless it is a finite number."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
