"""Which turns of a conversation teach turn-taking how finished this voice sounds."""

from __future__ import annotations

import pytest

from app.dialog.end_of_turn import Stage
from app.dialog.turn_events import TurnAction
from tests.app.dialog.test_turn_taking import Scene, answer

LOW = 0.2


def committed(probability: float | None = LOW) -> Scene:
    """A turn that the detector rated like this was committed."""
    scene = Scene().quiet(320).speak(640).quiet(192)
    if probability is not None:
        answer(scene, probability)
    scene.quiet(1_200)
    assert scene.events[-1].action is TurnAction.COMMIT
    return scene


def answered(scene: Scene) -> float:
    """The reply is heard to its end; the shift after that."""
    scene.machine.reply_heard()
    scene.quiet(640)
    scene.machine.end_turn()
    return scene.machine.calibration.shift


def test_the_next_turn_of_a_voice_with_low_ends_is_committed_sooner() -> None:
    scene = committed()
    first_ms = scene.events[-1].silence_ms
    for _ in range(6):
        assert answered(scene) > 0.0
        scene.quiet(640).speak(640).quiet(192)
        stage = answer(scene, LOW)
        scene.quiet(1_200)
    assert stage is Stage.POSSIBLE
    assert scene.events[-1].silence_ms < first_ms


@pytest.mark.parametrize("probability", [None, 0.99])
def test_a_turn_that_says_nothing_new_changes_nothing(probability: float | None) -> None:
    assert answered(committed(probability)) == 0.0


def test_a_reply_that_was_not_heard_confirms_nothing() -> None:
    scene = committed()
    scene.machine.end_turn()
    assert scene.machine.calibration.shift == 0.0


def test_a_turn_that_went_on_is_not_confirmed_by_what_comes_after_it() -> None:
    scene = committed().speak(640)
    assert scene.events[-1].action is TurnAction.REOPEN
    answer(scene.quiet(192), 0.99)
    assert answered(scene.quiet(400)) == 0.0


def test_a_barge_in_confirms_nothing() -> None:
    scene = committed()
    scene.machine.reply_heard()
    scene.speak(1_600)
    assert scene.events[-1].action is TurnAction.BARGE_IN
    answer(scene.quiet(192), 0.99)
    assert answered(scene.quiet(400)) == 0.0


@pytest.mark.parametrize("is_heard", [False, True])
def test_a_press_over_the_reply_confirms_nothing(is_heard: bool) -> None:
    scene = committed()
    if is_heard:
        scene.machine.reply_heard()
    scene.machine.press(scene.now_ms)
    scene.speak(640).machine.release(scene.now_ms)
    assert answered(scene.quiet(64)) == 0.0
