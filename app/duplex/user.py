"""The simulated user: speaks into the room, listens to the loudspeaker, follows a scenario.

In: the time, once a round, and the sound of the loudspeaker. Out: speech for the room, and its annotations.
Dialog thread; `is_done` may be read by any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from app.duplex.room import RATE
from app.duplex.scenario import Cue, RecordedScenario, Scenario, Utterance
from app.duplex.segments import MODEL_GAP_S, SOUNDING_DBFS, UserSegment
from engine_runtime.types import Pcm

_PATIENCE_S = 6.0
"""How long to wait for a reply."""
_LISTENS_S = 3.5
"""Silence after something that is to be ignored, longer than the window in which a reaction counts."""
_LAST_SILENCE_S = 3.0
Speak = Callable[[Pcm], float]
"""Says something in the room; returns when it begins, in seconds."""


class Ear:
    """What the user hears of the assistant: whether it speaks, and since when."""

    def __init__(self) -> None:
        self.blocks: list[Pcm] = []
        """All that was played, at RATE, from time 0 on."""
        self.began_s = 0.0
        """When the present or the latest speech of the assistant began."""
        self.last_s = -MODEL_GAP_S
        """When the assistant was heard last."""
        self._samples = 0

    def hear(self, pcm: Pcm) -> None:
        """The next samples at RATE."""
        self.blocks.append(pcm)
        start_s = self._samples / RATE
        self._samples += len(pcm)
        if len(pcm) and np.mean(pcm**2) > 10 ** (SOUNDING_DBFS / 10):
            if start_s - self.last_s > MODEL_GAP_S:
                self.began_s = start_s
            self.last_s = self._samples / RATE

    @property
    def is_hearing(self) -> bool:
        """Whether the assistant speaks; short gaps do not count."""
        return self._samples / RATE - self.last_s < MODEL_GAP_S


class SimulatedUser:
    """Follows one scenario from the moment on that `start` is called."""

    def __init__(self, scenario: Scenario | RecordedScenario, ear: Ear, speak: Speak) -> None:
        self.segments: list[UserSegment] = []
        """What was said so far."""
        self.said: list[tuple[float, Pcm]] = []
        """The sound of it, and when it began."""
        self.is_done = False
        self._ear = ear
        self._speak = speak
        self._now_s = 0.0
        self._end_s = 0.0
        """End of what was said last."""
        self._script = (
            self._replay(scenario) if isinstance(scenario, RecordedScenario) else self._follow(scenario)
        )

    def advance(self, now_s: float) -> None:
        """Do what is due at `now_s`."""
        self._now_s = now_s
        if not self.is_done:
            self.is_done = next(self._script, True) is True

    def _follow(self, scenario: Scenario) -> Iterator[None]:
        for cue in scenario.cues:
            yield from self._until_quiet(cue.gap_s)
            yield from self._have(cue)
        yield from self._until_quiet(_LAST_SILENCE_S)

    def _have(self, cue: Cue) -> Iterator[None]:
        yield from self._say(cue.utterance)
        if cue.utterance.kind != "turn":
            yield from self._until(self._end_s + _LISTENS_S)
            return
        yield from self._await_reply()
        if cue.over is None or not self._ear.is_hearing:
            return
        yield from self._until(self._ear.began_s + cue.over_after_s)
        if self._ear.is_hearing:
            yield from self._say(cue.over)
            if cue.over.kind == "interruption":
                yield from self._await_reply()

    def _replay(self, scenario: RecordedScenario) -> Iterator[None]:
        start_s = self._speak(scenario.pcm)
        self.said.append((start_s, scenario.pcm))
        for segment in scenario.segments:
            pauses = tuple((start_s + begin, start_s + end) for begin, end in segment.pauses)
            self.segments.append(
                UserSegment(
                    segment.kind, start_s + segment.start_s, start_s + segment.end_s, pauses, segment.text
                )
            )
        self._end_s = start_s + len(scenario.pcm) / RATE
        yield from self._until(self._end_s)
        yield from self._until_quiet(_LAST_SILENCE_S)

    def _say(self, utterance: Utterance) -> Iterator[None]:
        start_s = self._speak(utterance.pcm)
        segment = utterance.segment(start_s)
        self.segments.append(segment)
        self.said.append((start_s, utterance.pcm))
        self._end_s = segment.end_s
        yield from self._until(start_s + len(utterance.pcm) / RATE)

    def _await_reply(self) -> Iterator[None]:
        while not self._ear.is_hearing and self._now_s < self._end_s + _PATIENCE_S:
            yield

    def _until_quiet(self, seconds: float) -> Iterator[None]:
        """Until neither side has spoken for this long."""
        while self._now_s < max(self._ear.last_s, self._end_s) + seconds:
            yield

    def _until(self, at_s: float) -> Iterator[None]:
        while self._now_s < at_s:
            yield
