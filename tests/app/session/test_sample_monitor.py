"""A sample is played without gaps, and reset by a pause."""

from __future__ import annotations

import numpy as np

from app.audio.wav_streams import WavSpeaker
from app.session.sample_monitor import SampleMonitor

RATE = 8_000


def test_sound_is_held_back_a_little_and_then_unbroken() -> None:
    speaker = WavSpeaker(RATE)
    speaker.open(None, 0.0)
    monitor = SampleMonitor(speaker)
    for start in range(0, 800, 80):
        monitor.hear(np.arange(start + 1, start + 81, dtype=np.float32), RATE)
    pcm = speaker.ring.read(RATE)
    assert not pcm[:480].any()
    assert pcm[480:].tolist() == list(range(1, 801))


def test_a_pause_resets_it() -> None:
    speaker = WavSpeaker(RATE)
    speaker.open(None, 0.0)
    monitor = SampleMonitor(speaker)
    for _ in range(2):
        monitor.hear(np.ones(80, dtype=np.float32), RATE)
        assert speaker.ring.read(RATE).tolist() == [0.0] * 480 + [1.0] * 80
        monitor.pause()


def test_without_a_loudspeaker_nothing_piles_up() -> None:
    speaker = WavSpeaker(RATE)
    SampleMonitor(speaker).hear(np.ones(80, dtype=np.float32), RATE)
    assert speaker.ring.available == 0
