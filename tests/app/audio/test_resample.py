"""Resampled streams keep length, time and level, whatever the block size."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from app.audio.resample import Resampler


def tone(rate: int, seconds: float, hz: float = 440.0) -> np.ndarray:
    return np.sin(2 * np.pi * hz * np.arange(int(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize(("in_rate", "out_rate"), [(48_000, 16_000), (24_000, 48_000), (44_100, 16_000)])
@pytest.mark.parametrize("block", [160, 480, 1_111])
def test_blocks_yield_the_tone_at_the_other_rate(in_rate: int, out_rate: int, block: int) -> None:
    resampler = Resampler(in_rate, out_rate)
    pcm = tone(in_rate, 1.0)
    parts = [resampler.push(pcm[i : i + block]) for i in range(0, len(pcm), block)]
    out = np.concatenate([*parts, resampler.finish()])
    expected = tone(out_rate, 1.0)
    assert abs(len(out) - len(expected)) <= 1
    middle = slice(out_rate // 10, out_rate * 9 // 10)
    assert np.abs(out[middle] - expected[middle]).max() < 2e-3
    assert out.dtype == np.float32


def test_low_quality_lags_less_than_sixteen_milliseconds() -> None:
    resampler = Resampler(48_000, 16_000, "LQ")
    got = sum(len(resampler.push(np.zeros(480, dtype=np.float32))) for _ in range(50))
    assert 0 <= 50 * 160 - got < 256


def test_equal_rates_pass_through() -> None:
    resampler = Resampler(16_000, 16_000)
    pcm = tone(16_000, 0.1)
    assert resampler.push(pcm) is pcm
    assert len(resampler.finish()) == 0


def test_reset_forgets_the_past() -> None:
    resampler = Resampler(48_000, 16_000)
    fresh = resampler.push(tone(48_000, 0.5))
    resampler.push(np.ones(4_800, dtype=np.float32))
    resampler.reset()
    assert np.array_equal(resampler.push(tone(48_000, 0.5)), fresh)


def test_nonsense_rates_are_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Resampler(0, 16_000)


@pytest.mark.parametrize(("in_rate", "out_rate"), [(24_000, 48_000), (24_000, 44_100), (24_000, 8_000)])
def test_what_was_played_of_the_output_is_known_of_the_input(in_rate: int, out_rate: int) -> None:
    """Checked against the sound itself: where a step of the input comes out."""
    resampler = Resampler(in_rate, out_rate)
    for place in (1_000, 5_001, 11_000):
        pcm = np.zeros(in_rate // 2, dtype=np.float32)
        pcm[place:] = 1.0
        out = np.concatenate([resampler.push(pcm), resampler.finish()])
        risen = int(np.flatnonzero(out > 0.5)[0])
        assert resampler.input_samples(risen) == pytest.approx(place, abs=1 + in_rate / out_rate)
    assert [resampler.input_samples(count) for count in (0, 1)] == [0, -(-in_rate // out_rate)]


def test_a_sample_has_started_as_soon_as_its_time_has_come() -> None:
    resampler = Resampler(24_000, 48_000)
    assert [resampler.input_samples(count) for count in range(5)] == [0, 1, 1, 2, 2]


def test_the_end_of_a_program_that_keeps_a_stream_is_silent() -> None:
    """As a window keeps it: without an owner that Python would delete."""
    program = (
        "import ctypes; from app.audio.resample import Resampler; kept = Resampler(48_000, 16_000); "
        "ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept)); print(len(kept.push([0.0] * 48_000)) > 0)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (ended.stdout.strip(), ended.stderr) == ("True", "")
