"""What the driver makes of turn-taking: jobs for the engine, and calls of its hooks, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from app.dialog.turn_events import TurnEvent
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.session.end_of_turn_worker import Pause, PauseRated
from app.session.engine_jobs import (
    Commit,
    Hear,
    Interrupt,
    Job,
    OpenTurn,
    ReplyMade,
    ReplyResult,
    TurnFailed,
)
from app.session.events import CancelReason, SpeculationStats
from app.session.speculation import HeldReply
from app.session.turn_driver import DriverSettings, StoppedReply, TurnDriver, UserTurn
from app.session.voice_stream import VoiceStream
from app.settings import SpeculationMode
from engine_runtime.types import (
    Modality,
    Pcm,
    ReplyAudio,
    ReplyDone,
    ReplyEvent,
    ReplyText,
    TurnEndPrediction,
)
from tests.doubles.scripted_engine import LoudnessVad
from tests.tools.session_driver import silence, speech

RATE = LoudnessVad.sample_rate
TEXT = ReplyText(1, "yes", is_subtitle=False)


class Rig:
    """A driver whose clock is its audio. Jobs and hooks are noted by name, speech for the engine once."""

    def __init__(
        self,
        speculate: SpeculationMode = "off",
        *,
        stopped: StoppedReply | None = None,
        answers: bool = True,
        always_predicts: bool = False,
    ) -> None:
        """`stopped` is how a reply is stopped, `answers` whether a committed turn is."""
        self.log: list[str] = []
        self.jobs: list[Job] = []
        self.asked: list[Pause] = []
        self.held: HeldReply | None = None
        self._stopped, self._answers = stopped, answers
        self._stream = VoiceStream(LoudnessVad(), 8_000)
        settings = DriverSettings(TurnTakingSettings(), speculate=speculate, always_predicts=always_predicts)
        self.driver = TurnDriver(
            self._stream,
            self,
            self,
            lambda: round(self._stream.end_ms * 1e6),
            settings,
            self.asked.append,
        )

    def hear(self, *parts: Pcm) -> list[str]:
        """Returns what that brought."""
        before = len(self.log)
        for part in parts:
            for frame in self._stream.frames(part):
                self.driver.hear(frame)
        return self.log[before:]

    def reply(self, *events: ReplyEvent) -> list[str]:
        """Events of the reply that was requested last."""
        before = len(self.log)
        scope = [job for job in self.jobs if isinstance(job, Commit)][-1].scope
        for event in events:
            self.driver.on_result(ReplyResult(scope, event))
        return self.log[before:]

    # ---- the job queue ----

    def submit(self, job: Job) -> None:
        self.jobs.append(job)
        name = type(job).__name__
        if not (isinstance(job, Hear) and self.log[-1:] == ["Hear"]):
            self.log.append(name)

    # ---- the hooks ----

    def turn_opened(self, turn: UserTurn, start_ms: float) -> None:
        self.log.append("opened")

    def turn_committed(self, turn: UserTurn, event: TurnEvent) -> bool:
        self.log.append("committed")
        return self._answers

    def turn_reopened(self, turn: UserTurn, event: TurnEvent) -> None:
        self.log.append("reopened")

    def turn_stopped(self, turn: UserTurn, reason: CancelReason, stopped: StoppedReply | None) -> None:
        self.log.append(reason)

    def turn_failed(self, failure: TurnFailed) -> None:
        self.log.append("failed")

    def begin_reply(self, turn: UserTurn, held: HeldReply | None) -> None:
        self.held = held
        self.log.append("reply")

    def add_reply(self, turn: UserTurn, event: ReplyEvent) -> None:
        self.log.append(type(event).__name__)

    def reply_made(self, made: ReplyMade) -> None:
        self.log.append("made")

    def pause_reply(self, event: TurnEvent) -> None:
        self.log.append("paused")

    def resume_reply(self) -> None:
        self.log.append("resumed")

    def stop_reply(self, turn: UserTurn, reason: CancelReason) -> StoppedReply | None:
        return self._stopped if turn.commit is not None else None

    def speculated(self, stats: SpeculationStats) -> None:
        """Not noted."""


def replying(rig: Rig) -> Rig:
    """A question was asked, and its reply is heard."""
    rig.hear(silence(0.4), speech(0.6), silence(1.0))
    rig.reply(TEXT)
    rig.driver.reply_heard()
    return rig


def test_a_turn_is_handed_over_while_it_is_spoken() -> None:
    rig = Rig()
    assert rig.hear(silence(0.4), speech(0.6)) == ["opened", "OpenTurn", "Hear"]
    assert rig.hear(silence(0.7)) == ["committed", "reply", "Commit"]
    assert rig.reply(TEXT) == ["ReplyText"]
    given = sum(len(job.pcm) for job in rig.jobs if isinstance(job, Hear)) / RATE
    assert given == pytest.approx(0.32 + 0.6 + 0.1, abs=0.04), "with pre-roll and tail"


def test_the_detector_is_asked_and_its_answer_ends_the_turn() -> None:
    rig = Rig()
    rig.hear(silence(0.4), speech(0.6), silence(0.2))
    (pause,) = rig.asked
    rig.driver.take_rating(PauseRated(pause, 0.99, 0, 0))
    assert rig.hear(silence(0.2))[-1] == "Commit", "after 350 ms and not 640"


def test_a_reply_is_held_until_the_turn_is_confirmed() -> None:
    rig = Rig("on")
    assert rig.hear(silence(0.4), speech(0.6), silence(0.15))[-1] == "Commit"
    assert rig.reply(TurnEndPrediction(1, 0.98), TEXT) == []
    assert rig.hear(silence(0.2)) == ["committed", "Confirm", "reply"], "the language model has answered"
    assert rig.held is not None
    assert [event for event, _ in rig.held.events] == [TEXT]
    assert rig.reply(TEXT) == ["ReplyText"]


def test_a_slow_engine_is_asked_for_a_prediction_alone() -> None:
    rig = Rig("auto", always_predicts=True)
    question = silence(0.4), speech(0.6), silence(0.15)
    rig.hear(*question)
    rig.reply(TurnEndPrediction(1, 0.98))
    rig.driver.on_result(ReplyMade(1.5))
    assert rig.hear(silence(0.2))[-1] == "reply"
    rig.driver.end_turn()
    rig.driver.rest()
    rig.hear(*question)
    first, second = (job for job in rig.jobs if isinstance(job, Commit))
    assert first.finished <= 1.0 < second.finished, "no rating is high enough to make more"
    rig.reply(TurnEndPrediction(2, 0.98))
    assert rig.hear(silence(0.2)) == ["committed", "Confirm", "reply"]


def test_a_slow_engine_that_predicts_nothing_is_not_asked() -> None:
    rig = Rig("auto", always_predicts=True)
    rig.driver.on_result(ReplyMade(1.5))
    assert rig.hear(silence(0.4), speech(0.6), silence(0.15)) == ["opened", "OpenTurn", "Hear"]


def test_times_of_a_held_reply_wait_with_it() -> None:
    rig = Rig("on")
    rig.hear(silence(0.4), speech(0.6), silence(0.15))
    rig.reply(TEXT, ReplyDone(1, Modality.TEXT, "stop", "yes"))
    rig.driver.on_result(ReplyMade(0.5))
    assert "made" not in rig.hear(silence(0.6))
    assert rig.held is not None
    assert rig.held.made == ReplyMade(0.5)


def test_a_held_reply_is_rolled_back_when_the_user_continues() -> None:
    rig = Rig("on")
    rig.hear(silence(0.4), speech(0.6), silence(0.15))
    assert rig.hear(speech(0.3)) == ["Reopen", "Hear"]
    assert rig.hear(silence(0.15))[-1] == "Commit"


def test_the_user_continues_before_the_reply_is_heard() -> None:
    rig = Rig()
    rig.hear(silence(0.4), speech(0.6), silence(0.7))
    assert rig.hear(speech(0.3)) == ["Reopen", "reopened", "Hear"]
    assert rig.hear(silence(0.7)) == ["committed", "reply", "Commit"]


def test_a_backchannel_pauses_the_reply() -> None:
    rig = replying(Rig(stopped=StoppedReply("cut", 7)))
    assert rig.hear(speech(0.3), silence(0.5)) == ["paused", "resumed"]


def test_an_interruption_cuts_the_reply_and_is_a_turn() -> None:
    rig = replying(Rig(stopped=StoppedReply("cut", 7, 3)))
    assert rig.hear(speech(1.2)) == ["paused", "Interrupt", "barge_in", "opened", "OpenTurn", "Hear"]
    assert [job for job in rig.jobs if isinstance(job, Interrupt)] == [Interrupt(1, 7, 3)]
    assert rig.reply(TEXT) == [], "what comes late is stale"


def test_a_question_whose_reply_nobody_heard_is_continued() -> None:
    rig = replying(Rig(stopped=StoppedReply("unheard")))
    assert rig.hear(speech(1.2)) == ["paused", "Reopen", "opened", "Hear"]
    assert rig.hear(silence(0.7))[-1] == "Commit"
    assert {job.turn_id for job in rig.jobs if isinstance(job, OpenTurn | Commit)} == {1}


def test_a_reply_that_was_played_is_not_cut() -> None:
    rig = replying(Rig(stopped=StoppedReply("complete")))
    assert rig.hear(speech(1.2)) == ["paused", "opened", "OpenTurn", "Hear"]


@pytest.mark.parametrize(("mode", "jobs"), [("off", ["Cancel"]), ("on", ["Interrupt"])])
def test_a_turn_that_is_stopped_before_its_reply_is_dropped(mode: Any, jobs: Sequence[str]) -> None:
    rig = Rig(mode)
    rig.hear(silence(0.4), speech(0.6), silence(0.15))
    before = len(rig.log)
    rig.driver.stop("user")
    assert rig.log[before:] == [*jobs, "user"]
    assert (rig.driver.turn, rig.hear(silence(1.0))) == (None, [])


def test_a_cough_is_dropped() -> None:
    rig = Rig()
    assert rig.hear(silence(0.4), speech(0.1), silence(0.7))[-2:] == ["Cancel", "too_short"]


def test_a_turn_that_is_not_to_be_answered_is_continued_by_the_next() -> None:
    rig = Rig(answers=False)
    assert rig.hear(silence(0.4), speech(0.6), silence(0.7))[-1] == "committed"
    assert rig.hear(speech(0.6), silence(0.7)) == ["opened", "Hear", "committed"]
    turn = rig.driver.turn
    assert turn is not None
    rig.driver.answer(turn)
    assert rig.log[-2:] == ["reply", "Commit"]


def test_a_turn_is_opened_and_answered_without_speech() -> None:
    rig = Rig()
    rig.driver.answer(rig.driver.open(lambda turn: rig.log.append("shown")))
    assert rig.log == ["shown", "OpenTurn", "reply", "Commit"]
    assert rig.reply(ReplyAudio(1, speech(0.1), RATE, 0)) == ["ReplyAudio"]
    rig.driver.end_turn()
    rig.driver.rest()
    assert rig.hear(speech(0.6))[:2] == ["opened", "OpenTurn"]
    assert rig.driver.reserve_turn_id() == 3
