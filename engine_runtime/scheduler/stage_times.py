"""StageTimes: how long the calls of each stage take, by batch size.

In: measured calls. Out: the expected time of a call, for the scheduler; totals, for reports. Engine thread;
`summary` from any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine_runtime.work import Stage

_WEIGHT = 0.2
"""Weight of the latest call in the moving average."""


@dataclass(slots=True)
class BatchTime:
    """Calls of one stage with one batch size."""

    calls: int = 0
    total_ns: int = 0
    recent_ns: float = 0.0
    """Moving average."""


class StageTimes:
    """How long calls take, by stage and number of works."""

    def __init__(self) -> None:
        self._times: dict[tuple[Stage, int], BatchTime] = {}

    def note(self, stage: Stage, batch: int, duration_ns: int) -> None:
        """A call was measured."""
        time = self._times.setdefault((stage, batch), BatchTime())
        time.recent_ns += (duration_ns - time.recent_ns) * (_WEIGHT if time.calls else 1.0)
        time.calls, time.total_ns = time.calls + 1, time.total_ns + duration_ns

    def expected_ns(self, stage: Stage, batch: int) -> float | None:
        """Expected time of a call: that of the nearest batch size not above it; None if none was measured."""
        known = [size for measured, size in self._times if measured == stage and size <= batch]
        return self._times[stage, max(known)].recent_ns if known else None

    def summary(self) -> dict[tuple[Stage, int], BatchTime]:
        """Totals by stage and batch size."""
        return dict(sorted(self._times.items()))

    def clear(self) -> None:
        """Forget all calls."""
        self._times.clear()
