"""Records a conversation to a stereo file: the user left, the replies right, on the clock of the session.

In: blocks of both sides, each in order and without gaps. Out: a WAV file. Dialog thread while it runs, then
`close`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from app.audio.resample import Resampler
from app.audio.wav import WavWriter
from engine_runtime.errors import ExportError
from engine_runtime.types import Pcm


class StereoRecorder:
    """Writes the range that both sides have reached; a side that stays behind is padded with silence."""

    def __init__(self, path: Path, sample_rate: int, user_rate: int) -> None:
        """`sample_rate` is that of the file and of the replies, `user_rate` that of the user's side."""
        self._writer = WavWriter(path, sample_rate, channels=2)
        self._resampler = Resampler(user_rate, sample_rate)
        self._sides = [np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.float32)]
        self._failure: ExportError | None = None

    def add_user(self, pcm: Pcm) -> None:
        """More of the user's side."""
        self._add(0, self._resampler.push(pcm))

    def add_reply(self, pcm: Pcm) -> None:
        """More of the assistant's side."""
        self._add(1, pcm)

    def close(self) -> None:
        """Complete the file. Raises ExportError, also for errors during recording."""
        self._add(0, self._resampler.finish())
        if self._failure is None:
            longest = max(map(len, self._sides))
            self._write([np.pad(side, (0, longest - len(side))) for side in self._sides])
        if self._failure is not None:
            raise self._failure
        self._writer.close()

    def abort(self) -> None:
        """Remove the file."""
        self._writer.abort()

    def _add(self, side: int, pcm: Pcm) -> None:
        if self._failure is not None:
            return
        self._sides[side] = np.concatenate([self._sides[side], pcm])
        count = min(map(len, self._sides))
        if count >= self._writer.sample_rate:  # a second at a time
            self._write([part[:count] for part in self._sides])
            self._sides = [part[count:] for part in self._sides]

    def _write(self, sides: list[Pcm]) -> None:
        try:
            self._writer.write(np.stack(sides, axis=1))
        except ExportError as error:
            self._failure = error  # the conversation continues; raised by `close`
