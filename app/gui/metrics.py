"""Model behind the latency view: timing events in; series, percentiles and the waterfall of a turn out.

Qt-free and pure: no clock is read here, every time comes from the events. Fed and read by the GUI thread.
`definitions.py` has the definition of each metric for the user.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from app.gui.series import SHOWN_TURNS, LevelSeries, SeriesSummary, TurnSeries
from engine_runtime.timing import TimingEvent

_MAX_TURNS = 256
_MAX_SPANS = 4096


class LatencyStage(str, Enum):
    """The stages between the end of a question and the first sound of its reply, in order."""

    ENDPOINTING = "endpointing"
    PREFILL = "prefill"
    STEP = "step"
    TOKEN2MEL = "token2mel"
    VOCODER = "vocoder"
    DEVICE = "device"


class Metric(str, Enum):
    """A figure of the latency view. Durations in ms, RTF and the first-chunk ratio without unit."""

    PREFILL = "prefill_ms"
    PREFILL_ROWS = "prefill_rows"
    ROWS_AT_COMMIT = "rows_at_commit"
    STEP = "step_ms"
    TOKEN2MEL = "token2mel_ms"
    VOCODER = "vocoder_ms"
    CHUNK_AUDIO = "chunk_audio_ms"
    TTFA = "ttfa_ms"
    ENDPOINTING = "endpointing_ms"
    VOICE_TO_VOICE = "voice_to_voice_ms"
    RTF_TOTAL = "rtf_total"
    RTF_STEADY = "rtf_steady"
    FIRST_CHUNK_RATIO = "first_chunk_ratio"
    PLAYBACK = "playback_ms"


_DURATIONS = {
    "prefill": Metric.PREFILL,
    "step": Metric.STEP,
    "token2mel": Metric.TOKEN2MEL,
    "vocoder": Metric.VOCODER,
    "first_audio": Metric.TTFA,
    "endpointing": Metric.ENDPOINTING,
    "voice_to_voice": Metric.VOICE_TO_VOICE,
}
_ATTRIBUTES = {
    "prefill": {"rows": Metric.PREFILL_ROWS, "rows_at_commit": Metric.ROWS_AT_COMMIT},
    "vocoder": {"audio_ms": Metric.CHUNK_AUDIO},
}
_PER_CALL = {
    Metric.PREFILL,
    Metric.PREFILL_ROWS,
    Metric.STEP,
    Metric.TOKEN2MEL,
    Metric.VOCODER,
    Metric.CHUNK_AUDIO,
}
_REPLY_RATIOS = (Metric.RTF_TOTAL, Metric.RTF_STEADY, Metric.FIRST_CHUNK_RATIO)
_SPANS = {
    "prefill": LatencyStage.PREFILL,
    "step": LatencyStage.STEP,
    "token2mel": LatencyStage.TOKEN2MEL,
    "vocoder": LatencyStage.VOCODER,
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One span of a waterfall, in ms after the last speech sample (after the commit for a typed question)."""

    stage: LatencyStage
    start_ms: float
    duration_ms: float


@dataclass(frozen=True, slots=True)
class Rating:
    """An answer of the end-of-turn detector: the probability that the user has finished, what came of it
    (`Stage` of app.dialog.end_of_turn), and the silence when it was asked and when it answered."""

    probability: float
    stage: str
    asked_ms: float
    answered_ms: float


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Where the time went between the end of the question and the first sound of the answer."""

    turn_id: int
    is_spoken: bool
    reaches_device: bool
    end_ms: float
    bars: tuple[Bar, ...]
    ratings: tuple[Rating, ...] = ()
    """Of the pause that ended the question."""

    def total_ms(self, stage: LatencyStage) -> float:
        """Sum of the spans of one stage."""
        return sum(bar.duration_ms for bar in self.bars if bar.stage is stage)

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
    endpointing: tuple[int, int] | None = None
    first_audio_ns: int | None = None
    voice_ns: int | None = None
    ratings: list[Rating] = field(default_factory=list)
    spans: deque[tuple[LatencyStage, int, int]] = field(default_factory=lambda: deque(maxlen=_MAX_SPANS))


class LatencyMetrics:
    """Collects timing events.

    Attributes:
        series: one series by turn per figure.
        playback: the level of the playback over seconds.
        turns: first and newest turn of which anything is known, (0, 0) before.
        underruns, dropped_input: how often playback starved, how much input was lost (samples).
        version: grows with every event that was used; a view redraws when it has moved.
    """

    def __init__(self) -> None:
        self.series: dict[Metric, TurnSeries] = {
            metric: TurnSeries(per_call=metric in _PER_CALL)
            for metric in Metric
            if metric is not Metric.PLAYBACK
        }
        self.playback = LevelSeries()
        self.turns = (0, 0)
        self.underruns = 0
        self.dropped_input = 0
        self.version = 0
        self._turns: OrderedDict[int, TurnTimes] = OrderedDict()
        self._origin_ns: int | None = None
        self._sounding: TurnTimes | None = None

    def extend(self, events: Iterable[TimingEvent]) -> None:
        """Add events in the order in which they were emitted."""
        for event in events:
            self.add(event)

    def add(self, event: TimingEvent) -> None:
        """Add one event. Unknown names and values that are not finite are passed over."""
        if self._origin_ns is None:
            self._origin_ns = event.start_ns
        self.version += 1
        self._note_newest(event.turn_id)
        if (metric := _DURATIONS.get(event.name)) is not None:
            self._put(metric, event.turn_id, event.duration_ms)
        for name, metric in _ATTRIBUTES.get(event.name, {}).items():
            self._put(metric, event.turn_id, event.attributes.get(name))
        if event.name == "playback_buffer":
            level_ms = _finite(event.attributes.get("level_ms"))
            if level_ms is not None:
                self.playback.append((event.start_ns - self._origin_ns) / 1e9, level_ms)
        elif event.name == "underrun":
            self.underruns += _count(event)
        elif event.name == "dropped_input":
            self.dropped_input += _count(event)
        else:
            self._note_turn(event)

    def summary(self, metric: Metric) -> SeriesSummary | None:
        """Statistics of one figure over the turns that are shown, None without a value."""
        return self.curve(metric).summary()

    def curve(self, metric: Metric) -> TurnSeries | LevelSeries:
        """The values of one figure."""
        return self.playback if metric is Metric.PLAYBACK else self.series[metric]

    def turn(self, turn_id: int) -> TurnTimes | None:
        """Times of a turn (the last few hundred are kept)."""
        return self._turns.get(turn_id)

    def waterfall(self) -> Waterfall | None:
        """The waterfall of the last turn with a spoken reply; None if there is none yet."""
        turn = self._sounding
        if turn is None or turn.commit_ns is None or turn.first_audio_ns is None:
            return None
        origin = turn.commit_ns if turn.endpointing is None else turn.endpointing[0]
        end = turn.first_audio_ns
        spans: list[tuple[LatencyStage, int, int]] = []
        if turn.endpointing is not None:
            spans.append((LatencyStage.ENDPOINTING, *turn.endpointing))
        spans += [
            (stage, start, min(stop, end))
            for stage, start, stop in turn.spans
            if turn.commit_ns <= start < end
        ]
        reaches_device = turn.voice_ns is not None and turn.voice_ns >= end
        if turn.voice_ns is not None and reaches_device:
            spans.append((LatencyStage.DEVICE, end, turn.voice_ns))
            end = turn.voice_ns
        bars = tuple(Bar(stage, (start - origin) / 1e6, (stop - start) / 1e6) for stage, start, stop in spans)
        return Waterfall(
            turn.turn_id,
            turn.endpointing is not None,
            reaches_device,
            (end - origin) / 1e6,
            bars,
            tuple(turn.ratings),
        )

    def _put(self, metric: Metric, turn_id: int, value: object) -> None:
        number, oldest = _finite(value), max(1, self.turns[1] - SHOWN_TURNS + 1)
        if number is not None and turn_id >= oldest:
            self.series[metric].put(turn_id, number)

    def _note_newest(self, turn_id: int) -> None:
        first, newest = self.turns
        if turn_id <= newest:
            return
        self.turns = (first or turn_id, turn_id)
        for series in self.series.values():
            series.drop_before(turn_id - SHOWN_TURNS + 1)

    def _note_turn(self, event: TimingEvent) -> None:
        turn = self._turns.get(event.turn_id)
        if turn is None:
            turn = self._turns[event.turn_id] = TurnTimes(event.turn_id)
            if len(self._turns) > _MAX_TURNS:
                self._turns.popitem(last=False)
        end_ns = event.start_ns + event.duration_ns
        if (stage := _SPANS.get(event.name)) is not None:
            if turn.first_audio_ns is None or event.start_ns < turn.first_audio_ns:
                turn.spans.append((stage, event.start_ns, end_ns))
        elif event.name == "commit":
            # A reopened turn is committed again: discard the events after the earlier commit.
            turn.commit_ns, turn.first_audio_ns, turn.voice_ns = event.start_ns, None, None
        elif event.name == "end_of_turn":
            _note_rating(turn.ratings, event)
        elif event.name == "endpointing":
            turn.endpointing = (event.start_ns, end_ns)
        elif event.name == "first_audio":
            turn.first_audio_ns, turn.ttfa_ms = end_ns, event.duration_ms
            turn.commit_ns = event.start_ns if turn.commit_ns is None else turn.commit_ns
            self._sounding = turn
        elif event.name == "voice_to_voice":
            turn.voice_ns, turn.voice_to_voice_ms = end_ns, event.duration_ms
        elif event.name == "reply" and event.attributes.get("finish_reason") != "cancelled":
            self._note_reply(turn, event)

    def _note_reply(self, turn: TurnTimes, event: TimingEvent) -> None:
        for metric in _REPLY_RATIOS:
            self._put(metric, event.turn_id, event.attributes.get(metric.value))
        total = _finite(event.attributes.get(Metric.RTF_TOTAL.value))
        turn.rtf_total = turn.rtf_total if total is None else total


def _note_rating(ratings: list[Rating], event: TimingEvent) -> None:
    """Keep the answers about the present pause: the silence of a new one is shorter than the one before."""
    known = event.attributes
    probability, asked_ms, answered_ms = (
        float(known[name]) for name in ("probability", "asked_ms", "answered_ms")
    )
    if ratings and asked_ms <= ratings[-1].asked_ms:
        ratings.clear()
    if known["stage"] != "late":
        ratings.append(Rating(probability, str(known["stage"]), asked_ms, answered_ms))


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _count(event: TimingEvent) -> int:
    value = event.attributes.get("count", 1)
    return int(value) if isinstance(value, (int, float)) else 1
