"""Held-out questions under conditions of a fixed strength."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests.assets.conftest import Recipe

RATE = 16_000
LEAD = RATE // 2


@pytest.fixture(scope="module")
def conditions(recipe: Recipe) -> ModuleType:
    return recipe("conditions")


@pytest.fixture(scope="module")
def recording() -> np.ndarray:
    """Half a second of silence, a second of a harmonic tone, half a second of silence."""
    time = np.arange(RATE) / RATE
    tone = sum(np.sin(2 * np.pi * 200 * k * time) / k for k in range(1, 30)) * 0.1
    return np.pad(tone, LEAD).astype(np.float32)


def _rms(wave: np.ndarray) -> float:
    return float(np.sqrt(np.mean(wave**2)))


def test_clean_is_the_recording_itself(conditions: ModuleType, recording: np.ndarray) -> None:
    assert conditions.disturbed(recording, conditions.CLEAN, 1) is recording


@pytest.mark.parametrize("name", ["room", "noise 10 dB", "telephone"])
def test_equal_seeds_make_equal_sound(conditions: ModuleType, recording: np.ndarray, name: str) -> None:
    first, again = (conditions.disturbed(recording, name, 7) for _ in range(2))
    assert first.shape == recording.shape
    assert first.dtype == np.float32
    assert np.array_equal(first, again)
    assert not np.array_equal(first, recording)


def test_noise_is_ten_decibels_below_the_speech_and_in_the_pauses_too(
    conditions: ModuleType, recording: np.ndarray
) -> None:
    noise = conditions.disturbed(recording, "noise 10 dB", 3) - recording
    speech = recording[LEAD:-LEAD]
    assert 20 * np.log10(_rms(speech) / _rms(noise)) == pytest.approx(10, abs=0.5)
    assert _rms(noise[:LEAD]) > 0


def test_a_room_rings_on_after_the_speech(conditions: ModuleType, recording: np.ndarray) -> None:
    heard = conditions.disturbed(recording, "room", 3)
    assert _rms(recording[-LEAD : -LEAD + 800]) == 0
    assert _rms(heard[-LEAD : -LEAD + 800]) > 0.1 * _rms(recording[LEAD:-LEAD])


def test_the_telephone_has_no_sound_above_its_band(conditions: ModuleType, recording: np.ndarray) -> None:
    def above(wave: np.ndarray) -> float:
        spectrum = np.abs(np.fft.rfft(wave)) ** 2
        return float(spectrum[int(len(spectrum) * 4_200 / 8_000) :].sum() / spectrum.sum())

    assert above(conditions.disturbed(recording, "telephone", 3)) < 0.1 * above(recording)


def test_echo_residue_is_there_while_the_user_speaks(
    conditions: ModuleType, recording: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = np.sin(np.arange(9_000) / 5).astype(np.float32)
    monkeypatch.setattr(conditions.voices, "render_many", lambda jobs: [said])
    residue = conditions.disturbed(recording, "echo residue", 3) - recording
    assert _rms(residue[:LEAD]) == _rms(residue[-LEAD:]) == 0
    assert 0 < _rms(residue[LEAD:-LEAD]) < 0.1 * _rms(recording[LEAD:-LEAD])
