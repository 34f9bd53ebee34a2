"""Who speaks: a pure state machine from speech probabilities to turns, under a clock that is passed in.

In: one probability per VAD frame with its time, and when a reply starts and ends. Out: turn events. Runs in
the dialog thread; knows no audio, no thread and no real clock (times are milliseconds of captured audio).

    idle --open--> hearing --commit--> replying (not heard yet) --reply_heard--> replying (heard) --> idle
                   hearing --drop--> idle          (too short: a cough, a click)
                   hearing <--reopen-- replying    (the user continues before the reply is heard)
                   hearing <--barge_in-- replying  (the user interrupts: a new turn)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class TurnTakingSettings:
    """When a user turn starts, continues and ends. All times in milliseconds of captured audio."""

    start_threshold: float = 0.5
    """A frame at or above this probability is speech while nobody speaks."""
    end_threshold: float = 0.35
    """While the user speaks, a frame is speech down to this probability (hysteresis)."""
    start_ms: int = 96
    """Speech needed, within `start_window_ms`, to open a turn."""
    start_window_ms: int = 128
    """Window in which `start_ms` of speech has to fall."""
    pre_roll_ms: int = 320
    """Audio before the first speech frame that still belongs to the turn, so that no onset is cut."""
    pause_ms: int = 256
    """Silence after which the turn may be over (candidate end)."""
    end_ms: int = 640
    """Silence after which the turn is over: it is committed."""
    tail_ms: int = 160
    """Silence after the last speech that is still given to the engine; the rest of a pause only if speech
    resumes."""
    min_speech_ms: int = 160
    """A turn with less speech than this is dropped (a cough, a click)."""
    max_turn_ms: int = 30_000
    """A turn is committed at this length even if the user continues."""
    reopen_ms: int = 1_200
    """Speech that starts this soon after a commit, and before the reply is heard, continues the same turn."""
    barge_in: bool = True
    """Whether the user may interrupt a reply by voice."""
    barge_in_threshold: float = 0.6
    """Probability needed while the assistant speaks."""
    barge_in_ms: int = 160
    """Speech needed, without a gap, to interrupt the assistant."""

    def __post_init__(self) -> None:
        if not 0.0 < self.end_threshold <= self.start_threshold <= 1.0:
            raise ValueError(
                "need 0 < end_threshold <= start_threshold <= 1, "
                f"got {self.end_threshold} and {self.start_threshold}"
            )
        if not 0.0 < self.barge_in_threshold <= 1.0:
            raise ValueError(f"barge_in_threshold must be in (0, 1], got {self.barge_in_threshold}")
        if not 0 < self.start_ms <= self.start_window_ms:
            raise ValueError(
                f"need 0 < start_ms <= start_window_ms, got {self.start_ms} and {self.start_window_ms}"
            )
        if not 0 <= self.tail_ms <= self.pause_ms <= self.end_ms:
            raise ValueError(
                f"need 0 <= tail_ms <= pause_ms <= end_ms, got {self.tail_ms}, {self.pause_ms}, {self.end_ms}"
            )
        if self.max_turn_ms <= self.end_ms:
            raise ValueError(f"max_turn_ms {self.max_turn_ms} must be above end_ms {self.end_ms}")
        if min(self.pre_roll_ms, self.min_speech_ms, self.reopen_ms, self.barge_in_ms) < 0:
            raise ValueError("times must not be negative")


class TurnAction(Enum):
    """What the user did."""

    OPEN = "open"
    """Started to speak: a new turn."""
    PAUSE = "pause"
    """Paused; the turn may be over."""
    RESUME = "resume"
    """Went on within the turn."""
    COMMIT = "commit"
    """Finished: the reply may begin."""
    DROP = "drop"
    """Said too little: there was no turn."""
    REOPEN = "reopen"
    """Went on after the commit: the same turn continues and the reply is taken back."""
    BARGE_IN = "barge_in"
    """Interrupted the reply: it is stopped and a new turn is open."""


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """An action, when it was decided, and the speech it is about (start of the first, end of the last)."""

    action: TurnAction
    at_ms: float
    speech_start_ms: float
    speech_end_ms: float


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
        self._commit_ms = 0.0
        self._may_reopen = False
        self._is_heard = False
        self._waits_for_silence = False

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
        if self._phase is _Phase.HEARING:
            return self._hear(probability, start_ms, end_ms)
        self._remember(probability, start_ms, end_ms)
        if self._phase is _Phase.IDLE:
            return self._await_speech(end_ms)
        return self._await_interruption(end_ms)

    def begin_reply(self) -> None:
        """A typed question was committed: speech from now on interrupts its reply."""
        self._enter_reply(self._speech_end_ms, may_reopen=False)

    def reply_heard(self) -> None:
        """The first sample of the reply was handed to the loudspeaker: speech from now on is a barge-in."""
        self._is_heard = True

    def end_turn(self) -> None:
        """The reply was played to its end, or the turn was cancelled: nobody speaks."""
        self._phase = _Phase.IDLE
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
                self._is_paused = False
                events.append(self._event(TurnAction.RESUME, end_ms))
            if end_ms - self._speech_start_ms >= self.settings.max_turn_ms:
                self._enter_reply(end_ms, may_reopen=False)
                self._waits_for_silence = True
                events.append(self._event(TurnAction.COMMIT, end_ms))
            return events
        silence_ms = end_ms - self._speech_end_ms
        if silence_ms >= self.settings.pause_ms and not self._is_paused:
            self._is_paused = True
            events.append(self._event(TurnAction.PAUSE, end_ms))
        if silence_ms >= self.settings.end_ms:
            if self._speech_ms < self.settings.min_speech_ms:
                self.end_turn()
                events.append(self._event(TurnAction.DROP, end_ms))
            else:
                self._enter_reply(end_ms, may_reopen=True)
                events.append(self._event(TurnAction.COMMIT, end_ms))
        return events

    def _await_interruption(self, end_ms: float) -> list[TurnEvent]:
        if self._waits_for_silence:
            # Committed at the longest turn, in the middle of speech: its rest is no interruption.
            if self._quiet_ms() >= self.settings.pause_ms:
                self._waits_for_silence = False
                self._recent.clear()
            return []
        if not self._is_heard and self._may_reopen:
            start = self._speech_start_in_window()
            if start is not None and start <= self._commit_ms + self.settings.reopen_ms:
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
        self._is_paused = False
        self._recent.clear()

    def _enter_reply(self, at_ms: float, *, may_reopen: bool) -> None:
        self._phase = _Phase.REPLYING
        self._commit_ms = at_ms
        self._may_reopen = may_reopen
        self._is_heard = False
        self._waits_for_silence = False
        self._is_paused = False
        self._recent.clear()

    def _event(self, action: TurnAction, at_ms: float) -> TurnEvent:
        return TurnEvent(action, at_ms, self._speech_start_ms, self._speech_end_ms)
