"""A whole session with an end-of-turn detector, on a virtual clock: commits, reopenings, their trace."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from app.audio.wav_streams import WavMicrophone
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.session.clocks import VirtualClock
from app.session.commands import ApplySettings, NewConversation, PlaySample, Start
from app.session.events import (
    PlaybackFinished,
    ReplyFinished,
    SampleFinished,
    Timing,
    TurnCommitted,
    TurnExtended,
)
from app.session.session_settings import SessionSettings
from engine_runtime.timing import TimingEvent
from tests.doubles.scripted_detector import ScriptedDetector
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.doubles.scripted_microphone import ScriptedMicrophone
from tests.tools.session_driver import Driver, running, silence, speech, write_question

FRAME_MS = 32


def named(driver: Driver, *names: str) -> list[TimingEvent]:
    """The timing events of these names."""
    return [event.event for event in driver.of(Timing) if event.event.name in names]


def decisions(driver: Driver) -> list[tuple[str, object]]:
    """What was decided on the end of the turn, in order: (kind, stage or reason)."""
    known = [event.attributes for event in named(driver, "decision")]
    kinds = [(str(each["kind"]), each.get("stage", each.get("reason", ""))) for each in known]
    return [each for each in kinds if each[0] != "speculate"]


def ask(driver: Driver, question: Path) -> None:
    driver.session.send(PlaySample(question))
    driver.await_event(SampleFinished)


@pytest.fixture
def question(tmp_path: Path) -> Path:
    return write_question(tmp_path / "question.wav", silence(0.8), speech(1.0), silence(0.3))


@pytest.fixture
def hesitant(tmp_path: Path) -> Path:
    """A question with a pause of 1 s in it."""
    return write_question(
        tmp_path / "hesitant.wav", silence(0.8), speech(1.0), silence(1.0), speech(0.6), silence(0.3)
    )


def test_a_finished_question_is_committed_soon(question: Path) -> None:
    detector = ScriptedDetector(0.99)
    with running(ScriptedEngine(), detector=detector) as driver:
        ask(driver, question)
        (committed,) = driver.of(TurnCommitted)
        (endpointing,) = named(driver, "endpointing")
        (rated,) = named(driver, "end_of_turn")
        assert decisions(driver) == [("pause", ""), ("pause", "likely"), ("confirm", "likely")]
        at_s = [float(event.attributes["at_s"]) for event in named(driver, "decision")]
    # By the session's clock: speculated after 96 ms of silence, committed after 350, in frames of 32 ms.
    assert at_s == sorted(at_s)
    assert at_s[-1] - at_s[0] == pytest.approx(0.256, abs=0.015)
    assert committed.seconds == pytest.approx(1.0, abs=0.07)
    assert endpointing.duration_ms == pytest.approx(350, abs=60)
    assert endpointing.attributes["silence_ms"] == 352
    assert rated.attributes["probability"] == 0.99
    assert rated.attributes["asked_ms"] == 160
    assert 160 <= float(rated.attributes["answered_ms"]) <= 160 + 2 * FRAME_MS
    # Pre-roll, speech and the pause up to the question, and nothing before.
    (pcm,) = detector.asked
    assert len(pcm) / 16_000 == pytest.approx(0.32 + 1.0 + 0.16, abs=0.08)
    assert np.abs(pcm).max() == pytest.approx(0.3, abs=0.02)


def test_a_hesitation_is_waited_for(hesitant: Path) -> None:
    detector = ScriptedDetector(0.05, 0.99)
    with running(ScriptedEngine(), detector=detector) as driver:
        ask(driver, hesitant)
        assert decisions(driver) == [
            ("pause", ""),
            ("pause", "unlikely"),
            ("roll_back", ""),
            ("pause", ""),
            ("pause", "likely"),
            ("confirm", "likely"),
        ]
        (committed,) = driver.of(TurnCommitted)
    assert committed.seconds == pytest.approx(2.6, abs=0.07)
    # The last question is about the turn as a whole, with its pause.
    assert len(detector.asked[-1]) / 16_000 == pytest.approx(0.32 + 2.6 + 0.16, abs=0.08)


def test_silence_alone_cuts_that_hesitation(hesitant: Path) -> None:
    with running(ScriptedEngine()) as driver:
        ask(driver, hesitant)
        assert ("confirm", "silence") in decisions(driver)
        assert len(driver.of(TurnCommitted)) == 2


@pytest.mark.slow
def test_a_turn_that_was_committed_too_early_is_reopened(tmp_path: Path) -> None:
    path = write_question(
        tmp_path / "long.wav", silence(0.8), speech(0.8), silence(0.8), speech(0.8), silence(2.0)
    )
    gate = threading.Event()
    engine = ScriptedEngine(Script(gate=gate))
    detector = ScriptedDetector(0.99)
    with running(engine, microphone=WavMicrophone(path), detector=detector) as driver:
        driver.session.send(Start())
        driver.await_event(TurnCommitted, 2)
        gate.set()
        driver.await_event(ReplyFinished)
        decided = [("pause", ""), ("pause", "likely"), ("confirm", "likely")]
        assert decisions(driver) == [*decided, ("roll_back", ""), *decided]
        assert len(driver.of(TurnExtended)) == 1
        assert engine.names_of(1) == ["open", "push", "commit", "reopen", "push", "commit"]
    # The second question is about the whole turn.
    assert len(detector.asked[-1]) / 16_000 == pytest.approx(0.32 + 2.4 + 0.16, abs=0.08)


def ratings(driver: Driver) -> list[tuple[float, float]]:
    """Probability, and the shift by what is known of the voice, of each rated pause."""
    known = [event.attributes for event in named(driver, "decision")]
    return [(float(each["probability"]), float(each["shift"])) for each in known if "shift" in each]


@pytest.mark.slow
@pytest.mark.parametrize("is_new", [False, True], ids=["same conversation", "new conversation"])
def test_a_voice_is_known_for_one_conversation(question: Path, is_new: bool) -> None:
    with running(ScriptedEngine(), detector=ScriptedDetector(0.3)) as driver:
        ask(driver, question)
        driver.await_event(PlaybackFinished)
        if is_new:
            driver.session.send(NewConversation())
        driver.session.send(PlaySample(question))
        driver.await_event(TurnCommitted, 2)
        (first, no_shift), (second, shift) = ratings(driver)
    assert (first, no_shift) == (0.3, 0.0)
    assert (shift > 0.0) is not is_new
    assert (second > 0.3) is not is_new


@pytest.mark.slow
def test_the_voice_of_a_sample_is_not_that_of_the_user(question: Path) -> None:
    microphone = ScriptedMicrophone(silence(0.8), speech(1.0))
    with running(ScriptedEngine(), microphone=microphone, detector=ScriptedDetector(0.3)) as driver:
        ask(driver, question)
        driver.await_event(PlaybackFinished)
        driver.session.send(Start())
        driver.await_event(TurnCommitted, 2)
        assert ratings(driver) == [(0.3, 0.0), (0.3, 0.0)]


@pytest.mark.slow
def test_a_detector_that_is_too_slow_changes_nothing(question: Path) -> None:
    slow = ScriptedDetector(0.99, work_s=2.5)
    with running(ScriptedEngine(), clock=VirtualClock(), detector=slow) as driver:
        ask(driver, question)
        driver.until(lambda: bool(named(driver, "end_of_turn")))
        assert [reason for name, reason in decisions(driver) if name == "confirm"] == ["silence"]
        assert ("pause", "late") in decisions(driver)


def test_off_asks_nobody(question: Path) -> None:
    detector = ScriptedDetector(0.99)
    settings = SessionSettings(hear_samples=False, turn_taking=TurnTakingSettings(eagerness="off"))
    with running(ScriptedEngine(), settings, detector=detector) as driver:
        ask(driver, question)
        assert decisions(driver) == [("pause", ""), ("confirm", "silence")]
        driver.session.send(ApplySettings(SessionSettings(hear_samples=False)))
        driver.session.send(PlaySample(question))
        driver.await_event(SampleFinished, 2)
        assert decisions(driver)[-1] == ("confirm", "likely")
    assert len(detector.asked) == 1
