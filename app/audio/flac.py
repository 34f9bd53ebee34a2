"""Recorded sound as FLAC: packed from the WAV file that grew, unpacked to be continued, silenced in parts,
and exported.

In: a file of GrowingWav, the FLAC file that was made of it, or samples. Out: another file, in place when it
is complete; recorded samples stay the same. A FLAC file cannot grow: it states its length at its beginning,
and libsndfile reads none that was cut off. What takes long is a generator of short steps, so that no thread
waits for it; closing it removes the incomplete file. Raises ExportError in words for the user. One thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from app.audio.growing_wav import GrowingWav, Stretch, blocks_of, frames_of
from app.audio.resample import Resampler
from app.audio.wav import write_wav
from app.export import check_target, in_words
from engine_runtime.errors import ExportError
from engine_runtime.types import Pcm

_AT_ONCE_S = 20
"""Length of a step in seconds of sound: some 50 ms of work."""
_GAP_S = 0.5
"""Silence after each part of joined sound."""
_LEAST_FREE_BYTES = 1 << 20
"""libsndfile says "System error" where the disk is full; with less than this it was."""


def pack(wav: Path, flac: Path) -> Generator[None]:
    """Put a FLAC file in the place of the WAV file, in steps; one without sound is left alone."""
    if not frames_of(wav)[0]:
        return
    with _replacing(flac) as part:
        yield from _encode(part, wav, "FLAC")
        # Nothing else holds the sound once the WAV file is gone, which may have been deleted meanwhile.
        if soundfile.info(part).frames != frames_of(wav)[0]:
            raise ExportError("{path} was not written completely.", "Try again.", path=flac)
    wav.unlink(missing_ok=True)


def unpack(flac: Path, wav: Path) -> None:
    """Put the WAV file, which can grow, in the place of the FLAC file."""
    with _replacing(wav) as part, soundfile.SoundFile(flac) as packed:
        grown = GrowingWav(part, packed.samplerate, packed.channels)
        with contextlib.closing(grown):
            for block in packed.blocks(_AT_ONCE_S * packed.samplerate, dtype="float32", always_2d=True):
                grown.append(block)
    flac.unlink(missing_ok=True)


def silence_flac(path: Path, stretches: list[Stretch]) -> None:
    """Zero parts of a FLAC file; one that is not there has nothing to silence."""
    if path.is_file():
        with _replacing(path) as part:
            for _ in _encode(part, path, "FLAC", stretches):
                pass


def export_sound(recorded: Path, target: Path) -> Generator[None]:
    """Write the sound of a recording to a file of the user's in steps: WAV if its name ends so, else FLAC."""
    check_target(target)
    with _replacing(Path(os.path.realpath(target)), 0o666) as part:
        yield from _encode(part, recorded, "WAV" if _is_wav(target) else "FLAC")


def write_sound(target: Path, pcm: Pcm, sample_rate: int) -> None:
    """Write mono samples to a file of the user's: WAV if its name ends so, else FLAC."""
    if _is_wav(target):
        write_wav(target, pcm, sample_rate)
        return
    check_target(target)
    with (
        _replacing(Path(os.path.realpath(target)), 0o666) as part,
        _writer(part, sample_rate, 1, "FLAC") as file,
    ):
        file.write(pcm)


def joined(parts: list[tuple[Pcm, int]]) -> Pcm:
    """Mono parts, each with its rate in Hz, one after the other at the rate of the first."""
    rate, found = parts[0][1], []
    for pcm, own in parts:
        if own != rate:
            resampler = Resampler(own, rate)
            pcm = np.concatenate([resampler.push(pcm), resampler.finish()])
        found += [pcm, np.zeros(round(_GAP_S * rate), np.float32)]
    return np.concatenate(found)


def sound_frames(path: Path) -> tuple[int, int]:
    """(frames, rate in Hz) of a recording, WAV as `frames_of` or FLAC; 0 and 0 if there is none."""
    if _is_wav(path):
        return frames_of(path)
    try:
        known = soundfile.info(path)
    except (soundfile.LibsndfileError, OSError):
        return 0, 0
    return known.frames, known.samplerate


def _encode(
    part: Path, source: Path, container: str, stretches: list[Stretch] | None = None
) -> Iterator[None]:
    """Write the sound of `source`, parts of it silenced."""
    rate, first = sound_frames(source)[1], 0
    blocks = _blocks(source, _AT_ONCE_S * rate)
    beginning = next(blocks)
    with _writer(part, rate, beginning.shape[1], container) as file:
        for block in chain([beginning], blocks):
            for stretch in stretches or ():
                stretch.mute(block, first, rate)
            file.write(block)
            first += len(block)
            yield


def _blocks(source: Path, frames: int) -> Iterator[NDArray[np.int16]]:
    if _is_wav(source):  # also one that is still being written, or was not completed
        yield from blocks_of(source, frames)
        return
    with soundfile.SoundFile(source) as packed:
        yield from packed.blocks(frames, dtype="int16", always_2d=True)


@contextmanager
def _replacing(path: Path, mode: int = 0o600) -> Iterator[Path]:
    """The name of a file that takes the place of `path` at the end, or is removed after an error."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        yield part
        part.replace(path)
    except soundfile.LibsndfileError as error:
        status = os.statvfs(path.parent)
        if status.f_bavail * status.f_frsize < _LEAST_FREE_BYTES:
            raise in_words(path, OSError(errno.ENOSPC, "")) from error
        reason = error.error_string.rstrip(" .")
        raise ExportError(
            "{path} was not written: {reason}.", "Choose another folder.", path=path, reason=reason
        ) from error
    except OSError as error:
        raise in_words(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _writer(path: Path, sample_rate: int, channels: int, container: str) -> Any:
    return soundfile.SoundFile(path, "w", sample_rate, channels, "PCM_16", format=container)


def _is_wav(path: Path) -> bool:
    return path.suffix.lower() == ".wav"
