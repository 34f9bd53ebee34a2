"""The ring of the loudspeaker: what is discarded or paused fades, and nothing is lost by a pause."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.audio.ring import DUCK_DB, PlaybackRing

FADE = 5
Step = tuple[str, int]
steps = st.lists(
    st.tuples(st.sampled_from(["write", "play", "pause", "resume"]), st.integers(min_value=1, max_value=20)),
    max_size=60,
)


def filled(count: int, value: float = 1.0) -> PlaybackRing:
    ring = PlaybackRing(64, FADE)
    ring.write(np.full(count, value, dtype=np.float32))
    return ring


def play(ring: PlaybackRing, count: int) -> list[float]:
    out = np.full(count, -1.0, dtype=np.float32)
    ring.play_into(out)
    return [round(float(value), 3) for value in out]


FADED = [0.976, 0.794, 0.5, 0.206, 0.024]


def test_a_block_is_filled_with_silence() -> None:
    ring = filled(3)
    assert play(ring, 5) == [1, 1, 1, 0, 0]
    assert not ring.is_silent
    assert ring.consumed == 3


def test_discarded_samples_fade_out_before_what_follows() -> None:
    ring = filled(20)
    assert play(ring, 4) == [1.0] * 4
    ring.discard()
    ring.write(np.full(3, 7.0, dtype=np.float32))
    assert ring.available == 3
    assert play(ring, 10) == [*FADED, 0, 0, 0, 0, 0]
    assert play(ring, 5) == [7, 7, 7, 0, 0]
    assert (ring.consumed, ring.written) == (23, 23)


@pytest.mark.parametrize("block", [1, 2, 3, 20])
def test_a_fade_fits_small_blocks_and_a_short_rest(block: int) -> None:
    ring = filled(3)
    ring.discard()
    heard = list(itertools.chain(*(play(ring, block) for _ in range(4))))
    assert heard[:3] == [FADED[0], FADED[1], FADED[3]]
    assert not any(heard[3:])
    assert ring.available == 0


def test_a_pause_fades_and_keeps_every_sample() -> None:
    ring = filled(30)
    play(ring, 4)
    ring.pause()
    assert play(ring, 3) + play(ring, 7) == [*FADED, 0, 0, 0, 0, 0]
    assert (ring.is_silent, ring.consumed, ring.available) == (True, 4, 26)
    ring.resume()
    assert play(ring, 3) + play(ring, 7) == [*FADED[::-1], 1, 1, 1, 1, 1]
    assert (ring.is_silent, ring.consumed) == (False, 14)


def test_gains_of_both_fades_add_up_to_one() -> None:
    ring = filled(30, 0.5)
    ring.pause()
    out = np.array(play(ring, FADE))
    ring.resume()
    assert out + np.array(play(ring, FADE)) == pytest.approx(0.5, abs=2e-3)


def test_a_pause_that_ends_at_once_finishes_its_fade() -> None:
    ring = filled(30)
    ring.pause()
    assert play(ring, 2) == FADED[:2]
    ring.resume()
    assert play(ring, 3) == FADED[2:]
    assert play(ring, 5) == FADED[::-1]


def test_a_pause_during_the_fade_in_starts_from_its_gain() -> None:
    ring = filled(30)
    ring.pause()
    play(ring, 10)
    ring.resume()
    play(ring, 3)  # the last gain is 0.5, the next one would be 0.794
    ring.pause()
    heard = play(ring, 5)
    assert heard[0] == pytest.approx(0.794 * FADED[0], abs=2e-3)
    assert heard == sorted(heard, reverse=True)
    assert heard[-1] == FADED[-1]


def test_what_is_discarded_while_paused_is_not_heard() -> None:
    ring = filled(20)
    ring.pause()
    play(ring, 10)
    ring.discard()
    ring.write(np.full(3, 7.0, dtype=np.float32))
    assert play(ring, 4) == [7, 7, 7, 0]  # another reply, without a fade


def test_a_pause_before_the_first_sample_is_silence() -> None:
    ring = PlaybackRing(64, FADE)
    ring.pause()
    play(ring, 4)
    ring.write(np.ones(20, dtype=np.float32))
    assert not any(play(ring, 4))
    ring.resume()
    assert play(ring, 6) == [*FADED[::-1], 1]


@given(steps)
def test_random_pauses_lose_and_repeat_nothing_outside_the_fades(script: list[Step]) -> None:
    """Two rings with the same fate: ones show the gain, numbers 1, 2, 3 ... times the gain which sample."""
    gains, numbers = PlaybackRing(32, FADE), PlaybackRing(32, FADE)
    heard: list[tuple[int, float]] = []
    count = 0
    for action, size in [*script, ("resume", 0), *[("play", 20)] * 10]:
        if action == "write":
            count += numbers.write(np.arange(count + 1, count + size + 1, dtype=np.float32))
            gains.write(np.ones(size, dtype=np.float32))
        elif action == "play":
            gain, number = np.empty(size, dtype=np.float32), np.empty(size, dtype=np.float32)
            assert gains.play_into(gain) == numbers.play_into(number)
            heard += [(round(n / g), float(g)) for n, g in zip(number, gain, strict=True) if g > 0]
        else:
            for ring in (gains, numbers):
                (ring.pause if action == "pause" else ring.resume)()
    assert numbers.consumed == numbers.written == count
    assert {number for number, _ in heard} == set(range(1, count + 1))
    steps = [after - before for (before, _), (after, _) in itertools.pairwise(heard)]
    assert all(step == 1 or -FADE < step <= 1 for step in steps)
    faded = {
        number + offset
        for (number, _), step in zip(heard, steps, strict=False)
        if step != 1
        for offset in range(-2 * FADE, 2 * FADE)
    }
    once = [number for number, gain in heard if gain == 1.0 and number not in faded]
    assert once == sorted(set(once))
    assert all(gain == 1.0 for number, gain in heard if number not in faded and number > FADE)


def test_a_new_gain_is_reached_within_a_block_and_kept() -> None:
    ring = filled(12)
    out = np.zeros(4, dtype=np.float32)
    heard = []
    for gain in (1.0, 0.25, 0.25):
        ring.play_into(out, gain)
        heard.append(out.tolist())
    assert heard == [[1, 1, 1, 1], [1, 0.75, 0.5, 0.25], [0.25] * 4]
    assert ring.consumed == 12


def test_what_the_device_did_not_play_is_played_by_the_next_one() -> None:
    ring = PlaybackRing(64, FADE)
    ring.write(np.arange(1, 41, dtype=np.float32))
    play(ring, 20)
    ring.rewind(6)
    assert ring.consumed == 14
    heard = play(ring, 30)
    assert heard[FADE:26] == [15 + FADE + index for index in range(26 - FADE)]
    assert not any(heard[26:])


def test_nothing_that_was_discarded_comes_back() -> None:
    ring = filled(40)
    play(ring, 10)
    ring.discard()
    play(ring, 20)
    play(ring, 4)
    consumed = ring.consumed
    ring.rewind(30)
    assert ring.consumed == consumed
    assert not any(play(ring, 8))


def test_only_what_is_kept_is_rewound() -> None:
    ring = PlaybackRing(32, FADE)
    for _ in range(4):
        ring.write(np.ones(16, dtype=np.float32))
        play(ring, 16)
    ring.rewind(100)
    assert ring.consumed == ring.written - ring.capacity


DUCK = 12
DUCKED = 10 ** (-DUCK_DB / 20)


def ducking(count: int) -> PlaybackRing:
    ring = PlaybackRing(128, FADE, DUCK)
    ring.write(np.ones(count, dtype=np.float32))
    return ring


def gains(ring: PlaybackRing, count: int, block: int) -> list[float]:
    """The gain of each of the next samples, played in blocks."""
    return list(itertools.chain(*(play(ring, block) for _ in range(count // block))))


@pytest.mark.parametrize("block", [1, 4, 20])
def test_a_ducked_reply_goes_on_softly_and_comes_back_without_a_step(block: int) -> None:
    ring = ducking(120)
    ring.duck()
    down = gains(ring, 40, block)
    assert down[:DUCK] == sorted(down[:DUCK], reverse=True)
    assert down[DUCK - 1 :] == pytest.approx([DUCKED] * (41 - DUCK), abs=1e-3)
    ring.resume()
    up = gains(ring, 40, block)
    assert up[:DUCK] == sorted(up[:DUCK])
    assert up[DUCK - 1 :] == [1.0] * (41 - DUCK)
    decibels = 20 * np.log10([1.0, *down, *up])
    assert np.abs(np.diff(decibels)).max() < 1.6 * DUCK_DB / DUCK
    assert (ring.consumed, ring.ducked_at) == (80, None)


def test_the_ring_knows_its_first_ducked_sample() -> None:
    ring = ducking(60)
    play(ring, 7)
    ring.duck()
    assert ring.ducked_at is None
    play(ring, 5)
    play(ring, 5)
    assert ring.ducked_at == 7


def test_a_ducked_reply_that_is_discarded_stays_soft_and_the_next_one_is_not_ducked() -> None:
    ring = ducking(40)
    ring.duck()
    play(ring, 20)
    ring.discard()
    ring.write(np.ones(3, dtype=np.float32))
    assert play(ring, FADE) == pytest.approx([DUCKED * gain for gain in FADED], abs=1e-3)
    assert play(ring, 5) == [1, 1, 1, 0, 0]


def test_ducking_multiplies_with_the_volume() -> None:
    ring = ducking(60)
    ring.duck()
    play(ring, 20)
    out = np.zeros(20, dtype=np.float32)
    ring.play_into(out, 0.5)
    ring.play_into(out, 0.5)
    assert out == pytest.approx([DUCKED / 2] * 20, abs=1e-4)
