"""A whole session with a language model that detects the end of turns: who is answered, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.dialog.turn_taking_settings import TurnTakingSettings
from app.session.commands import AskText, PlaySample
from app.session.events import (
    PlaybackFinished,
    ReplyFinished,
    SampleFinished,
    SessionState,
    SpeculationMeasured,
    StateChanged,
    TurnCancelled,
    TurnCommitted,
    TurnExtended,
)
from app.session.session_settings import SessionSettings
from engine_runtime.types import Modality, SamplingParams
from tests.app.session.test_session_end_of_turn import ask, named
from tests.app.session.test_speculation import check_order
from tests.doubles.scripted_detector import ScriptedDetector
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.tools.session_driver import Driver, running, silence, speech, write_question

ON = SessionSettings(hear_samples=False, speculate="on")


@pytest.fixture
def question(tmp_path: Path) -> Path:
    return write_question(tmp_path / "question.wav", silence(0.6), speech(1.0), silence(0.3))


@pytest.fixture
def hesitant(tmp_path: Path) -> Path:
    """A question with a pause of 1 s in it, longer than the silence that ends a turn."""
    return write_question(
        tmp_path / "hesitant.wav", silence(0.6), speech(1.0), silence(1.0), speech(0.6), silence(0.3)
    )


@pytest.fixture
def backchannel(tmp_path: Path) -> Path:
    return write_question(tmp_path / "backchannel.wav", silence(0.6), speech(0.4), silence(0.3))


def decided(driver: Driver) -> list[tuple[object, object]]:
    """Predictions and what followed from them, in order: (kind, stage or reason)."""
    known = [event.attributes for event in named(driver, "decision")]
    return [
        (each["kind"], each.get("stage", each.get("reason")))
        for each in known
        if each["kind"] in ("predict", "confirm", "ignore", "roll_back")
    ]


def least_rows(engine: ScriptedEngine) -> list[int]:
    """`min_new` of each commit."""
    commits = [call for call in engine.calls if call[0] == "commit"]
    params = [call[-1] for call in commits]
    return [each.min_new for each in params if isinstance(each, SamplingParams)]


def test_a_question_that_is_finished_by_its_words_is_answered_soon(question: Path) -> None:
    with running(ScriptedEngine(Script(predictions=(0.98,))), ON, detector=ScriptedDetector(0.5)) as driver:
        ask(driver, question)
    check_order(driver.events)
    assert decided(driver) == [("predict", "finished"), ("confirm", "finished")]
    (endpointing,) = named(driver, "endpointing")
    assert endpointing.attributes["silence_ms"] == 224
    (rated,) = [event for event in named(driver, "end_of_turn") if event.attributes["by"] == "language model"]
    assert (rated.attributes["probability"], rated.attributes["asked_ms"]) == (0.98, 96)
    assert len(driver.of(ReplyFinished)) == 1


def test_no_detector_is_needed_for_that(question: Path) -> None:
    with running(ScriptedEngine(Script(predictions=(0.98,))), ON) as driver:
        ask(driver, question)
    (endpointing,) = named(driver, "endpointing")
    assert (endpointing.attributes["silence_ms"], endpointing.attributes["reason"]) == (224, "finished")


def test_words_alone_do_not_end_a_turn_that_sounds_as_if_it_went_on(question: Path) -> None:
    with running(ScriptedEngine(Script(predictions=(0.98,))), ON, detector=ScriptedDetector(0.01)) as driver:
        ask(driver, question)
    assert decided(driver) == [("predict", "finished"), ("confirm", "unlikely")]


def test_an_unfinished_question_is_waited_for(hesitant: Path) -> None:
    engine = ScriptedEngine(Script(predictions=(0.02, 0.98)))
    with running(engine, ON, detector=ScriptedDetector(0.99)) as driver:
        ask(driver, hesitant)
    check_order(driver.events)
    assert decided(driver) == [
        ("predict", "unfinished"),
        ("roll_back", None),
        ("predict", "finished"),
        ("confirm", "likely"),
    ]
    (committed,) = driver.of(TurnCommitted)
    assert committed.seconds == pytest.approx(2.6, abs=0.07)
    assert len(driver.of(ReplyFinished)) == 1
    assert driver.of(TurnExtended) == []
    assert engine.names_of(1) == ["open", "push", "commit", "reopen", "push", "commit"]
    # Nothing was made of the reply that would have come too early.
    assert driver.of(SpeculationMeasured)[-1].stats.audio_s == 0.0


def test_who_does_not_go_on_is_answered_at_last(question: Path) -> None:
    engine = ScriptedEngine(Script(predictions=(0.02,)))
    with running(engine, ON, detector=ScriptedDetector(0.99)) as driver:
        ask(driver, question)
        driver.await_event(PlaybackFinished)
    check_order(driver.events)
    assert decided(driver) == [("predict", "unfinished"), ("confirm", "unfinished")]
    (endpointing,) = named(driver, "endpointing")
    assert 2_200 <= float(endpointing.attributes["silence_ms"]) <= 2_232
    assert driver.of(ReplyFinished)[0].text == "word0 word1 word2 "
    # One reply, which may not be empty.
    assert least_rows(engine) == [2]


@pytest.mark.slow
def test_a_backchannel_is_dropped_quietly(backchannel: Path, question: Path) -> None:
    engine = ScriptedEngine(Script(predictions=(0.02, 0.98)))
    with running(engine, ON, detector=ScriptedDetector(0.99)) as driver:
        driver.session.send(PlaySample(backchannel))
        driver.await_event(SampleFinished)
        assert decided(driver) == [("predict", "unfinished"), ("ignore", "backchannel")]
        assert [(event.turn_id, event.reason) for event in driver.of(TurnCancelled)] == [(1, "too_short")]
        assert driver.of(TurnCommitted) == driver.of(ReplyFinished) == []
        assert engine.exchanges == []
        assert driver.turns.transcript.get(1) is None
        driver.session.send(PlaySample(question))
        driver.await_event(ReplyFinished)
    assert [event.turn_id for event in driver.of(TurnCommitted)] == [2]
    assert [exchange.turn_id for exchange in engine.exchanges] == [2]


def test_a_short_word_that_has_an_answer_is_answered(backchannel: Path) -> None:
    with running(ScriptedEngine(Script(predictions=(0.9,))), ON) as driver:
        ask(driver, backchannel)
        driver.await_event(ReplyFinished)
    assert decided(driver) == [("predict", "finished"), ("confirm", "finished")]


def test_silence_alone_asks_no_model_either(question: Path) -> None:
    settings = SessionSettings(
        hear_samples=False, speculate="on", turn_taking=TurnTakingSettings(eagerness="off")
    )
    with running(ScriptedEngine(Script(predictions=(0.02,))), settings) as driver:
        ask(driver, question)
    assert decided(driver) == [("confirm", "silence")]
    assert named(driver, "confirm_to_sound")[0].duration_ms <= 20  # the reply was made in the pause


def test_without_speculation_nothing_is_predicted_and_nobody_gets_an_empty_reply(question: Path) -> None:
    engine = ScriptedEngine(Script(predictions=(0.02,)))
    with running(engine, SessionSettings(hear_samples=False, speculate="off")) as driver:
        ask(driver, question)
        driver.session.send(AskText("three plus"))
        driver.await_event(ReplyFinished, 2)
    assert decided(driver) == [("confirm", "silence")]
    assert least_rows(engine) == [2, 2]


@pytest.mark.parametrize("modality", [Modality.SPEECH, Modality.TEXT])
def test_a_reply_without_a_sound_and_a_word_ends_like_any_other(question: Path, modality: Modality) -> None:
    settings = SessionSettings(hear_samples=False, speculate="on", reply=modality)
    with running(ScriptedEngine(Script(chunks=0)), settings) as driver:
        ask(driver, question)
        finished = driver.await_event(ReplyFinished)
        driver.until(lambda: driver.of(StateChanged)[-1].state is SessionState.STOPPED)
        driver.session.send(AskText("and now?"))
        driver.await_event(ReplyFinished, 2)
    assert (finished.text, finished.seconds, finished.codes, finished.finish_reason) == ("", 0.0, 0, "stop")
    assert driver.of(PlaybackFinished) == driver.of(TurnCancelled) == []
