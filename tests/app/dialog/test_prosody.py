"""Prosody of made-up voices: pitch and level that fall by a known amount at the end."""

from __future__ import annotations

import numpy as np
import pytest

from app.dialog.prosody import measure
from engine_runtime.types import Pcm

RATE = 16_000


def voice(pitch_hz: float, end_hz: float, end_gain: float = 1.0, pause_s: float = 0.16) -> Pcm:
    """1.2 s at one pitch, 0.2 s at another, a pause; with harmonics, over faint noise."""
    counts = [round(seconds * RATE) for seconds in (1.2, 0.2)]
    hertz = np.repeat([pitch_hz, end_hz], counts)
    gain = np.repeat([0.1, 0.1 * end_gain], counts)
    phase = 2 * np.pi * np.cumsum(hertz) / RATE
    sound = gain * sum(np.sin(harmonic * phase) / harmonic for harmonic in range(1, 9))
    sound = np.concatenate([sound, np.zeros(round(pause_s * RATE))])
    return (sound + 5e-4 * np.random.default_rng(0).standard_normal(len(sound))).astype(np.float32)


@pytest.mark.parametrize(
    ("pitch_hz", "end_hz", "fall_st"), [(200, 150, 4.98), (110, 90, 3.47), (240, 240, 0)]
)
def test_a_fall_of_the_pitch_is_measured_in_semitones(pitch_hz: float, end_hz: float, fall_st: float) -> None:
    found = measure(voice(pitch_hz, end_hz))
    assert found is not None
    assert found.pitch_fall_st == pytest.approx(fall_st, abs=0.25)


def test_a_fall_of_the_level_is_measured_in_decibels() -> None:
    found = measure(voice(200, 200, end_gain=0.25))
    assert found is not None
    assert found.level_fall_db == pytest.approx(12, abs=1)


def test_a_rise_is_no_fall() -> None:
    found = measure(voice(150, 220, end_gain=2.0))
    assert found is not None
    assert found.pitch_fall_st == 0.0
    assert found.level_fall_db < 1.0


def test_neither_loudness_nor_the_length_of_the_pause_matters() -> None:
    found = measure(voice(200, 160, 0.5))
    louder, later = measure(3 * voice(200, 160, 0.5)), measure(voice(200, 160, 0.5, pause_s=0.4))
    assert found is not None
    assert louder is not None
    assert later is not None
    for other in (louder, later):
        assert other.pitch_fall_st == pytest.approx(found.pitch_fall_st, abs=0.1)
        assert other.level_fall_db == pytest.approx(found.level_fall_db, abs=0.3)


@pytest.mark.parametrize("count", [0, 100, RATE])
def test_silence_and_noise_have_none(count: int) -> None:
    assert measure(np.zeros(count, dtype=np.float32)) is None
    noise = 0.1 * np.random.default_rng(1).standard_normal(count)
    assert measure(noise.astype(np.float32)) is None
