"""Speech over a reply: the rules by which it continues the turn, interrupts the reply, or is ignored.

In: what is known of speech that begins over a reply, then its frames and the end-of-turn detector's answer.
Out: the verdict so far. Pure, with times in milliseconds of captured audio; used by turn_taking.

`ONSET_RULES` are tried at each frame until speech pauses the reply, `COURSE_RULES` from then on until there
is a verdict; in both the first rule that holds decides. Two things take precedence or are decided elsewhere:
while the push-to-talk button is down, all speech is a turn; a frame that may hold the assistant's own voice
counts as silence (`TurnDriver`). While an echo is cancelled, which attenuates anyone who speaks at the same
time, a longer gap is tolerated.

No words are recognized: length decides, and the detector where the length is between the two. Spoken by ten
synthetic voices, 95 of 100 backchannels ("mm-hm", "yeah") are shorter than `turn_ms`, and so are single words
like "stop" or "what": neither length nor the detector distinguishes these from "right". The reply resumes; a
button or Esc stops it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from app.dialog.turn_events import TurnAction, TurnEvent


@dataclass(frozen=True, slots=True)
class InterruptionSettings:
    """What makes speech over a reply a turn. Lengths of speech include its short gaps."""

    boundary_ms: int = 1_000
    """Speech of this length is a turn: the boundary of backchannels in LiveKit agents."""
    turn_ms: int = 640
    """Shorter speech is not a turn. LiveKit's shortest interruption, 500 ms, plus what the VAD adds at both
    ends."""
    resume_ms: int = 224
    """Silence after which the reply is resumed, after shorter speech. Gaps between words are seldom this
    long."""
    uncertain_resume_ms: int = 448
    """The same where the VAD may miss speech or has missed some: while an echo is cancelled, which attenuates
    anyone who speaks at the same time until the echo of the paused reply is gone, and where the user
    continued after the reply was resumed."""
    finished: float = 0.15
    """Probability of the detector above which longer speech is a finished turn."""
    answer_ms: int = 320
    """Silence after which the verdict no longer waits for the detector."""
    unfinished_ms: int = 1_000
    """Silence after which the reply is resumed, after longer speech that sounded unfinished. LiveKit's
    time-out is 2,000 ms; here, what was said is not lost if the user continues."""
    continuation_ms: int = 256
    """Speech of this length is a turn where it continues one that was cut off."""
    continuation_window_ms: int = 500
    """It continues it if it begins this soon after the first sound of the reply: too soon to be a reaction to
    it."""
    bystander_ms: int = 320
    """Speech that stays quieter than the user's for this long is a bystander's. Its first vowel may come
    late."""

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


Facts = TypeVar("Facts")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Rule(Generic[Facts, Outcome]):
    """The first rule whose condition holds decides the outcome."""

    condition: str
    holds: Callable[[Facts], bool]
    outcome: Outcome


def first_outcome(rules: tuple[Rule[Facts, Outcome], ...], facts: Facts) -> Outcome:
    """The outcome of the first rule that holds; the last rule always holds."""
    return next(rule.outcome for rule in rules if rule.holds(facts))


class OnsetVerdict(Enum):
    """What sound over a reply is while it does not pause the reply."""

    NOTHING = 0
    """No speech so far, or too little to count."""
    CONTINUATION = 1
    """The user continues the turn: its reply is discarded."""
    BYSTANDER = 2
    """Somebody further away speaks."""
    INTERRUPTION = 3
    """The reply is paused until it is known what the speech is."""


@dataclass(frozen=True, slots=True)
class Onset:
    """What is known of sound over a reply that is not paused."""

    is_rest: bool
    """The turn was committed at its maximum length, in the middle of speech, with no silence since."""
    continues: bool
    """There is enough speech to open a turn, soon after the commit and before the reply is heard."""
    may_interrupt: bool
    """The user may interrupt by voice."""
    interrupts: bool
    """There is enough speech to pause a reply."""
    may_continue: bool
    """That speech is soon after the commit and before the reply is heard."""
    is_bystander: bool
    """It is quieter than the user's turns."""


ONSET_RULES: tuple[Rule[Onset, OnsetVerdict], ...] = (
    Rule("the rest of the longest turn", lambda onset: onset.is_rest, OnsetVerdict.NOTHING),
    # Before barge-in: speech before a reply is heard continues the turn and interrupts nothing.
    Rule("the user continues the turn", lambda onset: onset.continues, OnsetVerdict.CONTINUATION),
    Rule("interruption is switched off", lambda onset: not onset.may_interrupt, OnsetVerdict.NOTHING),
    Rule("too little speech to pause a reply", lambda onset: not onset.interrupts, OnsetVerdict.NOTHING),
    Rule("too little yet to continue the turn", lambda onset: onset.may_continue, OnsetVerdict.NOTHING),
    Rule("quieter than the user", lambda onset: onset.is_bystander, OnsetVerdict.BYSTANDER),
    Rule("speech over the reply", lambda onset: True, OnsetVerdict.INTERRUPTION),
)


class SpeechVerdict(Enum):
    """What speech over a reply is."""

    OPEN = 0
    """Not decided yet."""
    TURN = 1
    """A turn: the reply is cut."""
    NO_TURN = 2
    """A backchannel or a noise: the reply resumes."""
    BYSTANDER = 3
    """A bystander's: the reply resumes, and the bystander is reported."""


@dataclass(frozen=True, slots=True)
class Course:
    """What is known of speech that has paused a reply."""

    length_ms: float
    """From its start to the end of the latest speech."""
    silence_ms: float
    """Since the latest speech."""
    probability: float | None
    """The detector's answer about the present pause."""
    resume_ms: float
    """Silence after which the reply is resumed, after short speech."""
    is_continuation: bool
    """It began right after the start of a reply that probably cut the user off: the turn did not sound
    finished."""
    is_bystander: bool
    may_interrupt: bool
    settings: InterruptionSettings

    @property
    def is_short(self) -> bool:
        """Whether it is as short as a backchannel."""
        return self.length_ms < self.settings.turn_ms


COURSE_RULES: tuple[Rule[Course, SpeechVerdict], ...] = (
    # Not at once: a user often begins softly, and only the loudest frame says who speaks.
    Rule(
        "quieter than the user for `bystander_ms`",
        lambda course: course.is_bystander and course.length_ms >= course.settings.bystander_ms,
        SpeechVerdict.BYSTANDER,
    ),
    Rule(
        "interruption was switched off meanwhile",
        lambda course: not course.may_interrupt,
        SpeechVerdict.NO_TURN,
    ),
    Rule(
        "`continuation_ms` of a user who was cut off",
        lambda course: course.is_continuation and course.length_ms >= course.settings.continuation_ms,
        SpeechVerdict.TURN,
    ),
    Rule(
        "`boundary_ms`, while the user still speaks",
        lambda course: course.length_ms >= course.settings.boundary_ms,
        SpeechVerdict.TURN,
    ),
    Rule(
        "shorter than `turn_ms`, then silence: a backchannel, a cough, a click",
        lambda course: course.is_short and course.silence_ms >= course.resume_ms,
        SpeechVerdict.NO_TURN,
    ),
    Rule("shorter than `turn_ms`", lambda course: course.is_short, SpeechVerdict.OPEN),
    Rule(
        "no answer of the detector after `answer_ms` of silence",
        lambda course: course.probability is None and course.silence_ms >= course.settings.answer_ms,
        SpeechVerdict.TURN,
    ),
    Rule("no pause, or no answer yet", lambda course: course.probability is None, SpeechVerdict.OPEN),
    Rule(
        "it sounds finished",
        lambda course: (course.probability or 0.0) >= course.settings.finished,
        SpeechVerdict.TURN,
    ),
    Rule(
        "it sounds unfinished, and the user does not continue for `unfinished_ms`",
        lambda course: course.silence_ms >= course.settings.unfinished_ms,
        SpeechVerdict.NO_TURN,
    ),
    Rule("it sounds unfinished", lambda course: True, SpeechVerdict.OPEN),
)


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
        self._is_continuation = was_cut_off
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

    def verdict(self, *, may_interrupt: bool = True, is_bystander: bool = False) -> SpeechVerdict:
        """The verdict so far. `may_interrupt`: the user may interrupt by voice."""
        course = Course(
            length_ms=self.length_ms,
            silence_ms=self._silence_ms,
            probability=self._probability,
            resume_ms=self._resume_ms,
            is_continuation=self._is_continuation,
            is_bystander=is_bystander,
            may_interrupt=may_interrupt,
            settings=self._settings,
        )
        return first_outcome(COURSE_RULES, course)

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
