"""Turn-taking with a second, quieter voice: no turn, no pause of the reply; the user is heard."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.dialog.turn_events import TurnAction as A
from app.dialog.turn_taking_settings import TurnTakingSettings
from tests.app.dialog.test_turn_taking import DEFAULT, FRAME_MS, Scene

USER_DB, OTHER_DB = -20.0, -35.0
RULES = DEFAULT.interruption


class Room(Scene):
    """Frames with a level."""

    def voice(self, ms: float, level_db: float | None, probability: float = 0.7) -> Room:
        for _ in range(round(ms / FRAME_MS)):
            start, self.now_ms = self.now_ms, self.now_ms + FRAME_MS
            self.note(self.machine.update(probability, start, self.now_ms, level_db))
        return self

    def pause(self, ms: float) -> Room:
        self.quiet(ms)
        return self


def known(chosen: TurnTakingSettings = DEFAULT) -> Room:
    """The user has had two turns; nobody speaks."""
    room = Room(chosen)
    for _ in range(2):
        room.voice(640, USER_DB).pause(1_280)
        room.machine.end_turn()
    room.pause(5_120)
    room.events.clear()
    return room


def replying(chosen: TurnTakingSettings = DEFAULT) -> Room:
    """The reply to the user's next turn is being heard."""
    room = known(chosen)
    room.voice(640, USER_DB).pause(640)
    room.machine.reply_heard()
    room.pause(1_600)
    room.events.clear()
    return room


@pytest.mark.parametrize("make", [known, replying])
def test_a_quieter_voice_is_ignored_and_said_once(make: type[Room]) -> None:
    room = make()
    start = room.now_ms
    assert room.voice(2_000, OTHER_DB).pause(320).voice(1_000, OTHER_DB).pause(640).actions == [A.IGNORE]
    assert room.events[0].speech_start_ms == start


def test_the_user_is_heard_after_the_other_voice_and_over_it() -> None:
    room = known().voice(1_024, OTHER_DB).voice(640, USER_DB)
    assert room.actions == [A.IGNORE, A.OPEN]
    room = replying().voice(1_024, OTHER_DB).voice(1_600, USER_DB)
    assert room.actions == [A.IGNORE, A.INTERRUPT, A.BARGE_IN]


def test_a_soft_onset_belongs_to_the_turn() -> None:
    room = known()
    start = room.now_ms
    room.voice(64, OTHER_DB).voice(640, USER_DB)
    assert room.actions == [A.OPEN]
    assert room.events[0].speech_start_ms == start
    assert replying().voice(160, OTHER_DB).voice(64, USER_DB).actions == [A.INTERRUPT]


def test_a_hiss_pauses_the_reply_at_once_and_the_other_voice_after_it_lets_it_go_on() -> None:
    room = replying().voice(96, None)
    assert room.actions == [A.INTERRUPT]
    assert room.voice(640, OTHER_DB).actions == [A.INTERRUPT, A.RESUME_REPLY, A.IGNORE]
    resumed = room.events[1]
    assert 0 <= resumed.at_ms - resumed.speech_start_ms - RULES.bystander_ms < FRAME_MS
    # Neither its next hiss nor its length pauses it again.
    assert room.voice(96, None).voice(1_600, OTHER_DB).pause(640).actions[3:] == []
    assert replying().voice(96, None).voice(1_600, USER_DB).actions == [A.INTERRUPT, A.BARGE_IN]


def test_who_says_it_again_is_heard() -> None:
    assert known().voice(640, OTHER_DB).pause(1_920).voice(640, OTHER_DB).actions == [A.IGNORE, A.OPEN]
    over = replying().voice(640, OTHER_DB).pause(1_920).voice(1_600, OTHER_DB)
    assert over.actions == [A.IGNORE, A.INTERRUPT, A.BARGE_IN]


def test_who_continues_a_turn_may_be_softer() -> None:
    room = known().voice(640, USER_DB).pause(1_280).voice(320, OTHER_DB)
    assert room.actions == [A.OPEN, A.PAUSE, A.COMMIT, A.REOPEN]


def test_the_button_is_for_anybody() -> None:
    room = known()
    room.events += room.machine.press(room.now_ms)
    room.voice(640, OTHER_DB)
    room.machine.release(room.now_ms)
    assert room.pause(64).actions == [A.OPEN, A.ONSET, A.COMMIT]


def test_all_speech_counts_where_wanted_and_after_another_microphone() -> None:
    assert known(replace(DEFAULT, bystander_db=None)).voice(640, OTHER_DB).actions == [A.OPEN]
    room = known()
    room.machine.forget_speech()
    assert room.voice(640, OTHER_DB).actions == [A.OPEN]


def test_a_typed_question_leaves_the_level_of_the_user() -> None:
    room = known()
    room.machine.begin_reply()
    room.machine.end_turn()
    assert room.voice(640, OTHER_DB).actions == [A.IGNORE]
