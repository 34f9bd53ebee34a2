"""A microphone of no use is noticed once, and the session goes on."""

from __future__ import annotations

import numpy as np
import pytest

from app.session.commands import Start
from app.session.events import DeviceNoticed, ErrorRaised, TurnCommitted
from app.session.microphone_watch import MicrophoneWatch
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.doubles.scripted_microphone import ScriptedMicrophone
from tests.tools.session_driver import running, silence, speech

S = 1_000_000_000


def test_losses_are_told_once_if_they_are_many_and_close() -> None:
    microphone = ScriptedMicrophone()
    watch = MicrophoneWatch(microphone)
    told: list[str] = []
    for second in range(100):
        microphone.dropped_samples += 480 * (second % 20 == 0)  # one now and then
        told += watch.notices(0.0, second * S)
    assert told == []
    for second in range(100, 120):
        microphone.dropped_samples += 480
        told += watch.notices(0.0, second * S)
    assert told == ["The microphone loses sound. Choose a higher device latency in the settings."]


def test_silence_is_told_once() -> None:
    watch = MicrophoneWatch(ScriptedMicrophone())
    assert watch.notices(4.9, 0) == []
    assert len(watch.notices(5.0, 0)) == 1
    assert watch.notices(50.0, S) == []


@pytest.mark.slow
def test_a_microphone_that_delivers_zeros_is_noticed_and_heard_when_it_works() -> None:
    noise = 1e-4 * np.random.default_rng(1).standard_normal(16_000).astype(np.float32)
    microphone = ScriptedMicrophone(noise, silence(12.0), speech(0.6), silence(2.0))
    with running(ScriptedEngine(Script()), microphone=microphone) as driver:
        driver.session.send(Start())
        driver.await_event(TurnCommitted)
    (notice,) = driver.of(DeviceNoticed)
    assert notice.message.startswith("The microphone delivers silence.")
    assert driver.of(ErrorRaised) == []
