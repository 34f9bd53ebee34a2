"""A file that grows: valid after every block, continued and repaired, private."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
import soundfile

from app.audio.growing_wav import GrowingWav, frames_of
from app.audio.wav import WavReader, wav_header
from engine_runtime.errors import ExportError

RATE = 16_000


def noise(seconds: float) -> np.ndarray:
    """Stereo samples as a 16-bit device counts them."""
    levels = np.random.default_rng(1).integers(-32_768, 32_768, (round(seconds * RATE), 2))
    return (levels / 32_768).astype(np.float32)


def test_the_file_is_valid_after_every_block_and_keeps_every_bit(tmp_path: Path) -> None:
    sound = noise(0.3)
    file = GrowingWav(tmp_path / "c.wav", RATE, 2)
    for first in range(0, len(sound), 1_000):
        file.append(sound[first : first + 1_000])
        present, rate = soundfile.read(tmp_path / "c.wav", dtype="float32")
        assert rate == RATE
        assert np.array_equal(present, sound[: first + 1_000])
    for side in (0, 1):
        with WavReader(tmp_path / "c.wav", channel=side) as reader:
            assert np.array_equal(reader.read(len(sound)), sound[:, side])
    file.close()
    assert stat.S_IMODE((tmp_path / "c.wav").stat().st_mode) == 0o600


def test_after_a_kill_the_file_is_repaired_and_continued(tmp_path: Path) -> None:
    sound = noise(0.1)
    path = tmp_path / "c.wav"
    GrowingWav(path, RATE, 2).append(sound)
    with path.open("ab") as broken:  # killed in the middle of a block, before its header
        broken.write(b"\1\2" * 3)
    assert len(soundfile.read(path)[0]) == len(sound)
    again = GrowingWav(path, 48_000, 2)
    assert (again.sample_rate, again.frames) == (RATE, len(sound) + 1)
    again.append(sound)
    again.close()
    present, rate = soundfile.read(path, dtype="float32")
    assert rate == RATE
    assert np.array_equal(present[len(sound) + 1 :], sound)


def test_clipping(tmp_path: Path) -> None:
    file = GrowingWav(tmp_path / "c.wav", RATE, 1)
    file.append(np.array([[2.0], [-2.0]], dtype=np.float32))
    file.close()
    assert soundfile.read(tmp_path / "c.wav", dtype="int16")[0].tolist() == [32_767, -32_768]


def test_what_cannot_be_written_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExportError, match="no folder"):
        GrowingWav(tmp_path / "no" / "c.wav", RATE, 2)
    (tmp_path / "other.wav").write_bytes(b"RIFF, but of someone else's program")
    with pytest.raises(ExportError, match="not a recording"):
        GrowingWav(tmp_path / "other.wav", RATE, 2)
    deleted = GrowingWav(tmp_path / "c.wav", RATE, 2)
    (tmp_path / "c.wav").unlink()
    with pytest.raises(ExportError, match="deleted"):
        deleted.append(noise(0.01))
    full = GrowingWav(tmp_path / "full.wav", RATE, 2)
    full.append(noise(0.1))

    def no_space(file: int, content: bytes) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "write", no_space)
    with pytest.raises(ExportError, match="disk is full"):
        full.append(noise(0.1))
    assert len(soundfile.read(tmp_path / "full.wav")[0]) == RATE // 10


def test_a_file_is_not_made_longer_than_its_header_can_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.audio.growing_wav.MOST_BYTES", 4 * RATE)
    file = GrowingWav(tmp_path / "c.wav", RATE, 2)
    file.append(noise(1.0))
    with pytest.raises(ExportError, match="greatest length"):
        file.append(noise(0.1))


def test_what_is_no_recording_is_neither_measured_nor_continued(tmp_path: Path) -> None:
    path = tmp_path / "c.wav"
    os.mkfifo(path)  # opening it must not wait for a writer
    headers = [wav_header(RATE, 1, 0), wav_header(1, 2, 0), wav_header(RATE, 2, 0)[:-5], b"RIFF" + bytes(40)]
    huge = bytearray(wav_header(RATE, 2, 0))
    huge[22:24] = b"\xff\xff"
    for content in (None, *headers, bytes(huge)):
        if content is not None:
            path.unlink()
            path.write_bytes(content)
        with pytest.raises(ExportError, match="not a recording"):
            GrowingWav(path, RATE, 2)
        assert frames_of(path) in ((0, 0), (0, RATE))
