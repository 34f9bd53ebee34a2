"""Runs the end-of-turn detector in its own thread: an answer takes longer than a round of the dialog loop
may.

In: pauses with the audio of their turn. Out: a probability each, in a queue. `run` is the body of the end of
turn thread, the only one that touches the detector; `submit`, `close` and `answers` belong to the dialog
thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from app.dialog.smart_turn import EndOfTurnDetector
from app.session.clocks import PendingWork
from engine_runtime.types import Pcm

_log = logging.getLogger(__name__)

DetectorFactory = Callable[[], EndOfTurnDetector | None]
"""Loads the detector, or says why there is none and returns None. Called once, in the end of turn thread."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause to judge: the silence after `speech_end_ms`, `silence_ms` of it when it was asked. Or speech
    over a reply, where `overlap_ms` is its start: is it a backchannel?"""

    turn_id: int
    speech_end_ms: float
    silence_ms: float
    pcm: Pcm
    """The audio of the turn up to now, at the rate of the detector."""
    overlap_ms: float | None = None


@dataclass(frozen=True, slots=True)
class PauseRated:
    """The detector's answer: how likely the user has finished, or that speech over a reply is a backchannel,
    and when the work on it began and how long it took (by the clock of the timing bus)."""

    pause: Pause
    probability: float | None
    """None where the detector cannot tell a backchannel."""
    start_ns: int
    duration_ns: int


AnswerListener = Callable[[PauseRated], None]
"""Gets one answer of the detector; must not block."""


class EndOfTurnWorker:
    """One detector, one pause after the other."""

    def __init__(self, factory: DetectorFactory, pending: PendingWork) -> None:
        self.answers: SimpleQueue[PauseRated] = SimpleQueue()
        self._factory = factory
        self._pending = pending
        self._pauses: SimpleQueue[tuple[Pause, AnswerListener] | None] = SimpleQueue()
        pending.begin()  # loading

    # ---- dialog thread ----

    def submit(self, pause: Pause, give: AnswerListener | None = None) -> None:
        """Put a pause in the queue; never blocks. `give` gets the answer in the end of turn thread, in place
        of the queue. Without a detector there will be no answer."""
        self._pending.begin()
        self._pauses.put((pause, give or self.answers.put))

    def take_answers(self) -> Iterator[PauseRated]:
        """The answers in the queue since the last call."""
        while True:
            try:
                yield self.answers.get_nowait()
            except Empty:
                return

    def close(self) -> None:
        """End the thread after the queued pauses."""
        self._pauses.put(None)

    # ---- end of turn thread ----

    def run(self) -> None:
        """Body of the end of turn thread: load, answer, end."""
        try:
            detector = self._factory()
        except Exception:
            _log.exception("the end-of-turn detector cannot be loaded")
            detector = None
        _log.info("end of turn: %s", "silence alone" if detector is None else type(detector).__name__)
        self._pending.end()
        while (asked := self._pauses.get()) is not None:
            pause, give = asked
            try:
                if detector is not None:
                    give(_rated(detector, pause))
            except Exception:
                _log.exception("the end-of-turn detector failed; silence alone ends a turn from now on")
                detector = None
            finally:
                self._pending.end()


def _rated(detector: EndOfTurnDetector, pause: Pause) -> PauseRated:
    start_ns = time.perf_counter_ns()
    if pause.overlap_ms is None:
        probability: float | None = detector.probability(pause.pcm)
    else:
        speech_ms = pause.speech_end_ms + pause.silence_ms - pause.overlap_ms
        probability = detector.backchannel(pause.pcm, speech_ms / 1e3)
    return PauseRated(pause, probability, start_ns, time.perf_counter_ns() - start_ns)
