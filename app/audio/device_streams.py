"""Microphone and loudspeaker on sounddevice (PortAudio).

In: device blocks -> capture ring. Out: playback ring -> device blocks. The callbacks run in PortAudio's
thread and only copy, stamp and count; everything else runs in the dialog thread.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.audio.devices import (
    KINDS,
    SERVER_DEVICE,
    Device,
    DeviceList,
    Direction,
    choose,
    find,
    list_devices,
    portaudio,
)
from app.audio.ring import DUCK_S, FADE_S, PlaybackRing, Ring
from app.audio.sound_server import Side, routed_to
from app.audio.streams import PlaybackClock, PlayedTap, SampleClock
from engine_runtime.errors import AudioDeviceError

_SMOOTHING = 0.01
"""Blocks of about one second."""
_PLAUSIBLE_S = (-0.2, 3.0)
"""A monitor of a loudspeaker captures sound before it is in the air. Some drivers give no time at all, 0."""
_GAP_NS = 10_000_000
_GAP_BLOCKS = 3
"""Number of consecutive late blocks that make a gap: a single one is a wrong measurement."""


class DeviceLatency:
    """How far a sample of one stream is on its way between the callback and the air, in seconds.

    In: for each block, the time that PortAudio gives for its first sample at the converter; it comes from the
    sound server, for Bluetooth and remote devices too. Out: the latency, averaged over a second; the time of
    a block that goes with it; and whether the device ran dry before the block, which PortAudio reports for
    some gaps only. The latency that a stream reports when it is opened is the requested one. Written by
    PortAudio's thread, read by any.
    """

    def __init__(self, reported_s: float = 0.0) -> None:
        """Start with what the stream reports."""
        self.mean_s = reported_s
        self._blocks = 0
        self._air_ns: int | None = None
        """When the latest block is in the air; None while that is not known."""
        self._expected_ns: int | None = None
        """When it would be in the air if it followed the block before without a gap."""
        self._late_blocks = 0

    def add(self, latency_s: float, now_ns: int) -> int:
        """A block whose latency is `latency_s` at `now_ns`, 0 if that is not known. Returns when it would be
        handed over if its latency was the mean: without the jitter of the callbacks, which come in bursts."""
        low, high = _PLAUSIBLE_S
        if not latency_s or not low < latency_s < high:
            self._air_ns = None
            return now_ns
        self._air_ns = now_ns + round(latency_s * 1e9)
        self._blocks += 1
        self.mean_s += max(_SMOOTHING, 1 / self._blocks) * (latency_s - self.mean_s)
        return self._air_ns - round(self.mean_s * 1e9)

    def ran_dry(self, block_ns: int) -> bool:
        """Whether the device was silent before the block of this length that was added last."""
        if self._air_ns is None:
            return False
        expected_ns = self._air_ns if self._expected_ns is None else self._expected_ns
        is_late = self._air_ns - expected_ns > _GAP_NS
        self._late_blocks = self._late_blocks + 1 if is_late else 0
        is_gap = self._late_blocks == _GAP_BLOCKS
        if is_gap:
            self._late_blocks = 0
        self._expected_ns = block_ns + (expected_ns if is_late and not is_gap else self._air_ns)
        return is_gap


DEVICE_RATE_HZ = 48_000
BLOCK_FRAMES = 480
"""10 ms: block sizes chosen by PortAudio caused under-runs on PulseAudio."""
_RING_SECONDS = 2.0
_STALL_NS = 500_000_000
"""A device without a callback for this long is lost."""
_LARGEST_SERVICE_STEP_NS = 50_000_000
"""Longest time counted per call, so that a delayed dialog thread is not mistaken for a lost device."""

_ONE_GAP_NS = 200_000_000
"""Within this time an under-run of the device is reported once."""

_log = logging.getLogger(__name__)


class _Stall:
    """Watches a counter that a callback increments; time counts only while the watcher itself is called."""

    def __init__(self) -> None:
        self._seen = -1
        self._last_ns = 0
        self._stalled_ns = 0

    def restart(self, now_ns: int, grace_ns: int = 2_000_000_000) -> None:
        self._seen = -1
        self._last_ns = now_ns
        self._stalled_ns = -grace_ns

    def update(self, count: int, now_ns: int) -> None:
        if count != self._seen:
            # Before the first callback the grace period runs, after it a standstill counts from zero.
            self._stalled_ns = 0 if self._seen >= 0 else self._stalled_ns
            self._seen = count
        else:
            # The watcher may itself have been held up (sleep, a busy machine): its own absence is not counted
            # as a silence of the device.
            self._stalled_ns += min(now_ns - self._last_ns, _LARGEST_SERVICE_STEP_NS)
        self._last_ns = now_ns

    @property
    def is_stalled(self) -> bool:
        return self._stalled_ns > _STALL_NS


class _SoundStream(ABC):
    """Shared by both directions: choice of the device, opening with fall-backs, the watch for a lost
    device."""

    _what: Direction
    _direction: Side

    def __init__(self, find_devices: Callable[[], DeviceList] = list_devices) -> None:
        self._find_devices = find_devices
        self.sample_rate = DEVICE_RATE_HZ
        self.ring = self._new_ring(DEVICE_RATE_HZ)
        self.name = ""
        self._latency = DeviceLatency()
        self._block = np.zeros(BLOCK_FRAMES, dtype=np.float32)
        self._stream: Any = None
        self._callbacks = 0
        self._has_finished = False
        self._stall = _Stall()

    @property
    def latency_s(self) -> float:
        """From the callback to the air or back, as measured by the sound system."""
        return self._latency.mean_s

    def open(self, device: str | None, latency_s: float) -> None:
        """Open the named device or the default one, at 48 kHz or else at its own rate, mono or else
        stereo."""
        self.close()
        sounddevice = portaudio()
        found = self._find_devices()
        candidates = self._side(found)
        chosen = choose(candidates, device, self._what, found.problem)
        is_named = device is not None and find(candidates, device) == chosen
        # The server moves a stream that was not routed along with its default device.
        is_routed = chosen.is_of_server and (is_named or not chosen.is_default)
        refusal: Exception | None = None
        for rate in dict.fromkeys((DEVICE_RATE_HZ, chosen.sample_rate)):
            for channels in (1, 2):
                try:
                    with routed_to(self._direction, chosen) if is_routed else nullcontext():
                        self._start(sounddevice, chosen, rate, channels, latency_s)
                    return
                except sounddevice.PortAudioError as error:
                    refusal = error
                    self._drop_stream()
        _log.warning("cannot open %s %s: %s", self._what, chosen.name, refusal)
        raise AudioDeviceError(
            "The {kind} {device!r} cannot be opened.",
            "Check that no other program uses it exclusively, or choose another one.",
            kind=KINDS[self._what],
            device=chosen.name,
        ) from refusal

    def _start(self, sounddevice: Any, chosen: Device, rate: int, channels: int, latency_s: float) -> None:
        index = self._portaudio_index(chosen)
        self._has_finished = False
        is_wasapi = chosen.host_api == "Windows WASAPI"
        self._stream = self._make_stream(
            sounddevice,
            samplerate=rate,
            blocksize=BLOCK_FRAMES,
            device=index,
            channels=channels,
            dtype="float32",
            latency=latency_s,
            extra_settings=sounddevice.WasapiSettings(auto_convert=True) if is_wasapi else None,
            callback=self._callback,
            finished_callback=self._on_finished,
        )
        # NOTE: not before the device was opened: it may refuse this rate.
        self._prepare(rate)
        self._latency = DeviceLatency(float(self._stream.latency))
        self._stream.start()
        self.name = chosen.name
        self._stall.restart(time.perf_counter_ns())

    def _portaudio_index(self, chosen: Device) -> int:
        """The device to open. AudioDeviceError if PortAudio was started before the sound server."""
        if not chosen.is_of_server:
            return chosen.index
        found = list_devices()
        for device in self._side(found):
            if device.name == SERVER_DEVICE:
                return device.index
        if found.problem is not None:
            raise AudioDeviceError.from_problem(found.problem)
        raise AudioDeviceError(
            "No {kind} was found.",
            "The sound server cannot be reached through ALSA; on Debian or Ubuntu install it with: "
            "apt install libasound2-plugins",
            kind=KINDS[self._what],
        )

    def _prepare(self, rate: int) -> None:
        """Rings and clocks for a stream at `rate`. A new clock with each opening: stamps of the device before
        would be extrapolated across the gap."""
        if rate != self.sample_rate:
            self.sample_rate = rate
            self.ring = self._new_ring(rate)

    def _new_ring(self, rate: int) -> Ring:
        return Ring(int(_RING_SECONDS * rate))

    def close(self) -> None:
        """Stop immediately and release the device."""
        self.name = ""
        self._drop_stream()

    def _drop_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close(ignore_errors=True)

    def service(self, now_ns: int) -> None:
        """Watch whether callbacks still come."""
        if self._stream is not None:
            self._stall.update(self._callbacks, now_ns)

    def is_lost(self) -> bool:
        """Whether PortAudio ended the stream or stopped calling."""
        return self._stream is not None and (self._has_finished or self._stall.is_stalled)

    def _on_finished(self) -> None:
        self._has_finished = True

    @abstractmethod
    def _side(self, found: DeviceList) -> tuple[Device, ...]:
        """The devices of this direction."""

    @abstractmethod
    def _make_stream(self, sounddevice: Any, **arguments: Any) -> Any:
        """A stream of this direction, not yet started."""

    @abstractmethod
    def _callback(self, block: NDArray[np.float32], frames: int, time_info: Any, status: Any) -> None:
        """PortAudio's thread: `block` [frames, channels] was captured or is to be filled."""


class SoundInput(_SoundStream):
    """A microphone. Non-finite samples become silence, loud ones are clipped to [-1, 1]."""

    _what: Direction = "microphone"
    _direction: Side = "input"

    def __init__(self, find_devices: Callable[[], DeviceList] = list_devices) -> None:
        super().__init__(find_devices)
        self._clock = SampleClock(self.sample_rate)
        self._overflows = 0

    @property
    def dropped_samples(self) -> int:
        """Samples lost so far; PortAudio reports only that samples were lost, which is counted as one
        block."""
        return self.ring.dropped + self._overflows * BLOCK_FRAMES

    def _prepare(self, rate: int) -> None:
        super()._prepare(rate)
        self._clock = SampleClock(rate)

    def _end_ns(self, adc_s: float, frames: int) -> int:
        """When the end of the block that was at the converter from `adc_s` on was received."""
        stream, now_ns = self._stream, time.perf_counter_ns()
        latency_s = stream.time - adc_s - frames / self.sample_rate if stream and adc_s else 0.0
        return 2 * now_ns - self._latency.add(latency_s, now_ns)

    def sample_time_ns(self, index: float) -> int:
        """When sample `index` was spoken."""
        stamped = self._clock.time_ns(index)
        return (time.perf_counter_ns() if stamped is None else stamped) - round(self.latency_s * 1e9)

    def _side(self, found: DeviceList) -> tuple[Device, ...]:
        return found.inputs

    def _make_stream(self, sounddevice: Any, **arguments: Any) -> Any:
        return sounddevice.InputStream(**arguments)

    def _callback(self, block: NDArray[np.float32], frames: int, time_info: Any, status: Any) -> None:
        clean = self._block[:frames]
        np.clip(block[:, 0], -1.0, 1.0, out=clean)
        # A single NaN would stay in the state of the resampler and of the VAD for good.
        np.nan_to_num(clean, copy=False)
        end_ns = self._end_ns(time_info.inputBufferAdcTime, frames)
        if frames <= self.ring.free:  # otherwise the next one that fits comes after a gap
            # Stamped before its samples are published, so that a reader always finds their time.
            self._clock.stamp(self.ring.written, end_ns - frames * 1_000_000_000 // self.sample_rate)
        self.ring.write(clean)
        self._callbacks += 1
        if status.input_overflow:
            self._overflows += 1


class SoundOutput(_SoundStream):
    """A loudspeaker. Plays silence while the ring is empty."""

    _what: Direction = "loudspeaker"
    _direction: Side = "output"
    ring: PlaybackRing

    def __init__(self, find_devices: Callable[[], DeviceList] = list_devices) -> None:
        super().__init__(find_devices)
        self.gain = 1.0
        self.is_expecting = False
        self.underruns = 0
        self.played, self.recorded = PlayedTap(self.sample_rate), PlayedTap(self.sample_rate)
        self._clock = PlaybackClock(self.sample_rate)
        self._is_starved = False
        self._gap_ns = 0
        """When the device last ran dry."""

    def close(self) -> None:
        """Stop immediately; what was handed to the device but is not in the air yet stays in the ring."""
        is_open, closed_ns = self._stream is not None, time.perf_counter_ns()
        super().close()
        # Only now, as the callback no longer runs, do its count and its clock belong together.
        heard = self.heard_until(closed_ns)
        if is_open and heard is not None:
            self.ring.rewind(self.ring.consumed - heard)

    def _handed_ns(self, dac_s: float, now_ns: int) -> int:
        """When the block that is at the converter at `dac_s` was handed over."""
        stream = self._stream
        return self._latency.add(dac_s - stream.time if stream and dac_s else 0.0, now_ns)

    def sample_time_ns(self, index: float) -> int | None:
        """When sample `index` was handed to PortAudio."""
        return self._clock.time_ns(index)

    def heard_until(self, now_ns: int) -> int | None:
        """The sample after the last one that was in the air by `now_ns`."""
        return self._clock.index_at(now_ns - round(self.latency_s * 1e9))

    def _prepare(self, rate: int) -> None:
        is_new_rate = rate != self.sample_rate
        self.played, self.recorded = PlayedTap(rate), PlayedTap(rate)
        self._clock = PlaybackClock(rate)
        super()._prepare(rate)
        if is_new_rate:
            self.is_expecting = False  # a reply in progress comes in the next round of the dialog loop
            self.ring.rewind(0)  # and is faded in

    def _new_ring(self, rate: int) -> PlaybackRing:
        return PlaybackRing(int(_RING_SECONDS * rate), round(FADE_S * rate), round(DUCK_S * rate))

    def _side(self, found: DeviceList) -> tuple[Device, ...]:
        return found.outputs

    def _make_stream(self, sounddevice: Any, **arguments: Any) -> Any:
        return sounddevice.OutputStream(**arguments)

    def _callback(self, block: NDArray[np.float32], frames: int, time_info: Any, status: Any) -> None:
        played = self._block[:frames]
        count = self.ring.play_into(played, self.gain)
        block[:] = played[:, None]
        now_ns = time.perf_counter_ns()
        handed_ns = self._handed_ns(time_info.outputBufferDacTime, now_ns)
        self._clock.stamp(self.ring.consumed - count, count, frames, handed_ns)
        self.played.write(played, now_ns)
        self.recorded.write(played, now_ns)
        starves = count < frames and self.is_expecting and not self.ring.is_silent
        has_gap = self._latency.ran_dry(frames * 1_000_000_000 // self.sample_rate)
        has_gap = (has_gap or status.output_underflow) and now_ns - self._gap_ns > _ONE_GAP_NS
        if has_gap:
            self._gap_ns = now_ns
        if (starves and not self._is_starved) or (has_gap and self.is_expecting):
            self.underruns += 1
        self._is_starved = starves
        self._callbacks += 1
