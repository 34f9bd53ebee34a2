"""What speech over a reply is, by its length, its pauses and the detector's answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.dialog.interruption import (
    COURSE_RULES,
    ONSET_RULES,
    Course,
    Interruption,
    InterruptionSettings,
    Onset,
    SpeechVerdict,
)

FRAME = 32.0
PAUSE_MS = 160.0
SETTINGS = InterruptionSettings()


class Voice:
    """One interruption, told frame by frame."""

    def __init__(
        self,
        settings: InterruptionSettings = SETTINGS,
        earlier: Interruption | None = None,
        *,
        has_echo: bool = False,
    ) -> None:
        self.speech = Interruption(settings, 0.0, 2 * FRAME, earlier, has_echo=has_echo)
        self.now_ms = 2 * FRAME
        self.asked: list[float] = []

    def frame(self, *, is_speech: bool) -> None:
        start, self.now_ms = self.now_ms, self.now_ms + FRAME
        if self.speech.add(start, self.now_ms, is_speech=is_speech, pause_ms=PAUSE_MS):
            self.asked.append(self.now_ms)

    def speak(self, until_ms: float) -> Voice:
        while self.now_ms < until_ms:
            self.frame(is_speech=True)
        return self

    def silence_until(self, *verdicts: SpeechVerdict) -> float:
        """Silence in ms until the verdict is one of these."""
        start = self.now_ms
        while self.speech.verdict() not in verdicts:
            self.frame(is_speech=False)
            assert self.now_ms - start < 5_000
        return self.now_ms - start


def test_short_speech_lets_the_reply_go_on_after_a_short_silence() -> None:
    for length_ms in (64, 320, 608):
        voice = Voice().speak(length_ms)
        assert voice.speech.verdict() is SpeechVerdict.OPEN
        assert voice.silence_until(SpeechVerdict.TURN, SpeechVerdict.NO_TURN) == SETTINGS.resume_ms
        assert voice.speech.verdict() is SpeechVerdict.NO_TURN
        assert voice.asked == []


def test_a_gap_is_tolerated_longer_where_the_vad_may_miss_speech() -> None:
    for voice in (Voice(has_echo=True), Voice(earlier=Voice().speak(128).speech)):
        voice.speak(320)
        assert voice.silence_until(SpeechVerdict.NO_TURN) == SETTINGS.uncertain_resume_ms


def test_speech_beyond_the_boundary_is_a_turn_at_once() -> None:
    voice = Voice().speak(SETTINGS.boundary_ms - FRAME)
    assert voice.speech.verdict() is SpeechVerdict.OPEN
    assert voice.speak(SETTINGS.boundary_ms).speech.verdict() is SpeechVerdict.TURN


def test_gaps_count_as_speech_that_goes_on() -> None:
    voice = Voice().speak(320)
    for _ in range(4):
        voice.frame(is_speech=False)
    voice.speak(SETTINGS.boundary_ms)
    assert voice.speech.verdict() is SpeechVerdict.TURN
    assert voice.speech.speech_ms == voice.now_ms - 4 * FRAME


def test_longer_speech_that_sounds_finished_is_a_turn() -> None:
    voice = Voice().speak(800)
    while not voice.asked:
        voice.frame(is_speech=False)
    assert voice.asked == [800 + PAUSE_MS]
    assert voice.speech.verdict() is SpeechVerdict.OPEN
    assert voice.speech.rate(800, 0.6)
    assert voice.speech.verdict() is SpeechVerdict.TURN


def test_longer_speech_that_sounds_unfinished_is_waited_for() -> None:
    voice = Voice().speak(800)
    while not voice.asked:
        voice.frame(is_speech=False)
    assert voice.speech.rate(800, 0.1)
    voice.silence_until(SpeechVerdict.TURN, SpeechVerdict.NO_TURN)
    assert voice.speech.verdict() is SpeechVerdict.NO_TURN
    assert voice.now_ms - 800 == pytest.approx(SETTINGS.unfinished_ms, abs=FRAME)


def test_without_an_answer_longer_speech_is_a_turn() -> None:
    voice = Voice().speak(800)
    assert voice.silence_until(SpeechVerdict.TURN, SpeechVerdict.NO_TURN) == SETTINGS.answer_ms
    assert voice.speech.verdict() is SpeechVerdict.TURN


def test_an_answer_about_an_earlier_pause_does_not_count() -> None:
    voice = Voice().speak(704)
    while not voice.asked:
        voice.frame(is_speech=False)
    voice.speak(voice.now_ms + FRAME)
    assert not voice.speech.rate(704, 0.9)
    assert voice.speech.verdict() is SpeechVerdict.OPEN


@pytest.mark.parametrize(
    ("length_ms", "silence_ms", "backchannel", "verdict"),
    [
        (320, 0, 0.11, SpeechVerdict.OPEN),
        (320, 0, 0.89, SpeechVerdict.OPEN),
        (320, 0, 0.9, SpeechVerdict.BACKCHANNEL),
        (320, 64, 0.54, SpeechVerdict.TURN),
        (320, 64, 0.55, SpeechVerdict.BACKCHANNEL),
        (512, 0, 0.54, SpeechVerdict.TURN),
        (512, 0, 0.55, SpeechVerdict.BACKCHANNEL),
    ],
)
def test_the_detector_has_to_be_sure_only_at_first(
    length_ms: float, silence_ms: float, backchannel: float, verdict: SpeechVerdict
) -> None:
    known = course(length_ms, silence_ms, backchannel=backchannel)
    assert next(rule.outcome for rule in COURSE_RULES if rule.holds(known)) is verdict


@pytest.mark.parametrize(
    ("length_ms", "silence_ms", "backchannel", "verdict"),
    [
        (512, 0, 0.54, SpeechVerdict.OPEN),
        (512, 0, 0.55, SpeechVerdict.BACKCHANNEL),
        (512, 0, 0.09, SpeechVerdict.TURN),
        (320, 192, 0.54, SpeechVerdict.OPEN),
        (320, 224, 0.54, SpeechVerdict.TURN),
        (320, 224, 0.55, SpeechVerdict.NO_TURN),
        (704, 0, 0.54, SpeechVerdict.TURN),
        (704, 0, 0.55, SpeechVerdict.BACKCHANNEL),
    ],
)
def test_a_single_answer_cuts_the_reply_only_if_it_is_sure_or_no_other_comes(
    length_ms: float, silence_ms: float, backchannel: float, verdict: SpeechVerdict
) -> None:
    known = course(length_ms, silence_ms, backchannel=backchannel, answers=1)
    assert next(rule.outcome for rule in COURSE_RULES if rule.holds(known)) is verdict


def test_a_second_answer_decides_as_soon_as_it_comes() -> None:
    voice = Voice().speak(544)
    voice.speech.judge(0.0, 0.45)
    assert voice.speech.verdict() is SpeechVerdict.OPEN
    voice.speech.judge(0.0, 0.9)
    assert voice.speech.verdict() is SpeechVerdict.BACKCHANNEL


def test_all_answers_about_the_speech_count() -> None:
    voice = Voice().speak(320)
    assert voice.speech.judge(0.0, 0.8)
    assert voice.speech.judge(0.0, 0.95)
    assert voice.speech.verdict() is SpeechVerdict.OPEN
    assert voice.speech.judge(0.0, 0.98)
    assert voice.speech.verdict() is SpeechVerdict.BACKCHANNEL
    assert not voice.speech.judge(32.0, 0.01)
    assert voice.speech.verdict() is SpeechVerdict.BACKCHANNEL


def test_the_detector_is_asked_every_three_frames_until_the_silence_is_long() -> None:
    voice, asked = Voice(), []
    for place in range(30):
        voice.frame(is_speech=place < 14)
        if voice.speech.is_to_be_judged():
            asked.append(voice.now_ms)
    assert asked == [256, 352, 448, 544, 640]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"turn_ms": 1_200}, "turn_ms <= boundary_ms"),
        ({"resume_ms": 400}, "resume_ms <= answer_ms"),
        ({"unfinished_ms": 100}, "answer_ms <= unfinished_ms"),
        ({"uncertain_resume_ms": 200}, "resume_ms <= uncertain_resume_ms"),
        ({"finished": 0.0}, "finished"),
        ({"bystander_ms": 0}, "bystander_ms"),
        ({"listen_ms": 0}, "listen_ms"),
        ({"settle_answers": 0}, "settle_answers"),
        ({"settle_limit_ms": 500}, "settle_limit_ms"),
        ({"long_boundary_ms": 900}, "long_boundary_ms"),
        ({"sure": 0.54}, "likely <= sure"),
        ({"likely": 0.4}, "likely"),
    ],
)
def test_settings_are_checked(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InterruptionSettings(**changes)  # type: ignore[arg-type]


NOTHING_YET = Onset(
    is_rest=False,
    continues=False,
    may_interrupt=True,
    interrupts=False,
    may_continue=False,
    is_bystander=False,
)
SPEECH = replace(NOTHING_YET, interrupts=True)
ONSETS = {
    "the rest of the longest turn": replace(SPEECH, is_rest=True, continues=True),
    "the user continues the turn": replace(SPEECH, continues=True, may_interrupt=False, is_bystander=True),
    "interruption is switched off": replace(SPEECH, may_interrupt=False),
    "too little speech to pause a reply": replace(NOTHING_YET, is_bystander=True),
    "too little yet to continue the turn": replace(SPEECH, may_continue=True, is_bystander=True),
    "quieter than the user": replace(SPEECH, is_bystander=True),
    "speech over the reply": SPEECH,
}
"""An example of each rule that comes first, some of which later ones would decide in another way."""


def course(
    length_ms: float,
    silence_ms: float,
    probability: float | None = None,
    backchannel: float | None = None,
    answers: int = SETTINGS.settle_answers,
    **changes: bool,
) -> Course:
    known = {"is_continuation": False, "is_bystander": False, "may_interrupt": True} | changes
    return Course(
        length_ms,
        silence_ms,
        probability,
        backchannel,
        answers,
        SETTINGS.resume_ms,
        settings=SETTINGS,
        **known,
    )


COURSES = {
    "quieter than the user for `bystander_ms`": course(320, 0, is_bystander=True, may_interrupt=False),
    "interruption was switched off meanwhile": course(1_500, 0, may_interrupt=False),
    "`continuation_ms` of a user who was cut off": course(256, 300, is_continuation=True),
    "it sounds like a turn": course(256, 0, backchannel=0.09),
    "a backchannel, then silence": course(320, 224, backchannel=0.55),
    "it sounds like a backchannel, and is not too long for one": course(1_568, 0, backchannel=0.55),
    "`boundary_ms`, while the user still speaks": course(1_600, 0, 0.0, backchannel=0.9),
    "shorter than `turn_ms`, then silence: a backchannel, a cough, a click": course(608, 224, 0.9),
    "shorter than `turn_ms`": course(608, 192, 0.9, is_continuation=False),
    "no answer of the detector after `answer_ms` of silence": course(800, 320),
    "no pause, or no answer yet": course(800, 288),
    "it sounds finished": course(800, 1_000, 0.15),
    "it sounds unfinished, and the user does not continue for `unfinished_ms`": course(800, 1_000, 0.14),
    "it sounds unfinished": course(800, 992, 0.14),
}


@pytest.mark.parametrize(
    ("rules", "examples"), [(ONSET_RULES, ONSETS), (COURSE_RULES, COURSES)], ids=["onset", "course"]
)
def test_each_rule_decides_something_and_the_first_that_holds_does(rules: Any, examples: Any) -> None:
    assert list(examples) == [rule.condition for rule in rules], "an example for each rule, in its order"
    for condition, facts in examples.items():
        decides = next(rule for rule in rules if rule.holds(facts))
        assert decides.condition == condition
    assert all(rules[-1].holds(facts) for facts in examples.values()), "there is always a verdict"
