"""Speech over a reply: is it a turn, or does the reply resume after it?

In: the VAD frames since the speech began, and the end-of-turn detector's answer. Out: a verdict. Pure, with
times in milliseconds of captured audio; used by turn_taking. No words are recognized: length decides, and the
detector where the length is between the two.

    speech                       verdict
    `boundary_ms` or longer      a turn, while the user still speaks
    `turn_ms` or longer          after a pause: a turn if it sounds finished, or if no answer comes; the reply
                                 resumes if it does not, and the user does not continue
    shorter                      a backchannel ("mm-hm", "yeah"), a cough, a click: the reply resumes after a
                                 pause

Right after the start of a reply to a turn that did not sound finished, `continuation_ms` are enough: the user
was cut off and continues.

Spoken by ten synthetic voices, 95 of 100 backchannels are shorter than `turn_ms`, and so are single words
like "stop" or "what": neither length nor the detector distinguishes these from "right". The reply resumes; a
button or Esc stops it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from app.dialog.turn_events import TurnAction, TurnEvent


@dataclass(frozen=True, slots=True)
class InterruptionSettings:
    """What makes speech over a reply a turn. Lengths of speech include its short gaps."""

    boundary_ms: int = 1_000
    """Speech of this length is a turn: the boundary of backchannels in LiveKit agents."""
    turn_ms: int = 640
    """Shorter speech is no turn. LiveKit's shortest interruption, 500 ms, and what the VAD adds at both
    ends."""
    resume_ms: int = 224
    """Silence after which the reply is resumed, after shorter speech. Gaps between words are seldom this
    long."""
    uncertain_resume_ms: int = 448
    """The same where the VAD may miss speech or has missed some: while an echo is cancelled, which attenuates
    who speaks at the same time until the echo of the paused reply is gone, and where the user continued after
    the reply was resumed."""
    finished: float = 0.15
    """Probability of the detector above which longer speech is a finished turn."""
    answer_ms: int = 320
    """Silence after which the detector is not waited for."""
    unfinished_ms: int = 1_000
    """Silence after which the reply is resumed, after longer speech that sounded unfinished. LiveKit's
    time-out is 2,000 ms; here, what was said is not lost if the user continues."""
    continuation_ms: int = 256
    """Speech of this length is a turn where it continues one that was cut off."""
    continuation_window_ms: int = 500
    """It does if it begins this soon after the first sound of the reply: too soon to be a reaction to it."""
    bystander_ms: int = 320
    """Speech that stays too quiet for the user's so long is a bystander's. Its first vowel may come late."""

    def __post_init__(self) -> None:
        if not 0 < self.turn_ms <= self.boundary_ms:
            raise ValueError(f"need 0 < turn_ms <= boundary_ms, got {self.turn_ms} and {self.boundary_ms}")
        if not 0 < self.resume_ms <= self.answer_ms <= self.unfinished_ms:
            raise ValueError(
                "need 0 < resume_ms <= answer_ms <= unfinished_ms, "
                f"got {self.resume_ms}, {self.answer_ms}, {self.unfinished_ms}"
            )
        if not self.resume_ms <= self.uncertain_resume_ms <= self.unfinished_ms:
            raise ValueError(
                "need resume_ms <= uncertain_resume_ms <= unfinished_ms, "
                f"got {self.resume_ms}, {self.uncertain_resume_ms}, {self.unfinished_ms}"
            )
        if not 0 < self.continuation_ms <= self.boundary_ms or self.continuation_window_ms < 0:
            raise ValueError(
                f"need 0 < continuation_ms <= boundary_ms and a window of at least 0, got "
                f"{self.continuation_ms}, {self.boundary_ms} and {self.continuation_window_ms}"
            )
        if self.bystander_ms <= 0:
            raise ValueError(f"bystander_ms must be positive, got {self.bystander_ms}")
        if not 0.0 < self.finished <= 1.0:
            raise ValueError(f"finished must be in (0, 1], got {self.finished}")


class SpeechVerdict(Enum):
    """What speech over a reply is."""

    OPEN = 0
    """Not decided yet."""
    TURN = 1
    """A turn: the reply is cut."""
    NO_TURN = 2
    """A backchannel or a noise: the reply resumes."""


class Interruption:
    """One stretch of speech over a reply."""

    def __init__(
        self,
        settings: InterruptionSettings,
        start_ms: float,
        end_ms: float,
        earlier: Interruption | None = None,
        *,
        was_cut_off: bool = False,
        has_echo: bool = False,
    ) -> None:
        """Speech from `start_ms` to `end_ms` was enough to pause the reply; `earlier` is what it continues,
        which was rated as a backchannel. `was_cut_off`: it continues a turn that the reply has cut off.
        `has_echo`: an echo of the reply is cancelled."""
        self._settings = settings
        is_certain = earlier is None and not has_echo
        self._resume_ms = settings.resume_ms if is_certain else settings.uncertain_resume_ms
        self._boundary_ms = settings.continuation_ms if was_cut_off else settings.boundary_ms
        self._start_ms = start_ms
        self._earlier_ms = 0.0 if earlier is None else earlier.length_ms
        self.first_ms: float = start_ms if earlier is None else earlier.first_ms
        """Where the utterance began."""
        self.speech_end_ms = end_ms
        """End of the latest speech."""
        self.speech_ms = end_ms - start_ms
        """Speech since `start_ms`, without gaps."""
        self.is_paused = False
        """Whether the user makes a pause."""
        self.now_ms = end_ms
        """End of the latest frame."""
        self._probability: float | None = None

    def add(self, start_ms: float, end_ms: float, *, is_speech: bool, pause_ms: float) -> bool:
        """The next frame. Whether the user has paused just now, with `pause_ms` of silence, and the detector
        is to be asked."""
        self.now_ms = end_ms
        if is_speech:
            self.speech_end_ms = end_ms
            self.speech_ms += end_ms - start_ms
            self.is_paused = False
            # A rating belongs to one pause: it says nothing about the next one, with more speech before it.
            self._probability = None
            return False
        was_paused, self.is_paused = self.is_paused, self._silence_ms >= pause_ms
        return self.is_paused and not was_paused and self.length_ms >= self._settings.turn_ms

    def rate(self, speech_end_ms: float, probability: float) -> bool:
        """The detector's answer about the pause after `speech_end_ms`; False if that is over."""
        if not self.is_paused or speech_end_ms != self.speech_end_ms:
            return False
        self._probability = probability
        return True

    @property
    def verdict(self) -> SpeechVerdict:
        """What it is, as far as one knows by now."""
        settings, silence_ms = self._settings, self._silence_ms
        if self.length_ms >= self._boundary_ms:
            return SpeechVerdict.TURN
        if self.length_ms < settings.turn_ms:
            return SpeechVerdict.NO_TURN if silence_ms >= self._resume_ms else SpeechVerdict.OPEN
        if self._probability is None:
            return SpeechVerdict.TURN if silence_ms >= settings.answer_ms else SpeechVerdict.OPEN
        if self._probability >= settings.finished:
            return SpeechVerdict.TURN
        return SpeechVerdict.NO_TURN if silence_ms >= settings.unfinished_ms else SpeechVerdict.OPEN

    @property
    def length_ms(self) -> float:
        """Speech so far, with the gaps after which the reply did not resume."""
        return self._earlier_ms + self.speech_end_ms - self._start_ms

    def event(self, action: TurnAction) -> TurnEvent:
        """An action about this speech, decided by its latest frame."""
        return TurnEvent(action, self.now_ms, self.first_ms, self.speech_end_ms)

    @property
    def _silence_ms(self) -> float:
        return self.now_ms - self.speech_end_ms
