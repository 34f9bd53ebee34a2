"""Both sides of a conversation on one time line: captured sound left, played sound right.

In: blocks of each side with the time of their first sample. Out: frames [n, 2] for a file, in order and
without gaps. The line is that of the microphone: what it captured stays sample for sample, and only real gaps
are filled with silence. What was played is placed on the line by the times of both devices; drift between
their clocks is taken out by stretching the right side a little. While both devices are closed, the time line
stops. Dialog thread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.audio.resample import Resampler
from engine_runtime.types import Pcm

_GAP_S = 0.1
"""A device that lags by more has lost samples or was absent; a smaller lag is callback jitter or drift."""
_JITTER_WEIGHT = 0.01
"""Weight of a new measurement of a device clock, small so that callback jitter does not move the line."""
_SETTLED_S = 0.002
"""An error below this is left alone: the played sound stays as it is while the clocks agree."""
_MOST_STRETCH = 0.005
_CLOSED_AFTER_S = 2.0
"""A side that has delivered nothing for this long counts as closed, and is silent."""


class StereoTrack:
    """The line of one recording. Times are nanoseconds of the session's clock."""

    def __init__(self, sample_rate: int, origin_ns: int, first_frame: int = 0) -> None:
        """The line begins at `origin_ns` with `first_frame`, which is above 0 where a file is continued."""
        self.sample_rate = sample_rate
        self._origin_ns = origin_ns
        self._first_frame = first_frame
        self._taken = first_frame
        self._paused_at: int | None = None
        """Where the line is stopped, None while it runs."""
        self._skew = 0.0
        """Frames by which the microphone's clock is behind the session's."""
        self._error = 0.0
        """Smoothed error of the right side, in frames."""
        self._left = _Side(sample_rate, first_frame)
        self._right = _Side(sample_rate, first_frame)

    def frame_at(self, time_ns: int) -> float:
        """The place of this time on the line."""
        if self._paused_at is not None:
            return self._paused_at
        since_s = (time_ns - self._origin_ns) / 1e9
        return self._first_frame + since_s * self.sample_rate - self._skew

    @property
    def captured(self) -> int:
        """The frame after the last one that was captured."""
        return round(self._left.expected)

    def hear(self, pcm: Pcm, sample_rate: int, first_ns: int, *, is_new: bool, is_exact: bool) -> int:
        """More captured sound; returns the frame of its first sample. `is_new`: the first block of a source;
        `is_exact`: its times have no jitter."""
        side = self._left
        self._go_on(first_ns)
        late = self.frame_at(first_ns) - side.expected
        is_gap = late > (1.5 if is_exact else _GAP_S * self.sample_rate)
        if is_new or is_gap:
            late = side.begin(sample_rate, side.expected + late)
            self._skew += late
        elif not is_exact:
            self._skew += _JITTER_WEIGHT * late
        frame = round(side.expected)
        side.add(pcm)
        return frame

    def play(self, pcm: Pcm, sample_rate: int, first_ns: int, *, is_new: bool) -> None:
        """More played sound, which left the loudspeaker from `first_ns` on. `is_new`: the first block since
        the device was opened."""
        side = self._right
        self._go_on(first_ns)
        late = self.frame_at(first_ns) - side.expected
        if is_new or late > _GAP_S * self.sample_rate:
            self._error = side.begin(sample_rate, side.expected + late)
        else:
            self._error += _JITTER_WEIGHT * (late - self._error)
        side.add(self._stretched(pcm, sample_rate))

    def pause(self, at_ns: int) -> None:
        """Stop the line at this time, until the next sound."""
        if self._paused_at is None:
            self._paused_at = max(int(self.frame_at(at_ns)), self._left.end, self._right.end)

    def take(
        self, now_ns: int, *, has_left: bool = True, has_right: bool = True, is_final: bool = False
    ) -> NDArray[np.float32]:
        """The frames [n, 2] that are complete; at the end all, the shorter side padded. A side that is not
        there is not waited for."""
        now, ends = self.frame_at(now_ns), (self._left.end, self._right.end)
        waited_for = [end for end, is_open in zip(ends, (has_left, has_right), strict=True) if is_open]
        closed = now - _CLOSED_AFTER_S * self.sample_rate
        end = max(ends) if is_final else min([*waited_for, max(ends)])
        end = max(end, min(int(closed), max(ends)))
        if closed > max(ends) and self._paused_at is None and not is_final:
            end = self._paused_at = int(now)
        count = max(end - self._taken, 0)
        self._taken += count
        return np.stack([self._left.take(self._taken), self._right.take(self._taken)], axis=1)

    def _go_on(self, first_ns: int) -> None:
        """Restart the line from this time on, if it was stopped."""
        if self._paused_at is not None:
            paused_at, self._paused_at = self._paused_at, None
            self._origin_ns += round((self.frame_at(first_ns) - paused_at) / self.sample_rate * 1e9)

    def _stretched(self, pcm: Pcm, sample_rate: int) -> Pcm:
        """The block, slightly stretched or shortened while the error is large."""
        if abs(self._error) < _SETTLED_S * self.sample_rate:
            return pcm
        most = max(int(len(pcm) * _MOST_STRETCH), 1)
        change = most if self._error > 0 else -most
        self._error -= change * self.sample_rate / sample_rate
        places = np.linspace(0, len(pcm) - 1, len(pcm) + change)
        return np.interp(places, np.arange(len(pcm)), pcm).astype(np.float32)


class _Side:
    """One channel of the line, at its rate."""

    def __init__(self, sample_rate: int, first_frame: int) -> None:
        self._rate = sample_rate
        self._resampler = Resampler(sample_rate, sample_rate)
        self._waiting = np.zeros(0, dtype=np.float32)
        self.end = first_frame
        """The frame after the last one that is known."""
        self.expected = float(first_frame)
        """Where the next sample that is added belongs, unless a gap comes before it."""

    def begin(self, sample_rate: int, frame: float) -> float:
        """The next sample belongs to `frame`: fill the gap before it. Returns how far it is behind the end
        instead, 0 or less."""
        self._append(self._resampler.finish())
        self._resampler = Resampler(sample_rate, self._rate)
        gap = max(round(frame) - self.end, 0)
        self._append(np.zeros(gap, dtype=np.float32))
        self.expected = float(self.end)
        return min(frame - self.end, 0.0) if gap == 0 else 0.0

    def add(self, pcm: Pcm) -> None:
        """The next samples, at the rate of the source."""
        self.expected += len(pcm) * self._rate / self._resampler.in_rate
        self._append(self._resampler.push(pcm))

    def take(self, end: int) -> Pcm:
        """Waiting samples up to the frame `end`, padded with silence."""
        count = end - (self.end - len(self._waiting))
        if count > len(self._waiting):
            self._append(np.zeros(count - len(self._waiting), dtype=np.float32))
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def _append(self, pcm: Pcm) -> None:
        self._waiting = np.concatenate([self._waiting, pcm])
        self.end += len(pcm)
