"""A WAV file as microphone, and a loudspeaker without a device, both driven by a clock that is passed in.

In: a file -> capture ring. Out: playback ring -> a listener. Both advance in `service(now_ns)`, so they run
at the rate of the clock, through the same rings as a device. Dialog thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from app.audio.ring import DUCK_S, FADE_S, PlaybackRing, Ring
from app.audio.streams import PlaybackClock, PlayedTap
from app.audio.wav import WavReader
from engine_runtime.types import Pcm

_RING_SECONDS = 2.0
_MOST_AT_ONCE_S = 0.03
"""Maximum samples per call: less than a VAD frame, so that the file pauses right after the frame that ends a
turn, and a late call delays samples instead of dropping them."""
PcmListener = Callable[[Pcm], None]


class _Pace:
    """How many samples are due at a time, counted from the first time after a start."""

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._origin_ns: int | None = None
        self.given = 0
        """Samples that were due so far."""

    def restart(self) -> None:
        """Count time from the next call of `due`; no sample is returned twice."""
        self._origin_ns = None

    def due(self, now_ns: int, at_most: int | None = None) -> int:
        """Samples that became due since the last call. Beyond `at_most` they stay due."""
        if self._origin_ns is None:
            self._origin_ns = now_ns - self.given * 1_000_000_000 // self._rate
        due = max((now_ns - self._origin_ns) * self._rate // 1_000_000_000 - self.given, 0)
        if at_most is not None:
            due = min(due, at_most)
        self.given += due
        return due

    def time_ns(self, index: float) -> int:
        """When sample `index` is due."""
        return (self._origin_ns or 0) + round(index * 1e9 / self._rate)


class WavMicrophone:
    """Plays a file into the capture ring, then silence. While `is_held` the file waits and nothing is
    captured, so that the stream is the same however long that takes."""

    def __init__(self, path: Path, listener: PcmListener | None = None) -> None:
        """Open the file (AudioInputError if it cannot be used). `listener` gets every block that is captured,
        and silence while the file waits."""
        self._reader = WavReader(path)
        self.sample_rate = self._reader.sample_rate
        self.ring = Ring(int(_RING_SECONDS * self.sample_rate))
        self.name = ""
        self.latency_s = 0.0
        self.is_held = False
        self.path = path
        self._listener = listener
        self._pace = _Pace(self.sample_rate)
        self._most_at_once = round(_MOST_AT_ONCE_S * self.sample_rate)
        self._file_frames = 0
        self._held_samples = 0
        """Samples that were due so far while the file waited."""

    @property
    def seconds(self) -> float:
        """Length of the file."""
        return self._reader.seconds

    @property
    def file_seconds(self) -> float:
        """Samples of the file delivered so far."""
        return self._file_frames / self.sample_rate

    @property
    def dropped_samples(self) -> int:
        """Samples that found no room in the ring."""
        return self.ring.dropped

    @property
    def is_finished(self) -> bool:
        """Whether the complete file was delivered."""
        return self._file_frames >= self._reader.frames

    def file_position_s(self, index: float) -> float:
        """Place in the file of sample `index` of the ring; samples after the file map to its end."""
        return min(index, self._file_frames) / self.sample_rate

    def open(self, device: str | None, latency_s: float) -> None:
        """Start the file's time at the next `service`; the arguments are ignored."""
        self.name = self.path.name
        self._pace.restart()

    def close(self) -> None:
        """Close the file."""
        self.name = ""
        self._reader.close()

    def service(self, now_ns: int) -> None:
        """Deliver the samples that are due at `now_ns`."""
        if not self.name:
            return
        due = self._pace.due(now_ns, self._most_at_once)
        if not due:
            return
        block = np.zeros(due, dtype=np.float32)
        if self.is_held:
            self._held_samples += due
        else:
            speech = self._reader.read(due)
            block[: len(speech)] = speech
            self._file_frames += len(speech)
            self.ring.write(block)
        if self._listener is not None:
            self._listener(block)

    def is_lost(self) -> bool:
        """A file is never lost."""
        return False

    def sample_time_ns(self, index: float) -> int:
        """When sample `index` was due; it came after the latest wait."""
        return self._pace.time_ns(index + self._held_samples)


class WavSpeaker:
    """Empties the playback ring at the rate of the clock and passes the samples, silence included, to a
    listener."""

    def __init__(self, sample_rate: int, listener: PcmListener | None = None) -> None:
        self.sample_rate = sample_rate
        self.ring = PlaybackRing(
            int(_RING_SECONDS * sample_rate), round(FADE_S * sample_rate), round(DUCK_S * sample_rate)
        )
        self.name = ""
        self.latency_s = 0.0
        self.gain = 1.0
        self.is_expecting = False
        self.underruns = 0
        self.played, self.recorded = PlayedTap(sample_rate), PlayedTap(sample_rate)
        self._listener = listener
        self._clock = PlaybackClock(sample_rate)
        self._pace = _Pace(sample_rate)
        self._is_starved = False

    def open(self, device: str | None, latency_s: float) -> None:
        """Start at the next `service`; the arguments are ignored."""
        self.name = "file"
        self.played, self.recorded = PlayedTap(self.sample_rate), PlayedTap(self.sample_rate)
        self._pace.restart()

    def close(self) -> None:
        """Stop."""
        self.name = ""

    def service(self, now_ns: int) -> None:
        """Take the samples that are due at `now_ns`."""
        if not self.name:
            return
        start = self._pace.given
        due = self._pace.due(now_ns)
        if not due:
            return
        block = np.zeros(due, dtype=np.float32)
        count = self.ring.play_into(block, self.gain)
        self._clock.stamp(self.ring.consumed - count, count, due, self._pace.time_ns(start))
        starves = count < due and self.is_expecting and not self.ring.is_silent
        if starves and not self._is_starved:
            self.underruns += 1
        self._is_starved = starves
        self.played.write(block, self._pace.time_ns(start))
        self.recorded.write(block, self._pace.time_ns(start))
        if self._listener is not None:
            self._listener(block)

    def is_lost(self) -> bool:
        """A file is never lost."""
        return False

    def sample_time_ns(self, index: float) -> int | None:
        """When sample `index` was due."""
        return self._clock.time_ns(index)

    def heard_until(self, now_ns: int) -> int | None:
        """The sample after the last one that was due by `now_ns`, latency included."""
        return self._clock.index_at(now_ns - round(self.latency_s * 1e9))
