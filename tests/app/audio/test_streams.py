"""Samples and their times belong together, whenever the other thread looks."""

from __future__ import annotations

import numpy as np
import pytest

from app.audio.ring import Ring
from app.audio.streams import PlaybackClock, PlayedTap, SampleClock
from engine_runtime.types import Pcm

RATE, BLOCK = 16_000, np.ones(160, dtype=np.float32)
MS = 1_000_000


class Observed(Ring):
    """Lets the reader read in the middle of a write, and the writer write right after a read."""

    def __init__(self, tap: PlayedTap) -> None:
        super().__init__(tap.ring.capacity)
        self.tap = tap
        self.reads: list[tuple[Pcm, int]] | None = None
        self.written_after_read: int | None = None

    def write(self, block: Pcm) -> int:
        count = super().write(block)
        if self.reads is not None:
            self.reads.append(self.tap.read())
        return count

    def read(self, max_samples: int) -> Pcm:
        pcm = super().read(max_samples)
        if self.written_after_read is not None:
            time_ns, self.written_after_read = self.written_after_read, None
            self.tap.write(BLOCK, time_ns)
        return pcm


def observed_tap() -> tuple[PlayedTap, Observed]:
    tap = PlayedTap(RATE)
    tap.ring = ring = Observed(tap)
    return tap, ring


def test_a_sample_that_can_be_read_has_a_time() -> None:
    tap, ring = observed_tap()
    ring.reads = []
    tap.write(BLOCK, 5 * MS)
    tap.write(BLOCK, 900 * MS)  # after a gap
    assert [(len(pcm), time_ns) for pcm, time_ns in ring.reads] == [(160, 5 * MS), (160, 900 * MS)]


def test_sound_of_before_a_gap_keeps_its_time_although_sound_after_it_comes_while_it_is_read() -> None:
    tap, ring = observed_tap()
    for number in range(1_000):
        tap.write(BLOCK, number * 10 * MS)
    assert ring.free < 160
    ring.written_after_read = 60_000 * MS
    pcm, time_ns = tap.read()
    assert len(pcm) > RATE
    assert time_ns == 0
    pcm, time_ns = tap.read()
    assert (len(pcm), time_ns) == (160, 60_000 * MS)


def test_a_clock_continues_from_the_latest_block() -> None:
    clock = SampleClock(RATE)
    assert clock.time_ns(0) is None
    assert clock.index_at(0) is None
    clock.stamp(160, 700 * MS)
    assert clock.time_ns(320) == 710 * MS
    assert clock.index_at(690 * MS) == 0.0


def test_a_playback_clock_gives_no_time_of_a_block_that_was_not_stamped() -> None:
    clock = PlaybackClock(RATE)
    assert clock.time_ns(0) is None
    assert clock.index_at(0) is None
    clock.stamp(0, 160, 160, 0)
    assert clock.time_ns(159) == round(159e9 / RATE)
    assert clock.time_ns(160) is None


@pytest.mark.parametrize("first", [160, 200], ids=["continues", "after a discarded part"])
@pytest.mark.parametrize("frames", [160, 240], ids=["asked late", "ran empty"])
def test_each_run_of_samples_keeps_its_time(first: int, frames: int) -> None:
    clock = PlaybackClock(RATE)
    clock.stamp(0, 160, frames, 0)
    clock.stamp(160, 0, 160, 20 * MS)
    clock.stamp(first, 160, 160, 700 * MS)
    clock.stamp(first + 160, 160, 160, 710 * MS)
    assert [clock.time_ns(index) for index in (0, 80, first, first + 160, first + 320)] == [
        0,
        5 * MS,
        700 * MS,
        710 * MS,
        None,
    ]
    handed = [clock.index_at(ms * MS) for ms in (-5, 5, 10, 699, 705, 715, 800)]
    assert handed == [0, 80, 160, 160, first + 80, first + 240, first + 320]


def test_late_callbacks_make_no_gap() -> None:
    clock = PlaybackClock(RATE)
    for number in range(8):
        clock.stamp(160 * number, 160, 160, number // 4 * 40 * MS)  # four at a time
    assert clock.index_at(40 * MS) == 7 * 160
    assert clock.time_ns(0) == (40 - 70) * MS, "counted back from the latest block"


def test_a_playback_clock_keeps_what_a_device_may_still_hold() -> None:
    clock = PlaybackClock(RATE)
    for number in range(1_000):
        clock.stamp(160 * number, 160, 160, number * 100 * MS)
    assert clock.index_at(97_005 * MS) == 970 * 160 + 80
    assert clock.index_at(0) == 969 * 160
