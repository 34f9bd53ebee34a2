"""Interfaces of audio input and output, implemented by sound devices and WAV files.

A microphone fills its ring, a loudspeaker empties its own; a `SampleClock` maps samples to the time at which
they were in the air. The dialog thread opens, services and closes both; only the callback of a device runs in
another thread (PortAudio's).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from app.audio.ring import PlaybackRing, Ring
from engine_runtime.types import Pcm

_TAP_SECONDS = 2
_LATE_NS = 50_000_000
"""A block that comes later than this after the one before it has a gap before it: callbacks come in bursts,
but only a device that ran dry asks so late."""
_KEPT_NS = 3_000_000_000
"""A run that ended longer ago is not in a device any more, whatever its latency."""


class SampleClock:
    """Links sample indices to time through the latest stamp: one immutable value, so that a reader never
    combines the count of one block with the time of another. One writer, any readers."""

    __slots__ = ("_rate", "_stamp")

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._stamp: tuple[int, int] | None = None
        """(first sample of the latest block, when that is or was)."""

    def stamp(self, first: int, time_ns: int) -> None:
        """Sample `first`, the first of a block, is at `time_ns`."""
        self._stamp = (first, time_ns)

    def time_ns(self, index: float) -> int | None:
        """When sample `index` is or was, or None before the first stamp."""
        stamp = self._stamp
        if stamp is None:
            return None
        first, first_ns = stamp
        return first_ns + round((index - first) * 1e9 / self._rate)

    def index_at(self, time_ns: int) -> float | None:
        """Which sample is or was at `time_ns`, or None before the first stamp."""
        stamp = self._stamp
        if stamp is None:
            return None
        first, first_ns = stamp
        return first + (time_ns - first_ns) * self._rate / 1e9


class _Run(NamedTuple):
    """Samples that were handed over without a gap."""

    first: int
    end: int
    """The sample after its last."""
    end_ns: int
    """When that would be handed over, counted from the latest block: the run's clock may drift."""


class PlaybackClock:
    """When the samples of a playback ring were handed to the device.

    In a silence (a pause, an empty ring, the time between two replies) time passes and no sample does. So no
    time is extrapolated across one: each run of samples without a gap has its own. One immutable value for
    all runs, as in `SampleClock`; one writer, any readers.
    """

    __slots__ = ("_has_gap", "_rate", "_runs")

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._runs: tuple[_Run, ...] = ()
        """The latest ones, oldest first."""
        self._has_gap = True
        """Whether the latest block ended with silence; only the writer looks at it."""

    def stamp(self, first: int, count: int, frames: int, time_ns: int) -> None:
        """The device was given a block of `frames` at `time_ns`: `count` samples from `first` on, then
        silence."""
        has_gap, self._has_gap = self._has_gap, count < frames
        if not count:
            return
        runs, begin = self._runs, first
        if runs:
            last = runs[-1]
            if not has_gap and first == last.end and time_ns - last.end_ns < _LATE_NS:
                runs, begin = runs[:-1], last.first
            elif runs[0].end_ns < time_ns - _KEPT_NS:
                runs = tuple(run for run in runs if run.end_ns >= time_ns - _KEPT_NS)
        end_ns = time_ns + round(count * 1e9 / self._rate)
        self._runs = (*runs, _Run(begin, first + count, end_ns))

    def time_ns(self, index: float) -> int | None:
        """When sample `index` was handed over; None until its block, or a later one, was stamped."""
        found: int | None = None
        for run in reversed(self._runs):
            if index >= run.end:
                break
            found = run.end_ns - round((run.end - max(index, run.first)) * 1e9 / self._rate)
        return found

    def index_at(self, time_ns: int) -> int | None:
        """The sample after the last one that was handed over completely by `time_ns`; None before the first
        stamp. Of the samples before the oldest run that is kept, all were."""
        index: int | None = None
        for run in reversed(self._runs):
            index = run.end - max(-(-(run.end_ns - time_ns) * self._rate // 1_000_000_000), 0)
            if index > run.first:
                return index
            index = run.first
        return index


class PlayedTap:
    """What a device was given since it was opened, silence included, and when: for one reader. The device
    writes; while nobody reads, the tap is full and takes nothing more.

    Ring and clock live and die together, with one opening of the device: a ring that is full before its clock
    has a stamp would never take a block again, and so never get one. Each sample that can be read has a time:
    a block is stamped before it is published, and is taken as a whole or not at all.
    """

    __slots__ = ("_clock", "ring", "sample_rate")

    def __init__(self, sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self.ring = Ring(_TAP_SECONDS * sample_rate)
        self._clock = SampleClock(sample_rate)

    def write(self, block: Pcm, time_ns: int) -> None:
        """The device was given `block` [n] at `time_ns`."""
        if len(block) <= self.ring.free:
            self._clock.stamp(self.ring.written, time_ns)
            self.ring.write(block)

    def read(self) -> tuple[Pcm, int]:
        """What came since the last call, and when its first sample was given to the device (0 if nothing
        came)."""
        # NOTE: the time comes first: once read, a full ring takes a block again, stamped after a gap.
        count, first_ns = self.ring.available, self._clock.time_ns(self.ring.consumed)
        return self.ring.read(count), first_ns or 0

    def index_at(self, time_ns: int) -> float | None:
        """Which sample of `ring` was handed to the device at `time_ns`; None before the first block."""
        return self._clock.index_at(time_ns)


class AudioInput(Protocol):
    """A microphone: the producer of `ring`, mono at `sample_rate`."""

    sample_rate: int
    ring: Ring
    name: str
    """The open device in words, "" while closed."""

    @property
    def latency_s(self) -> float:
        """From the air to `ring`, in seconds; below 0 for a monitor, which is ahead of its loudspeaker."""

    @property
    def dropped_samples(self) -> int:
        """Captured samples lost so far, by the device or because the ring was full."""

    def open(self, device: str | None, latency_s: float) -> None:
        """Start to fill the ring. `device` is a name or None for the default. AudioDeviceError,
        AudioInputError."""

    def close(self) -> None:
        """Stop. May be called at any time; may hang if the sound system does."""

    def service(self, now_ns: int) -> None:
        """Called every few milliseconds by the dialog thread: a file is read on, a device is watched."""

    def is_lost(self) -> bool:
        """Whether the open device was removed or has stalled."""

    def sample_time_ns(self, index: float) -> int:
        """When sample `index` of the ring was spoken, device latency taken off."""


class AudioOutput(Protocol):
    """A loudspeaker: the consumer of `ring`, mono at `sample_rate`."""

    sample_rate: int
    ring: PlaybackRing
    name: str
    gain: float
    """Factor for all that is played; any thread."""
    is_expecting: bool
    """Set while a reply is being played, so that an empty ring is an under-run and not just silence."""
    underruns: int
    """Gaps heard so far: the ring ran empty while expecting, or the device asked too late."""
    played: PlayedTap
    """What the device was given: the reference of echo cancellation. A new one at each opening."""
    recorded: PlayedTap
    """The same for a recording."""

    @property
    def latency_s(self) -> float:
        """From `ring` to the air, in seconds."""

    def open(self, device: str | None, latency_s: float) -> None:
        """Start to empty the ring, silence when it is empty. AudioDeviceError."""

    def close(self) -> None:
        """Stop. May be called at any time; may hang if the sound system does."""

    def service(self, now_ns: int) -> None:
        """Called every few milliseconds by the dialog thread."""

    def is_lost(self) -> bool:
        """Whether the open device was removed or has stalled."""

    def sample_time_ns(self, index: float) -> int | None:
        """When sample `index` of the ring was handed to the device (latency not added), None if it was not
        yet."""

    def heard_until(self, now_ns: int) -> int | None:
        """The sample of the ring after the last one that was in the air by `now_ns`, latency included; None
        before the first one since the opening was handed to the device."""
