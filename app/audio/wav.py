"""Sound files: WAV and FLAC read in blocks as mono float32, WAV written through a temporary file.

libsndfile decodes any sample format and any number of channels (mixed to mono by their mean), 8 to 96 kHz; a
file of any length is streamed. It takes a truncated WAV file for a shorter one, so the length that the file
states is checked here. Writing does without it: 16-bit PCM needs nothing but a header, which growing_wav.py
rewrites after each block, and libsndfile could not say why a file was not written. The file appears under its
name when it is complete. Raises AudioInputError and ExportError with a message for the user. Any thread, one
file per object.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray

from app.export import ExportFile
from engine_runtime.errors import AudioInputError
from engine_runtime.types import Pcm

MIN_RATE_HZ = 8_000
MAX_RATE_HZ = 96_000
SUFFIXES = (".wav", ".flac")
"""Endings of the files that are found in a folder; a file that the user names may have any."""
_CONTAINERS = ("WAV", "WAVEX", "FLAC")
_UNKNOWN_SIZE = 0xFFFFFFFF
_MOST_FRAMES = 1 << 48
"""libsndfile reports more for a FLAC file that does not state its length."""
_BLOCK_BYTES = 1 << 20
"""Samples per read when a complete file is read, which bounds the memory for mixing to mono."""
_UNRECOGNISED = 1
"""SF_ERR_UNRECOGNISED_FORMAT of libsndfile."""
_CONVERT = "Convert it, for example with: ffmpeg -i FILE speech.wav"


class WavReader:
    """An open WAV or FLAC file. Use it as a context manager."""

    def __init__(self, path: Path, channel: int | None = None) -> None:
        """Open and check the file. `channel` is read instead of the mean of all. AudioInputError states the
        defect and the remedy."""
        self.path = path
        self._channel = channel
        with ExitStack() as opened:
            stream = opened.enter_context(_open_file(path))
            self._sound = opened.enter_context(_decoder(stream, path))
            _check(self._sound, stream, path)
            self._opened = opened.pop_all()
        self.sample_rate: int = self._sound.samplerate
        self.channels: int = self._sound.channels
        self.frames: int = self._sound.frames
        self._left = self.frames

    @property
    def seconds(self) -> float:
        """Length of the file."""
        return self.frames / self.sample_rate

    def skip(self, frames: int) -> None:
        """Skip `frames`, at most to the end of the file."""
        self._left -= min(frames, self._left)
        try:
            self._sound.seek(self.frames - self._left)
        except soundfile.LibsndfileError as error:
            raise _damaged(self.path, error) from error

    def read(self, frames: int) -> Pcm:
        """The next `frames` samples as mono float32 in [-1, 1] (fewer at the end, none after it)."""
        pcm: Pcm = np.empty(min(frames, self._left), np.float32)
        at_once = max(_BLOCK_BYTES // (pcm.itemsize * self.channels), 1)
        for start in range(0, len(pcm), at_once):
            block = pcm[start : start + at_once]
            block[:] = self._read_block(len(block))
        return pcm

    def _read_block(self, frames: int) -> Pcm:
        try:
            samples: NDArray[np.float32] = self._sound.read(frames, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            raise _damaged(self.path, error) from error
        if len(samples) < frames:
            raise AudioInputError(
                "{path} became shorter while it was read.", "Copy it again.", path=self.path
            )
        self._left -= frames
        np.clip(np.nan_to_num(samples, copy=False), -1.0, 1.0, out=samples)
        mono: Pcm = samples.mean(axis=1) if self._channel is None else samples[:, self._channel]
        return mono

    def blocks(self, frames: int) -> Iterator[Pcm]:
        """The rest of the file in blocks of `frames` samples."""
        while self._left:
            yield self.read(frames)

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

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
        return reader.read(reader.frames), reader.sample_rate


def read_beginning(path: Path, seconds: float) -> tuple[Pcm, int]:
    """At most the first `seconds` of a file of any length: (mono PCM, rate in Hz)."""
    with WavReader(path) as reader:
        return reader.read(round(seconds * reader.sample_rate)), reader.sample_rate


def check_wav(path: Path, max_seconds: float = 600.0) -> None:
    """Raise AudioInputError if `read_wav` would reject the file because of its header."""
    _open_short(path, max_seconds).close()


def _open_short(path: Path, max_seconds: float) -> WavReader:
    reader = WavReader(path)
    if reader.seconds > max_seconds:
        reader.close()
        raise AudioInputError(
            "{path} lasts {seconds:.0f} s, more than the {most:.0f} s allowed here.",
            "Cut it first.",
            path=path,
            seconds=reader.seconds,
            most=max_seconds,
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
    layout = struct.pack("<HHIIHH", 1, channels, sample_rate, sample_rate * block, block, 16)
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
            raise AudioInputError("{path} is a folder.", "Name a recording in it.", path=path)
        if not stat.S_ISREG(mode):
            raise AudioInputError(
                "{path} is a pipe or a device, not a file.", "Write the audio to a WAV file first.", path=path
            )
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise AudioInputError("There is no file {path}.", "Check the name.", path=path) from None
    except PermissionError as error:
        raise AudioInputError(
            "{path} cannot be opened: {reason}.",
            "Check its permissions.",
            path=path,
            reason=error.strerror,
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise AudioInputError(
            "{path} cannot be opened: {reason}.", "Check the name.", path=path, reason=reason
        ) from error


def _decoder(stream: BinaryIO, path: Path) -> soundfile.SoundFile:
    if os.fstat(stream.fileno()).st_size == 0:
        raise AudioInputError("{path} is empty.", "Record it again.", path=path)
    try:
        return soundfile.SoundFile(stream)
    except soundfile.LibsndfileError as error:
        if error.code == _UNRECOGNISED:
            raise _no_sound_file(path) from error
        raise _damaged(path, error) from error


def _check(sound: soundfile.SoundFile, stream: BinaryIO, path: Path) -> None:
    """AudioInputError for a file that libsndfile opens but that cannot be used."""
    if sound.format not in _CONTAINERS:
        raise _no_sound_file(path)
    if not MIN_RATE_HZ <= sound.samplerate <= MAX_RATE_HZ:
        raise AudioInputError(
            "{path} has a sample rate of {rate} Hz; {lowest} to {highest} Hz can be read.",
            "Convert it, for example with: ffmpeg -i FILE -ar 16000 speech.wav",
            path=path,
            rate=sound.samplerate,
            lowest=MIN_RATE_HZ,
            highest=MAX_RATE_HZ,
        )
    if not 0 < sound.frames < _MOST_FRAMES:
        raise AudioInputError("{path} has no audio, or its length was never written.", _CONVERT, path=path)
    if sound.format != "FLAC":
        _check_complete(stream, path)


def _check_complete(stream: BinaryIO, path: Path) -> None:
    """AudioInputError if the file ends before its audio does. Programs that write to a pipe leave the largest
    number as the length. The position is kept, which belongs to libsndfile."""
    position = stream.tell()
    size, at = os.fstat(stream.fileno()).st_size, 12
    name, length = b"", 0
    while name != b"data" and at + 8 <= size:
        stream.seek(at)
        name, length = struct.unpack("<4sI", stream.read(8))
        at += 8 + (0 if name == b"data" else length + length % 2)
    stream.seek(position)
    if name == b"data" and size - at < length != _UNKNOWN_SIZE:
        raise AudioInputError(
            "{path} is truncated: it has {size} of {length} bytes of audio.",
            "Copy or record it again.",
            path=path,
            size=size - at,
            length=length,
        )


def _no_sound_file(path: Path) -> AudioInputError:
    return AudioInputError("{path} is not a WAV or FLAC file.", _CONVERT, path=path)


def _damaged(path: Path, error: soundfile.LibsndfileError) -> AudioInputError:
    reason = re.sub(r"^Error[^.:]*[.:] ", "", error.error_string).rstrip(" .")
    return AudioInputError(
        "{path} cannot be read: {reason}.", "Record or convert it again.", path=path, reason=reason
    )
