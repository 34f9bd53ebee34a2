"""The line of a recording: exact for exact clocks, gaps filled, drift taken out."""

from __future__ import annotations

import numpy as np
import pytest

from app.audio.stereo_track import StereoTrack
from engine_runtime.types import Pcm

RATE = 16_000
BLOCK = RATE // 100
S = 1_000_000_000


def noise(count: int, seed: int = 0) -> Pcm:
    return np.random.default_rng(seed).uniform(-0.5, 0.5, count).astype(np.float32)


def ns(samples: float, rate: int = RATE) -> int:
    return round(samples * S / rate)


def test_exact_clocks_give_exact_places() -> None:
    track = StereoTrack(RATE, origin_ns=5 * S)
    captured, played = noise(3 * RATE, 1), noise(2 * RATE, 2)
    parts = []
    for first in range(0, 3 * RATE, BLOCK):
        now = 5 * S + ns(first + BLOCK)
        begun = first == RATE // 2
        track.hear(captured[first : first + BLOCK], RATE, 5 * S + ns(first), is_new=not first, is_exact=True)
        if RATE // 2 <= first < RATE // 2 + 2 * RATE:
            at = first - RATE // 2
            track.play(played[at : at + BLOCK], RATE, 5 * S + ns(first), is_new=begun)
        parts.append(track.take(now))
    both = np.concatenate([*parts, track.take(8 * S, is_final=True)])
    assert np.array_equal(both[:, 0], captured)
    assert np.array_equal(both[RATE // 2 : RATE // 2 + 2 * RATE, 1], played)
    assert not both[: RATE // 2, 1].any()
    assert not both[RATE // 2 + 2 * RATE :, 1].any()


def test_a_source_that_waits_leaves_a_gap_of_the_same_length() -> None:
    track = StereoTrack(RATE, 0)
    sound = noise(2 * BLOCK)
    assert track.hear(sound[:BLOCK], RATE, 0, is_new=True, is_exact=True) == 0
    assert track.hear(sound[BLOCK:], RATE, ns(BLOCK + 777), is_new=False, is_exact=True) == BLOCK + 777
    both = track.take(S, is_final=True)
    assert np.array_equal(both[:BLOCK, 0], sound[:BLOCK])
    assert not both[BLOCK : BLOCK + 777, 0].any()
    assert np.array_equal(both[BLOCK + 777 :, 0], sound[BLOCK:])


def test_late_callbacks_of_a_microphone_do_not_tear_its_sound() -> None:
    track, sound, jitter = StereoTrack(RATE, 0), noise(10 * RATE), np.random.default_rng(3)
    for first in range(0, len(sound), BLOCK):
        late = int(jitter.uniform(0, 0.02) * S)
        track.hear(sound[first : first + BLOCK], RATE, ns(first) + late, is_new=not first, is_exact=False)
    both = track.take(20 * S, is_final=True)
    begins = len(both) - len(sound)
    assert 0 <= begins <= 0.02 * RATE
    assert np.array_equal(both[begins:, 0], sound)


@pytest.mark.slow
@pytest.mark.parametrize("ppm", [-300, 300])
def test_drift_between_the_devices_is_taken_out(ppm: int) -> None:
    """A click that is played each second stays within 5 ms of the click that is captured then."""
    track, seconds = StereoTrack(RATE, 0), 60
    captured, played = np.zeros(seconds * RATE, np.float32), np.zeros(seconds * RATE, np.float32)
    captured[RATE // 2 :: RATE] = 1.0
    speed = 1 + ppm / 1e6
    clicks = (np.arange(RATE // 2, seconds * RATE, RATE) * speed).round().astype(int)
    played[clicks[clicks < len(played)]] = 1.0
    parts = []
    for first in range(0, seconds * RATE, BLOCK):
        block = slice(first, first + BLOCK)
        track.hear(captured[block], RATE, ns(first), is_new=not first, is_exact=False)
        track.play(played[block], RATE, ns(first / speed), is_new=not first)
        parts.append(track.take(ns(first + BLOCK)))
    both = np.concatenate(parts)
    for click in range(RATE // 2, (seconds - 1) * RATE, RATE):
        near = both[click - RATE // 4 : click + RATE // 4, 1]
        assert abs(int(near.argmax()) - RATE // 4) <= 0.005 * RATE
        assert both[click, 0] == 1.0


def test_other_rates_are_converted() -> None:
    track = StereoTrack(RATE, 0)
    tone = np.sin(2 * np.pi * 300 * np.arange(48_000) / 48_000).astype(np.float32)
    for first in range(0, 48_000, 480):
        track.hear(tone[first : first + 480], 48_000, ns(first, 48_000), is_new=not first, is_exact=True)
        track.play(tone[first : first + 480], 48_000, ns(first, 48_000), is_new=not first)
    both = track.take(S, is_final=True)
    wanted = np.sin(2 * np.pi * 300 * np.arange(len(both)) / RATE)
    assert len(both) == pytest.approx(RATE, abs=0.05 * RATE)
    assert np.abs(both[500:-500] - wanted[500:-500, None]).max() < 0.01


def test_the_line_stands_still_while_both_devices_are_closed() -> None:
    track = StereoTrack(RATE, 0)
    track.play(noise(RATE), RATE, 0, is_new=True)
    written = [track.take(ms * S // 1000) for ms in range(0, 10_000, 50)]
    length = sum(map(len, written))
    assert length == pytest.approx(3 * RATE, abs=0.1 * RATE)
    assert track.frame_at(3_600 * S) == length
    track.play(noise(RATE), RATE, 3_600 * S, is_new=True)
    assert track.frame_at(3_600 * S) == pytest.approx(length, abs=1)
    assert length + RATE - 1 <= length + len(track.take(3_700 * S, is_final=True)) <= length + RATE + 1


def test_a_line_is_continued() -> None:
    track = StereoTrack(RATE, origin_ns=S, first_frame=1_000)
    assert track.hear(noise(BLOCK), RATE, S, is_new=True, is_exact=True) == 1_000
    assert len(track.take(S, is_final=True)) == BLOCK


def test_a_standstill_takes_no_room() -> None:
    track = StereoTrack(RATE, 0)
    sound = noise(2 * BLOCK)
    track.hear(sound[:BLOCK], RATE, 0, is_new=True, is_exact=False)
    track.pause(ns(BLOCK))
    after = 3_600 * S
    parts = [track.take(after)]
    assert track.hear(sound[BLOCK:], RATE, after, is_new=True, is_exact=False) == BLOCK
    parts.append(track.take(after + ns(BLOCK), is_final=True))
    assert np.array_equal(np.concatenate(parts)[:, 0], sound)
