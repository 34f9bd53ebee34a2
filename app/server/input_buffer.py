"""The input audio buffer of the protocol: what a client has appended and what is not an item yet.

In: samples at the rate of the input format. Out: with turn detection, frames of the voice stream for the turn
driver; with commits of the client, the audio since the last one, at the engine's rate. Time is that of the
samples, so a client may send faster or slower than real time. Event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

import numpy as np

from app.audio.resample import Resampler
from app.dialog.smart_turn import WINDOW_S
from app.dialog.vad import Vad
from app.session.voice_stream import VadFrame, VoiceStream
from engine_runtime.types import Pcm

_SPEECH = 0.5
"""Probability of a frame from which on somebody speaks."""
_BEFORE_SPEECH_S = 1.0
"""Silence before the first speech that is kept."""


class InputBuffer:
    """The buffer of one session."""

    def __init__(self, vad: Vad, input_rate: int, engine_rate: int, longest_s: float) -> None:
        """A buffer in which nobody speaks keeps the latest `longest_s`."""
        self.stream = VoiceStream(vad, round(WINDOW_S * 1000))
        self.has_speech = False
        """Whether somebody speaks in what the client has yet to commit."""
        self._engine_rate = engine_rate
        self._longest = round(longest_s * engine_rate)
        self._earlier_ms = 0.0
        """Length of what came at another rate before."""
        self._appended = 0
        """Samples at the present rate."""
        self.samples = 0
        """Length of the audio that the client has not committed yet, at the engine's rate."""
        self._blocks: deque[Pcm] = deque()
        """That audio."""
        self._streamed = 0
        """Number of the first blocks that were sent to the engine."""
        self._cleared_at = 0
        """Where the frame begins that may still hold speech of what was committed or dropped last."""
        self.use_rate(input_rate)

    def use_rate(self, sample_rate: int) -> None:
        """Audio appended from now on has this rate; audio that was not committed is dropped."""
        self._earlier_ms = self.session_ms(self._appended_ms) if self._appended else self._earlier_ms
        self._rate, self._appended = sample_rate, 0
        self._to_stream = Resampler(sample_rate, self.stream.sample_rate)
        self._to_engine = Resampler(sample_rate, self._engine_rate)
        self.stream.restart()
        self.clear()

    def session_ms(self, stream_ms: float) -> float:
        """A time of the stream, by the audio appended in the whole session."""
        return self._earlier_ms + stream_ms

    @property
    def _appended_ms(self) -> float:
        return self._appended * 1000.0 / self._rate

    @property
    def end_ms(self) -> float:
        """Length of all audio appended in the session."""
        return self.session_ms(self._appended_ms)

    def latest(self) -> Pcm:
        """The latest audio that was heard, at the engine's rate."""
        stream = self.stream
        kept = stream.samples_of(_BEFORE_SPEECH_S * 1000)
        resampler = Resampler(stream.sample_rate, self._engine_rate)
        pcm = stream.utterance.since(max(stream.utterance.end - kept, 0))
        return np.concatenate([resampler.push(pcm), resampler.finish()])

    def converted(self, pcm: Pcm) -> Pcm:
        """A complete recording at the input rate, at the engine's."""
        resampler = Resampler(self._rate, self._engine_rate)
        return np.concatenate([resampler.push(pcm), resampler.finish()])

    # ---- turn detection ----

    def frames(self, pcm: Pcm) -> Iterator[VadFrame]:
        """More audio [n]; yields the frames that it completes."""
        self._appended += len(pcm)
        yield from self.stream.frames(self._to_stream.push(pcm))

    # ---- commits of the client ----

    def append(self, pcm: Pcm) -> None:
        """More audio [n]. Before anybody speaks the oldest is dropped."""
        block = self._to_engine.push(pcm)
        self._blocks.append(block)
        self.samples += len(block)
        if self.has_speech:
            # The client finds the end of the speech: resampling and judging its frames would cost the event
            # loop as much as all else of an append. So the stream falls behind, until `clear`.
            self._appended += len(pcm)
            return
        for frame in self.frames(pcm):
            speaks = frame.probability >= _SPEECH and frame.start > self._cleared_at
            self.has_speech = self.has_speech or speaks
        kept = self._longest
        if self.has_speech:
            kept = round(_BEFORE_SPEECH_S * self._engine_rate) + len(block)
        while len(self._blocks) > 1 and self.samples - len(self._blocks[0]) >= kept:
            self.samples -= len(self._blocks.popleft())

    def take_new(self) -> Pcm:
        """The audio that was not taken yet: it goes to the engine before it is committed."""
        blocks = list(islice(self._blocks, self._streamed, None))
        self._streamed = len(self._blocks)
        if len(blocks) == 1:
            return blocks[0]
        return np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.float32)

    def put_back(self) -> None:
        """The engine has dropped what was taken."""
        self._streamed = 0

    def finish(self) -> None:
        """The client commits: no sample is held back any more."""
        rest = self._to_engine.finish()
        self._blocks.append(rest)
        self.samples += len(rest)

    def clear(self) -> None:
        """Drop audio that is not committed, or has just been committed."""
        if self.has_speech:
            self.stream.restart()
            self._to_stream.reset()
        self._blocks.clear()
        self.samples = self._streamed = 0
        self._cleared_at = self.stream.utterance.end
        self.has_speech = False
        self._to_engine.reset()
