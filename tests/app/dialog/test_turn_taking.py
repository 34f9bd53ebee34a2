"""The turn-taking state machine: hand-written scenarios, and properties over arbitrary probabilities."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialog.end_of_turn import Stage
from app.dialog.turn_events import TurnAction, TurnEvent
from app.dialog.turn_taking import TurnTaking
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.settings import Eagerness
from tests.tools.examples import examples

FRAME_MS = 32.0
A = TurnAction
DEFAULT = TurnTakingSettings()


class Scene:
    """Feeds frames and notes what happens, apart from each silence that is none but a speculative reply's,
    and each question to the detector about speech over a reply."""

    def __init__(self, chosen: TurnTakingSettings = DEFAULT) -> None:
        self.machine = TurnTaking(chosen)
        self.now_ms = 0.0
        self.events: list[TurnEvent] = []
        self.silences: list[TurnEvent] = []

    def frames(self, count: int, probability: float) -> Self:
        for _ in range(count):
            start, self.now_ms = self.now_ms, self.now_ms + FRAME_MS
            self.note(self.machine.update(probability, start, self.now_ms))
        return self

    def note(self, events: list[TurnEvent]) -> None:
        self.silences += [event for event in events if event.action is A.SILENCE]
        self.events += [event for event in events if event.action not in (A.SILENCE, A.LISTEN)]

    def speak(self, ms: float, probability: float = 0.7) -> Self:
        return self.frames(round(ms / FRAME_MS), probability)

    def quiet(self, ms: float) -> Self:
        return self.frames(round(ms / FRAME_MS), 0.05)

    @property
    def actions(self) -> list[TurnAction]:
        return [event.action for event in self.events]


def test_a_plain_turn() -> None:
    scene = Scene().quiet(320).speak(640).quiet(960)
    assert scene.actions == [A.OPEN, A.PAUSE, A.COMMIT]
    opened, paused, committed = scene.events
    assert opened.speech_start_ms == 320
    assert opened.at_ms == 320 + 96
    assert committed.speech_start_ms == 320
    assert committed.speech_end_ms == 960
    assert paused.at_ms == 960 + DEFAULT.pause_ms
    assert committed.at_ms == 960 + DEFAULT.end_ms
    assert scene.machine.is_replying


def test_a_short_pause_is_inside_the_turn() -> None:
    scene = Scene().speak(640).quiet(320).speak(320).quiet(960)
    assert scene.actions == [A.OPEN, A.PAUSE, A.RESUME, A.PAUSE, A.COMMIT]
    assert scene.events[-1].speech_end_ms == 640 + 320 + 320


def test_hysteresis_holds_on_to_weak_speech_but_does_not_start_on_it() -> None:
    assert Scene().speak(2_000, 0.4).actions == []
    assert Scene().speak(320).speak(2_000, 0.4).actions == [A.OPEN]
    # After a pause it takes clear speech again.
    assert Scene().speak(320).quiet(320).speak(320, 0.4).actions == [A.OPEN, A.PAUSE, A.COMMIT]


def test_single_frames_do_not_open_a_turn() -> None:
    scene = Scene()
    for _ in range(50):
        scene.frames(1, 0.9).frames(2, 0.1)
    assert scene.actions == []


def test_three_of_four_frames_open_a_turn() -> None:
    scene = Scene().frames(2, 0.9).frames(1, 0.1).frames(1, 0.9)
    assert scene.actions == [A.OPEN]
    assert scene.events[0].speech_start_ms == 0.0


def test_a_cough_is_dropped() -> None:
    scene = Scene().quiet(320).speak(128).quiet(960)
    assert scene.actions == [A.OPEN, A.PAUSE, A.DROP]
    assert not scene.machine.is_hearing
    assert scene.speak(640).quiet(960).actions[3:] == [A.OPEN, A.PAUSE, A.COMMIT]


def test_the_longest_turn_is_committed_in_the_middle_of_speech() -> None:
    scene = Scene(replace(DEFAULT, max_turn_ms=1_600)).speak(4_000)
    assert scene.actions == [A.OPEN, A.COMMIT]
    assert scene.events[-1].at_ms == 1_600
    # The rest of that speech neither reopens nor interrupts; speech after a silence does.
    scene.quiet(320)
    scene.machine.reply_heard()
    assert scene.speak(1_024).actions[2:] == [A.INTERRUPT, A.BARGE_IN]


def test_going_on_before_the_reply_is_heard_reopens_the_turn() -> None:
    scene = Scene().speak(640).quiet(704).quiet(320).speak(640).quiet(960)
    assert scene.actions == [A.OPEN, A.PAUSE, A.COMMIT, A.REOPEN, A.PAUSE, A.COMMIT]
    assert scene.events[-1].speech_start_ms == 0.0


def test_a_reopened_turn_is_long_enough_already() -> None:
    scene = Scene().speak(640).quiet(704).speak(96).quiet(960)
    assert scene.actions[-1] is A.COMMIT


def test_too_late_to_reopen_is_an_interruption() -> None:
    scene = Scene().speak(640).quiet(704).quiet(DEFAULT.reopen_ms + 320).speak(1_024)
    assert scene.actions == [A.OPEN, A.PAUSE, A.COMMIT, A.INTERRUPT, A.BARGE_IN]


def test_barge_in_can_be_switched_off() -> None:
    scene = Scene(replace(DEFAULT, barge_in=False)).speak(640).quiet(704)
    scene.machine.reply_heard()
    scene.speak(3_000)
    assert scene.actions == [A.OPEN, A.PAUSE, A.COMMIT]
    scene.machine.end_turn()
    assert scene.speak(320).actions[3:] == [A.OPEN]


def test_a_typed_question_can_be_interrupted_but_not_reopened() -> None:
    scene = Scene().quiet(320)
    scene.machine.begin_reply()
    assert scene.speak(1_024).actions == [A.INTERRUPT, A.BARGE_IN]


def test_the_end_of_a_reply_forgets_what_was_heard_under_it() -> None:
    scene = Scene().speak(640).quiet(704)
    scene.machine.reply_heard()
    scene.frames(1, DEFAULT.barge_in_threshold)
    scene.machine.end_turn()
    assert scene.frames(2, 0.9).quiet(320).actions == [A.OPEN, A.PAUSE, A.COMMIT]


def test_settings_may_change_between_frames() -> None:
    scene = Scene().speak(640)
    scene.machine.settings = replace(DEFAULT, end_ms=320, pause_ms=192)
    assert scene.quiet(352).actions == [A.OPEN, A.PAUSE, A.COMMIT]


def test_frames_need_a_length() -> None:
    with pytest.raises(ValueError, match="length"):
        TurnTaking(DEFAULT).update(0.5, 10.0, 10.0)


@pytest.mark.parametrize(
    "change",
    [
        {"start_threshold": 0.2},
        {"end_threshold": 0.0},
        {"barge_in_threshold": 1.5},
        {"start_ms": 500},
        {"start_ms": 0},
        {"tail_ms": 100},
        {"speculate_ms": 161},
        {"pause_ms": 900},
        {"max_turn_ms": 100},
        {"pre_roll_ms": -1},
        {"barge_in_ms": -5},
        {"bystander_db": 0.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"need|must|Give at least"):
        replace(DEFAULT, **change)  # type: ignore[arg-type]


def test_a_threshold_may_be_certainty() -> None:
    certain = replace(DEFAULT, start_threshold=1.0, barge_in_threshold=1.0, barge_in_clear=1.0)
    assert certain.barge_in_threshold == 1.0


# ---- properties ----

probabilities = st.lists(
    st.tuples(st.sampled_from([0.0, 0.3, 0.4, 0.55, 0.9]), st.integers(min_value=1, max_value=30)),
    max_size=40,
)
signals = st.sampled_from(["none", "heard", "end", "typed"])
random_settings = st.builds(
    TurnTakingSettings,
    start_ms=st.sampled_from([32, 96]),
    start_window_ms=st.sampled_from([96, 160]),
    pause_ms=st.sampled_from([192, 256]),
    end_ms=st.sampled_from([256, 640]),
    min_speech_ms=st.sampled_from([0, 160, 320]),
    max_turn_ms=st.sampled_from([1_000, 5_000]),
    reopen_ms=st.sampled_from([0, 1_200]),
    barge_in=st.booleans(),
)
NEXT = {
    None: {A.OPEN, A.INTERRUPT},
    A.OPEN: {A.PAUSE, A.COMMIT, A.DROP},
    A.INTERRUPT: {A.PAUSE, A.BARGE_IN, A.RESUME_REPLY},
    A.RESUME_REPLY: {A.INTERRUPT},
    A.BARGE_IN: {A.PAUSE, A.COMMIT, A.DROP},
    A.REOPEN: {A.PAUSE, A.COMMIT},
    A.PAUSE: {A.PAUSE, A.RESUME, A.COMMIT, A.DROP, A.BARGE_IN, A.RESUME_REPLY},
    A.RESUME: {A.PAUSE, A.COMMIT, A.DROP},
    A.COMMIT: {A.REOPEN, A.INTERRUPT, A.OPEN},
    A.DROP: {A.OPEN, A.INTERRUPT},
}


@pytest.mark.slow
@examples(300)
@given(random_settings, st.lists(st.tuples(probabilities, signals), max_size=6))
def test_every_story_makes_sense(
    chosen: TurnTakingSettings, story: list[tuple[list[tuple[float, int]], str]]
) -> None:
    scene = Scene(chosen)
    machine = scene.machine
    restarts: set[int] = set()
    for part, signal in story:
        for probability, count in part:
            for _ in range(count):
                was_hearing, was_replying = machine.is_hearing, machine.is_replying
                known = len(scene.events)
                scene.frames(1, probability)
                new = [event.action for event in scene.events[known:]]
                assert not (machine.is_hearing and machine.is_replying)
                if A.OPEN in new:
                    assert not was_hearing
                    assert not was_replying
                if A.REOPEN in new or A.BARGE_IN in new:
                    assert was_replying
                    assert machine.is_hearing
                if probability == 0.0:
                    assert A.RESUME not in new
                    assert A.INTERRUPT not in new
        if signal == "heard" and machine.is_replying:
            machine.reply_heard()
        elif signal == "end":
            machine.end_turn()
            restarts.add(len(scene.events))
        elif signal == "typed":
            machine.end_turn()
            machine.begin_reply()
            restarts.add(len(scene.events))
    previous: TurnAction | None = None
    opened_ms = 0.0
    has_reopened = False
    for index, event in enumerate(scene.events):
        if index in restarts:
            previous = None
        assert event.action in NEXT[previous], (previous, event)
        assert 0 <= event.speech_start_ms <= event.speech_end_ms <= event.at_ms
        if event.action in (A.OPEN, A.BARGE_IN):
            opened_ms = event.speech_start_ms
            has_reopened = False
        has_reopened = has_reopened or event.action is A.REOPEN
        if event.action is A.COMMIT:
            length = event.speech_end_ms - event.speech_start_ms
            # Only speech can be too long: a pause inside the turn may reach over the limit.
            assert has_reopened or length < chosen.max_turn_ms + chosen.end_ms + FRAME_MS
            silence = event.at_ms - event.speech_end_ms
            # Speech over a reply may be found to be a turn after a longer silence than ends one.
            latest = max(chosen.end_ms, chosen.interruption.answer_ms + FRAME_MS) + FRAME_MS
            assert silence == 0 or chosen.end_ms <= silence < latest
            assert event.speech_start_ms == opened_ms
        if event.action is A.BARGE_IN:
            assert chosen.barge_in
        previous = event.action
    for before, after in pairwise(scene.events):
        assert before.at_ms <= after.at_ms


@examples(100)
@given(probabilities)
@pytest.mark.slow
def test_silence_ends_every_turn(part: list[tuple[float, int]]) -> None:
    scene = Scene()
    for probability, count in part:
        scene.frames(count, probability)
    scene.quiet(DEFAULT.end_ms + FRAME_MS)
    assert not scene.machine.is_hearing


@examples(50)
@given(probabilities)
@pytest.mark.slow
def test_the_report_is_reproducible(part: list[tuple[float, int]]) -> None:
    first, second = Scene(), Scene()
    for probability, count in part:
        first.frames(count, probability)
        second.frames(count, probability)
    assert first.events == second.events


# ---- the end-of-turn detector ----


def answer(scene: Scene, probability: float) -> Stage | None:
    """The detector answers about the present pause."""
    return scene.machine.rate_pause(scene.machine.speech_end_ms, probability)


def test_a_pause_that_sounds_finished_is_committed_at_once() -> None:
    scene = Scene().speak(640).quiet(192)
    assert scene.actions == [A.OPEN, A.PAUSE]
    assert scene.events[-1].silence_ms == DEFAULT.pause_ms
    assert answer(scene, 0.99) is Stage.LIKELY
    scene.quiet(192)
    assert scene.actions == [A.OPEN, A.PAUSE, A.COMMIT]
    assert scene.events[-1].silence_ms == 352
    assert scene.events[-1].reason == "likely"


def test_an_open_pause_waits_the_longer_the_less_it_sounds_finished() -> None:
    scene = Scene().speak(640).quiet(192)
    assert answer(scene, 0.9) is Stage.POSSIBLE
    scene.quiet(960)
    assert scene.events[-1].action is A.COMMIT
    assert scene.events[-1].silence_ms == 768  # the first frame that ends after 742 ms
    assert scene.events[-1].reason == "possible"


def test_a_pause_in_mid_sentence_waits_for_long() -> None:
    scene = Scene().speak(640).quiet(192)
    assert answer(scene, 0.05) is Stage.UNLIKELY
    scene.quiet(832)
    assert scene.actions == [A.OPEN, A.PAUSE]
    scene.quiet(128)
    assert scene.actions[2:] == [A.COMMIT]
    assert scene.events[-1].silence_ms == 1_120  # the first frame that ends after 1,100 ms
    assert scene.events[-1].reason == "unlikely"


def test_without_an_answer_silence_alone_decides() -> None:
    scene = Scene().speak(640).quiet(960)
    assert scene.events[-1].silence_ms == DEFAULT.end_ms
    assert scene.events[-1].reason == "silence"


def test_an_answer_about_a_pause_that_is_over_changes_nothing() -> None:
    scene = Scene().speak(640).quiet(192)
    asked_ms = scene.machine.speech_end_ms
    scene.speak(320)
    assert scene.machine.rate_pause(asked_ms, 0.99) is None
    scene.quiet(288)
    assert scene.machine.rate_pause(asked_ms, 0.99) is None
    assert scene.actions == [A.OPEN, A.PAUSE, A.RESUME, A.PAUSE]
    scene.quiet(384)
    assert scene.actions[4:] == [A.COMMIT]
    assert scene.machine.rate_pause(asked_ms, 0.99) is None


def test_the_next_pause_is_judged_again() -> None:
    scene = Scene().speak(640).quiet(192)
    answer(scene, 0.05)
    scene.quiet(768).speak(320).quiet(192)
    assert answer(scene, 0.99) is Stage.LIKELY
    scene.quiet(160)
    assert scene.actions == [A.OPEN, A.PAUSE, A.RESUME, A.PAUSE, A.COMMIT]


def test_a_turn_that_was_committed_too_early_is_reopened() -> None:
    scene = Scene().speak(640).quiet(192)
    answer(scene, 0.99)
    scene.quiet(256).speak(640).quiet(192)
    assert scene.actions == [A.OPEN, A.PAUSE, A.COMMIT, A.REOPEN, A.PAUSE]
    assert answer(scene, 0.99) is Stage.LIKELY
    scene.quiet(160)
    assert scene.actions[5:] == [A.COMMIT]


def test_a_cough_is_no_turn_whatever_the_detector_says() -> None:
    scene = Scene().speak(128).quiet(192)
    answer(scene, 0.99)
    assert scene.quiet(384).actions == [A.OPEN, A.PAUSE]
    assert scene.quiet(160).actions == [A.OPEN, A.PAUSE, A.DROP]


def test_off_takes_no_answer() -> None:
    scene = Scene(replace(DEFAULT, eagerness="off")).speak(640).quiet(192)
    assert answer(scene, 0.99) is None
    scene.quiet(960)
    assert scene.events[-1].silence_ms == DEFAULT.end_ms


@pytest.mark.parametrize(("eagerness", "committed_ms"), [("patient", 480), ("balanced", 352), ("eager", 256)])
def test_eagerness(eagerness: Eagerness, committed_ms: float) -> None:
    scene = Scene(replace(DEFAULT, eagerness=eagerness)).speak(640).quiet(192)
    answer(scene, 0.98)
    scene.quiet(960)
    assert scene.events[-1].silence_ms == committed_ms


def test_the_longest_turn_has_its_length_as_the_reason() -> None:
    scene = Scene(replace(DEFAULT, max_turn_ms=1_600)).speak(4_000)
    assert scene.events[-1].reason == "length"
