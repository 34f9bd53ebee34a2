"""Detects that the program stood still: the computer slept, or the process was stopped.

In: a call at two places of each round of the dialog thread. Out: how long it stood still since the call
before, if that exceeds what load can explain. Dialog thread.
"""

from __future__ import annotations

from app.session.clocks import Clock

LEAST_NS = 5_000_000_000
"""The rings hold 2 s of sound, so some of it is lost by then in any case."""
_WITH_DEVICES_NS = 30_000_000_000
"""Devices that are closed and opened take up to their time limits."""


class Standstill:
    """The wait between two rounds, and each part of a round, takes milliseconds where nothing is opened."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_ns = clock.wall_ns()
        self._now_ns = clock.now_ns()
        self.began_ns = 0
        """When the latest standstill began, by the session's clock."""

    def check(self, *, with_devices: bool = False) -> float:
        """Seconds since the latest call if that was a standstill, else 0; `with_devices`: devices may have
        been opened since."""
        before_ns, self._wall_ns = self._wall_ns, self._clock.wall_ns()
        began_ns, self._now_ns = self._now_ns, self._clock.now_ns()
        away_ns = self._wall_ns - before_ns
        if away_ns < (_WITH_DEVICES_NS if with_devices else LEAST_NS):
            return 0.0
        self.began_ns = began_ns
        return away_ns / 1e9
