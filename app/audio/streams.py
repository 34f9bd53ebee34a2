"""Interfaces of audio input and output, implemented by sound devices and WAV files.

A microphone fills its ring, a loudspeaker empties its own; a `SampleClock` maps samples to the time at which
they were in the air. The dialog thread opens, services and closes both; only the callback of a device runs in
another thread (PortAudio's).
"""

from __future__ import annotations

from typing import Protocol

from app.audio.playback_ring import PlaybackRing
from app.audio.ring import Ring
from engine_runtime.types import Pcm

_TAP_SECONDS = 2


class SampleClock:
    """Links sample indices to time through the latest stamp. One writer; readers always see a consistent
    stamp."""

    __slots__ = ("_rate", "_stamp")

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._stamp: tuple[int, int] | None = None

    def stamp(self, index: int, time_ns: int) -> None:
        """Sample `index` is at `time_ns`."""
        self._stamp = (index, time_ns)

    def time_ns(self, index: float) -> int | None:
        """When sample `index` is or was, or None before the first stamp."""
        stamp = self._stamp
        if stamp is None:
            return None
        return stamp[1] + round((index - stamp[0]) * 1e9 / self._rate)

    def index_at(self, time_ns: int) -> float | None:
        """Which sample is or was at `time_ns`, or None before the first stamp."""
        stamp = self._stamp
        if stamp is None:
            return None
        return stamp[0] + (time_ns - stamp[1]) * self._rate / 1e9


class PlayedTap:
    """What a device was given since it was opened, silence included, and when: for one reader. The device
    writes; while nobody reads, the tap is full and takes nothing more."""

    __slots__ = ("_clock", "ring", "sample_rate")

    def __init__(self, sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self.ring = Ring(_TAP_SECONDS * sample_rate)
        self._clock = SampleClock(sample_rate)

    def write(self, block: Pcm, time_ns: int) -> None:
        """The device was given `block` [n] at `time_ns`."""
        first = self.ring.written
        if self.ring.write(block) == len(block):
            self._clock.stamp(first, time_ns)

    def read(self) -> tuple[Pcm, int]:
        """What came since the last call, and when its first sample was given to the device (0 if nothing
        came)."""
        first = self.ring.consumed
        pcm = self.ring.read(self.ring.available)
        return pcm, self._clock.time_ns(first) or 0


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
    played: Ring
    """What the device was given, silence included, mono at `sample_rate`: the reference of echo cancellation.
    While nobody reads it, it is full and takes nothing more."""
    recorded: PlayedTap
    """The same for a recording; a new one at each opening."""

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

    def played_index(self, time_ns: int) -> float | None:
        """Which sample of `played` was handed to the device at `time_ns`; None while that is not known."""
