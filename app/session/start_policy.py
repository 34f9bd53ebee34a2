"""When the playback of a reply starts: the playout delay of an adaptive jitter buffer.

In: arrival time and duration of the packets of each reply. Out: whether to start now, initially or after an
under-run, and the reason for the delay. Pure logic, times in ms. Dialog thread.

    lateness  Of a packet: its arrival time after the first packet of its reply, minus the audio before it.
              A reply that starts this long after its first packet has it just in time. The delay is a
              percentile of the worst lateness of each recent reply, with decaying weights: it grows after the
              first late reply, and shrinks a few replies after the last one.
    pace      The buffered audio has to last until the next packet, which may take twice as long as the latest
              one; the first one is timed from the commit. This covers the first reply, and the first one
              under a new load. A first packet that is longer than it took to compute starts immediately: the
              machine is not busy, and later packets take less time. So does one that took as long as that of
              the recent replies: the load is the same, and their lateness covers it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Literal

MARGIN_MS = 60.0
"""Audio that should remain buffered when a packet arrives: a round of the dialog loop and a device block."""
UNEVEN = 2.0
"""Factor by which the next packet may take longer than the latest one if the load changes."""
MAX_DELAY_MS = 3_000.0
"""Maximum delay: a machine too slow for real time stutters rather than stays silent."""
PERCENTILE = 0.95
FORGETTING = 0.8
"""Weight of a reply relative to the one after it. With this percentile, a single late reply counts for the
next 7, a load that made all of them late for the next 14."""
USUAL = 1.25
"""A first packet that took up to this many times the median of the recent ones does not indicate new load."""
_MAX_REPLIES = 32
_MAX_FIRST = 5

StartReason = Literal["at_once", "first_reply", "lateness", "pace", "complete"]
"""The last condition that the start waited for; first_reply: the audio buffer of the settings, without
history; complete: the reply was complete before its delay had passed."""


@dataclass(frozen=True, slots=True)
class PlayoutStart:
    """How long after its first packet a reply started, and why. `target_ms` is the delay for the lateness of
    the last requested replies, 0 if there were none."""

    delay_ms: float
    reason: StartReason
    target_ms: float


class StartPolicy:
    """One reply at a time: `begin`, `add` for each packet, `may_start` in between, `learn` at its end."""

    def __init__(self) -> None:
        self._worst: deque[float] = deque(maxlen=_MAX_REPLIES)
        """The worst lateness of each of the last replies, the latest reply first."""
        self._first_took: deque[float] = deque(maxlen=_MAX_FIRST)
        """How long the first packet of each of the last replies took."""
        self.begin(0.0, 0.0)

    def begin(self, asked_ms: float, least_ms: float) -> None:
        """Begin a reply requested at `asked_ms`. The first reply of all starts with `least_ms` buffered."""
        self.start: PlayoutStart | None = None
        """The decision; None before."""
        self.target_ms = self._percentile()
        """The delay for the lateness of the last replies; None before the first one."""
        self._least_ms = least_ms
        self._first_ms: float | None = None
        self._latest_ms, self._took_ms, self._packets = asked_ms, 0.0, 0
        self._first_took_ms = 0.0
        self._waits_since_ms = 0.0
        self._audio_ms = 0.0
        self._lateness_ms: float | None = None
        self._reason: StartReason = "at_once"

    def add(self, at_ms: float, audio_ms: float) -> None:
        """A packet has arrived."""
        if self._first_ms is None:
            self._first_ms = self._waits_since_ms = at_ms
        else:
            late_ms = at_ms - self._first_ms - self._audio_ms
            self._lateness_ms = late_ms if self._lateness_ms is None else max(self._lateness_ms, late_ms)
        self._audio_ms += audio_ms
        self._latest_ms, self._took_ms = at_ms, at_ms - self._latest_ms
        self._packets += 1
        if self._packets == 1:
            self._first_took_ms = self._took_ms

    def may_start(self, now_ms: float, level_ms: float, *, is_complete: bool) -> bool:
        """Whether to start with `level_ms` buffered, initially or after an under-run."""
        if level_ms <= 0:
            return is_complete
        # The round that releases a held reply began slightly earlier.
        waited_ms = max(now_ms - self._waits_since_ms, 0.0)
        reason = self._missing(now_ms, waited_ms, level_ms)
        if reason is not None and not is_complete and waited_ms < MAX_DELAY_MS:
            self._reason = reason
            return False
        if self.start is None:
            self.start = PlayoutStart(
                waited_ms, self._reason if reason is None else "complete", self.target_ms or 0.0
            )
        return True

    def release(self, now_ms: float, *, was_waiting: bool) -> None:
        """A reply that was held so far may be played. If the engine `was_waiting` for it, later packets come
        later by that time, and are not late."""
        self._waits_since_ms = now_ms
        if was_waiting and self._first_ms is not None:
            self._first_ms += now_ms - self._latest_ms
            self._latest_ms = now_ms

    def run_dry(self, now_ms: float) -> None:
        """An under-run: regardless of the lateness of packets, this start was too early."""
        self._waits_since_ms = now_ms
        if self.start is not None:
            self._lateness_ms = max(self._lateness_ms or 0.0, self.start.delay_ms)

    def learn(self) -> None:
        """The reply has ended, complete or not. A single packet has no lateness."""
        if self._lateness_ms is not None:
            self._worst.appendleft(self._lateness_ms)
            self._first_took.append(self._first_took_ms)
            self._lateness_ms = None

    def _missing(self, now_ms: float, waited_ms: float, level_ms: float) -> StartReason | None:
        """The condition to wait for, None if the reply may start."""
        if self.start is None:
            if self.target_ms is None and level_ms < self._least_ms:
                return "first_reply"
            held_ms = now_ms - (now_ms if self._first_ms is None else self._first_ms)
            if self.target_ms is not None and held_ms < self.target_ms:
                return "lateness"
        is_fast = self._packets == 1 and level_ms >= self._took_ms + MARGIN_MS
        is_usual = self.start is None and self._packets == 1 and self._took_ms <= self._usual_ms
        lasts_ms = level_ms + now_ms - self._latest_ms
        return None if is_fast or is_usual or lasts_ms >= UNEVEN * self._took_ms + MARGIN_MS else "pace"

    @property
    def _usual_ms(self) -> float:
        """The longest that a first packet takes without a new load."""
        return USUAL * median(self._first_took) if self._first_took else 0.0

    def _percentile(self) -> float | None:
        weights = [FORGETTING**age for age in range(len(self._worst))]
        above = 0.0
        for lateness_ms, weight in sorted(zip(self._worst, weights, strict=True), reverse=True):
            above += weight
            if above > (1.0 - PERCENTILE) * sum(weights):
                return min(max(lateness_ms + MARGIN_MS, 0.0), MAX_DELAY_MS)
        return None
