"""Levels of known signals."""

from __future__ import annotations

import numpy as np
import pytest

from app.audio.levels import dbfs, gain_of, is_silent, rms


def test_levels() -> None:
    assert rms(np.zeros(0, dtype=np.float32)) == 0.0
    assert dbfs(rms(np.full(100, 0.1, dtype=np.float32))) == pytest.approx(-20.0, abs=1e-4)
    assert dbfs(0.0) == -120.0


def test_volume_is_as_heard() -> None:
    assert (gain_of(0.0), gain_of(1.0)) == (0.0, 1.0)
    assert dbfs(gain_of(0.5)) == pytest.approx(-18.06, abs=0.01)


def test_the_last_bit_is_silence_and_the_noise_of_a_microphone_is_not() -> None:
    assert is_silent(np.zeros(0, dtype=np.float32))
    assert is_silent(np.array([0.0, 1 / 32_768, -1 / 32_768], dtype=np.float32))
    assert not is_silent(np.array([0.0, 0.0, -2 / 32_768], dtype=np.float32))
