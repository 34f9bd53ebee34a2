"""Values behind the curves and tiles of the latency view: one series per figure.

A figure of a turn stands at the id of its turn, so that all curves share one axis; the level of the playback
stands at its second. Qt-free and pure. Fed and read by the GUI thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

SHOWN_TURNS = 40
"""Turns whose values are kept, drawn and summarized."""
MAX_LEVELS = 600
"""Values of a series over time that are kept: 30 s at 20 per second."""
_MAX_CALLS = 4096
"""Values of one turn that are kept."""


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
    def of(cls, values: Values, last: float) -> SeriesSummary:
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

    def put(self, turn_id: int, value: float) -> None:
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
                SeriesSummary.of(values, float(self.points().medians[-1])) if len(values) else None
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
        return SeriesSummary.of(self.y, float(self.y[-1])) if self.total else None

    def _window(self, row: int) -> Values:
        start = 0 if self.total <= self.capacity else self.total % self.capacity
        return self._store[row, start : start + len(self)].copy()
