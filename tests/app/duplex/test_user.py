"""The simulated user, with an assistant that is played by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.duplex.room import RATE
from app.duplex.scenario import Cue, RecordedScenario, RoomConditions, Scenario, Utterance
from app.duplex.segments import SegmentKind, UserSegment
from app.duplex.user import Ear, SimulatedUser
from engine_runtime.types import Pcm

ROUND_S = 0.01


def spoken(kind: SegmentKind, seconds: float = 1.0) -> Utterance:
    return Utterance(kind, np.ones(round(seconds * RATE), dtype=np.float32), 0.0, seconds)


class Stage:
    """Time, and the spans in which the assistant speaks."""

    def __init__(self, scenario: Scenario | RecordedScenario) -> None:
        self.now_s = 0.0
        self.ear = Ear()
        self.user = SimulatedUser(scenario, self.ear, self._speak)

    def _speak(self, pcm: Pcm) -> float:
        return self.now_s

    def run(self, until_s: float, *, speaks: bool = False) -> None:
        level = 0.1 if speaks else 0.0
        while self.now_s < until_s - 1e-9:
            self.ear.hear(np.full(round(ROUND_S * RATE), level, dtype=np.float32))
            self.now_s += ROUND_S
            self.user.advance(self.now_s)


def scenario(*cues: Cue) -> Scenario:
    return Scenario("test", "pauses", RoomConditions(), cues)


def starts(user: SimulatedUser) -> list[tuple[str, Any]]:
    return [(segment.kind, pytest.approx(segment.start_s, abs=0.03)) for segment in user.segments]


def test_a_question_waits_for_silence_after_the_reply() -> None:
    stage = Stage(scenario(Cue(spoken("turn"), 1.0), Cue(spoken("turn"), 1.0)))
    stage.run(2.5)
    stage.run(4.0, speaks=True)
    stage.run(8.0)
    assert starts(stage.user) == [("turn", 1.0), ("turn", 5.0)]


def test_the_user_gives_up_waiting_for_a_reply() -> None:
    stage = Stage(scenario(Cue(spoken("turn"), 1.0), Cue(spoken("turn"), 1.0)))
    stage.run(12.0)
    assert starts(stage.user) == [("turn", 1.0), ("turn", 8.0)]


def test_the_user_talks_over_the_reply() -> None:
    stage = Stage(scenario(Cue(spoken("turn"), 1.0, spoken("interruption", 0.5), 0.8)))
    stage.run(2.5)
    stage.run(4.0, speaks=True)
    assert starts(stage.user) == [("turn", 1.0), ("interruption", 3.3)]
    assert not stage.user.is_done
    stage.run(14.0)
    assert stage.user.is_done


def test_a_reply_that_is_over_is_not_interrupted() -> None:
    stage = Stage(scenario(Cue(spoken("turn"), 1.0, spoken("backchannel", 0.5), 2.0)))
    stage.run(2.5)
    stage.run(3.5, speaks=True)
    stage.run(9.0)
    assert starts(stage.user) == [("turn", 1.0)]
    assert stage.user.is_done


def test_a_cough_in_silence_expects_no_reply() -> None:
    stage = Stage(scenario(Cue(spoken("tic", 0.3), 1.0), Cue(spoken("turn"), 1.0)))
    stage.run(6.0)
    assert starts(stage.user) == [("tic", 1.0), ("turn", 4.8)]


def test_a_recording_is_played_straight_through() -> None:
    turn = UserSegment("turn", 0.5, 1.5, ((0.8, 1.0),))
    recorded = RecordedScenario("mine", "recorded", RoomConditions(), spoken("turn", 2.0).pcm, (turn,))
    stage = Stage(recorded)
    stage.run(1.0)
    stage.run(3.0, speaks=True)
    stage.run(7.0)
    (segment,) = stage.user.segments
    assert segment.start_s == pytest.approx(0.51)
    assert segment.pauses[0] == pytest.approx((0.81, 1.01))
    assert stage.user.is_done
