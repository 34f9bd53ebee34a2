"""The latest VAD frames while no turn is open: does speech begin in them, does a reply get interrupted?

In: one probability per frame. Out: where speech began. Pure; used by turn_taking.
"""

from __future__ import annotations

from collections import deque

from app.dialog.turn_taking_settings import TurnTakingSettings


class SpeechWindow:
    """Frames of the last moments, as (start, end, probability), in milliseconds."""

    def __init__(self) -> None:
        self._frames: deque[tuple[float, float, float]] = deque()

    def clear(self) -> None:
        """Forget all frames."""
        self._frames.clear()

    def add(self, settings: TurnTakingSettings, probability: float, start_ms: float, end_ms: float) -> None:
        """The next frame."""
        self._frames.append((start_ms, end_ms, probability))
        span_ms = max(settings.start_window_ms, settings.barge_in_ms, settings.pause_ms)
        while self._frames[0][1] <= end_ms - span_ms:
            self._frames.popleft()

    def speech_start(self, settings: TurnTakingSettings) -> float | None:
        """Start of the first speech in the window if there is enough of it to open a turn."""
        window_start = self._frames[-1][1] - settings.start_window_ms
        speech = [
            (start, end)
            for start, end, probability in self._frames
            if probability >= settings.start_threshold and start >= window_start
        ]
        if speech and sum(end - start for start, end in speech) >= settings.start_ms:
            return speech[0][0]
        return None

    def interruption_start(self, settings: TurnTakingSettings) -> float | None:
        """Start of the run of speech up to now if it is long or clear enough to interrupt a reply."""
        run_start: float | None = None
        for start, _, probability in reversed(self._frames):
            if probability < settings.barge_in_threshold:
                break
            run_start = start
        latest_start, now, probability = self._frames[-1]
        is_clear = probability >= settings.barge_in_clear and settings.barge_in_ms <= 2 * (now - latest_start)
        is_enough = run_start is not None and (is_clear or now - run_start >= settings.barge_in_ms)
        return run_start if is_enough else None

    def speech_since(self, start_ms: float, threshold: float) -> float:
        """Milliseconds of speech from `start_ms` on."""
        return sum(
            end - start
            for start, end, probability in self._frames
            if start >= start_ms and probability >= threshold
        )

    def quiet_ms(self, threshold: float) -> float:
        """Length of the run of silence up to now."""
        quiet_since = now = self._frames[-1][1]
        for start, _, probability in reversed(self._frames):
            if probability >= threshold:
                break
            quiet_since = start
        return now - quiet_since
