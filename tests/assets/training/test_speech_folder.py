"""Recordings as training data: resampled, one piece held out, prepared once, and refusals."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from app.audio.wav import read_wav, write_wav
from engine_runtime.codec.resample import resample
from engine_runtime.errors import MossVoiceError
from tests.assets.conftest import Recipe

RATE = 24_000


@pytest.fixture
def speech_folder(recipe: Recipe) -> ModuleType:
    return recipe("speech_folder")


def at_rate(file: Path) -> np.ndarray:
    pcm, rate = read_wav(file)
    return resample(pcm, rate, RATE)


def test_all_recordings_but_one_are_trained(
    speech_folder: ModuleType, recordings: Path, tmp_path: Path
) -> None:
    speech = speech_folder.SpeechFolder(recordings, tmp_path, RATE)
    (held_out,) = speech.held_out.glob("*.wav")
    first, *rest = (recordings / name for name in ("C.WAV", "a.wav", "b.wav", "more/d.wav"))
    np.testing.assert_allclose(read_wav(held_out)[0], at_rate(first), atol=1e-4)
    pause = np.zeros(round(speech_folder.PAUSE_S * RATE))
    wanted = np.concatenate([part for file in rest for part in (at_rate(file), pause)])
    samples = np.fromfile(tmp_path / "speech.int16", np.int16) / 32767
    np.testing.assert_allclose(samples, wanted, atol=1e-4)
    assert speech.hours == pytest.approx(len(wanted) / RATE / 3600)


def test_segments_are_cut_anywhere(speech_folder: ModuleType, recordings: Path, tmp_path: Path) -> None:
    speech = speech_folder.SpeechFolder(recordings, tmp_path, RATE)
    samples = np.fromfile(tmp_path / "speech.int16", np.int16)
    batch = speech.batch(np.random.default_rng(0), 6, 480).numpy()
    assert batch.shape == (6, 480)
    assert batch.dtype == np.int16
    windows = np.lib.stride_tricks.sliding_window_view(samples, 480)
    starts = {int(np.flatnonzero((windows == row).all(1))[0]) for row in batch}
    assert len(starts) > 3
    whole = speech.batch(np.random.default_rng(0), 1, len(samples)).numpy()
    assert np.array_equal(whole[0], samples)
    with pytest.raises(MossVoiceError, match="All the speech is shorter than a segment"):
        speech.batch(np.random.default_rng(0), 1, len(samples) + 1)


def test_it_is_prepared_again_only_for_other_recordings(
    speech_folder: ModuleType, recordings: Path, tmp_path: Path
) -> None:
    folder, work = tmp_path / "speech", tmp_path / "work"
    shutil.copytree(recordings, folder)
    work.mkdir()
    speech_folder.SpeechFolder(folder, work, RATE)
    before = (work / "speech.int16").stat().st_mtime_ns
    speech_folder.SpeechFolder(folder, work, RATE)
    assert (work / "speech.int16").stat().st_mtime_ns == before
    write_wav(folder / "e.wav", np.full(RATE, 0.5, np.float32), RATE)
    speech_folder.SpeechFolder(folder, work, RATE)
    assert (np.fromfile(work / "speech.int16", np.int16) == round(0.5 * 32767)).sum() == RATE


def test_a_long_recording_is_cut_and_a_short_one_left_out(
    speech_folder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speech_folder, "PIECE_S", 1)
    folder, work = tmp_path / "speech", tmp_path / "work"
    folder.mkdir()
    work.mkdir()
    write_wav(folder / "long.wav", np.full(round(3.4 * RATE), 0.5, np.float32), RATE)
    write_wav(folder / "short.wav", np.full(round(0.4 * RATE), 0.25, np.float32), RATE)
    speech_folder.SpeechFolder(folder, work, RATE)
    samples = np.fromfile(work / "speech.int16", np.int16)
    assert (samples == round(0.5 * 32767)).sum() == 2 * RATE  # of three seconds one is held out
    assert not (samples == round(0.25 * 32767)).any()


def test_a_broken_recording_is_named_and_left_out(
    speech_folder: ModuleType, recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, work = tmp_path / "speech", tmp_path / "work"
    shutil.copytree(recordings, folder)
    work.mkdir()
    (folder / "broken.wav").write_bytes(b"RIFF")
    speech_folder.SpeechFolder(folder, work, RATE)
    assert f"left out: {folder / 'broken.wav'} is not a WAV or FLAC file" in capsys.readouterr().out


def test_folders_without_enough_speech_are_refused(
    speech_folder: ModuleType, recordings: Path, tmp_path: Path
) -> None:
    with pytest.raises(MossVoiceError, match="There is no WAV or FLAC file in"):
        speech_folder.SpeechFolder(tmp_path, tmp_path, RATE)
    shutil.copy(recordings / "a.wav", tmp_path / "one.wav")
    (tmp_path / "work").mkdir()
    with pytest.raises(MossVoiceError, match="fewer than two recordings"):
        speech_folder.SpeechFolder(tmp_path, tmp_path / "work", RATE)
