"""A 16-bit WAV file that grows while a conversation is recorded, and is valid whenever the program ends.

In: frames. Out: a private file, whose header is rewritten after each block. A file that is opened again is
repaired (its header states the actual length) and continued. Raises ExportError in words for the user. One
thread.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.audio.wav import wav_header
from app.export import in_words
from engine_runtime.errors import ExportError

_FULL_SCALE = 32_768.0
"""As a 16-bit device counts, so that what it captured is kept bit for bit."""
_HEADER_BYTES = 44
_MOST_BYTES = 0xFFFF0000
"""The header counts bytes in 32 bits."""


class GrowingWav:
    """One file, open for writing."""

    def __init__(self, path: Path, sample_rate: int, channels: int) -> None:
        """Make the file, or continue the one that is there, whose rate and channels then hold. ExportError
        if that cannot be done."""
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        except OSError as error:
            raise in_words(path, error) from error
        try:
            header = os.read(self._file, _HEADER_BYTES)
            if header:
                sample_rate, channels = _layout(header, path)
            self.sample_rate, self.channels = sample_rate, channels
            present = max(os.fstat(self._file).st_size - _HEADER_BYTES, 0)
            self.frames = present // (2 * channels)
            self._write_header()
            os.ftruncate(self._file, _HEADER_BYTES + self.frames * 2 * channels)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            os.close(self._file)
            raise in_words(path, error) from error
        except ExportError:
            os.close(self._file)
            raise

    def append(self, frames: NDArray[np.float32]) -> None:
        """Write frames [n, channels]; values outside [-1, 1] are clipped."""
        content = (
            np.rint(np.clip(frames * _FULL_SCALE, -_FULL_SCALE, _FULL_SCALE - 1)).astype("<i2").tobytes()
        )
        if (self.frames + len(frames)) * 2 * self.channels > _MOST_BYTES:
            raise ExportError(
                f"{self.path} has reached the greatest length of a WAV file. Start another one."
            )
        try:
            if os.fstat(self._file).st_nlink == 0:
                raise ExportError(f"{self.path} was deleted while it was written. Start another one.")
            written = 0
            while written < len(content):
                written += os.write(self._file, content[written:])
            self.frames += len(frames)
            self._write_header()
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            raise in_words(self.path, error) from error

    def pad_to(self, frames: int) -> None:
        """Make the file at least so long, with silence."""
        while self.frames < frames:
            count = min(frames - self.frames, self.sample_rate)
            self.append(np.zeros((count, self.channels), dtype=np.float32))

    def close(self) -> None:
        """Close the file; it is complete already."""
        os.close(self._file)

    def _write_header(self) -> None:
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, wav_header(self.sample_rate, self.channels, self.frames))


def frames_of(path: Path) -> tuple[int, int]:
    """(frames, rate in Hz) of a file that this program wrote, also of one that it could not complete; 0 and 0
    if there is none."""
    try:
        with path.open("rb") as file:
            sample_rate, channels = _layout(file.read(_HEADER_BYTES), path)
            return (os.fstat(file.fileno()).st_size - _HEADER_BYTES) // (2 * channels), sample_rate
    except (OSError, ExportError):
        return 0, 0


def _layout(header: bytes, path: Path) -> tuple[int, int]:
    """(rate in Hz, channels) of a file that this program wrote."""
    if len(header) == _HEADER_BYTES:
        channels, sample_rate = struct.unpack_from("<HI", header, 22)
        known = wav_header(sample_rate, channels, 0) if channels and sample_rate < 1 << 20 else b""
        if known[8:40] == header[8:40]:
            return sample_rate, channels
    raise ExportError(f"{path} is not a recording of this program. Rename it.")
