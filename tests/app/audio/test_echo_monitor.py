"""An echo is found, with its delay and its losses; a user who speaks over a reply is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.audio.echo_monitor import EchoMonitor
from app.audio.playback_reference import FRAME_SAMPLES, RATE_HZ
from app.audio.resample import Resampler
from app.audio.wav import read_wav
from app.duplex.room import impulse_response
from engine_runtime.types import Pcm

ROOT = Path(__file__).parents[3]


def spoken(path: Path) -> Pcm:
    pcm, rate = read_wav(path)
    resampler = Resampler(rate, RATE_HZ)
    return np.concatenate([resampler.push(pcm), resampler.finish()])


@pytest.fixture(scope="module")
def reply() -> Pcm:
    names = ("01-hello", "02-who-are-you", "03-three-plus-four", "11-joke")
    return np.concatenate([spoken(ROOT / "assets" / "samples" / f"{name}.wav") for name in names])


@pytest.fixture(scope="module")
def question() -> Pcm:
    return spoken(ROOT / "tests" / "data" / "speech" / "question.wav")


def follow(monitor: EchoMonitor, near: Pcm, far: Pcm, processed: Pcm) -> list[bool]:
    """Compare every 30 ms; whether there was an echo each time."""
    step = 3 * FRAME_SAMPLES
    verdicts = []
    for start in range(0, len(near) - step, step):
        part = slice(start, start + step)
        monitor.add(near[part], far[part], processed[part])
        verdicts.append(monitor.find_echo())
    return verdicts


def room_noise(count: int) -> Pcm:
    return (10 ** (-62 / 20) * np.random.default_rng(3).standard_normal(count)).astype(np.float32)


@pytest.mark.parametrize(("loss_db", "delay_ms"), [(6, 50), (12, 120), (20, 250), (30, 350)])
def test_delay_and_losses_of_an_echo(reply: Pcm, loss_db: float, delay_ms: float) -> None:
    monitor = EchoMonitor()
    near = np.convolve(reply, impulse_response(loss_db, delay_ms))[: len(reply)].astype(np.float32)
    near += room_noise(len(near))
    verdicts = follow(monitor, near, reply, 0.1 * near)
    assert np.mean(verdicts) > 0.3  # the rest are pauses and onsets
    assert monitor.delay_ms == pytest.approx(delay_ms, abs=1)
    assert monitor.erl_db == pytest.approx(loss_db, abs=3)
    assert monitor.erle_db == pytest.approx(20, abs=0.1)


def test_a_user_who_speaks_over_the_reply_is_no_echo(reply: Pcm, question: Pcm) -> None:
    monitor = EchoMonitor()
    near = room_noise(len(reply))
    near[RATE_HZ : RATE_HZ + len(question)] += 0.5 * question
    near[4 * RATE_HZ : 4 * RATE_HZ + len(question)] += 0.3 * question
    verdicts = follow(monitor, near, reply, near)
    assert not any(verdicts)
    assert np.mean(follow(EchoMonitor(), np.roll(reply, 40_000), reply, near)) < 0.02


def test_without_playback_or_without_sound_there_is_none(reply: Pcm, question: Pcm) -> None:
    monitor = EchoMonitor()
    nothing = np.zeros_like(reply)
    assert not any(follow(monitor, np.resize(question, len(reply)), nothing, nothing))
    assert not monitor.is_audible
    assert not any(follow(monitor, nothing, reply, nothing))
    assert (monitor.erl_db, monitor.erle_db, monitor.delay_ms) == (None, None, None)


def test_blocks_of_any_length_are_kept_in_order(reply: Pcm) -> None:
    monitor, other = EchoMonitor(), EchoMonitor()
    near = np.convolve(reply, impulse_response(6, 50))[: len(reply)].astype(np.float32)
    processed = np.float32(0.1) * near
    begin = len(near) // 2
    monitor.add(near[:begin], reply[:begin], processed[:begin])
    for start in range(0, begin, 1_000):
        part = slice(start, min(start + 1_000, begin))
        other.add(near[part], reply[part], processed[part])
    found = []
    for start in range(begin, len(near) - 480, 480):
        whole = slice(start, start + 480)
        monitor.add(near[whole], reply[whole], processed[whole])
        for first in range(start, start + 480, 160):
            part = slice(first, first + 160)
            other.add(near[part], reply[part], processed[part])
        found.append(monitor.find_echo())
        assert (other.find_echo(), other.has_peak) == (found[-1], monitor.has_peak)
        assert (other.erl_db, other.erle_db, other.delay_ms) == (
            monitor.erl_db,
            monitor.erle_db,
            monitor.delay_ms,
        )
    assert any(found)
