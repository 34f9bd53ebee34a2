"""The measured latency of a stream, free of the jitter of its callbacks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from app.audio.device_streams import DeviceLatency

MS = 1_000_000


def test_the_measured_latency_replaces_the_reported_one() -> None:
    latency = DeviceLatency(0.04)
    for block in range(200):
        latency.add(0.06 + 0.01 * (block % 2), block * 10 * MS)
    assert latency.mean_s == pytest.approx(0.065, abs=1e-3)


def test_blocks_that_come_in_bursts_are_handed_over_evenly() -> None:
    latency = DeviceLatency(0.04)
    handed = [latency.add(0.06 + 0.01 * (block % 2), block // 2 * 20 * MS) for block in range(400)]
    steps = {round((after - before) / MS) for before, after in pairwise(handed[100:])}
    assert steps == {10}


@pytest.mark.parametrize("nonsense", [0.0, -5.0, 1.8e9])
def test_a_driver_without_a_clock_keeps_the_reported_latency(nonsense: float) -> None:
    latency = DeviceLatency(0.04)
    assert latency.add(nonsense, 123) == 123
    assert latency.mean_s == 0.04


def test_a_monitor_is_ahead_of_its_loudspeaker() -> None:
    latency = DeviceLatency(0.04)
    latency.add(-0.014, 0)
    assert latency.mean_s == pytest.approx(-0.014)


def late_by(*late_ms: float) -> int:
    """Gaps found in blocks of 10 ms, each so late."""
    latency = DeviceLatency()
    gaps = 0
    for number, late in enumerate(late_ms):
        latency.add(0.05 + 0.01 * (number % 2), round((10 * (number - number % 2) + late) * MS))
        gaps += latency.ran_dry(10 * MS)
    return gaps


def test_a_lasting_delay_is_a_gap() -> None:
    assert late_by(*[0.0] * 5, *[25.0] * 10) == 1
    assert late_by(*[0.0] * 5, *[25.0] * 5, *[50.0] * 5) == 2


def test_a_single_late_block_and_slow_drift_are_none() -> None:
    assert late_by(*[0.0] * 5, 40.0, *[0.0] * 5) == 0
    assert late_by(*(0.5 * number for number in range(100))) == 0
    assert late_by(*[30.0] * 5, *[0.0] * 5) == 0
