"""ReplyVoice: the codes of one reply to PCM, as early as possible.

In: speech codes one by one. Out: PCM that is ready to play, in order and without gaps. It runs token2mel and
the vocoder in the thread of the decode steps: a chunk is made in the moment in which its last look-ahead code
arrives.
"""

from __future__ import annotations

import numpy as np

from engine_runtime.codec.token2mel import Token2Mel
from engine_runtime.codec.vocoder import Vocoder
from engine_runtime.timing import TimingBus
from engine_runtime.types import Mel, Pcm


class ReplyVoice:
    """The streams of one reply."""

    def __init__(self, token2mel: Token2Mel, vocoder: Vocoder, timing: TimingBus, turn_id: int) -> None:
        self._mel, self._timing, self._turn_id = token2mel.mel, timing, turn_id
        self._to_mel, self._to_pcm = token2mel.stream(), vocoder.stream()
        self._chunk = 0

    def push(self, code: int) -> list[Pcm]:
        """Add a code; PCM that became ready, mostly none."""
        start_ns = self._timing.clock_ns()
        return self._vocode(self._to_mel.push(np.array([code], dtype=np.int64)), start_ns)

    def finish(self) -> list[Pcm]:
        """No code follows: all PCM that is left."""
        start_ns = self._timing.clock_ns()
        pieces = self._vocode(self._to_mel.finish(), start_ns)
        start_ns = self._timing.clock_ns()
        last = self._to_pcm.finish()
        if last.size:
            self._time_vocoder(start_ns, last)
            pieces.append(last)
        return pieces

    def _vocode(self, mels: list[Mel], start_ns: int) -> list[Pcm]:
        """PCM of chunks that were made together since `start_ns`; each gets its share of that time."""
        pieces = []
        made_ns = self._timing.clock_ns() - start_ns
        all_frames = sum(mel.shape[1] for mel in mels)
        for mel in mels:
            frames = mel.shape[1]
            share_ns = made_ns * frames // max(all_frames, 1)
            self._timing.emit(
                "token2mel",
                self._turn_id,
                start_ns,
                share_ns,
                chunk=self._chunk,
                frames=frames,
                audio_ms=1000.0 * frames / self._mel.frame_rate,
            )
            start_ns += share_ns
            vocoder_start_ns = self._timing.clock_ns()
            pcm = self._to_pcm.push(mel)
            self._time_vocoder(vocoder_start_ns, pcm)
            if pcm.size:
                pieces.append(pcm)
            self._chunk += 1
        return pieces

    def _time_vocoder(self, start_ns: int, pcm: Pcm) -> None:
        self._timing.emit(
            "vocoder",
            self._turn_id,
            start_ns,
            self._timing.clock_ns() - start_ns,
            chunk=self._chunk,
            samples=pcm.size,
            audio_ms=1000.0 * pcm.size / self._mel.sample_rate,
        )
