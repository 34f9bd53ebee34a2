"""An end-of-turn detector without a network: answers by script."""

from __future__ import annotations

import time
from collections.abc import Sequence

from engine_runtime.types import Pcm


class ScriptedDetector:
    """Gives its answers in order and repeats the last one; notes what it was asked."""

    def __init__(self, *answers: float, backchannels: Sequence[float] = (), work_s: float = 0.0) -> None:
        """`work_s` is the real time that an answer takes. `backchannels` are the answers about speech over a
        reply; without any it cannot tell."""
        self._answers: Sequence[float] = answers
        self._backchannels = backchannels
        self.overlaps_s: list[float] = []
        """Lengths of the speech over a reply that was asked about."""
        self._work_s = work_s
        self.asked: list[Pcm] = []

    def probability(self, pcm: Pcm) -> float:
        time.sleep(self._work_s)
        self.asked.append(pcm)
        return self._answers[min(len(self.asked), len(self._answers)) - 1]

    def backchannel(self, pcm: Pcm, speech_s: float) -> float | None:
        self.overlaps_s.append(speech_s)
        answers = self._backchannels
        return answers[min(len(self.overlaps_s), len(answers)) - 1] if answers else None
