"""A pause in a reply: what is lost or doubled, in records made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from app.audio.playback_ring import FADE_S
from app.duplex.continuity import TOLERANCE_MS, shift_ms
from app.duplex.room import RATE
from engine_runtime.types import Pcm

FADE = round(FADE_S * RATE)
PAUSED_S, RESUMED_S = 1.5, 2.0


def reply() -> Pcm:
    rng = np.random.default_rng(1)
    return (0.1 * rng.standard_normal(3 * RATE)).astype(np.float32)


def record(made: Pcm, lost_ms: int = 0) -> Pcm:
    """The reply from half a second on, faded out from 1.5 s on, faded in at 2 s where the fade began, or
    later by `lost_ms`."""
    resumed_at = RATE + lost_ms * RATE // 1000
    before, after = made[: RATE + FADE].copy(), made[resumed_at:].copy()
    before[-FADE:] *= np.linspace(1, 0, FADE)
    after[:FADE] *= np.linspace(0, 1, FADE)
    parts = [np.zeros(RATE // 2), before, np.zeros(RATE // 2 - FADE), after, np.zeros(RATE)]
    return np.concatenate(parts).astype(np.float32)


def test_a_reply_that_goes_on_where_the_fade_began_has_lost_nothing() -> None:
    made = reply()
    assert shift_ms(record(made), PAUSED_S, RESUMED_S, made) == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("lost_ms", [-100, 50])
def test_lost_and_doubled_samples_are_found(lost_ms: int) -> None:
    made = reply()
    assert shift_ms(record(made, lost_ms), PAUSED_S, RESUMED_S, made) == pytest.approx(lost_ms, abs=0.1)
    assert abs(lost_ms) > TOLERANCE_MS


def test_a_pause_of_the_reply_itself_is_no_loss() -> None:
    made = reply()
    made[RATE - RATE // 10 : RATE + RATE // 5] = 0.0
    assert shift_ms(record(made), PAUSED_S, RESUMED_S, made) == pytest.approx(0, abs=0.1)


def test_a_second_pause_soon_after_is_not_taken_for_a_place_in_the_reply() -> None:
    """The user goes on to speak: what is heard between both pauses resembles another place with a gap."""
    made = reply()
    again = made[RATE : RATE + RATE // 5]
    made[RATE // 4 : RATE // 4 + len(again)] = again
    made[RATE // 4 + len(again) : RATE // 4 + 3 * len(again)] = 0.0
    channel = record(made)
    paused_again_s = RESUMED_S + 0.24
    channel[round(paused_again_s * RATE) :] = 0.0
    assert shift_ms(channel, PAUSED_S, RESUMED_S, made) == pytest.approx(-750, abs=0.1)
    assert shift_ms(channel, PAUSED_S, RESUMED_S, made, until_s=paused_again_s) is None
    assert shift_ms(record(made), PAUSED_S, RESUMED_S, made, since_s=PAUSED_S - 0.1) is None


def test_what_cannot_be_found_is_not_judged() -> None:
    made = reply()
    channel = record(made)
    assert shift_ms(channel, PAUSED_S, RESUMED_S, made[::-1].copy()) is None  # another reply
    assert shift_ms(channel, 0.3, 0.4, made) is None  # nothing before it
    assert shift_ms(channel, PAUSED_S, len(channel) / RATE - 0.1, made) is None  # nothing after it
    assert shift_ms(np.zeros(4 * RATE, dtype=np.float32), PAUSED_S, RESUMED_S, made) is None
