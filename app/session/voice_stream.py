"""The user's voice: frames with voice activity, the audio of the present turn, and its way to the engine.

In: samples at the rate of the Vad, of a microphone, a file or a client. Out: one `VadFrame` per 32 ms; the
audio kept for pre-roll and end-of-turn detector; `Hear` jobs while the user speaks. Dialog thread or event
loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from app.audio.resample import Resampler
from app.dialog.utterance import UtteranceBuffer, speech_end
from app.dialog.vad import Vad
from app.dialog.voice_level import voiced_level
from app.session.engine_jobs import Hear, JobQueue
from engine_runtime.types import Pcm

_BLOCK_MS = 80
"""Speech is handed over in blocks of at least this much."""


@dataclass(frozen=True, slots=True)
class VadFrame:
    """A frame of the stream, by sample index at the rate of the Vad, and how likely it is speech."""

    start: int
    end: int
    probability: float
    level_db: float | None = None
    """In dBFS, None for a hiss, which says nothing about the distance (voice_level), and in a file."""
    may_be_echo: bool = False
    """Whether it may hold an echo that is not cancelled yet."""
    has_echo: bool = False
    """Whether an echo is cancelled in it, which attenuates anyone who speaks at the same time."""


class VoiceStream:
    """One source after the other. Sample indices start at 0 with each."""

    def __init__(self, vad: Vad, keep_ms: int) -> None:
        """`keep_ms` of audio are kept, for the pre-roll of a turn and for the end-of-turn detector."""
        self._vad = vad
        self._keep_samples = keep_ms * vad.sample_rate // 1000
        self._rest = np.zeros(0, dtype=np.float32)
        self.sample_rate = vad.sample_rate
        self.utterance = UtteranceBuffer(self._keep_samples)
        self.is_file = False
        """Whether the source is a file: nobody speaks too softly or to somebody else in it."""

    def restart(self, *, is_file: bool = False) -> None:
        """Start over with another source."""
        self.is_file = is_file
        self.utterance = UtteranceBuffer(self._keep_samples)
        self._rest = np.zeros(0, dtype=np.float32)
        self._vad.reset()

    def frames(self, pcm: Pcm, *, may_be_echo: bool = False, has_echo: bool = False) -> Iterator[VadFrame]:
        """The frames that more samples [n] complete."""
        self._rest = np.concatenate([self._rest, pcm])
        size = self._vad.frame_samples
        while len(self._rest) >= size:
            frame, self._rest = self._rest[:size], self._rest[size:]
            probability = self._vad.probability(frame)
            start = self.utterance.end
            self.utterance.append(frame)
            level_db = None if self.is_file else voiced_level(frame)
            yield VadFrame(start, start + size, probability, level_db, may_be_echo, has_echo)

    def end_of_sound(self, vad_end: int) -> int:
        """The exact end of the open turn's speech, which the VAD found at `vad_end`."""
        recent = self.utterance.since(self.utterance.end - self._keep_samples)
        first = self.utterance.end - len(recent)
        return first + speech_end(recent, self.sample_rate, vad_end - first)

    @property
    def end_ms(self) -> float:
        """Length of the stream so far."""
        return self.ms_of(self.utterance.end)

    def samples_of(self, ms: float) -> int:
        """Milliseconds of the stream as samples."""
        return round(ms * self.sample_rate / 1000)

    def ms_of(self, sample: float) -> float:
        """Samples of the stream as milliseconds."""
        return sample * 1000.0 / self.sample_rate


class SpeechFeed:
    """Hands the speech of one turn at a time to the engine: pre-roll, blocks, tail, resampling."""

    def __init__(self, stream: VoiceStream, jobs: JobQueue, engine_rate: int | None = None) -> None:
        """`engine_rate` is the rate that the engine wants, None for that of the stream."""
        self._stream = stream
        self._jobs = jobs
        self._resampler = Resampler(stream.sample_rate, engine_rate or stream.sample_rate)

    def set_rate(self, engine_rate: int) -> None:
        """The rate that another engine wants."""
        self._resampler = Resampler(self._stream.sample_rate, engine_rate)

    def open(self, start_ms: float) -> float:
        """A turn begins; its audio starts at `start_ms`, or as far back as is kept. Returns where."""
        start = self._stream.utterance.open(self._stream.samples_of(max(start_ms, 0.0)))
        self._resampler.reset()
        return self._stream.ms_of(start)

    def give(self, turn_id: int, up_to_ms: float) -> None:
        """Send the samples before `up_to_ms`, if they fill a block."""
        self._give(turn_id, up_to_ms, self._stream.samples_of(_BLOCK_MS))

    def finish(self, turn_id: int, up_to_ms: float) -> None:
        """Send the rest before `up_to_ms`, with silence for samples not captured yet; later
        speech may still continue the turn."""
        self._give(turn_id, up_to_ms, 1)
        missing = max(self._stream.samples_of(up_to_ms) - self._stream.utterance.end, 0)
        silence: Pcm = np.zeros(missing, dtype=np.float32)
        rest = np.concatenate([self._resampler.push(silence), self._resampler.finish()])
        if len(rest):
            self._jobs.submit(Hear(turn_id, rest))

    def close(self) -> None:
        """The turn can no longer be continued: discard the held-back samples."""
        self._stream.utterance.close()

    def _give(self, turn_id: int, up_to_ms: float, at_least: int) -> None:
        up_to = self._stream.samples_of(up_to_ms)
        if self._stream.utterance.ready(up_to) < at_least:
            return
        pcm = self._resampler.push(self._stream.utterance.take(up_to))
        if len(pcm):
            self._jobs.submit(Hear(turn_id, pcm))
