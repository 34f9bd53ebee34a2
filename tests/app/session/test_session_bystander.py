"""A session with a second, quieter voice in the room, on the virtual clock."""

from __future__ import annotations

import pytest

from app.audio.echo_cancellation import AudioProcessing
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.session.commands import Start
from app.session.events import PlaybackFinished, ReplyCut, Timing, TurnOpened
from app.session.session_settings import SessionSettings
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.doubles.scripted_microphone import ScriptedMicrophone
from tests.tools.session_driver import running, silence, speech

pytestmark = pytest.mark.slow

SETTINGS = SessionSettings(
    hear_samples=False,
    turn_taking=TurnTakingSettings(eagerness="off"),
    audio_processing=AudioProcessing("off"),
    speculate="off",
)
QUESTION = (speech(0.6), silence(5.0))
QUIETER = 0.2


def test_a_quieter_voice_pauses_no_reply_and_gets_no_answer() -> None:
    microphone = ScriptedMicrophone(
        silence(0.5),
        *QUESTION * 3,
        *(speech(0.6), silence(1.9), QUIETER * speech(1.2)),  # over the reply
        *(silence(5.0), QUIETER * speech(1.2)),  # in silence
        *(silence(5.0), *QUESTION),
    )
    engine = ScriptedEngine(Script(chunks=4))
    with running(engine, SETTINGS, microphone=microphone) as driver:
        driver.session.send(Start())
        driver.await_event(PlaybackFinished, 5)
    assert [event.turn_id for event in driver.of(TurnOpened)] == [1, 2, 3, 4, 5]
    assert driver.of(ReplyCut) == []
    events = [event.event for event in driver.of(Timing) if event.event.name == "decision"]
    assert not any(event.attributes["kind"] in ("interrupt", "resume") for event in events)
    ignored = [event for event in events if event.attributes["kind"] == "ignore"]
    assert [event.turn_id for event in ignored] == [4, 4]
    for event in ignored:
        assert event.attributes["level_db"] - event.attributes["user_db"] == pytest.approx(-14.0, abs=0.5)  # type: ignore[operator]
