"""The guard holds back the loudspeaker's own voice and lets the user's through."""

from __future__ import annotations

import numpy as np
import pytest

from app.dialog.echo_guard import EchoGuard


def reply_levels(frames: int, seed: int = 0) -> np.ndarray:
    """Levels of something like speech: syllables and gaps."""
    rng = np.random.default_rng(seed)
    return np.abs(np.sin(np.arange(frames) / 3)) * rng.uniform(0.05, 0.2, frames)


def echo_of(played: np.ndarray, coupling: float, delay: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    late = np.concatenate([np.zeros(delay), played[: len(played) - delay]])
    return coupling * late * rng.uniform(0.7, 1.3, len(played)) + 0.001


@pytest.mark.parametrize("coupling", [0.01, 0.1, 0.4, 1.2])
@pytest.mark.parametrize("delay", [0, 2, 5])
def test_an_echo_alone_is_an_echo(coupling: float, delay: int) -> None:
    guard = EchoGuard()
    played = reply_levels(200)
    verdicts = [guard.update(m, p) for m, p in zip(echo_of(played, coupling, delay), played, strict=True)]
    assert all(verdicts[delay + 1 :])


@pytest.mark.parametrize("coupling", [0.0, 0.1, 0.4])
def test_a_user_louder_than_the_echo_is_heard_at_once(coupling: float) -> None:
    guard = EchoGuard()
    played = reply_levels(100)
    mic = echo_of(played, coupling, 2)
    mic[60:80] += 2.5 * max(coupling, 0.1) * 0.2
    verdicts = [guard.update(m, p) for m, p in zip(mic, played, strict=True)]
    assert all(verdicts[3:60])
    assert not any(verdicts[61:70])


def test_with_a_headset_a_quiet_voice_is_enough() -> None:
    guard = EchoGuard()
    for level in reply_levels(60):
        guard.update(0.0005, level)
    assert not guard.update(0.03, 0.2)


def test_without_playback_nothing_is_an_echo() -> None:
    guard = EchoGuard()
    assert not any(guard.update(level, 0.0) for level in reply_levels(50))
    assert guard.coupling == EchoGuard().coupling


def test_the_end_of_a_reply_still_echoes_for_a_moment() -> None:
    guard = EchoGuard()
    played = reply_levels(100)
    for m, p in zip(echo_of(played, 0.3, 3), played, strict=True):
        guard.update(m, p)
    assert all(guard.update(0.3 * level, 0.0) for level in reversed(played[-5:]))
    for _ in range(20):
        guard.update(0.0, 0.0)
    assert not guard.update(0.05, 0.0)


def test_a_volume_that_is_turned_down_is_learnt() -> None:
    guard = EchoGuard()
    played = reply_levels(400)
    for m, p in zip(echo_of(played[:200], 0.4, 2), played[:200], strict=True):
        guard.update(m, p)
    loud = guard.coupling
    for m, p in zip(echo_of(played[200:], 0.05, 2), played[200:], strict=True):
        guard.update(m, p)
    assert guard.coupling < loud / 4
