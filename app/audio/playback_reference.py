"""What the loudspeaker played, on the clock of the microphone: the far-end reference of echo cancellation.

In: the ring of played samples, and when they were handed to the device. Out: frames of 10 ms at 16 kHz, each
played while the device delivered the captured frame that it belongs to. An echo is therefore always later
than its reference, by the latency of both devices and the way through the air. The two devices have clocks of
their own: the ring is read at the rate that a second-order loop finds for it (adaptive resampling). Dialog
thread.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np

from app.audio.resample import Resampler
from app.audio.streams import AudioOutput
from engine_runtime.types import Pcm

RATE_HZ = 16_000
FRAME_SAMPLES = 160
"""10 ms, the frame of WebRTC's audio processing."""
_FRAMES_PER_S = RATE_HZ // FRAME_SAMPLES
_LOOP_GAIN = 0.001
"""Share of the error that is corrected per frame: callbacks come up to 20 ms late, and that jitter must not
move the reference."""
_FIRST_GAIN = 0.5
"""Divided by the age in frames until `_LOOP_GAIN` is reached: the first second averages the jitter away."""
_LARGEST_DRIFT = 0.001
"""Largest drift between the two device clocks."""
_JUMP_S = 0.1
_JUMP_FRAMES = 5
"""An error that stays larger for this long is neither drift nor a late callback: a device was restarted or
ran dry, or samples were dropped."""
_SETTLED_FRAMES = 50
"""The canceller has found the echo again this long after a jump."""
_STEADY = 4.0
"""Most samples by which the correction may move the reference in that time. If it moves faster, as after the
first late callbacks, no echo can be found."""

ReceivedAt = Callable[[int], int]
"""When the input device delivered captured sample n, in ns."""


class PlaybackReference:
    """Reads the played samples of one loudspeaker, frame after frame."""

    def __init__(self, output: AudioOutput) -> None:
        self._output = output
        self._tap = output.played
        self._resampler = Resampler(self._tap.sample_rate, RATE_HZ)
        self._next = 0
        """Captured frame that the device samples at `_position` belong to."""
        self._taken = 0
        """Captured frame that the next one of `take` belongs to."""
        self._position: float | None = None
        """Where in the ring the next frame begins; None until the clocks of both devices are known."""
        self._age = 0
        self._aligned_at = 0
        """Captured frames when the error was last within bounds."""
        self._drift = 0.0
        self._moves: deque[float] = deque(maxlen=_SETTLED_FRAMES)
        """Samples that each of the latest frames was moved by."""
        self._chunk = 0
        self._held = np.zeros(0, dtype=np.float32)
        self._held_from = 0
        """Ring index of the first sample of `_held`."""
        self._ready = np.zeros(0, dtype=np.float32)

    @property
    def has_clock(self) -> bool:
        """Whether the loudspeaker plays and says when."""
        return self._position is not None

    @property
    def is_settled(self) -> bool:
        """Whether the alignment is not new."""
        return self._age >= _SETTLED_FRAMES

    @property
    def is_steady(self) -> bool:
        """Whether an echo would be found, at one delay."""
        return self.is_settled and abs(sum(self._moves)) <= _STEADY

    @property
    def drift_ppm(self) -> float:
        """How much faster the loudspeaker's clock runs than the microphone's."""
        return self._drift * 1e6

    @property
    def ready_frames(self) -> int:
        """Frames that `take` can return now."""
        return len(self._ready) // FRAME_SAMPLES

    def restart(self, frame: int) -> None:
        """Forget the alignment; the next frame belongs to captured frame `frame`."""
        self._next = self._taken = frame
        if self._position is None and self._tap is self._output.played:
            return
        self._tap = self._output.played
        self._resampler = Resampler(self._tap.sample_rate, RATE_HZ)
        self._position, self._age = None, 0
        self._moves.clear()
        self._held, self._held_from = self._held[:0], 0
        self._ready = self._ready[:0]

    def pull(self, received_at: ReceivedAt, captured_frames: int) -> None:
        """Read what was played meanwhile; `captured_frames` were captured until now."""
        if not self._output.name or self._tap is not self._output.played:
            self.restart(self._taken)  # what was read ahead is of the device before
        ring, rate = self._tap.ring, self._tap.sample_rate
        while self._output.name:
            here = self._tap.index_at(received_at(self._next * FRAME_SAMPLES))
            if here is None or here < ring.consumed - rate:
                return
            if here > ring.written + _JUMP_S * rate:
                # No callback for long, or a ring that nobody read: full, it takes neither samples nor times.
                ring.read(ring.available)
                return
            # Of the first sample of this frame, if their number at this rate is not an integer.
            here -= self._chunk * rate / _FRAMES_PER_S - self._chunk * rate // _FRAMES_PER_S
            error = self._align(here, rate, captured_frames)
            assert self._position is not None
            count = self._chunk_samples()
            if self._position + count * (1.0 + self._drift) + 2 > ring.written:
                return
            self._advance(self._read(count))
            self._correct(error, count)

    def fill(self, frames: int) -> None:
        """Have `frames` ready, silence where the loudspeaker asked for nothing in time."""
        while self.ready_frames < frames:
            self._advance(np.zeros(self._chunk_samples(), dtype=np.float32))

    def take(self, frames: int) -> Pcm:
        """The next frames [frames * 160]; as many as are ready at most."""
        size = frames * FRAME_SAMPLES
        taken, self._ready = self._ready[:size], self._ready[size:]
        self._taken += len(taken) // FRAME_SAMPLES
        return taken

    def _align(self, here: float, rate: int, captured_frames: int) -> float:
        """How far the next frame is behind its place in the ring, which is `here`; 0 after a jump."""
        error = here - (self._position or 0.0)
        is_jump = self._position is None or abs(error) > _JUMP_S * rate
        if not is_jump:
            self._aligned_at = captured_frames
            return error
        if self._position is None or captured_frames - self._aligned_at >= _JUMP_FRAMES:
            self._position, self._age, self._drift, self._chunk = here, 0, 0.0, 0
            self._moves.clear()
            self._aligned_at = captured_frames
        return 0.0

    def _chunk_samples(self) -> int:
        """Device samples of the next frame."""
        rate = self._tap.sample_rate
        return (self._chunk + 1) * rate // _FRAMES_PER_S - self._chunk * rate // _FRAMES_PER_S

    def _advance(self, samples: Pcm) -> None:
        """These device samples belong to the next frame."""
        assert self._position is not None
        self._ready = np.concatenate([self._ready, self._resampler.push(samples)])
        self._position += len(samples) * (1.0 + self._drift)
        self._chunk += 1
        self._next += 1
        self._age += 1

    def _correct(self, error: float, count: int) -> None:
        """Follow the clocks: a proportional part of the error moves the position, the rest is drift."""
        assert self._position is not None
        gain = max(_LOOP_GAIN, _FIRST_GAIN / self._age)
        self._position += gain * error
        self._moves.append(gain * error * RATE_HZ / self._tap.sample_rate)
        # The drift is learned only in steady state: the large first gains follow jitter, which would be taken
        # for drift.
        if gain == _LOOP_GAIN:
            drift = self._drift + gain * gain / 4 * error / count
            self._drift = min(max(drift, -_LARGEST_DRIFT), _LARGEST_DRIFT)

    def _read(self, count: int) -> Pcm:
        """`count` samples from `_position` on, by cubic interpolation."""
        assert self._position is not None
        whole = math.floor(self._position)
        shift, drift = self._position - whole, self._drift
        first, last_shift = whole - 1, shift + drift * (count - 1)
        self._hold(first, whole + count + math.floor(last_shift) + 2)
        held = self._held
        if not shift and not drift:
            return held[1 : count + 1]
        part = np.arange(count, dtype=np.float32) * np.float32(drift) + np.float32(shift)
        if 0.0 <= last_shift < 1.0:
            before, here, after, beyond = (held[start : start + count] for start in range(4))
        else:  # the drift adds up to a sample within the frame
            steps = np.floor(part)
            part -= steps
            place = steps.astype(np.int64) + np.arange(1, count + 1)
            before, here, after, beyond = (held[place + offset] for offset in (-1, 0, 1, 2))
        slope = 0.5 * (after - before)
        bend = before - 2.5 * here + 2.0 * after - 0.5 * beyond
        twist = 0.5 * (3.0 * (here - after) + beyond - before)
        found: Pcm = here + part * (slope + part * (bend + part * twist))
        return found

    def _hold(self, first: int, end: int) -> None:
        """Have the ring's samples from `first` to `end` in `_held`; what was not kept is silence."""
        ring, reached = self._tap.ring, self._held_from + len(self._held)
        if reached != ring.consumed or not self._held_from <= first <= reached:
            ring.read(max(min(first - ring.consumed, ring.available), 0))
            self._held = np.zeros(max(ring.consumed - first, 0), dtype=np.float32)
        else:
            self._held = self._held[first - self._held_from :]
        self._held_from = first
        missing = end - first - len(self._held)
        if missing > 0:
            self._held = np.concatenate([self._held, ring.read(missing)])
