"""Capture: resampling, echo cancellation and input level of a microphone, or of a file in its place.

In: the ring of the source. Out: the frames of its `VoiceStream`, and when and where each was spoken. Dialog
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from app.audio.echo_cancellation import AudioProcessing, CaptureProcessor, EchoMeasurement
from app.audio.levels import is_silent
from app.audio.resample import Resampler
from app.audio.ring import Ring
from app.audio.streams import AudioInput
from app.audio.wav_streams import WavMicrophone
from app.dialog.vad import Vad
from app.session.voice_stream import VadFrame, VoiceStream
from engine_runtime.errors import Problem
from engine_runtime.types import Pcm

_MOST_BEHIND_MS = 500.0
"""Limit of the time from sound in the air to its frame, where the clock of a device says otherwise."""


@dataclass(frozen=True, slots=True)
class CapturedBlock:
    """A block that a source captured, before any processing; silence while it is muted."""

    pcm: Pcm
    sample_rate: int
    first_ns: int
    """When its first sample was spoken, by the session's clock."""
    is_new: bool
    """Whether it is the first block of this source."""
    is_file: bool
    """Whether the source is a file, whose times are exact."""
    first: int = 0
    """Index of its first sample since the source was attached."""


class Capture:
    """Captures from the current source; `stream` holds the user's voice."""

    def __init__(self, vad: Vad, keep_ms: int, processor: CaptureProcessor | None = None) -> None:
        """`keep_ms` as in `VoiceStream`. The `processor` gets what a microphone captures, not files."""
        self.stream = VoiceStream(vad, keep_ms)
        self.processor = processor
        self._reported: set[Problem] = set()
        """Problems of the processor."""
        self._resampler = Resampler(vad.sample_rate, vad.sample_rate)
        self._ring: Ring | None = None
        self._origin = 0
        self._energy = 0.0
        self._energy_samples = 0
        self._peak_probability = 0.0
        self._silent_samples = 0
        """Number of latest samples of the source in a row without any sound."""
        self.source: AudioInput | None = None
        self.listener: Callable[[CapturedBlock], None] | None = None
        """Gets what is captured, for a recording."""

    def attach(self, source: AudioInput | None) -> None:
        """Listen to `source` from now on; samples already in its ring are skipped."""
        self.source = source
        self._silent_samples = 0
        self.stream.restart(is_file=self.is_file)
        self._ring = None
        if source is not None:
            self._ring = source.ring
            self._resampler = Resampler(source.sample_rate, self.stream.sample_rate)
            self._ring.read(self._ring.available)
            self._origin = self._ring.consumed
        if self.processor is not None:
            self.processor.attach()

    def apply(self, processing: AudioProcessing) -> None:
        """Process the microphone so from now on."""
        if self.processor is not None:
            self.processor.apply(processing)

    @property
    def silent_s(self) -> float:
        """Seconds for which the source has delivered no sound at all."""
        return self._silent_samples / self._resampler.in_rate

    @property
    def is_file(self) -> bool:
        """Whether a file takes the microphone's place."""
        return isinstance(self.source, WavMicrophone)

    @property
    def has_moved(self) -> bool:
        """Whether the source was reopened at another rate and has to be attached again."""
        return self.source is not None and self.source.ring is not self._ring

    @property
    def has_echo(self) -> bool:
        """Whether an echo of the reply is cancelled: the user wears no headphones."""
        return self.processor is not None and not self.is_file and self.processor.cancels_echo

    def frames(self, *, is_muted: bool) -> Iterator[VadFrame]:
        """The frames captured since the last call; a muted microphone captures silence."""
        if self._ring is None:
            return
        first = self._ring.consumed
        pcm = self._ring.read(self._ring.available)
        self._silent_samples = self._silent_samples + len(pcm) if is_silent(pcm) else 0
        resampled = self._process(self._resampler.push(pcm))
        if is_muted:
            pcm, resampled = np.zeros_like(pcm), np.zeros_like(resampled)
        self._pass_on(pcm, first)
        self._energy += float(np.dot(pcm, pcm))
        self._energy_samples += len(pcm)
        may_be_echo = self.processor is not None and self.processor.suspects_echo
        for frame in self.stream.frames(resampled, may_be_echo=may_be_echo, has_echo=self.has_echo):
            self._peak_probability = max(self._peak_probability, frame.probability)
            yield frame

    def _pass_on(self, pcm: Pcm, first: int) -> None:
        if self.listener is not None and self.source is not None and len(pcm):
            first_ns, is_new = self.source.sample_time_ns(first), first == self._origin
            index = first - self._origin
            block = CapturedBlock(pcm, self.source.sample_rate, first_ns, is_new, self.is_file, index)
            self.listener(block)

    def _process(self, pcm: Pcm) -> Pcm:
        if self.processor is None or self.is_file:
            return pcm
        return self.processor.process(pcm, self._received_at_ns)

    def _received_at_ns(self, sample: int) -> int:
        """When the device delivered `sample`."""
        latency_s = self.source.latency_s if self.source is not None else 0.0
        return self.spoken_at_ns(sample) + round(latency_s * 1e9)

    def source_index(self, sample: float) -> float:
        """The index in the source's ring that belongs to `sample`."""
        rate = self._resampler.in_rate / self._resampler.out_rate
        return self._origin + sample * rate

    def spoken_at_ns(self, sample: float) -> int:
        """When `sample` was spoken, by the clock of the source."""
        if self.source is None:
            raise ValueError("no source is attached")
        return self.source.sample_time_ns(self.source_index(sample))

    def ms_at(self, time_ns: int) -> float:
        """Index in the stream of the sound that is in the air at `time_ns`; it is captured a little later."""
        late_ms = (time_ns - self.spoken_at_ns(self.stream.utterance.end)) / 1e6
        return self.stream.end_ms + min(max(late_ms, 0.0), _MOST_BEHIND_MS)

    def place_s(self, sample: float) -> float:
        """Where `sample` is in the captured audio, or in the file that is the source."""
        if isinstance(self.source, WavMicrophone):
            return self.source.file_position_s(self.source_index(sample))
        return sample / self.stream.sample_rate

    @property
    def echo(self) -> EchoMeasurement:
        """The latest measurement of the echo in the microphone."""
        if self.processor is None or self.source is None or self.is_file:
            return EchoMeasurement()
        return self.processor.measurement

    def take_problem(self) -> Problem | None:
        """Why requested processing of the microphone is not possible; None if it is, or if the reason was
        returned before."""
        if self.processor is None or self.source is None or self.is_file:
            return None
        problem = self.processor.problem
        if problem is None or problem in self._reported:
            return None
        self._reported.add(problem)
        return problem

    def take_level(self) -> tuple[float, float]:
        """(RMS of the input, highest speech probability) since the last call."""
        level = (self._energy / self._energy_samples) ** 0.5 if self._energy_samples else 0.0
        probability = self._peak_probability
        self._energy, self._energy_samples, self._peak_probability = 0.0, 0, 0.0
        return level, probability
