"""A 16-bit WAV file that grows while a conversation is recorded, and is valid whenever the program ends.

In: frames. Out: a private file, whose header is rewritten after each block. A file that is opened again is
repaired (its header states the actual length) and continued. Raises ExportError in words for the user. One
thread.

Written without libsndfile: of a full disk it says no more than "System error", and it does not repair the end
of a file whose program was killed.
"""

from __future__ import annotations

import math
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.audio.wav import wav_header
from app.audio.wire_format import pcm16
from app.export import in_words
from engine_runtime.errors import ExportError

"""The scale of a 16-bit device, so that its samples are kept bit for bit."""
_HEADER_BYTES = 44
MOST_BYTES = 0xFFFF0000
"""The header counts bytes in 32 bits."""
_RATES_HZ = range(8_000, 192_001)
"""Sample rates that a recording may have."""
_AT_ONCE = 1 << 18
"""Frames that are silenced at once."""


class GrowingWav:
    """One file, open for writing."""

    def __init__(self, path: Path, sample_rate: int, channels: int) -> None:
        """Make the file, or continue the one that is there, whose rate then holds. ExportError if that cannot
        be done, or if it has other channels."""
        self.path = path
        try:
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
            self._file = os.open(path, flags, 0o600)
        except OSError as error:
            raise in_words(path, error) from error
        try:
            header = _header_of(self._file)
            if header:
                sample_rate, found = _layout(header, path)
                if found != channels:
                    raise _not_ours(path)
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
        content = pcm16(frames).astype("<i2", copy=False).tobytes()
        if (self.frames + len(frames)) * 2 * self.channels > MOST_BYTES:
            raise ExportError(
                "{path} has reached the greatest length of a WAV file.", "Start another one.", path=self.path
            )
        try:
            if os.fstat(self._file).st_nlink == 0:
                raise ExportError(
                    "{path} was deleted while it was written.", "Start another one.", path=self.path
                )
            written = 0
            while written < len(content):
                written += os.write(self._file, content[written:])
            self.frames += len(frames)
            self._write_header()
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            raise in_words(self.path, error) from error

    def pad_to(self, frames: int) -> None:
        """Pad the file with silence to at least this length."""
        while self.frames < frames:
            count = min(frames - self.frames, self.sample_rate)
            self.append(np.zeros((count, self.channels), dtype=np.float32))

    def close(self) -> None:
        """Close the file; it is complete already."""
        os.close(self._file)

    def _write_header(self) -> None:
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, wav_header(self.sample_rate, self.channels, self.frames))


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of one channel, in seconds."""

    channel: int
    start_s: float
    end_s: float

    def mute(self, frames: NDArray[Any], first: int, sample_rate: int) -> None:
        """Zero its part of frames [n, channels], of which the first has the number `first`."""
        start, end = int(self.start_s * sample_rate) - first, math.ceil(self.end_s * sample_rate) - first
        frames[max(start, 0) : max(end, 0), self.channel] = 0


def silence(path: Path, stretches: list[Stretch]) -> None:
    """Zero parts of a file in place; one that is shorter, or not there, has nothing to silence. May be
    repeated. ExportError if it cannot be written."""
    frames, sample_rate = frames_of(path)
    if not frames:
        return
    try:
        with path.open("r+b") as file:
            file.seek(0)
            _, channels = _layout(file.read(_HEADER_BYTES), path)
            for stretch in stretches:
                end = min(math.ceil(stretch.end_s * sample_rate), frames)
                for first in range(int(stretch.start_s * sample_rate), end, _AT_ONCE):
                    count = min(_AT_ONCE, end - first)
                    file.seek(_HEADER_BYTES + first * 2 * channels)
                    block = np.frombuffer(file.read(count * 2 * channels), "<i2").reshape(-1, channels).copy()
                    stretch.mute(block, first, sample_rate)
                    file.seek(_HEADER_BYTES + first * 2 * channels)
                    file.write(block.tobytes())
    except OSError as error:
        raise in_words(path, error) from error


def frames_of(path: Path) -> tuple[int, int]:
    """(frames, rate in Hz) of a file that this program wrote, also of one that it could not complete; 0 and 0
    if there is none."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return 0, 0
    try:
        sample_rate, channels = _layout(_header_of(file), path)
        return (os.fstat(file).st_size - _HEADER_BYTES) // (2 * channels), sample_rate
    except (OSError, ExportError):
        return 0, 0
    finally:
        os.close(file)


def blocks_of(path: Path, frames: int) -> Iterator[NDArray[np.int16]]:
    """The samples [n, channels] of a file that this program wrote, in blocks of so many frames. ExportError
    if it cannot be read."""
    try:
        with path.open("rb") as file:
            _, channels = _layout(file.read(_HEADER_BYTES), path)
            while block := file.read(frames * 2 * channels):
                whole = len(block) // (2 * channels) * 2 * channels
                yield np.frombuffer(bytearray(block[:whole]), "<i2").reshape(-1, channels)
    except OSError as error:
        raise in_words(path, error) from error


def _header_of(file: int) -> bytes:
    """The beginning of a file, nothing of a pipe or a device, which may not end."""
    return os.read(file, _HEADER_BYTES) if stat.S_ISREG(os.fstat(file).st_mode) else b"-"


def _layout(header: bytes, path: Path) -> tuple[int, int]:
    """(rate in Hz, channels) of a file that this program wrote."""
    if len(header) == _HEADER_BYTES:
        channels, sample_rate = struct.unpack_from("<HI", header, 22)
        is_known = channels in (1, 2) and sample_rate in _RATES_HZ
        if is_known and wav_header(sample_rate, channels, 0)[8:40] == header[8:40]:
            return sample_rate, channels
    raise _not_ours(path)


def _not_ours(path: Path) -> ExportError:
    return ExportError("{path} is not a recording of this program.", "Rename it.", path=path)
