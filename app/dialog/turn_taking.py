"""Turn-taking: a pure state machine from speech probabilities to turn events. The clock is passed in.

In: one probability per VAD frame with its time, the end-of-turn detector's answers about pauses, the button
of push-to-talk, and when a reply starts and ends. Out: turn events. Runs in the dialog thread; knows no
audio, no thread and no real clock (times are milliseconds of captured audio).

    idle --open--> hearing --commit--> replying (not heard yet) --reply_heard--> replying (heard) --> idle
                   hearing --drop--> idle          (too short: a cough, a click)
                   hearing <--reopen-- replying    (the user continues before the reply is heard)
                   hearing <--barge_in-- replying  (the user interrupts: a new turn)

A pause is committed after `end_ms` of silence, or as `end_of_turn` decides once a detector has answered. An
answer that comes late, or never, changes nothing.

Push-to-talk: `press` opens the turn, or interrupts the reply, at once, and takes over a turn that voice has
opened; the frame that reaches the time of `release` commits it, or drops it if nothing was said. In between a
pause is no event.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from app.dialog.end_of_turn import Stage
from app.dialog.turn_taking_settings import TurnTakingSettings


class TurnAction(Enum):
    """What the user did."""

    OPEN = "open"
    """Started to speak, or pressed the button: a new turn."""
    ONSET = "onset"
    """The first speech while the button is down."""
    PAUSE = "pause"
    """Paused; the turn may be over. Comes once more where a turn waits for long."""
    RESUME = "resume"
    """The user continued within the turn."""
    COMMIT = "commit"
    """Finished: the reply may begin."""
    DROP = "drop"
    """Too little speech: there was no turn."""
    REOPEN = "reopen"
    """The user continued after the commit: the same turn is reopened and the reply is discarded."""
    BARGE_IN = "barge_in"
    """Interrupted the reply: it is stopped and a new turn is open."""


PressEnd = Literal["released", "length"]
"""The button came up, or was down for the longest turn."""


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """An action, when it was decided, and the speech it is about (start of the first, end of the last; both
    the time of the press before any speech).

    `stage` is how the detector found the present pause, None where it has not answered; `press_end` is how a
    press of the button ended with this event.
    """

    action: TurnAction
    at_ms: float
    speech_start_ms: float
    speech_end_ms: float
    stage: Stage | None = None
    press_end: PressEnd | None = None

    @property
    def silence_ms(self) -> float:
        """Silence between the end of the speech and the decision."""
        return self.at_ms - self.speech_end_ms

    @property
    def reason(self) -> str:
        """Why a turn was committed: the stage, "silence" without one, "length" of an endless turn, or
        "released"."""
        if self.press_end is not None:
            return self.press_end
        if self.silence_ms <= 0:
            return "length"
        return "silence" if self.stage is None else self.stage.value


class _Phase(Enum):
    IDLE = 0
    HEARING = 1
    REPLYING = 2


class TurnTaking:
    """The state machine of one audio stream."""

    def __init__(self, settings: TurnTakingSettings) -> None:
        self.settings = settings
        """May be replaced between frames."""
        self._phase = _Phase.IDLE
        self._recent: deque[tuple[float, float, float]] = deque()
        """(start, end, probability) of the latest frames while nobody speaks."""
        self._speech_start_ms = 0.0
        self._speech_end_ms = 0.0
        self._speech_ms = 0.0
        self._is_paused = False
        self._is_asked_again = False
        self._stage: Stage | None = None
        self._commit_ms = 0.0
        self._may_reopen = False
        self._is_heard = False
        self._waits_for_silence = False
        self._is_pressed = False
        self._released_ms: float | None = None

    @property
    def is_hearing(self) -> bool:
        """Whether a user turn is open."""
        return self._phase is _Phase.HEARING

    @property
    def is_replying(self) -> bool:
        """Whether a committed turn has not been answered to its end."""
        return self._phase is _Phase.REPLYING

    @property
    def speech_end_ms(self) -> float:
        """End of the latest speech of the turn."""
        return self._speech_end_ms

    def update(self, probability: float, start_ms: float, end_ms: float) -> list[TurnEvent]:
        """One VAD frame that was captured from `start_ms` to `end_ms`; frames come in order."""
        if end_ms <= start_ms:
            raise ValueError(f"a frame needs a length, got {start_ms} to {end_ms} ms")
        if self._is_pressed:
            return self._hear_press(probability, start_ms, end_ms)
        if self._phase is _Phase.HEARING:
            return self._hear(probability, start_ms, end_ms)
        self._remember(probability, start_ms, end_ms)
        if self._phase is _Phase.IDLE:
            return self._await_speech(end_ms)
        return self._await_interruption(end_ms)

    def press(self, at_ms: float) -> list[TurnEvent]:
        """The button of push-to-talk went down: a turn is open until `release`, whatever is heard."""
        phase, self._phase = self._phase, _Phase.HEARING
        continues = phase is _Phase.REPLYING and self._may_continue(at_ms)
        self._is_pressed = True
        self._released_ms = None
        self._end_pause()
        self._recent.clear()
        if phase is _Phase.HEARING:
            return []
        if continues:
            return [self._event(TurnAction.REOPEN, at_ms)]
        self._speech_start_ms = self._speech_end_ms = at_ms
        self._speech_ms = 0.0
        action = TurnAction.OPEN if phase is _Phase.IDLE else TurnAction.BARGE_IN
        return [self._event(action, at_ms)]

    def release(self, at_ms: float) -> None:
        """The button came up at `at_ms`: the frame that reaches this time ends the turn."""
        self._released_ms = at_ms

    def rate_pause(self, speech_end_ms: float, probability: float) -> Stage | None:
        """The detector's answer about the pause after `speech_end_ms`: how likely the user has finished.

        Returns its stage, or None for a pause that is over. The first answer decides how long to wait; a
        later one can only end the wait.
        """
        policy = self.settings.policy
        is_over = not (self.is_hearing and self._is_paused and speech_end_ms == self._speech_end_ms)
        if policy is None or is_over:
            return None
        stage = policy.stage(probability)
        if self._stage is None or stage is Stage.LIKELY:
            self._stage = stage
        return stage

    def begin_reply(self) -> None:
        """A typed question was committed: speech from now on interrupts its reply."""
        self._enter_reply(self._speech_end_ms, may_reopen=False)

    def reply_heard(self) -> None:
        """The first sample of the reply was handed to the loudspeaker: speech from now on is a barge-in."""
        self._is_heard = True

    def end_turn(self) -> None:
        """The reply was played to its end, or the turn was cancelled: nobody speaks."""
        self._phase = _Phase.IDLE
        self._is_pressed = False
        self._recent.clear()

    # ---- phases ----

    def _await_speech(self, end_ms: float) -> list[TurnEvent]:
        start = self._speech_start_in_window()
        if start is None:
            return []
        self._begin_speech(start)
        return [self._event(TurnAction.OPEN, end_ms)]

    def _hear(self, probability: float, start_ms: float, end_ms: float) -> list[TurnEvent]:
        threshold = self.settings.start_threshold if self._is_paused else self.settings.end_threshold
        events: list[TurnEvent] = []
        if probability >= threshold:
            self._speech_end_ms = end_ms
            self._speech_ms += end_ms - start_ms
            if self._is_paused:
                self._end_pause()
                events.append(self._event(TurnAction.RESUME, end_ms))
            if end_ms - self._speech_start_ms >= self.settings.max_turn_ms:
                self._enter_reply(end_ms, may_reopen=False)
                self._waits_for_silence = True
                events.append(self._event(TurnAction.COMMIT, end_ms))
            return events
        silence_ms = end_ms - self._speech_end_ms
        if self._is_time_to_ask(silence_ms):
            self._is_asked_again = self._is_paused
            self._is_paused = True
            events.append(self._event(TurnAction.PAUSE, end_ms))
        is_short = self._speech_ms < self.settings.min_speech_ms
        if is_short and silence_ms >= self.settings.end_ms:
            self.end_turn()
            events.append(self._event(TurnAction.DROP, end_ms))
        elif not is_short and silence_ms >= self._commit_after_ms:
            committed = self._event(TurnAction.COMMIT, end_ms)
            self._enter_reply(end_ms, may_reopen=True)
            events.append(committed)
        return events

    def _hear_press(self, probability: float, start_ms: float, end_ms: float) -> list[TurnEvent]:
        settings, events = self.settings, []
        if probability >= (settings.end_threshold if self._speech_ms else settings.start_threshold):
            is_first, self._speech_end_ms = not self._speech_ms, end_ms
            self._speech_ms += end_ms - start_ms
            if is_first:
                self._speech_start_ms = start_ms
                events.append(self._event(TurnAction.ONSET, end_ms))
        if self._released_ms is not None and end_ms >= self._released_ms:
            events.append(self._end_press(end_ms, "released"))
        elif end_ms - self._speech_start_ms >= settings.max_turn_ms:
            events.append(self._end_press(end_ms, "length"))
        return events

    def _end_press(self, end_ms: float, how: PressEnd) -> TurnEvent:
        is_short = self._speech_ms < self.settings.min_speech_ms
        ended = self._event(TurnAction.DROP if is_short else TurnAction.COMMIT, end_ms, how)
        if is_short:
            self.end_turn()
        else:
            self._enter_reply(end_ms, may_reopen=how == "released")
            self._waits_for_silence = how == "length"
        return ended

    def _is_time_to_ask(self, silence_ms: float) -> bool:
        if self._is_paused:
            waits = silence_ms < self._commit_after_ms and not self._is_asked_again
            return waits and silence_ms >= self.settings.ask_again_ms
        return silence_ms >= self.settings.pause_ms

    @property
    def _commit_after_ms(self) -> float:
        """Silence that commits the turn, as far as one knows by now."""
        policy, end_ms = self.settings.policy, self.settings.end_ms
        return end_ms if policy is None else policy.silence_ms(self._stage, end_ms)

    def _await_interruption(self, end_ms: float) -> list[TurnEvent]:
        if self._waits_for_silence:
            # Committed at the longest turn, in the middle of speech: its rest is no interruption.
            if self._quiet_ms() >= self.settings.pause_ms:
                self._waits_for_silence = False
                self._recent.clear()
            return []
        start = self._speech_start_in_window()
        if start is not None and self._may_continue(start):
            spoken_ms, first_ms = self._speech_ms, self._speech_start_ms
            self._begin_speech(start)
            self._speech_ms += spoken_ms
            self._speech_start_ms = first_ms
            return [self._event(TurnAction.REOPEN, end_ms)]
        start = self._barge_in_start()
        if start is None:
            return []
        self._begin_speech(start)
        return [self._event(TurnAction.BARGE_IN, end_ms)]

    def _may_continue(self, start_ms: float) -> bool:
        """Whether speech from `start_ms` on still belongs to the turn that was committed."""
        is_soon = start_ms <= self._commit_ms + self.settings.reopen_ms
        return is_soon and self._may_reopen and not self._is_heard

    # ---- what was heard lately ----

    def _remember(self, probability: float, start_ms: float, end_ms: float) -> None:
        settings = self.settings
        self._recent.append((start_ms, end_ms, probability))
        span_ms = max(settings.start_window_ms, settings.barge_in_ms, settings.pause_ms)
        while self._recent[0][1] <= end_ms - span_ms:
            self._recent.popleft()

    def _speech_start_in_window(self) -> float | None:
        """Start of the first speech in the window if there is enough of it."""
        window_start = self._recent[-1][1] - self.settings.start_window_ms
        speech = [
            (start, end)
            for start, end, probability in self._recent
            if probability >= self.settings.start_threshold and start >= window_start
        ]
        if speech and sum(end - start for start, end in speech) >= self.settings.start_ms:
            return speech[0][0]
        return None

    def _barge_in_start(self) -> float | None:
        """Start of the run of speech up to now if it is long and clear enough."""
        if not self.settings.barge_in:
            return None
        run_start: float | None = None
        for start, _, probability in reversed(self._recent):
            if probability < self.settings.barge_in_threshold:
                break
            run_start = start
        if run_start is None or self._recent[-1][1] - run_start < self.settings.barge_in_ms:
            return None
        return run_start

    def _quiet_ms(self) -> float:
        """Length of the run of silence up to now."""
        quiet_since = self._recent[-1][1]
        for start, _, probability in reversed(self._recent):
            if probability >= self.settings.end_threshold:
                break
            quiet_since = start
        return self._recent[-1][1] - quiet_since

    # ---- changes of phase ----

    def _begin_speech(self, start_ms: float) -> None:
        self._phase = _Phase.HEARING
        self._speech_start_ms = start_ms
        self._speech_end_ms = self._recent[-1][1]
        self._speech_ms = sum(
            end - start
            for start, end, probability in self._recent
            if start >= start_ms and probability >= self.settings.end_threshold
        )
        self._end_pause()
        self._recent.clear()

    def _enter_reply(self, at_ms: float, *, may_reopen: bool) -> None:
        self._phase = _Phase.REPLYING
        self._commit_ms = at_ms
        self._may_reopen = may_reopen
        self._is_heard = False
        self._waits_for_silence = False
        self._is_pressed = False
        self._end_pause()
        self._recent.clear()

    def _end_pause(self) -> None:
        self._is_paused = self._is_asked_again = False
        self._stage = None

    def _event(self, action: TurnAction, at_ms: float, press_end: PressEnd | None = None) -> TurnEvent:
        return TurnEvent(action, at_ms, self._speech_start_ms, self._speech_end_ms, self._stage, press_end)
