"""Turn-taking while the user speaks over a reply: the reply is paused, and resumed or cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialog.end_of_turn import Stage
from app.dialog.turn_events import TurnAction as A
from app.dialog.turn_taking import TurnTaking
from app.dialog.turn_taking_settings import TurnTakingSettings
from tests.app.dialog.test_turn_taking import DEFAULT, FRAME_MS, Scene

RULES = DEFAULT.interruption


def replying(chosen: TurnTakingSettings = DEFAULT) -> Scene:
    """A reply is being heard; what led to it is forgotten."""
    scene = Scene(chosen).speak(640).quiet(704)
    scene.machine.reply_heard()
    scene.events.clear()
    return scene


def test_a_backchannel_pauses_the_reply_and_lets_it_go_on() -> None:
    scene = replying()
    start = scene.now_ms
    scene.speak(DEFAULT.barge_in_ms)
    assert scene.actions == [A.INTERRUPT]
    assert scene.machine.is_interrupted
    scene.speak(320).quiet(640)
    assert scene.actions == [A.INTERRUPT, A.RESUME_REPLY]
    assert not scene.machine.is_interrupted
    assert scene.machine.is_replying
    interrupted, resumed = scene.events
    assert (interrupted.at_ms, interrupted.speech_start_ms) == (start + DEFAULT.barge_in_ms, start)
    assert resumed.silence_ms == RULES.resume_ms
    assert resumed.speech_end_ms == start + DEFAULT.barge_in_ms + 320


def test_a_reply_comes_back_while_a_backchannel_is_still_said() -> None:
    scene = replying()
    start = scene.now_ms
    scene.speak(256)
    assert scene.machine.judge_overlap(start, 0.97)
    scene.speak(608)
    assert scene.actions == [A.INTERRUPT, A.RESUME_REPLY]
    assert scene.events[1].at_ms == start + 288
    assert not scene.machine.is_interrupted
    scene.quiet(640)
    assert scene.machine.is_replying
    assert A.BARGE_IN not in scene.actions
    assert scene.actions.count(A.RESUME_REPLY) == 1
    assert not scene.machine.judge_overlap(start, 0.01)


def test_what_began_as_a_backchannel_may_still_be_a_turn() -> None:
    scene = replying()
    start = scene.now_ms
    scene.speak(256)
    scene.machine.judge_overlap(start, 0.97)
    scene.speak(96)
    scene.machine.judge_overlap(start, 0.001)
    scene.speak(192)
    expected = [A.INTERRUPT, A.RESUME_REPLY, A.BARGE_IN]
    assert scene.actions == expected
    assert scene.events[-1].speech_start_ms == start


def test_the_source_is_lost_after_the_reply_came_back() -> None:
    scene = replying()
    start = scene.now_ms
    scene.speak(256)
    scene.machine.judge_overlap(start, 0.97)
    scene.speak(64)
    assert scene.machine.forget_speech() == []
    assert scene.machine.is_replying


def test_speech_that_goes_on_is_a_turn_from_its_beginning() -> None:
    scene = replying()
    start = scene.now_ms
    scene.speak(1_600)
    assert scene.actions == [A.INTERRUPT, A.BARGE_IN]
    assert scene.events[-1].speech_start_ms == start
    assert 0 <= scene.events[-1].at_ms - start - RULES.boundary_ms < FRAME_MS
    assert scene.machine.is_hearing
    assert scene.quiet(960).actions[2:] == [A.PAUSE, A.COMMIT]
    assert scene.events[-1].speech_start_ms == start


@pytest.mark.parametrize(
    ("probability", "wait_ms", "last"),
    [(0.6, 320, A.BARGE_IN), (0.6, 1_120, A.RESUME_REPLY), (0.99, 320, A.RESUME_REPLY)],
    ids=["at the start of the reply", "later", "of a turn that sounded finished"],
)
def test_who_was_cut_off_goes_on_with_a_short_word(probability: float, wait_ms: int, last: A) -> None:
    scene = Scene(DEFAULT)
    end = scene.speak(640).now_ms
    scene.quiet(DEFAULT.pause_ms)
    assert scene.machine.rate_pause(end, probability) is not None
    scene.quiet(1_120)
    assert scene.actions[-1] is A.COMMIT
    scene.machine.reply_heard()
    scene.events.clear()
    start = scene.quiet(wait_ms).now_ms
    scene.speak(320).quiet(RULES.resume_ms)
    assert scene.actions[:2] == [A.INTERRUPT, last]
    assert scene.events[1].speech_start_ms == start


def test_the_detector_decides_about_speech_of_medium_length() -> None:
    for probability, actions in ((0.99, [A.BARGE_IN]), (0.1, [A.RESUME_REPLY])):
        scene = replying()
        end = scene.speak(800).now_ms
        assert scene.quiet(160).actions == [A.INTERRUPT, A.PAUSE]
        assert scene.machine.rate_pause(end, probability) is (
            Stage.LIKELY if probability > 0.5 else Stage.UNLIKELY
        )
        scene.quiet(RULES.unfinished_ms)
        assert scene.actions[2:3] == actions


def test_a_turn_that_ended_before_it_was_known_as_one_is_committed() -> None:
    scene = replying()
    end = scene.speak(800).now_ms
    scene.quiet(160)
    scene.machine.rate_pause(end, 0.9)
    assert scene.quiet(640).actions == [A.INTERRUPT, A.PAUSE, A.BARGE_IN, A.PAUSE, A.COMMIT]
    assert scene.events[-1].speech_end_ms == end


def test_without_eagerness_no_answer_counts() -> None:
    scene = replying(replace(DEFAULT, eagerness="off"))
    end = scene.speak(800).now_ms
    scene.quiet(160)
    assert scene.machine.rate_pause(end, 0.1) is None
    assert scene.quiet(RULES.answer_ms).actions == [A.INTERRUPT, A.PAUSE, A.BARGE_IN, A.PAUSE]


def test_an_interruption_takes_clear_and_unbroken_speech() -> None:
    scene = replying(replace(DEFAULT, barge_in_ms=160)).speak(640, 0.55)
    for _ in range(20):
        scene.frames(4, 0.9).frames(1, 0.2)
    assert scene.actions == []


def test_one_frame_is_enough_if_it_is_clear() -> None:
    assert replying().frames(1, DEFAULT.barge_in_clear - 0.01).actions == []
    assert replying().frames(1, DEFAULT.barge_in_clear).actions == [A.INTERRUPT]
    assert replying(replace(DEFAULT, barge_in_ms=500)).frames(15, 1.0).actions == []


def test_speech_that_follows_soon_after_a_backchannel_belongs_to_it() -> None:
    scene = replying()
    start = scene.now_ms
    scene.speak(320).quiet(640).speak(1_600)
    assert scene.actions == [A.INTERRUPT, A.RESUME_REPLY, A.INTERRUPT, A.BARGE_IN]
    assert scene.events[-1].speech_start_ms == start
    # The silence between them does not count.
    assert 0 <= scene.events[-1].at_ms - start - 640 - RULES.boundary_ms < FRAME_MS


def test_two_short_parts_in_a_row_may_be_a_turn() -> None:
    scene = replying().speak(480).quiet(320).speak(480)
    assert scene.actions == [A.INTERRUPT, A.RESUME_REPLY, A.INTERRUPT]
    assert scene.quiet(RULES.answer_ms).actions[3:] == [A.PAUSE, A.BARGE_IN]


def test_speech_that_follows_late_after_a_backchannel_is_its_own() -> None:
    scene = replying().speak(320).quiet(320).quiet(960)
    start = scene.now_ms
    assert scene.speak(1_600).actions[2:] == [A.INTERRUPT, A.BARGE_IN]
    assert scene.events[-1].speech_start_ms == start


def test_a_reply_that_ends_meanwhile_leaves_an_ordinary_turn_with_all_its_speech() -> None:
    scene = replying()
    start = scene.now_ms
    scene.speak(128)
    scene.machine.end_turn()
    scene.speak(640).quiet(704)
    assert scene.actions == [A.INTERRUPT, A.OPEN, A.PAUSE, A.COMMIT]
    assert scene.events[1].speech_start_ms == start


def test_where_more_speech_is_needed_the_reply_goes_on_until_then() -> None:
    for needed_ms, actions in ((500, [A.INTERRUPT]), (1_000, [A.INTERRUPT, A.BARGE_IN])):
        scene = replying(replace(DEFAULT, barge_in_ms=needed_ms))
        assert scene.speak(448).quiet(320).actions == []
        start = scene.now_ms
        scene.speak(512 if needed_ms == 500 else 1_024)
        assert scene.actions == actions
        assert scene.events[0].speech_start_ms == start
        assert 0 <= scene.events[0].at_ms - start - needed_ms < FRAME_MS


def test_interruptions_that_are_switched_off_meanwhile_let_the_reply_go_on() -> None:
    scene = replying().speak(320)
    scene.machine.settings = replace(DEFAULT, barge_in=False)
    assert scene.speak(3_000).actions == [A.INTERRUPT, A.RESUME_REPLY]


def test_a_pressed_button_makes_it_a_turn_at_once() -> None:
    scene = replying()
    start = scene.now_ms
    scene.speak(128)
    scene.events += scene.machine.press(scene.now_ms)
    assert scene.actions == [A.INTERRUPT, A.BARGE_IN]
    assert scene.events[-1].speech_start_ms == start
    scene.speak(320)
    scene.machine.release(scene.now_ms)
    assert scene.quiet(64).actions[2:] == [A.COMMIT]
    assert scene.events[-1].speech_start_ms == start


def test_a_source_that_goes_away_lets_the_reply_go_on() -> None:
    scene = replying().speak(320)
    scene.events += scene.machine.forget_speech()
    assert scene.actions == [A.INTERRUPT, A.RESUME_REPLY]
    assert scene.machine.forget_speech() == []
    # The clock of the next source starts again.
    scene.now_ms = 0.0
    assert scene.quiet(320).speak(1_600).actions[2:] == [A.INTERRUPT, A.BARGE_IN]
    assert scene.events[-1].speech_start_ms == 320


def test_speech_before_the_reply_is_heard_still_reopens_the_turn() -> None:
    scene = Scene().speak(640).quiet(704).speak(320)
    assert scene.actions == [A.OPEN, A.PAUSE, A.COMMIT, A.REOPEN]


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=200), st.booleans())
def test_a_reply_is_paused_and_resumed_in_turns(probabilities: list[float], answers: bool) -> None:
    machine = TurnTaking(DEFAULT)
    machine.begin_reply()
    machine.reply_heard()
    is_paused = False
    now_ms = 0.0
    for probability in probabilities:
        for event in machine.update(probability, now_ms, now_ms + FRAME_MS):
            if event.action is A.INTERRUPT:
                assert not is_paused
                is_paused = True
            elif event.action in (A.RESUME_REPLY, A.BARGE_IN):
                assert is_paused
                is_paused = False
            elif event.action is A.PAUSE and answers:
                machine.rate_pause(event.speech_end_ms, probability)
            assert event.speech_start_ms < event.speech_end_ms <= event.at_ms
        assert machine.is_interrupted is is_paused
        now_ms += FRAME_MS
        if machine.is_hearing:
            return


@pytest.mark.parametrize("length_ms", range(64, 640, 32))
def test_no_backchannel_becomes_a_turn(length_ms: int) -> None:
    assert replying().speak(length_ms).quiet(1_600).actions == [A.INTERRUPT, A.RESUME_REPLY]
