"""The room: what its microphone captures of user, loudspeaker and noise."""

from __future__ import annotations

import numpy as np
import pytest

from app.audio.levels import dbfs, rms
from app.duplex.room import RATE, SPEAKER_RATE, EchoRoom
from engine_runtime.types import Pcm

MS = 1_000_000


def capture(room: EchoRoom, seconds: float, played: Pcm | None = None) -> Pcm:
    """What the microphone captures while this is played at RATE."""
    room.open(None, 0.0)
    blocks = []
    for number in range(1, round(seconds * 100) + 1):
        if played is not None:
            start = (number - 1) * SPEAKER_RATE // 100
            room.hear(played[start : start + SPEAKER_RATE // 100])
        room.service(number * 10 * MS)
        blocks.append(room.ring.read(room.ring.available))
    return np.concatenate(blocks)


def test_speech_begins_when_the_room_says_so() -> None:
    room = EchoRoom(None)
    capture(room, 0.5)
    begins_s = room.speak(np.full(RATE // 10, 0.5, dtype=np.float32), after_s=0.2)
    after = capture(room, 1.0)
    assert begins_s == pytest.approx(0.69)
    first = int(np.argmax(np.abs(after) > 0.4))
    assert (first - 0.0) / RATE == pytest.approx(0.2, abs=0.011)


def test_with_headphones_nothing_comes_back() -> None:
    played = 0.3 * np.random.default_rng(1).standard_normal(SPEAKER_RATE).astype(np.float32)
    assert dbfs(rms(capture(EchoRoom(None), 1.0, played))) < -60
    loud = capture(EchoRoom(6, 50), 1.0, played)
    assert dbfs(rms(loud[RATE // 2 :])) > -30


@pytest.mark.parametrize("skew_ppm", [0, 300])
def test_a_long_conversation_needs_no_more_memory_and_keeps_its_echo(skew_ppm: float) -> None:
    rng = np.random.default_rng(1)
    played = 0.3 * rng.standard_normal(6 * SPEAKER_RATE).astype(np.float32)
    room = EchoRoom(6, 50, skew_ppm)
    captured = capture(room, 6.0, played)
    level = [dbfs(rms(captured[second * RATE : (second + 1) * RATE])) for second in range(1, 6)]
    assert max(level) - min(level) < 1
    assert len(room._played) < 3 * RATE


def test_noise_has_its_level() -> None:
    assert rms(capture(EchoRoom(None, noise_rms=0.05), 3.0)) == pytest.approx(0.05, rel=0.15)


def test_the_listener_gets_what_is_played() -> None:
    heard: list[Pcm] = []
    capture(EchoRoom(None, listener=heard.append), 0.5, np.ones(SPEAKER_RATE, dtype=np.float32))
    assert sum(map(len, heard)) == pytest.approx(0.5 * RATE, abs=0.03 * RATE)
