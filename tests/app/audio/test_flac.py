"""Recorded sound as FLAC: the same samples, in place when complete, and in words what goes wrong."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from app.audio import flac
from app.audio.flac import export_sound, pack, silence_flac, sound_frames, unpack, write_sound
from app.audio.growing_wav import GrowingWav, Stretch
from engine_runtime.errors import ExportError

RATE = 8_000


@pytest.fixture
def samples() -> NDArray[np.int16]:
    """25 s of stereo noise: two steps of packing."""
    levels = np.random.default_rng(1).integers(-32_768, 32_767, (25 * RATE, 2), endpoint=True)
    return levels.astype(np.int16)


@pytest.fixture
def wav(tmp_path: Path, samples: NDArray[np.int16]) -> Path:
    file = GrowingWav(tmp_path / "c.wav", RATE, 2)
    file.append((samples / 32_768).astype(np.float32))
    file.close()
    return tmp_path / "c.wav"


def packed_from(wav: Path) -> Path:
    """Returns the packed file."""
    flac = wav.with_suffix(".flac")
    assert not list(filter(None, pack(wav, flac)))
    return flac


def test_packed_and_unpacked_sound_is_the_same(wav: Path, samples: NDArray[np.int16]) -> None:
    packed = packed_from(wav)
    assert [file.name for file in wav.parent.iterdir()] == ["c.flac"]
    assert stat.S_IMODE(packed.stat().st_mode) == 0o600
    assert np.array_equal(soundfile.read(packed, dtype="int16")[0], samples)
    assert sound_frames(packed) == (len(samples), RATE)
    unpack(packed, wav)
    assert [file.name for file in wav.parent.iterdir()] == ["c.wav"]
    assert np.array_equal(soundfile.read(wav, dtype="int16")[0], samples)
    assert sound_frames(wav) == (len(samples), RATE)


def test_packing_takes_steps_and_can_be_abandoned(wav: Path) -> None:
    packing = pack(wav, wav.with_suffix(".flac"))
    next(packing)
    assert len(list(wav.parent.iterdir())) == 2, "the WAV file and the incomplete one"
    packing.close()
    assert [file.name for file in wav.parent.iterdir()] == ["c.wav"]


def test_a_file_that_was_cut_off_is_packed_as_far_as_it_is_whole(
    wav: Path, samples: NDArray[np.int16]
) -> None:
    with wav.open("ab") as broken:
        broken.write(b"\1\2\3\4\5\6")
    packed, _ = soundfile.read(packed_from(wav), dtype="int16")
    assert np.array_equal(packed[:-1], samples)


def test_a_conversation_that_is_deleted_meanwhile_stays_deleted(wav: Path) -> None:
    packing = pack(wav, wav.with_suffix(".flac"))
    next(packing)
    wav.unlink()
    with pytest.raises(ExportError):
        list(packing)
    assert not list(wav.parent.iterdir())


def test_no_file_and_what_is_no_recording_are_left_alone(tmp_path: Path) -> None:
    assert not list(pack(tmp_path / "c.wav", tmp_path / "c.flac"))
    silence_flac(tmp_path / "c.flac", [Stretch(0, 0.0, 1.0)])
    (tmp_path / "c.flac").write_bytes(b"nothing")
    assert sound_frames(tmp_path / "c.flac") == sound_frames(tmp_path / "d.flac") == (0, 0)
    with pytest.raises(ExportError, match=r"c\.wav"):
        unpack(tmp_path / "c.flac", tmp_path / "c.wav")
    assert [file.name for file in tmp_path.iterdir()] == ["c.flac"]


def test_parts_are_silenced_across_steps(wav: Path, samples: NDArray[np.int16]) -> None:
    packed = packed_from(wav)
    silence_flac(packed, [Stretch(0, 1.0, 21.0), Stretch(1, 24.5, 99.0)])
    samples[RATE : 21 * RATE, 0] = 0
    samples[round(24.5 * RATE) :, 1] = 0
    assert np.array_equal(soundfile.read(packed, dtype="int16")[0], samples)


def test_a_full_disk_is_called_full(wav: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> object:
        raise soundfile.LibsndfileError(2)  # "System error."

    monkeypatch.setattr(flac, "_writer", full)
    with pytest.raises(ExportError, match="not written"):
        packed_from(wav)
    monkeypatch.setattr(flac, "_LEAST_FREE_BYTES", 1 << 62)
    with pytest.raises(ExportError, match="disk is full"):
        packed_from(wav)
    assert [file.name for file in wav.parent.iterdir()] == ["c.wav"]


def test_a_folder_that_is_not_there(wav: Path) -> None:
    with pytest.raises(ExportError, match="no folder"):
        unpack(packed_from(wav), wav.parent / "other" / "c.wav")


@pytest.mark.parametrize("name", ["out.flac", "out.wav"])
@pytest.mark.parametrize("is_packed", [True, False])
def test_a_recording_is_exported(
    wav: Path, samples: NDArray[np.int16], tmp_path: Path, name: str, is_packed: bool
) -> None:
    source = packed_from(wav) if is_packed else wav
    assert len(list(export_sound(source, tmp_path / name))) == 2, "steps"
    assert source.is_file()
    assert soundfile.info(tmp_path / name).format == Path(name).suffix[1:].upper()
    assert np.array_equal(soundfile.read(tmp_path / name, dtype="int16")[0], samples)


@pytest.mark.parametrize("name", ["out.flac", "out.wav"])
def test_samples_are_exported(tmp_path: Path, name: str) -> None:
    write_sound(tmp_path / name, np.linspace(-1, 1, 100, dtype=np.float32), RATE)
    assert np.allclose(soundfile.read(tmp_path / name)[0], np.linspace(-1, 1, 100), atol=1e-4)


def test_an_export_into_no_folder_is_refused(wav: Path) -> None:
    for name in ("out.flac", "out.wav"):
        with pytest.raises(ExportError, match="no folder"):
            write_sound(wav.parent / "no" / name, np.zeros(10, np.float32), RATE)
    with pytest.raises(ExportError, match="no folder"):
        list(export_sound(wav, wav.parent / "no" / "out.flac"))
