"""Push-to-talk in the turn-taking state machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialog.turn_events import TurnAction, TurnEvent
from app.dialog.turn_taking import Press, UserSpeech
from app.dialog.turn_taking_settings import TurnTakingSettings
from tests.app.dialog.test_turn_taking import DEFAULT, FRAME_MS, Scene

A = TurnAction


class PressScene(Scene):
    """A scene with a button."""

    def press(self) -> PressScene:
        self.events += self.machine.press(self.now_ms)
        return self

    def release(self, delay_ms: float = 0.0) -> PressScene:
        self.machine.release(self.now_ms + delay_ms)
        return self


def test_a_press_opens_a_turn_and_its_release_commits_it() -> None:
    scene = PressScene()
    scene.quiet(320)
    assert scene.press().actions == [A.OPEN]
    scene.quiet(96).speak(640).quiet(64)
    scene.release().quiet(32)
    assert scene.actions == [A.OPEN, A.ONSET, A.COMMIT]
    opened, onset, committed = scene.events
    assert (opened.speech_start_ms, opened.speech_end_ms) == (320, 320)
    assert onset.speech_start_ms == committed.speech_start_ms == 416
    assert committed.speech_end_ms == 416 + 640
    assert committed.at_ms == 416 + 640 + 64 + FRAME_MS
    assert committed.reason == "released"
    assert scene.machine.is_replying


def test_the_sound_in_the_air_at_the_release_still_belongs_to_the_turn() -> None:
    scene = PressScene().press()
    scene.speak(320)
    scene.release(delay_ms=80).speak(96)
    assert scene.actions == [A.OPEN, A.ONSET, A.COMMIT]
    assert scene.events[-1].speech_end_ms == 320 + 96


def test_pauses_while_the_button_is_down_end_nothing() -> None:
    scene = PressScene().press()
    scene.speak(320).quiet(5_000).speak(320).quiet(5_000)
    assert scene.actions == [A.OPEN, A.ONSET]
    assert scene.machine.rate_pause(scene.events[-1].speech_end_ms, 1.0) is None
    scene.release().quiet(32)
    assert scene.actions == [A.OPEN, A.ONSET, A.COMMIT]


@pytest.mark.parametrize("spoken_ms", [0, 128])
def test_a_press_without_speech_is_dropped(spoken_ms: float) -> None:
    scene = PressScene().press()
    scene.quiet(640).speak(spoken_ms).quiet(320)
    scene.release().quiet(32)
    assert scene.actions[-1] is A.DROP
    assert scene.events[-1].press_end == "released"
    assert A.COMMIT not in scene.actions
    assert not scene.machine.is_hearing


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_press_interrupts_a_reply_at_once(is_heard: bool) -> None:
    scene = PressScene(replace(DEFAULT, barge_in=False))
    scene.machine.begin_reply()
    if is_heard:
        scene.machine.reply_heard()
    assert scene.press().actions == [A.BARGE_IN]
    scene.speak(320).release().quiet(32)
    assert scene.actions == [A.BARGE_IN, A.ONSET, A.COMMIT]


def test_a_press_soon_after_the_release_continues_the_turn() -> None:
    scene = PressScene().press()
    scene.speak(320).release().quiet(320)
    scene.press().quiet(320)
    assert scene.actions == [A.OPEN, A.ONSET, A.COMMIT, A.REOPEN]
    scene.release().quiet(32)  # nothing more was said: the first part is the question
    assert scene.actions[4:] == [A.COMMIT]
    assert (scene.events[-1].speech_start_ms, scene.events[-1].speech_end_ms) == (0, 320)


def test_a_press_takes_over_a_turn_that_voice_has_opened() -> None:
    scene = PressScene()
    scene.speak(320)
    scene.press().quiet(3_000)
    assert scene.actions == [A.OPEN]
    scene.release().quiet(32)
    assert scene.actions == [A.OPEN, A.COMMIT]
    assert scene.events[-1].speech_end_ms == 320


def test_the_longest_turn_holds_for_a_press() -> None:
    scene = PressScene().press()
    scene.speak(DEFAULT.max_turn_ms + 320)
    assert scene.actions == [A.OPEN, A.ONSET, A.COMMIT]
    assert scene.events[-1].reason == "length"
    scene.release().quiet(320)
    assert scene.actions == [A.OPEN, A.ONSET, A.COMMIT]


def test_a_button_that_is_stuck_is_let_go() -> None:
    scene = PressScene().press()
    scene.quiet(DEFAULT.max_turn_ms + 320)
    assert scene.actions == [A.OPEN, A.DROP]
    assert scene.speak(640).quiet(960).actions[2:] == [A.OPEN, A.PAUSE, A.COMMIT]


def test_a_cancelled_press_is_over() -> None:
    scene = PressScene().press()
    scene.speak(320)
    scene.machine.end_turn()
    scene.release().quiet(320)
    assert scene.actions == [A.OPEN, A.ONSET]
    assert not scene.machine.is_hearing


@given(st.lists(st.one_of(st.sampled_from(["press", "release"]), st.floats(0, 1)), max_size=120))
def test_any_use_of_the_button_gives_whole_turns(acts: list[str | float]) -> None:
    scene = PressScene()
    for act in acts:
        if act == "press":
            scene.press()
        elif act == "release":
            scene.release()
        elif isinstance(act, float):
            scene.frames(1, act)
    is_open, is_answered = False, False
    for event in scene.events:
        if event.action in (A.OPEN, A.BARGE_IN, A.REOPEN):
            assert not is_open
            assert is_answered == (event.action is not A.OPEN)
            is_open = True
        else:
            assert is_open
        if event.action in (A.COMMIT, A.DROP):
            is_open, is_answered = False, event.action is A.COMMIT
        assert_ordered(event)


def assert_ordered(event: TurnEvent) -> None:
    assert event.speech_start_ms <= event.speech_end_ms <= event.at_ms


SETTINGS = TurnTakingSettings(start_threshold=0.5, end_threshold=0.3, max_turn_ms=5_000)


def pressed() -> tuple[Press, UserSpeech]:
    press, speech = Press(), UserSpeech()
    press.begin()
    speech.begin(1_000.0, 1_000.0, 0.0)
    return press, speech


def test_the_first_speech_has_to_be_clear() -> None:
    press, speech = pressed()
    assert not press.hear(SETTINGS, speech, 0.4, 1_000.0, 1_032.0)
    assert speech.speech_ms == 0.0
    assert press.hear(SETTINGS, speech, 0.6, 1_032.0, 1_064.0)
    assert not press.hear(SETTINGS, speech, 0.4, 1_064.0, 1_096.0)
    assert (speech.start_ms, speech.end_ms, speech.speech_ms) == (1_032.0, 1_096.0, 64.0)


def test_it_ends_with_the_frame_that_reaches_the_release() -> None:
    press, speech = pressed()
    press.release(2_000.0)
    assert press.ended(SETTINGS, speech, 1_990.0) is None
    assert press.ended(SETTINGS, speech, 2_010.0) == "released"
    press.begin()
    assert press.ended(SETTINGS, speech, 2_010.0) is None


def test_it_ends_at_the_longest_turn() -> None:
    press, speech = pressed()
    assert press.ended(SETTINGS, speech, 5_999.0) is None
    assert press.ended(SETTINGS, speech, 6_000.0) == "length"
