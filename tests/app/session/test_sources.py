"""A microphone of no use is noticed once, and the session goes on; a sample is heard without gaps."""

from __future__ import annotations

import numpy as np
import pytest

from app.audio.wav_streams import WavSpeaker
from app.session.commands import Start
from app.session.events import DeviceNoticed, ErrorRaised, MicrophoneSilent, TurnCommitted
from app.session.sources import MicrophoneWatch, SampleMonitor
from engine_runtime.errors import Problem
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.doubles.scripted_microphone import ScriptedMicrophone
from tests.tools.session_driver import running, silence, speech

S = 1_000_000_000
RATE = 8_000


def test_losses_are_told_once_if_they_are_many_and_close() -> None:
    microphone = ScriptedMicrophone()
    watch = MicrophoneWatch(microphone)
    told: list[Problem] = []
    for second in range(100):
        microphone.dropped_samples += 480 * (second % 20 == 0)  # one now and then
        told += watch.notices(0.0, second * S, "USB headset")
    assert told == []
    for second in range(100, 120):
        microphone.dropped_samples += 480
        told += watch.notices(0.0, second * S, "USB headset")
    assert [str(problem) for problem in told] == [
        "The microphone USB headset loses sound. Choose a higher device latency in the settings."
    ]


def test_silence_is_told_once() -> None:
    watch = MicrophoneWatch(ScriptedMicrophone())
    assert watch.notices(4.9, 0, "USB headset") == []
    assert not watch.is_silent
    assert [str(problem) for problem in watch.notices(5.0, 0, "USB headset")] == [
        "The microphone USB headset delivers silence. Check that it is not muted, or choose another one."
    ]
    assert watch.notices(50.0, S, "USB headset") == []
    assert watch.is_silent
    assert watch.notices(0.0, S, "USB headset") == []
    assert not watch.is_silent


@pytest.mark.slow
@pytest.mark.parametrize("bits", [0, 1])
def test_a_microphone_without_sound_is_noticed_and_heard_when_it_works(bits: int) -> None:
    """Zeros, or only the last bit of 16."""
    chance = np.random.default_rng(1)
    noise = 1e-4 * chance.standard_normal(16_000).astype(np.float32)
    nothing = (chance.integers(-bits, bits, 12 * 16_000, endpoint=True) / 32_768).astype(np.float32)
    microphone = ScriptedMicrophone(noise, nothing, speech(0.6), silence(2.0))
    with running(ScriptedEngine(Script()), microphone=microphone) as driver:
        driver.session.send(Start())
        driver.await_event(TurnCommitted)
    (notice,) = driver.of(DeviceNoticed)
    assert str(notice.problem).startswith("The microphone script delivers silence.")
    assert driver.of(ErrorRaised) == []
    assert [event.on for event in driver.of(MicrophoneSilent)] == [True, False]


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
