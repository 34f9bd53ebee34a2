"""Speech over a reply: the rules by which it continues the turn, interrupts the reply, or is ignored.

In: what is known of speech that begins over a reply, then its frames and the end-of-turn detector's answer.
Out: the verdict so far. Pure, with times in milliseconds of captured audio; used by turn_taking.

`ONSET_RULES` are tried at each frame until speech pauses the reply, `COURSE_RULES` from then on until there
is a verdict; in both the first rule that holds decides. Two things take precedence or are decided elsewhere:
while the push-to-talk button is down, all speech is a turn; a frame that may hold the assistant's own voice
counts as silence (`TurnDriver`). While an echo is cancelled, which attenuates anyone who speaks at the same
time, a longer gap is tolerated.

"Stop" is as short as "right", so length alone cannot decide. While the user speaks the detector is asked
again and again how much that sounds like a backchannel (app.dialog.backchannel): if it is sure that decides
at once, else soon. Without an answer length decides, and the detector's judgement of the pause where the
length is between the two. A reply that came back because of a backchannel stays: the speech is followed to
its end, and may still become a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from app.dialog.end_of_turn import log_odds, probability_of
from app.dialog.turn_events import TurnAction, TurnEvent


@dataclass(frozen=True, slots=True)
class InterruptionSettings:
    """What makes speech over a reply a turn. Lengths of speech include its short gaps."""

    boundary_ms: int = 1_000
    """Speech of this length is a turn: the boundary of backchannels in LiveKit agents."""
    turn_ms: int = 640
    """Shorter speech is a turn only if the detector hears words in it; a turn as short as this gets no reply
    if it sounds unfinished. LiveKit's shortest interruption, 500 ms, plus what the VAD adds at both ends."""
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
    listen_from_ms: int = 256
    """Length from which on the detector is asked what the speech is: of less it knows too little."""
    listen_ms: int = 96
    """How often it is asked: every three frames."""
    sure: float = 0.9
    """Probability, for or against a backchannel, that decides at once."""
    likely: float = 0.55
    """Probability of a backchannel that later lets the reply go on. More than a half: to talk over somebody
    who said "stop" is worse than to stop at a "yeah"."""
    settle_ms: int = 512
    """Length, or `settle_silence_ms` of silence, from which on `likely` decides. Later the reply
    would be soft for longer than people take for a stumble."""
    settle_silence_ms: int = 64
    """The VAD hears speech for 110 ms after its end, so this is more than the gaps within words."""
    settle_answers: int = 2
    """Answers of the detector before what is less than `likely` a backchannel is a turn: the first alone
    heard a quarter of a second, a busy processor has no second one by `settle_ms`, and a cut is final."""
    settle_limit_ms: int = 704
    """Length, or at any length the silence after short speech, from which on one answer has to do."""
    long_boundary_ms: int = 1_600
    """Speech of this length is a turn even if it sounds like a backchannel: laughter, "yeah exactly"."""
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
        if self.listen_ms <= 0 or self.settle_ms <= 0 or self.long_boundary_ms < self.boundary_ms:
            raise ValueError(
                "need listen_ms and settle_ms > 0 and long_boundary_ms >= boundary_ms, "
                f"got {self.listen_ms}, {self.settle_ms}, {self.long_boundary_ms} and {self.boundary_ms}"
            )
        if self.settle_answers <= 0 or self.settle_limit_ms < self.settle_ms:
            raise ValueError(
                "need settle_answers > 0 and settle_limit_ms >= settle_ms, "
                f"got {self.settle_answers}, {self.settle_limit_ms} and {self.settle_ms}"
            )
        if not 0.5 <= self.likely <= self.sure <= 1.0:
            raise ValueError(f"need 0.5 <= likely <= sure <= 1, got {self.likely} and {self.sure}")
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
    # Also where the reply would only be ducked: without this rule that begins up to 100 ms sooner, but with
    # each sentence of a bystander, and a third of them cut the reply.
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
    BACKCHANNEL = 4
    """So far a backchannel: the reply resumes, and the speech is followed to its end."""


@dataclass(frozen=True, slots=True)
class Course:
    """What is known of speech that has paused a reply."""

    length_ms: float
    """From its start to the end of the latest speech."""
    silence_ms: float
    """Since the latest speech."""
    probability: float | None
    """The detector's answer about the present pause."""
    backchannel: float | None
    """How likely the speech is a backchannel or no speech, by all of the detector's answers about it."""
    answers: int
    """How many these are."""
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

    @property
    def has_ended(self) -> bool:
        """Whether the silence is long enough for short speech."""
        return self.silence_ms >= self.resume_ms

    @property
    def _is_late(self) -> bool:
        """Whether it is time to decide, sure or not."""
        settings = self.settings
        return self.length_ms >= settings.settle_ms or self.silence_ms >= settings.settle_silence_ms

    @property
    def _may_cut(self) -> bool:
        """Whether the answers are enough for that, or no other can be waited for."""
        settings = self.settings
        is_last = self.has_ended or self.length_ms >= settings.settle_limit_ms
        return is_last or self.answers >= settings.settle_answers

    @property
    def sounds_like_turn(self) -> bool:
        """Whether the detector takes it for a turn."""
        limit = self.settings.likely if self._is_late and self._may_cut else 1.0 - self.settings.sure
        return self.backchannel is not None and self.backchannel < limit

    @property
    def sounds_like_backchannel(self) -> bool:
        """Whether the detector takes it for none."""
        limit = self.settings.likely if self._is_late else self.settings.sure
        return self.backchannel is not None and self.backchannel >= limit


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
    Rule("it sounds like a turn", lambda course: course.sounds_like_turn, SpeechVerdict.TURN),
    Rule(
        "a backchannel, then silence",
        lambda course: course.sounds_like_backchannel and course.has_ended,
        SpeechVerdict.NO_TURN,
    ),
    Rule(
        "it sounds like a backchannel, and is not too long for one",
        lambda course: course.sounds_like_backchannel and course.length_ms < course.settings.long_boundary_ms,
        SpeechVerdict.BACKCHANNEL,
    ),
    Rule(
        "`boundary_ms`, while the user still speaks",
        lambda course: course.length_ms >= course.settings.boundary_ms,
        SpeechVerdict.TURN,
    ),
    Rule(
        "shorter than `turn_ms`, then silence: a backchannel, a cough, a click",
        lambda course: course.is_short and course.has_ended,
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
        self.is_undone = False
        """Whether the reply came back already."""
        self._probability: float | None = None
        self._scores: list[float] = []
        """The detector's answers what the speech is, as log-odds of a backchannel."""
        self._asked_ms = start_ms + settings.listen_from_ms - settings.listen_ms
        """When the detector was asked last what the speech is; at first so that the first time is due."""

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

    def is_to_be_judged(self) -> bool:
        """Whether to ask the detector what the speech is: every `listen_ms` until the silence after short
        speech is over."""
        is_due = self.now_ms - self._asked_ms >= self._settings.listen_ms
        if not is_due or self._silence_ms >= self._resume_ms:
            return False
        self._asked_ms = self.now_ms
        return True

    def judge(self, first_ms: float, backchannel: float) -> bool:
        """The detector's answer what the speech from `first_ms` on is; False if that is over."""
        if first_ms != self.first_ms:
            return False
        self._scores.append(log_odds(backchannel))
        return True

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
            backchannel=self._backchannel,
            answers=len(self._scores),
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
    def _backchannel(self) -> float | None:
        # The mean: each answer hears the same beginning, shifted, and errs in another way.
        return probability_of(sum(self._scores) / len(self._scores)) if self._scores else None

    @property
    def _silence_ms(self) -> float:
        return self.now_ms - self.speech_end_ms
