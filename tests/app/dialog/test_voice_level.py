"""Whose speech is it: levels of frames, the user's level, what is quieter."""

from __future__ import annotations

import numpy as np
import pytest

from app.dialog.voice_level import VoiceLevel, voiced_level
from engine_runtime.types import Pcm

RATE = 16_000
SECOND = np.arange(RATE) / RATE


def tone(hz: float, level_db: float) -> Pcm:
    return np.asarray(2**0.5 * 10 ** (level_db / 20) * np.sin(2 * np.pi * hz * SECOND), dtype=np.float32)


class Talk:
    """Speech of given levels, as one frame of 200 ms each."""

    def __init__(self) -> None:
        self.level = VoiceLevel()
        self.now_ms = 0.0

    def wait(self, ms: float) -> Talk:
        self.now_ms += ms
        self.level.hear(None, self.now_ms - 32, self.now_ms, is_speech=False)
        return self

    def say(self, *levels_db: float | None) -> Talk:
        for level_db in levels_db:
            start_ms, self.now_ms = self.now_ms, self.now_ms + 200
            self.level.hear(level_db, start_ms, self.now_ms, is_speech=True)
        return self

    def turn(self, *levels_db: float | None) -> Talk:
        self.wait(5_000).say(*levels_db)
        self.level.begin_turn()
        self.level.commit_turn()
        return self

    def is_quieter(self, by_db: float | None = 10.0) -> bool:
        return self.level.is_quieter(by_db)


def known(level_db: float = -20.0) -> Talk:
    talk = Talk()
    for _ in range(3):
        talk.turn(level_db - 15.0, level_db)
    return talk.wait(5_000)


@pytest.mark.parametrize("level_db", [-20.0, -50.0])
def test_the_level_of_a_voiced_frame_is_its_power(level_db: float) -> None:
    assert voiced_level(tone(200, level_db)) == pytest.approx(level_db, abs=0.1)


def test_a_hiss_and_silence_have_no_level() -> None:
    assert voiced_level(tone(5_000, -20.0)) is None
    assert (
        voiced_level(np.asarray(0.1 * np.random.default_rng(0).standard_normal(512), dtype=np.float32))
        is None
    )
    assert voiced_level(np.zeros(512, dtype=np.float32)) is None


@pytest.mark.parametrize(("silence_ms", "user_db"), [(639.0, -20.0), (640.0, None)])
def test_a_turn_that_begins_after_a_gap_has_no_level_yet(silence_ms: float, user_db: float | None) -> None:
    talk = Talk()
    for _ in range(3):
        talk.wait(5_000).say(-20.0).wait(silence_ms).level.begin_turn()
        talk.level.commit_turn()
    assert talk.level.user_db == user_db


def test_nobody_is_quieter_before_two_turns() -> None:
    talk = Talk().turn(-20.0)
    assert talk.wait(5_000).say(-50.0).level.user_db is None
    assert not talk.is_quieter()
    talk.turn(-20.0)
    assert talk.wait(5_000).say(-50.0).is_quieter()


def test_the_user_is_the_median_of_the_loudest_frames() -> None:
    talk = Talk().turn(-40.0, -20.0).turn(-16.0, None).turn(-45.0)
    assert talk.level.user_db == -20.0
    assert talk.wait(5_000).say(-30.0).is_quieter()
    assert talk.wait(5_000).say(-29.0).is_quieter() is False
    assert talk.wait(5_000).say(-80.0).is_quieter(None) is False


@pytest.mark.parametrize("levels_db", [(-20.0, -35.0), (-35.0, -20.0), (-20.0, -35.0, -34.0, -21.0)])
def test_a_bystander_who_had_turns_early_is_quieter_than_the_user(levels_db: tuple[float, ...]) -> None:
    talk = Talk()
    for level_db in levels_db:
        talk.turn(level_db)
    assert talk.wait(5_000).say(-35.0).is_quieter()
    assert not talk.wait(5_000).say(-22.0).is_quieter()


def test_one_loud_frame_makes_it_the_users_until_a_silence() -> None:
    talk = known().say(-40.0, -35.0)
    assert talk.is_quieter()
    assert not talk.say(-22.0, -40.0).is_quieter()
    assert not talk.wait(320).say(-40.0).is_quieter()
    assert talk.wait(700).say(-40.0).is_quieter()


def test_a_hiss_alone_tells_nothing() -> None:
    assert not known().say(None, None).is_quieter()
    assert known().say(None, -40.0).is_quieter()


def test_what_was_said_long_ago_is_forgotten() -> None:
    assert not known().wait(130_000).say(-40.0).is_quieter()


@pytest.mark.parametrize(("silence_ms", "is_heard"), [(700, False), (2_000, True), (3_500, False)])
def test_who_says_it_again_soon_is_heard(silence_ms: float, is_heard: bool) -> None:
    talk = known().say(-40.0)
    assert talk.level.ignore()
    assert not talk.level.ignore()
    assert talk.wait(silence_ms).say(-40.0).is_quieter() is not is_heard


def test_a_soft_turn_that_was_said_again_is_the_new_level() -> None:
    talk = known().say(-40.0)
    talk.level.ignore()
    talk.wait(2_000).say(-40.0)
    talk.level.begin_turn()
    talk.level.commit_turn()
    assert talk.level.user_db is None
    talk.turn(-40.0).turn(-40.0)
    assert talk.level.user_db == -40.0


def test_a_turn_without_speech_says_nothing_about_the_user() -> None:
    talk = known().turn(-40.0)
    for _ in range(5):
        talk.wait(5_000).level.begin_turn()
        talk.level.commit_turn()
    assert talk.level.user_db == -20.0, "the last level is not counted again"
