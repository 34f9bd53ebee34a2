"""Checks of microphone and loudspeaker in a session on the virtual clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.audio.wav import read_wav
from app.audio.wav_streams import WavMicrophone, WavSpeaker
from app.session.commands import CancelTurn, CheckLoudspeaker, CheckMicrophone, RescanDevices, Start
from app.session.events import (
    ErrorRaised,
    MicrophoneVerdict,
    SessionState,
    SoundChecked,
    StateChanged,
    TurnOpened,
)
from app.session.sound_check import RECORD_S, chime, rate_recording
from engine_runtime.types import Pcm
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.scripted_microphone import ScriptedMicrophone
from tests.tools.session_driver import running, silence, speech, write_question

SPEECH = Path(__file__).parents[2] / "data" / "speech" / "question.wav"


def test_the_chime_has_no_click() -> None:
    pcm = chime()
    assert abs(pcm[0]) == abs(pcm[-1]) == 0.0
    assert np.abs(np.diff(pcm)).max() < 0.06
    assert 0.2 < np.abs(pcm).max() <= 0.25


def test_the_loudspeaker_is_heard_while_the_devices_are_closed() -> None:
    heard: list[Pcm] = []
    with running(ScriptedEngine(), speaker=WavSpeaker(24_000, heard.append)) as driver:
        driver.session.send(CheckLoudspeaker())
        driver.await_event(SoundChecked, 2)
    assert [event.phase for event in driver.of(SoundChecked)] == ["playing", "done"]
    played = np.concatenate(heard)
    first = int(np.flatnonzero(played)[0])
    np.testing.assert_allclose(played[first : first + 1_000], chime()[1:1_001], atol=1e-3)


def test_what_the_microphone_heard_is_played_and_starts_no_turn(tmp_path: Path) -> None:
    heard: list[Pcm] = []
    recording = write_question(tmp_path / "voice.wav", silence(0.2), speech(3.5), silence(4.0))
    microphone = WavMicrophone(recording)
    with running(ScriptedEngine(), speaker=WavSpeaker(16_000, heard.append), microphone=microphone) as driver:
        driver.session.send(CheckMicrophone())
        driver.session.send(Start())
        driver.session.send(CheckMicrophone())
        driver.await_event(SoundChecked, 3)
    assert driver.of(ErrorRaised)[0].problem.what_is_wrong.startswith("The microphone is closed")
    assert [event.phase for event in driver.of(SoundChecked)] == ["recording", "playing", "done"]
    verdicts = [event.verdict for event in driver.of(SoundChecked)]
    assert verdicts == [None, "good", None]
    assert driver.of(SoundChecked)[1].level_dbfs == pytest.approx(20 * np.log10(0.3 / np.sqrt(2)), abs=0.5)
    played = np.concatenate(heard)
    sounding = np.flatnonzero(np.abs(played) > 0.05)
    assert (sounding[-1] - sounding[0]) / 16_000 == pytest.approx(RECORD_S - 0.2, abs=0.15)
    assert driver.of(TurnOpened) == []


def test_a_check_is_stopped_as_a_reply_is() -> None:
    with running(ScriptedEngine()) as driver:
        driver.session.send(CheckLoudspeaker())
        driver.session.send(CancelTurn())
        driver.await_event(SoundChecked, 2)
        driver.until(lambda: driver.of(StateChanged)[-1].state is SessionState.STOPPED)
    assert [event.phase for event in driver.of(SoundChecked)] == ["playing", "done"]


@pytest.mark.parametrize(
    ("peak", "probability", "verdict"),
    [
        (0.3, 0.9, "good"),
        (1.0, 0.9, "good"),
        (1.5, 0.9, "clipping"),
        (0.3, 0.1, "no_speech"),
        (0.001, 0.9, "quiet"),
        (0.001, 0.1, "quiet"),
    ],
)
def test_the_verdict_on_a_recording(peak: float, probability: float, verdict: MicrophoneVerdict) -> None:
    voice, _ = read_wav(SPEECH)
    pcm = np.clip(voice * (peak / np.abs(voice).max()), -1.0, 1.0)
    found, level_dbfs = rate_recording(pcm, 16_000, probability, is_silent=False)
    assert found == verdict
    assert 20 * np.log10(peak) - 15 < level_dbfs < 20 * np.log10(min(peak, 1.0))


def test_a_microphone_without_sound_is_silent_and_nothing_is_played() -> None:
    bit = (np.random.default_rng(1).integers(-1, 1, 64_000, endpoint=True) / 32_768).astype(np.float32)
    with running(ScriptedEngine(), microphone=ScriptedMicrophone(bit)) as driver:
        driver.session.send(Start())
        driver.session.send(CheckMicrophone())
        driver.await_event(SoundChecked, 2)
    assert [(event.phase, event.verdict) for event in driver.of(SoundChecked)] == [
        ("recording", None),
        ("done", "silent"),
    ]


def test_a_check_ends_with_its_microphone() -> None:
    microphone = ScriptedMicrophone(speech(8.0))
    with running(ScriptedEngine(), microphone=microphone) as driver:
        driver.session.send(Start())
        driver.session.send(CheckMicrophone())
        driver.await_event(SoundChecked)
        driver.session.send(RescanDevices())
        driver.await_event(SoundChecked, 2)
    assert [(event.phase, event.verdict) for event in driver.of(SoundChecked)] == [
        ("recording", None),
        ("done", None),
    ]
