"""Echo cancellation, noise suppression and gain control of captured sound, by WebRTC's audio processing.

In: captured 16 kHz sound and the reference of what the loudspeaker played. Out: the same samples, processed,
up to 100 ms later where the reference of the same moment is not known yet. A frame of 10 ms takes 0.2 to
0.6 ms.

Automatic echo cancellation passes captured samples through unchanged after 2 s of gapless playback with
steady clocks and no echo, as with headphones (20 s once there was an echo). The canceller keeps running, so
that it is effective as soon as an echo begins. Without the package of the chosen library nothing is
processed, which is reported once. Dialog thread.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from app.audio.echo_libraries import DEFAULT_LIBRARY, PACKAGES, FrameProcessor, make_processor
from app.audio.echo_monitor import EchoMonitor
from app.audio.playback_reference import FRAME_SAMPLES, RATE_HZ, PlaybackReference, ReceivedAt
from app.audio.streams import AudioOutput
from app.settings import EchoLibrary
from engine_runtime import installation
from engine_runtime.errors import Problem
from engine_runtime.types import Pcm

EchoMode = Literal["auto", "on", "off"]
EchoState = Literal["off", "unavailable", "no_echo", "cancelling"]

_LONGEST_WAIT_FRAMES = 10
"""A captured frame waits this long for the reference: late callbacks, and the resampling filter."""
_QUIET_S, _KNOWN_QUIET_S = 2.0, 20.0
"""Playback without an echo after which automatic cancellation passes the capture through: as a rule, and once
there was an echo for seconds. One whose delay jitters, as over a wireless loudspeaker, is not found for a
while, and replies would interrupt themselves if it passed through."""
_CHECK_FRAMES, _KNOWN_CHECK_FRAMES = 3, 24
"""How often an echo is looked for: in time to hold back an interruption; seldom once it is known."""
_NO_CLOCK_FRAMES = 300
_ADVICE = "Use headphones, so that a reply does not interrupt itself."
_SMOOTHING = 0.02
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AudioProcessing:
    """Processing of captured sound, before anything else reads it."""

    echo_cancellation: EchoMode = "auto"
    """`auto` cancels until no echo is measured, and again when there is one."""
    noise_suppression: bool = False
    """Reduce steady noise by 12 dB."""
    gain_control: bool = False
    """Adjust speech to a constant level."""
    library: EchoLibrary | None = None
    """The audio processing library; None for the default."""

    def __post_init__(self) -> None:
        if self.library not in (*get_args(EchoLibrary), None):
            raise ValueError(f"library must be one of {get_args(EchoLibrary)}, got {self.library!r}")


@dataclass(frozen=True, slots=True)
class EchoMeasurement:
    """The echo as measured. Levels in dB and the delay in ms, None until one was measured."""

    state: EchoState = "off"
    erl_db: float | None = None
    erle_db: float | None = None
    delay_ms: float | None = None
    drift_ppm: float = 0.0
    frame_ms: float = 0.0
    """Time that a frame of 10 ms takes."""


class CaptureProcessor:
    """The processing of one microphone."""

    _near: Pcm
    """Captured samples whose reference is not known yet."""
    _frames: int
    """Captured frames processed so far."""
    _frame_ms: float

    def __init__(self, output: AudioOutput, options: AudioProcessing, sample_rate: int = RATE_HZ) -> None:
        """`sample_rate` is that of the captured sound; anything but 16 kHz is passed through."""
        self.problem: Problem | None = None
        """Why sound is passed through although processing is wanted, None if it is not."""
        self._output = output
        self._sample_rate = sample_rate
        self._options = options
        self._canceller: FrameProcessor | None = None
        self._plain: FrameProcessor | None = None
        """Noise suppression and gain control alone, while there is no echo to cancel."""
        self._restart()

    def apply(self, options: AudioProcessing) -> None:
        """Use these options from now on."""
        if options != self._options:
            self._options = options
            self._restart()

    def attach(self) -> None:
        """Start over with another microphone, whose sample 0 comes next."""
        self._restart()

    @property
    def suspects_echo(self) -> bool:
        """Whether the latest frames may hold an echo: one that has just begun while they are passed through,
        or one whose reference was realigned, as after an under-run of the device."""
        if self._canceller is None:
            return False
        if self._passes_through:
            return self._monitor.has_peak
        return not self._reference.is_settled and self._monitor.is_audible

    @property
    def cancels_echo(self) -> bool:
        """Whether an echo was found, and is cancelled."""
        return self._state == "cancelling" and self._monitor.delay_ms is not None

    @property
    def measurement(self) -> EchoMeasurement:
        """The echo as far as it is known."""
        monitor = self._monitor
        return EchoMeasurement(
            "unavailable" if self.problem else self._state,
            monitor.erl_db,
            monitor.erle_db,
            monitor.delay_ms,
            self._reference.drift_ppm,
            self._frame_ms,
        )

    def process(self, pcm: Pcm, received_at: ReceivedAt) -> Pcm:
        """Process the next captured samples [n]; returns those whose reference is known, in order."""
        canceller = self._canceller
        if canceller is None and self._plain is None:
            return pcm
        began_ns = time.perf_counter_ns()
        self._near = np.concatenate([self._near, pcm])
        frames = len(self._near) // FRAME_SAMPLES
        far = None if canceller is None else self._next_reference(frames, received_at)
        size = frames * FRAME_SAMPLES if far is None else len(far)
        if not size:
            return pcm[:0]
        near, self._near = self._near[:size], self._near[size:]
        processed = near if canceller is None or far is None else self._cancel(canceller, near, far)
        self._frames += size // FRAME_SAMPLES
        if self._plain is not None and self._passes_through:
            processed = self._plain.process(near)
        spent_ms = (time.perf_counter_ns() - began_ns) / 1e6 * FRAME_SAMPLES / size
        self._frame_ms += _SMOOTHING * (spent_ms - self._frame_ms)
        return processed

    @property
    def _passes_through(self) -> bool:
        """Whether the echo canceller's output is not used."""
        return self._state != "cancelling"

    def _restart(self) -> None:
        options = self._options
        self._reference = PlaybackReference(self._output)
        self._monitor = EchoMonitor()
        self._near = np.zeros(0, dtype=np.float32)
        self._frames = 0
        self._unchecked = 0
        """Frames since an echo was looked for."""
        self._is_known = False
        """Whether the latest comparison found an echo."""
        self._audible_samples = 0
        """Played samples that could be heard back since the last echo."""
        self._unclocked_frames = 0
        self._frame_ms = 0.0
        self._canceller = self._plain = None
        self._state: EchoState = "off"
        self.problem = None
        suppresses = options.noise_suppression or options.gain_control
        if options.echo_cancellation == "off" and not suppresses:
            return
        if self._sample_rate != RATE_HZ:
            self._pass_through(
                Problem(
                    "Echo cancellation needs sound at {needed:,} Hz, but it is captured at {rate:,} Hz.",
                    _ADVICE,
                    needed=RATE_HZ,
                    rate=self._sample_rate,
                )
            )
            return
        library = options.library or DEFAULT_LIBRARY
        try:
            if suppresses:
                self._plain = self._make(library, echo_cancellation=False)
            if options.echo_cancellation != "off":
                self._canceller = self._make(library, echo_cancellation=True)
                self._state = "cancelling"
        except ImportError as error:  # missing, or damaged
            _log.warning("no echo cancellation: %s", error)
            remedy = installation.add("livekit") if library == "livekit" else installation.remedy()
            self._pass_through(
                Problem(
                    "Echo cancellation needs the package {package}, which is not installed. {remedy}",
                    _ADVICE,
                    package=PACKAGES[library],
                    remedy=remedy,
                )
            )

    def _pass_through(self, problem: Problem) -> None:
        self.problem = problem
        self._state = "unavailable"

    def _make(self, library: EchoLibrary, *, echo_cancellation: bool) -> FrameProcessor:
        return make_processor(
            library,
            echo_cancellation=echo_cancellation,
            noise_suppression=self._options.noise_suppression,
            gain_control=self._options.gain_control,
        )

    def _next_reference(self, frames: int, received_at: ReceivedAt) -> Pcm:
        """The reference of as many of the captured `frames` as have one; silence where none will come."""
        reference = self._reference
        reference.pull(received_at, self._frames + frames)
        if reference.has_clock:
            self._unclocked_frames = 0
            self.problem = None
            reference.fill(frames - _LONGEST_WAIT_FRAMES)
            return reference.take(min(frames, reference.ready_frames))
        if self._output.name:
            self._unclocked_frames += frames
            if self._unclocked_frames > _NO_CLOCK_FRAMES:
                self.problem = Problem(
                    "The loudspeaker does not say when it plays, so its echo cannot be cancelled.", _ADVICE
                )
        reference.restart(self._frames + frames)
        return np.zeros(frames * FRAME_SAMPLES, dtype=np.float32)

    def _cancel(self, canceller: FrameProcessor, near: Pcm, far: Pcm) -> Pcm:
        """Run the canceller and follow the echo, however long the block is; the result is its output, or
        `near` while that is passed through."""
        parts = []
        for start in range(0, len(near), FRAME_SAMPLES):
            part = slice(start, start + FRAME_SAMPLES)
            cleaned = canceller.process(near[part], far[part])
            self._monitor.add(near[part], far[part], cleaned)
            self._unchecked += 1
            if self._unchecked >= (_KNOWN_CHECK_FRAMES if self._is_known else _CHECK_FRAMES):
                self._look_for_echo()
            parts.append(near[part] if self._passes_through else cleaned)
        return np.concatenate(parts)

    def _look_for_echo(self) -> None:
        """Decide whether the output of the canceller is used."""
        if not self._reference.is_settled:
            # Realigned after a gap or for another device: earlier measurements no longer apply.
            self._audible_samples = 0
        elif self._reference.is_steady and self._monitor.is_audible:
            self._audible_samples += self._unchecked * FRAME_SAMPLES
        self._unchecked = 0
        self._is_known = self._monitor.find_echo()
        if self._is_known:
            self._audible_samples = 0
        is_wanted = self._options.echo_cancellation == "on"
        quiet_s = _KNOWN_QUIET_S if self._monitor.is_established else _QUIET_S
        has_echo = self._audible_samples <= quiet_s * RATE_HZ
        self._state = "cancelling" if is_wanted or has_echo else "no_echo"
