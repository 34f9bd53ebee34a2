"""Decides by level alone whether the user speaks, or somebody further away.

In: the level of each VAD frame, and which turns were committed. Out: whether all of the present speech is
quieter than the user's turns. Pure, with times in milliseconds of captured audio; used by turn_taking.

A turn counts by its loudest frame, the user by the median of the latest turns. Nothing is known before
`_TURNS_NEEDED` of them, nor `_MEMORY_MS` after the last. A speaker who repeats something soon after being
ignored is heard, and if that becomes a turn, the user's level is learned afresh.

A bystander who speaks before the user's level is known gets a turn, which counts as one of the user's. So few
turns are needed, and of two in the middle the louder one is the median: with three, and their mean, a second
voice was heard for minutes.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

import numpy as np

from engine_runtime.types import Pcm

_TURNS_NEEDED = 2
"""A single turn may be louder than all the others of this user."""
_MOST_TURNS = 8
_MEMORY_MS = 120_000.0
"""Turns older than this do not count: the user may have moved."""
_GAP_MS = 640.0
"""Longer silence ends a stretch of speech."""
_REPEAT_MS = (1_000.0, 3_000.0)
"""Silence after which somebody who was ignored repeats it. In a conversation with somebody else, or on
television, the next sentence usually comes sooner."""


def voiced_level(frame: Pcm) -> float | None:
    """Level in dBFS. None for a hiss, with most of its power above an eighth of the sample rate or so: an /s/
    is 15 dB quieter than the vowel after it in every voice."""
    power = float(np.mean(frame**2))
    if power <= 0.0 or float(np.mean(np.diff(frame) ** 2)) > power:
        return None
    return 10.0 * math.log10(power)


class VoiceLevel:
    """Follows the speech in one audio stream."""

    def __init__(self) -> None:
        self.speech_db: float | None = None
        """Loudest frame of the present stretch of speech, None without a voiced one."""
        self._turn_db: float | None = None
        """Loudest frame of the turn in progress."""
        self._turns: deque[tuple[float, float]] = deque(maxlen=_MOST_TURNS)
        """End and level of committed turns."""
        self.start_ms = 0.0
        """Start of the present, or the latest, stretch of speech."""
        self._end_ms = -math.inf
        """End of the latest speech."""
        self._now_ms = 0.0
        self._was_ignored = False
        """Whether the present or latest stretch was taken for somebody else's."""
        self._is_repetition = False

    def hear(self, level_db: float | None, start_ms: float, end_ms: float, *, is_speech: bool) -> None:
        """The next frame; `level_db` None where it says nothing about the distance."""
        self._now_ms = end_ms
        if not is_speech:
            return
        silence_ms = start_ms - self._end_ms
        if silence_ms >= _GAP_MS:
            least_ms, most_ms = _REPEAT_MS
            self._is_repetition = self._was_ignored and least_ms <= silence_ms <= most_ms
            self._was_ignored = False
            self.speech_db = None
            self.start_ms = start_ms
        self._end_ms = end_ms
        if level_db is not None:
            self.speech_db = _louder(self.speech_db, level_db)
            self._turn_db = _louder(self._turn_db, level_db)

    @property
    def user_db(self) -> float | None:
        """Level of the user, None while it is not known."""
        known = [level for end_ms, level in self._turns if self._now_ms - end_ms <= _MEMORY_MS]
        # Of two in the middle the louder one: the other may be a bystander's.
        return statistics.median_high(known) if len(known) >= _TURNS_NEEDED else None

    def is_quieter(self, by_db: float | None) -> bool:
        """Whether all of the present speech is at least `by_db` quieter than the user; False for None."""
        user_db = self.user_db
        if by_db is None or user_db is None or self.speech_db is None or self._is_repetition:
            return False
        return self.speech_db <= user_db - by_db

    def ignore(self) -> bool:
        """Take the present speech for somebody else's; returns whether that is new."""
        is_new, self._was_ignored = not self._was_ignored, True
        return is_new

    def begin_turn(self) -> None:
        """Begin a turn, with the present speech if there is any."""
        is_speaking = self._now_ms - self._end_ms < _GAP_MS
        self._turn_db = self.speech_db if is_speaking else None

    def commit_turn(self) -> None:
        """End the turn."""
        if self._is_repetition:
            self._turns.clear()
        self._is_repetition = False
        if self._turn_db is not None:
            self._turns.append((self._end_ms, self._turn_db))


def _louder(known_db: float | None, level_db: float) -> float:
    return level_db if known_db is None else max(known_db, level_db)
