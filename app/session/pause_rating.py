"""The pauses of a turn on their way to the end-of-turn detector and back.

In: pauses that turn-taking found, the audio captured so far, answers of detector and language model. Out:
questions for the detector, and the timing event end_of_turn for each answer. Dialog thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from queue import Empty

from app.dialog.end_of_turn import Stage
from app.dialog.smart_turn import WINDOW_S
from app.dialog.turn_events import TurnEvent
from app.session.capture import Capture
from app.session.end_of_turn_worker import EndOfTurnWorker, Pause, PauseRated
from app.session.speculation import HeldReply
from engine_runtime.timing import TimingBus


class PauseRating:
    """Asks about one turn at a time. Without a worker no pause is rated."""

    def __init__(self, worker: EndOfTurnWorker | None, capture: Capture) -> None:
        self._worker = worker
        self._capture = capture

    def ask(self, turn_id: int, event: TurnEvent, start_ms: float) -> None:
        """The user paused: ask the detector about the audio from `start_ms` on, if there is a detector."""
        if self._worker is not None:
            window_ms = event.at_ms - WINDOW_S * 1e3
            start = self._capture.samples_of(max(start_ms, window_ms, 0.0))
            pcm = self._capture.utterance.since(start)
            self._worker.submit(Pause(turn_id, event.speech_end_ms, event.silence_ms, pcm))

    def answers(self) -> Iterator[PauseRated]:
        """Answers of the detector since the last call."""
        while self._worker is not None:
            try:
                yield self._worker.answers.get_nowait()
            except Empty:
                return

    def report(self, rated: PauseRated, stage: Stage | None, timing: TimingBus) -> float:
        """Record the answer of the detector in the trace; `stage` is None where the pause was over by then.
        Returns the silence at the time of the answer, in milliseconds."""
        pause = rated.pause
        answered_ms = self._silence_ms(pause.speech_end_ms)
        timing.emit(
            "end_of_turn",
            pause.turn_id,
            rated.start_ns,
            rated.duration_ns,
            by="detector",
            probability=rated.probability,
            stage="late" if stage is None else stage.value,
            asked_ms=pause.silence_ms,
            answered_ms=answered_ms,
        )
        return answered_ms

    def report_prediction(
        self, held: HeldReply, probability: float, stage: Stage | None, cost_ns: int, timing: TimingBus
    ) -> float:
        """The same for the answer of the language model, which came with a speculative reply after
        `cost_ns`."""
        answered_ms = self._silence_ms(held.speech_end_ms)
        timing.emit(
            "end_of_turn",
            held.turn_id,
            time.perf_counter_ns() - cost_ns,
            cost_ns,
            by="language model",
            probability=probability,
            stage="late" if stage is None else stage.value,
            asked_ms=held.silence_ms,
            answered_ms=answered_ms,
        )
        return answered_ms

    def _silence_ms(self, speech_end_ms: float) -> float:
        return self._capture.ms_of(self._capture.utterance.end) - speech_end_ms
