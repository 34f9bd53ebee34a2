"""Sample-rate conversion of recordings, compared with SciPy."""

from __future__ import annotations

from math import gcd

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import resample_poly

from engine_runtime.codec.resample import resample


def test_resampling_keeps_time_and_level() -> None:
    time = np.arange(44100) / 44100
    tone = np.sin(2 * np.pi * 440 * time).astype(np.float32)
    result = resample(tone, 44100, 16000)
    assert result.shape == (16000,)
    expected = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    np.testing.assert_allclose(result[500:-500], expected[500:-500], atol=2e-3)
    assert resample(tone, 44100, 44100) is tone


@given(
    size=st.integers(1, 3000), rate=st.integers(1, 60), to=st.integers(1, 60), seed=st.integers(0, 2**32 - 1)
)
def test_it_is_the_filter_of_scipy(size: int, rate: int, to: int, seed: int) -> None:
    pcm = np.random.default_rng(seed).uniform(-1, 1, size).astype(np.float32)
    common = gcd(rate, to)
    expected = resample_poly(pcm, to // common, rate // common)
    np.testing.assert_allclose(resample(pcm, rate, to), expected, atol=2e-6)


@pytest.mark.parametrize(
    ("rate", "to"), [(44_100, 16_000), (24_000, 16_000), (44_101, 16_000), (8_000, 24_000)]
)
@pytest.mark.slow
def test_usual_rates_and_long_recordings(rate: int, to: int) -> None:
    pcm = np.random.default_rng(0).uniform(-1, 1, 3 * rate).astype(np.float32)
    common = gcd(rate, to)
    expected = resample_poly(pcm, to // common, rate // common)
    result = resample(pcm, rate, to)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, atol=2e-6)


def test_nothing_stays_nothing() -> None:
    assert resample(np.zeros(0, dtype=np.float32), 24_000, 16_000).shape == (0,)
