"""An end-of-turn detector without a network: answers by script."""

from __future__ import annotations

import time
from collections.abc import Sequence

from engine_runtime.types import Pcm


class ScriptedDetector:
    """Gives its answers in order and repeats the last one; notes what it was asked."""

    def __init__(self, *answers: float, work_s: float = 0.0) -> None:
        """`work_s` is the real time that an answer takes."""
        self._answers: Sequence[float] = answers
        self._work_s = work_s
        self.asked: list[Pcm] = []

    def probability(self, pcm: Pcm) -> float:
        time.sleep(self._work_s)
        self.asked.append(pcm)
        return self._answers[min(len(self.asked), len(self._answers)) - 1]
