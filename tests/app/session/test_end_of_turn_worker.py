"""The thread of the end-of-turn detector: answers in order, and none where there is no detector."""

from __future__ import annotations

import threading
from queue import Empty

import pytest

from app.dialog.smart_turn import EndOfTurnDetector
from app.session.clocks import PendingWork
from app.session.end_of_turn_worker import EndOfTurnWorker, Pause, PauseRated
from engine_runtime.types import Pcm
from tests.doubles.scripted_detector import ScriptedDetector
from tests.tools.session_driver import speech


def pause(turn_id: int) -> Pause:
    return Pause(turn_id, 1_000.0, 160.0, speech(0.5))


def answers_of(detector: EndOfTurnDetector | None, *pauses: Pause) -> list[PauseRated]:
    """Everything that a worker with this detector answers."""
    pending = PendingWork()
    worker = EndOfTurnWorker(lambda: detector, pending)
    assert not pending.idle.is_set()
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    for each in pauses:
        worker.submit(each)
    assert pending.idle.wait(30)
    worker.close()
    thread.join(30)
    assert not thread.is_alive()
    answers = []
    while True:
        try:
            answers.append(worker.answers.get_nowait())
        except Empty:
            return answers


def test_answers_come_in_order_with_the_time_they_took() -> None:
    detector = ScriptedDetector(0.2, 0.9, work_s=0.01)
    pauses = [pause(1), pause(2)]
    answers = answers_of(detector, *pauses)
    assert [answer.pause for answer in answers] == pauses
    assert [answer.probability for answer in answers] == [0.2, 0.9]
    assert all(answer.duration_ns >= 10_000_000 for answer in answers)
    assert [len(pcm) for pcm in detector.asked] == [8_000, 8_000]


def test_an_answer_can_go_to_whom_asked() -> None:
    pending, got = PendingWork(), list[PauseRated]()
    worker = EndOfTurnWorker(lambda: ScriptedDetector(0.7), pending)
    asked = pause(3)
    worker.submit(asked, got.append)
    worker.close()
    worker.run()
    assert [(rated.pause, rated.probability) for rated in got] == [(asked, 0.7)]
    assert worker.answers.empty()


def test_speech_over_a_reply_is_judged_as_a_backchannel() -> None:
    overlap = Pause(1, 1_000.0, 64.0, speech(0.5), overlap_ms=600.0)
    detector = ScriptedDetector(0.2, backchannels=[0.7])
    assert [answer.probability for answer in answers_of(detector, overlap, pause(2))] == [0.7, 0.2]
    assert detector.overlaps_s == [pytest.approx(0.464)]
    (answer,) = answers_of(ScriptedDetector(0.2), overlap)
    assert answer.probability is None


def test_without_a_detector_there_is_no_answer() -> None:
    assert answers_of(None, pause(1), pause(2)) == []


def test_a_detector_that_fails_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        calls = 0

        def probability(self, pcm: Pcm) -> float:
            self.calls += 1
            raise RuntimeError("out of order")

        def backchannel(self, pcm: Pcm, speech_s: float) -> float | None:
            return self.probability(pcm)

    detector = Failing()
    assert answers_of(detector, pause(1), pause(2)) == []
    assert detector.calls == 1
    assert "silence alone ends a turn from now on" in caplog.text


def test_a_factory_that_fails_leaves_the_session_without_a_detector(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> EndOfTurnDetector:
        raise OSError("no such file")

    worker = EndOfTurnWorker(fail, PendingWork())
    worker.submit(pause(1))
    worker.close()
    worker.run()
    assert worker.answers.empty()
    assert "the end-of-turn detector cannot be loaded" in caplog.text
