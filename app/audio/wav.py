"""WAV files: read in blocks as mono float32, written through a temporary file.

Reads PCM of 8, 16, 24 and 32 bit and IEEE float of 32 and 64 bit, any number of channels (mixed to mono by
their mean), 8 to 96 kHz; a file of any length is streamed. Writes 16-bit PCM; the file appears under its name
when it is complete. Raises AudioInputError and ExportError with a message for the user. Any thread, one file
per object.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from app.export import ExportFile
from engine_runtime.errors import AudioInputError
from engine_runtime.types import Pcm

MIN_RATE_HZ = 8_000
MAX_RATE_HZ = 96_000
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_UNKNOWN_SIZE = 0xFFFFFFFF
_BLOCK_BYTES = 1 << 20
"""Frames per read when a complete file is read, which bounds the memory for mixing to mono."""
_MOST_CHUNKS = 1_000
_CHUNK_NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9 _-]{3}")


@dataclass(frozen=True, slots=True)
class WavFormat:
    """The header of a WAV file."""

    sample_rate: int
    channels: int
    bits: int
    is_float: bool
    frames: int

    @property
    def seconds(self) -> float:
        """Length of the file."""
        return self.frames / self.sample_rate

    @property
    def frame_bytes(self) -> int:
        """Bytes of one sample of all channels."""
        return self.channels * self.bits // 8


class WavReader:
    """An open WAV file. Use it as a context manager."""

    def __init__(self, path: Path, channel: int | None = None) -> None:
        """Open and check the file. `channel` is read instead of the mean of all. AudioInputError states the
        defect and the remedy."""
        self.path = path
        self._channel = channel
        self._file = _open_file(path)
        try:
            self.format = _parse_header(self._file, path)
        except BaseException:
            self._file.close()
            raise
        self._left = self.format.frames

    def skip(self, frames: int) -> None:
        """Skip `frames`, at most to the end of the file."""
        frames = min(frames, self._left)
        self._file.seek(frames * self.format.frame_bytes, os.SEEK_CUR)
        self._left -= frames

    def read(self, frames: int) -> Pcm:
        """The next `frames` samples as mono float32 in [-1, 1] (fewer at the end, none after it)."""
        pcm: Pcm = np.empty(min(frames, self._left), np.float32)
        at_once = max(_BLOCK_BYTES // self.format.frame_bytes, 1)
        for start in range(0, len(pcm), at_once):
            block = pcm[start : start + at_once]
            block[:] = self._read_block(len(block))
        return pcm

    def _read_block(self, frames: int) -> Pcm:
        try:
            raw = self._file.read(frames * self.format.frame_bytes)
        except OSError as error:
            raise AudioInputError(f"{self.path} cannot be read: {error.strerror}. Copy it again.") from error
        if len(raw) < frames * self.format.frame_bytes:
            raise AudioInputError(f"{self.path} became shorter while it was read. Copy it again.")
        self._left -= frames
        return _to_mono(raw, self.format, self._channel)

    def blocks(self, frames: int) -> Iterator[Pcm]:
        """The rest of the file in blocks of `frames` samples."""
        while self._left:
            yield self.read(frames)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> WavReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_wav(path: Path, max_seconds: float = 600.0) -> tuple[Pcm, int]:
    """Read a complete short file: (mono PCM, rate in Hz). AudioInputError if it is longer than
    `max_seconds`."""
    with _open_short(path, max_seconds) as reader:
        return reader.read(reader.format.frames), reader.format.sample_rate


def read_beginning(path: Path, seconds: float) -> tuple[Pcm, int]:
    """At most the first `seconds` of a file of any length: (mono PCM, rate in Hz)."""
    with WavReader(path) as reader:
        return reader.read(round(seconds * reader.format.sample_rate)), reader.format.sample_rate


def check_wav(path: Path, max_seconds: float = 600.0) -> None:
    """Raise AudioInputError if `read_wav` would reject the file because of its header."""
    _open_short(path, max_seconds).close()


def _open_short(path: Path, max_seconds: float) -> WavReader:
    reader = WavReader(path)
    if reader.format.seconds > max_seconds:
        reader.close()
        raise AudioInputError(
            f"{path} lasts {reader.format.seconds:.0f} s, more than the {max_seconds:.0f} s allowed here."
            " Cut it first."
        )
    return reader


class WavWriter:
    """Writes 16-bit PCM; the file is put in place by `close`, or not at all if an error leaves the
    context."""

    def __init__(self, path: Path, sample_rate: int, channels: int = 1) -> None:
        """Start a file beside `path`; ExportError if the folder cannot be written to."""
        self.path = path
        self.sample_rate = sample_rate
        self.channels = channels
        self.frames = 0
        self._file = ExportFile(path)
        self._file.write(wav_header(sample_rate, channels, 0))

    def write(self, pcm: NDArray[np.float32]) -> None:
        """Append samples, [n] for mono or [n, channels]; values outside [-1, 1] are clipped."""
        if pcm.ndim != (1 if self.channels == 1 else 2) or (pcm.ndim == 2 and pcm.shape[1] != self.channels):
            raise ValueError(f"expected {self.channels} channels, got an array of shape {pcm.shape}")
        self._file.write(np.rint(np.clip(np.nan_to_num(pcm), -1.0, 1.0) * 32767.0).astype("<i2").tobytes())
        self.frames += len(pcm)

    def close(self) -> None:
        """Complete the file and put it in place. May be called twice."""
        self._file.keep(wav_header(self.sample_rate, self.channels, self.frames))

    def abort(self) -> None:
        """Remove the incomplete file."""
        self._file.abort()

    def __enter__(self) -> WavWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def write_wav(path: Path, pcm: NDArray[np.float32], sample_rate: int) -> None:
    """Write a complete file, mono [n] or [n, channels]. ExportError if it cannot be written."""
    with WavWriter(path, sample_rate, 1 if pcm.ndim == 1 else pcm.shape[1]) as writer:
        writer.write(pcm)


def wav_header(sample_rate: int, channels: int, frames: int) -> bytes:
    """The header of a 16-bit PCM file, 44 bytes."""
    size = min(frames * channels * 2, _UNKNOWN_SIZE - 36)
    block = channels * 2
    layout = struct.pack("<HHIIHH", _PCM, channels, sample_rate, sample_rate * block, block, 16)
    return (
        b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + struct.pack("<I", 16) + layout
        + b"data" + struct.pack("<I", size)
    )  # fmt: skip


def _open_file(path: Path) -> BinaryIO:
    """NOTE: the file type is checked before opening: opening a pipe waits for its writer, and a device may be
    endless."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise AudioInputError(f"{path} is a folder. Name a WAV file in it.")
        if not stat.S_ISREG(mode):
            raise AudioInputError(
                f"{path} is a pipe or a device, not a file. Write the audio to a WAV file first."
            )
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise AudioInputError(f"There is no file {path}. Check the name.") from None
    except PermissionError as error:
        raise AudioInputError(f"{path} cannot be opened: {error.strerror}. Check its permissions.") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise AudioInputError(f"{path} cannot be opened: {reason}. Check the name.") from error


def _parse_header(file: BinaryIO, path: Path) -> WavFormat:
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        raise AudioInputError(f"{path} is empty. Record it again.")
    start = file.read(12)
    if len(start) < 12 or start[:4] != b"RIFF" or start[8:] != b"WAVE":
        raise AudioInputError(
            f"{path} is not a WAV file. Convert it first, for example with: ffmpeg -i FILE speech.wav"
        )
    layout: bytes | None = None
    is_unfinished = ends_in_chunks = False
    for _ in range(_MOST_CHUNKS):
        head = file.read(8)
        if len(head) < 8:
            missing = "audio data" if layout else "description of its format"
            raise AudioInputError(f"{path} is broken: it has no {missing}. Record or convert it again.")
        name, length = head[:4], int.from_bytes(head[4:], "little")
        if name == b"data":
            # Programs that write to a pipe, or end too early, leave the largest number or 0 there. An empty
            # chunk it is only if the file continues with chunks to its end.
            ends_in_chunks = length == 0 and (ends_in_chunks or _holds_chunks(file, size))
            is_unfinished = length in (0, _UNKNOWN_SIZE) and not ends_in_chunks
            if length or is_unfinished:
                break
        if name == b"fmt ":
            layout = file.read(min(length, 64))
            file.seek(-len(layout), os.SEEK_CUR)
        file.seek(length + (length & 1), os.SEEK_CUR)
    else:
        raise AudioInputError(
            f"{path} is broken: it has no end of chunks before the audio. Convert it again."
        )
    if layout is None or len(layout) < 16:
        raise AudioInputError(
            f"{path} is broken: it does not say how its samples are stored. Convert it again."
        )
    present = size - file.tell()
    if is_unfinished:
        length = present
    if length > present:
        raise AudioInputError(
            f"{path} is cut short: {present} of {length} bytes of audio are there. Copy or record it again."
        )
    return _checked_format(layout, length, path)


def _holds_chunks(file: BinaryIO, size: int) -> bool:
    """Whether the rest of the file consists of complete chunks only. The position is kept."""
    start = position = file.tell()
    for _ in range(_MOST_CHUNKS):
        head = file.read(8)
        if len(head) < 8 or not _CHUNK_NAME.fullmatch(head[:4]):
            break
        length = int.from_bytes(head[4:], "little")
        position += 8 + length
        if position < size:  # the last chunk may lack the byte that makes its length even
            position += length & 1
        file.seek(position)
    file.seek(start)
    return start < position == size


def _checked_format(layout: bytes, data_bytes: int, path: Path) -> WavFormat:
    tag, channels, rate, _, _, bits = struct.unpack("<HHIIHH", layout[:16])
    if tag == _EXTENSIBLE and len(layout) >= 26:
        tag = int.from_bytes(layout[24:26], "little")
    if (tag, bits) not in {(_PCM, 8), (_PCM, 16), (_PCM, 24), (_PCM, 32), (_FLOAT, 32), (_FLOAT, 64)}:
        raise AudioInputError(
            f"{path} holds samples of format {tag} with {bits} bit, which cannot be read. "
            "Convert it to 16-bit PCM, for example with: ffmpeg -i FILE -c:a pcm_s16le speech.wav"
        )
    if not 1 <= channels <= 64:
        raise AudioInputError(f"{path} is broken: it claims to have {channels} channels. Convert it again.")
    if not MIN_RATE_HZ <= rate <= MAX_RATE_HZ:
        raise AudioInputError(
            f"{path} has a sample rate of {rate} Hz; {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz can be read. "
            "Convert it, for example with: ffmpeg -i FILE -ar 16000 speech.wav"
        )
    wav = WavFormat(rate, channels, bits, tag == _FLOAT, data_bytes // (channels * bits // 8))
    if wav.frames == 0:
        raise AudioInputError(f"{path} is empty: it has no audio. Record it again.")
    return wav


def _to_mono(raw: bytes, wav: WavFormat, channel: int | None) -> Pcm:
    samples: NDArray[np.float32]
    if wav.is_float:
        values = np.frombuffer(raw, dtype=f"<f{wav.bits // 8}")
        samples = np.clip(np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=-1.0), -1.0, 1.0).astype(
            np.float32
        )
    elif wav.bits == 8:
        samples = (np.frombuffer(raw, dtype=np.uint8).astype(np.float32) - 128.0) / 128.0
    elif wav.bits == 24:
        padded = np.zeros((len(raw) // 3, 4), dtype=np.uint8)
        padded[:, 1:] = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 3)
        samples = padded.view("<i4").reshape(-1).astype(np.float32) / np.float32(2**31)
    else:
        samples = np.frombuffer(raw, dtype=f"<i{wav.bits // 8}").astype(np.float32) / np.float32(
            2 ** (wav.bits - 1)
        )
    if wav.channels == 1:
        return samples
    columns = samples.reshape(-1, wav.channels)
    return columns.mean(axis=1, dtype=np.float32) if channel is None else columns[:, channel].copy()
