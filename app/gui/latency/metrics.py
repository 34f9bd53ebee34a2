"""Model behind the latency view: timing events in; series, percentiles and the waterfall of a turn out.

A figure of a turn stands at the id of its turn, so that all curves share one axis; the level of the
playback stands at its second. Qt-free and pure: no clock is read here, every time comes from the events.
Fed and read by the GUI thread. `definitions.py` has the definition of each metric for the user.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from statistics import median

import numpy as np
from numpy.typing import NDArray

from app.gui.common.turn_times import TurnTimes, Waterfall, finite
from engine_runtime.timing import TimingEvent

Values = NDArray[np.float64]
SHOWN_TURNS = 40
"""Turns whose values are kept, drawn and summarized."""
MAX_LEVELS = 600
"""Values of a series over time that are kept: 30 s at 20 per second."""
_MAX_CALLS = 4096
"""Values of one turn that are kept."""
_MAX_MARKS = 64
INTERRUPTIONS = ("interrupt", "resume", "cut")
"""Decisions that are marked on the level of the playback."""


@dataclass(frozen=True, slots=True)
class SeriesSummary:
    """Statistics of the values that a series still holds. `last` is the newest point of its curve."""

    count: int
    last: float
    mean: float
    p50: float
    p95: float
    maximum: float

    @classmethod
    def from_values(cls, values: Values, last: float) -> SeriesSummary:
        """Statistics of at least one value; percentiles interpolate linearly."""
        p50, p95 = np.percentile(values, (50, 95))
        return cls(len(values), last, float(values.mean()), float(p50), float(p95), float(values.max()))


@dataclass(frozen=True, slots=True)
class TurnPoints:
    """One point per turn, oldest first, [n] each: the median of its values, the smallest and the largest."""

    turns: Values
    medians: Values
    lowest: Values
    highest: Values


class TurnSeries:
    """Values by turn: one per turn, of which the newest counts (`per_call` False), or one per call.

    `total` grows with every change, so that a view knows when to draw.
    """

    def __init__(self, *, per_call: bool = False) -> None:
        self.total = 0
        self.per_call = per_call
        self._values: dict[int, list[float]] = {}
        self._points: dict[int, tuple[float, float, float]] = {}
        self._summary: SeriesSummary | None = None
        self._summarized = 0

    def put_value(self, turn_id: int, value: float) -> None:
        """Add a value of a turn; in a series with one value per turn it replaces the one before."""
        values = self._values.setdefault(turn_id, [])
        if not self.per_call:
            values.clear()
        if len(values) < _MAX_CALLS:
            values.append(value)
        self._points.pop(turn_id, None)
        self.total += 1

    def drop_before(self, turn_id: int) -> None:
        """Forget older turns."""
        for old in [known for known in self._values if known < turn_id]:
            del self._values[old]
            self._points.pop(old, None)
            self.total += 1

    def __len__(self) -> int:
        """How many turns have a value."""
        return len(self._values)

    def points(self) -> TurnPoints:
        """The curve."""
        turns = sorted(self._values)
        for turn_id in turns:
            if turn_id not in self._points:
                values = self._values[turn_id]
                self._points[turn_id] = (float(np.median(values)), min(values), max(values))
        table = np.array([(turn_id, *self._points[turn_id]) for turn_id in turns], dtype=np.float64)
        return TurnPoints(*(table.reshape(-1, 4).T))

    def summary(self) -> SeriesSummary | None:
        """Statistics over all values held; None when there are none."""
        if self._summarized != self.total:
            self._summarized = self.total
            values = np.array([value for each in self._values.values() for value in each])
            self._summary = (
                SeriesSummary.from_values(values, float(self.points().medians[-1])) if len(values) else None
            )
        return self._summary


class LevelSeries:
    """The last `capacity` values over seconds, oldest first."""

    def __init__(self, capacity: int = MAX_LEVELS) -> None:
        self.capacity = capacity
        self.total = 0
        # Every value is written twice, a capacity apart, so that the newest `capacity` values are one slice.
        self._store: Values = np.zeros((2, 2 * capacity))

    def append(self, seconds: float, value: float) -> None:
        """Add a value."""
        slot = self.total % self.capacity
        self.total += 1
        self._store[:, slot] = self._store[:, slot + self.capacity] = (seconds, value)

    def __len__(self) -> int:
        return min(self.total, self.capacity)

    @property
    def x(self) -> Values:
        """Seconds, oldest first, [n]. A copy."""
        return self._window(0)

    @property
    def y(self) -> Values:
        """Values, oldest first, [n]. A copy."""
        return self._window(1)

    def summary(self) -> SeriesSummary | None:
        """Statistics over the values held; None when there are none."""
        return SeriesSummary.from_values(self.y, float(self.y[-1])) if self.total else None

    def _window(self, row: int) -> Values:
        start = 0 if self.total <= self.capacity else self.total % self.capacity
        return self._store[row, start : start + len(self)].copy()


class Metric(str, Enum):
    """A figure of the latency view. Durations in ms, memory in GB, RTF and the first-chunk ratio without
    unit."""

    PREFILL_SPEAKING = "prefill_speaking_ms"
    PREFILL_AT_COMMIT = "prefill_at_commit_ms"
    TOKENS_AT_COMMIT = "tokens_at_commit"
    STEP = "step_ms"
    TOKEN2MEL = "token2mel_ms"
    VOCODER = "vocoder_ms"
    CHUNK_AUDIO = "chunk_audio_ms"
    TTFA = "ttfa_ms"
    CONFIRM_TO_SOUND = "confirm_to_sound_ms"
    ENDPOINTING = "endpointing_ms"
    VOICE_TO_VOICE = "voice_to_voice_ms"
    RTF_TOTAL = "rtf_total"
    RTF_STEADY = "rtf_steady"
    FIRST_CHUNK_RATIO = "first_chunk_ratio"
    MEMORY = "memory_gb"
    PLAYBACK = "playback_ms"


_DURATIONS = {
    "step": Metric.STEP,
    "token2mel": Metric.TOKEN2MEL,
    "vocoder": Metric.VOCODER,
    "first_audio": Metric.TTFA,
    "confirm_to_sound": Metric.CONFIRM_TO_SOUND,
    "endpointing": Metric.ENDPOINTING,
    "voice_to_voice": Metric.VOICE_TO_VOICE,
}


_ATTRIBUTES = {
    "prefill": {"tokens_at_commit": Metric.TOKENS_AT_COMMIT},
    "vocoder": {"audio_ms": Metric.CHUNK_AUDIO},
}


_PER_CALL = {
    Metric.PREFILL_SPEAKING,
    Metric.STEP,
    Metric.TOKEN2MEL,
    Metric.VOCODER,
    Metric.CHUNK_AUDIO,
}


_OF_REPLIES = (Metric.RTF_TOTAL, Metric.RTF_STEADY, Metric.FIRST_CHUNK_RATIO, Metric.MEMORY)
"""Attributes of a reply by the names of the figures."""


class LatencyMetrics:
    """Collects timing events.

    Attributes:
        series: one series by turn per figure.
        playback: the level of the playback over seconds.
        interruptions: when playback was interrupted, resumed or cut: kind of the decision and second.
        turns: first and newest turn with a value, (0, 0) before.
        underruns, dropped_input: how often playback starved, how much input was lost (samples).
        outages: how often the computer slept or the server was away. What a turn took from then on says
            nothing about the program, and is in no series.
        outage_turns: the turns in which that happened, among the latest.
        outage_seconds: when it happened.
        rtf_by_flow_steps: median of the RTF of the latest spoken replies with each number of flow steps, the
            latest number last.
        version: grows with every event that was used; a view redraws when it has changed.
    """

    def __init__(self) -> None:
        self.series: dict[Metric, TurnSeries] = {
            metric: TurnSeries(per_call=metric in _PER_CALL)
            for metric in Metric
            if metric is not Metric.PLAYBACK
        }
        self.playback = LevelSeries()
        self.interruptions: deque[tuple[str, float]] = deque(maxlen=_MAX_MARKS)
        self.turns = (0, 0)
        self.underruns = 0
        self.dropped_input = 0
        self.outages = 0
        self.outage_turns: set[int] = set()
        self.outage_seconds: deque[float] = deque(maxlen=_MAX_MARKS)
        self.version = 0
        self.rtf_by_flow_steps: dict[int, float] = {}
        self._rtf_of_steps: dict[int, deque[float]] = {}
        self._turns: OrderedDict[int, TurnTimes] = OrderedDict()
        self._origin_ns: int | None = None
        self._sounding: TurnTimes | None = None

    def add_events(self, events: Iterable[TimingEvent]) -> None:
        """Add events in the order in which they were emitted."""
        for event in events:
            self.add_event(event)

    def add_event(self, event: TimingEvent) -> None:
        """Add one event. Unknown names and values that are not finite are passed over."""
        if self._origin_ns is None:
            self._origin_ns = event.start_ns
        self.version += 1
        self._note_newest(event.turn_id)
        if (metric := _DURATIONS.get(event.name)) is not None:
            self._put(metric, event.turn_id, event.duration_ms)
        for name, metric in _ATTRIBUTES.get(event.name, {}).items():
            self._put(metric, event.turn_id, event.attributes.get(name))
        seconds = (event.start_ns - self._origin_ns) / 1e9
        if event.name == "playback_buffer":
            level_ms = finite(event.attributes.get("level_ms"))
            if level_ms is not None:
                self.playback.append(seconds, level_ms)
        elif event.name == "underrun":
            self.underruns += _count(event)
        elif event.name == "dropped_input":
            self.dropped_input += _count(event)
        elif event.name == "outage":
            self.outages += 1
            self.outage_turns.add(event.turn_id)
            self.outage_seconds.append(seconds)
        else:
            if event.name == "decision" and event.attributes.get("kind") in INTERRUPTIONS:
                self.interruptions.append((str(event.attributes["kind"]), seconds))
            self._note_turn(event)

    def summary(self, metric: Metric) -> SeriesSummary | None:
        """Statistics of one figure over the turns that are shown, None without a value."""
        return self.curve(metric).summary()

    def curve(self, metric: Metric) -> TurnSeries | LevelSeries:
        """The values of one figure."""
        return self.playback if metric is Metric.PLAYBACK else self.series[metric]

    def turn(self, turn_id: int) -> TurnTimes | None:
        """Times of a turn, if it is one of the latest, which are shown."""
        return self._turns.get(turn_id)

    def waterfall(self) -> Waterfall | None:
        """The waterfall of the last turn with a spoken reply; None if there is none yet."""
        return None if self._sounding is None else self._sounding.waterfall()

    def waterfall_so_far(self) -> Waterfall | None:
        """The waterfall of the newest turn that was committed, as far as it is known; None without one."""
        for turn in reversed(self._turns.values()):
            if turn.commit_ns is not None:
                return turn.waterfall(so_far=True)
        return None

    def _put(self, metric: Metric, turn_id: int, value: object) -> None:
        number, oldest = finite(value), max(1, self.turns[1] - SHOWN_TURNS + 1)
        if number is not None and turn_id >= oldest and turn_id not in self.outage_turns:
            self.series[metric].put_value(turn_id, number)

    def _note_newest(self, turn_id: int) -> None:
        first, newest = self.turns
        if turn_id <= newest:
            return
        self.turns = (first or turn_id, turn_id)
        oldest = turn_id - SHOWN_TURNS + 1
        for series in self.series.values():
            series.drop_before(oldest)
        self.outage_turns = {turn for turn in self.outage_turns if turn >= oldest}

    def _note_turn(self, event: TimingEvent) -> None:
        turn = self._turns.get(event.turn_id)
        if turn is None:
            turn = self._turns[event.turn_id] = TurnTimes(event.turn_id)
            if len(self._turns) > SHOWN_TURNS:
                self._turns.popitem(last=False)
        turn.add_event(event)
        if event.name == "prefill":
            is_at_commit = "tokens_at_commit" in event.attributes
            metric = Metric.PREFILL_AT_COMMIT if is_at_commit else Metric.PREFILL_SPEAKING
            self._put(metric, event.turn_id, turn.prefill_at_commit_ms if is_at_commit else event.duration_ms)
        elif event.name == "first_audio":
            self._sounding = turn
        elif event.name == "reply" and event.attributes.get("finish_reason") != "cancelled":
            for metric in _OF_REPLIES:
                self._put(metric, event.turn_id, event.attributes.get(metric.value))
            total = finite(event.attributes.get(Metric.RTF_TOTAL.value))
            turn.rtf_total = turn.rtf_total if total is None else total
            if total is not None and event.turn_id not in self.outage_turns:
                self._note_flow_steps(finite(event.attributes.get("flow_steps")), total)

    def _note_flow_steps(self, steps: float | None, rtf: float) -> None:
        if steps is not None:
            latest = self._rtf_of_steps.setdefault(int(steps), deque(maxlen=SHOWN_TURNS))
            latest.append(rtf)
            self.rtf_by_flow_steps.pop(int(steps), None)
            self.rtf_by_flow_steps[int(steps)] = median(latest)


def _count(event: TimingEvent) -> int:
    value = event.attributes.get("count", 1)
    return int(value) if isinstance(value, (int, float)) else 1
