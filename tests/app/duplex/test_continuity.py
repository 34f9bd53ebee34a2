"""A pause in a reply: what is lost or doubled, in records made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from app.audio.playback_ring import FADE_S
from app.duplex.continuity import TOLERANCE_MS, shift_ms
from app.duplex.room import RATE
from engine_runtime.types import Pcm

FADE = round(FADE_S * RATE)


def reply() -> Pcm:
    rng = np.random.default_rng(1)
    return (0.1 * rng.standard_normal(3 * RATE)).astype(np.float32)


def record(made: Pcm, paused_at: int, resumed_at: int) -> tuple[Pcm, float]:
    """The reply from half a second on, paused after `paused_at` samples for 0.4 s, gone on with
    `resumed_at`; and when it goes on."""
    before, after = made[: paused_at + FADE].copy(), made[resumed_at:].copy()
    before[-FADE:] *= np.linspace(1, 0, FADE)
    after[:FADE] *= np.linspace(0, 1, FADE)
    parts = [np.zeros(RATE // 2), before, np.zeros(round(0.4 * RATE)), after, np.zeros(RATE)]
    return np.concatenate(parts).astype(np.float32), (RATE // 2 + len(before)) / RATE + 0.35


def test_what_was_faded_out_is_there_twice() -> None:
    made = reply()
    shift = shift_ms(*record(made, RATE, RATE), made)
    assert shift == pytest.approx(-FADE_S * 1e3, abs=1)


@pytest.mark.parametrize("lost_ms", [-100, 50])
def test_lost_and_doubled_samples_are_found(lost_ms: int) -> None:
    made = reply()
    channel, resumed_s = record(made, RATE, RATE + lost_ms * RATE // 1000)
    shift = shift_ms(channel, resumed_s, made)
    assert shift == pytest.approx(lost_ms - FADE_S * 1e3, abs=1)
    assert abs(lost_ms) > TOLERANCE_MS


def test_what_cannot_be_found_is_not_judged() -> None:
    made = reply()
    channel, resumed_s = record(made, RATE, RATE)
    assert shift_ms(channel, resumed_s, made[::-1].copy()) is None  # another reply
    assert shift_ms(channel, 0.01, made) is None  # nothing before it
    assert shift_ms(channel, len(channel) / RATE - 0.1, made) is None  # nothing after it
    assert shift_ms(np.zeros(RATE, dtype=np.float32), 0.5, made) is None
    end, resumed_s = record(made, len(made) - RATE // 10, len(made) - RATE // 10)  # too short after it
    assert shift_ms(end, resumed_s, made) is None
