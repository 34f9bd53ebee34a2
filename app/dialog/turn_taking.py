"""Turn-taking: a pure state machine from speech probabilities to turn events. The clock is passed in.

In: one probability per VAD frame with its time and level, the answers of end-of-turn detector and language
model about pauses, the button of push-to-talk, and when a reply starts and ends. Out: turn events. Runs in
the dialog thread; knows no audio, no thread and no real clock (times are milliseconds of captured audio).

    idle --open--> hearing --commit--> replying (not heard yet) --reply_heard--> replying (heard) --> idle
                   hearing --drop--> idle          (a cough, a click; "mm-hm", which needs no reply)
                   hearing <--reopen-- replying    (the user continues before the reply is heard)
                   replying --interrupt--> interrupted     (speech over the reply, which is paused)
                   replying <--resume_reply-- interrupted  (a backchannel, a cough: the reply resumes)
                   hearing <--barge_in-- interrupted       (a new turn: the reply is cut)

A pause is committed after `end_ms` of silence, or as `TurnEndFusion` decides once the detector or the
language model has answered. An answer that comes late, or never, changes nothing. Speech as short as a
backchannel to which the language model has nothing to reply is dropped.

Speech that is much quieter than the user's turns is somebody else's: it opens no turn and pauses no reply.

Push-to-talk: `press` opens the turn, or interrupts the reply, at once, and takes over a turn that voice has
opened; the frame that reaches the time of `release` commits it, or drops it if nothing was said. In between a
pause is no event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum

from app.dialog.end_of_turn import Stage, VoiceCalibration
from app.dialog.interruption import (
    ONSET_RULES,
    Interruption,
    Onset,
    OnsetVerdict,
    SpeechVerdict,
    first_outcome,
)
from app.dialog.turn_events import PressEnd, TurnAction, TurnEvent
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.voice_level import VoiceLevel


class SpeechWindow:
    """The latest VAD frames while no turn is open, as (start, end, probability), in milliseconds: whether
    speech begins in them, or interrupts a reply.
    """

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
        """Milliseconds of speech since `start_ms`."""
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


class UserSpeech:
    """What the user has said in the open turn: its extent, the present pause, how finished that sounds."""

    def __init__(self) -> None:
        self.start_ms = 0.0
        """Start of the first speech."""
        self.end_ms = 0.0
        """End of the latest speech."""
        self.speech_ms = 0.0
        """Speech without its gaps."""
        self.is_silent = False
        """Whether the silence was long enough for a speculative reply."""
        self.is_paused = False
        """Whether it was long enough for the detector."""
        self.rated: float | None = None
        """The detector's answer about the present pause, before calibration."""
        self.predicted: float | None = None
        """The language model's answer about the present pause."""

    def begin(self, start_ms: float, end_ms: float, speech_ms: float) -> None:
        """Begin the speech of another turn."""
        self.start_ms, self.end_ms, self.speech_ms = start_ms, end_ms, speech_ms
        self.end_pause()

    def add(self, start_ms: float, end_ms: float) -> bool:
        """Add a frame of speech; returns whether it ends a pause."""
        self.end_ms = end_ms
        self.speech_ms += end_ms - start_ms
        was_paused = self.is_paused
        self.end_pause()
        return was_paused

    def fall_silent(self, settings: TurnTakingSettings, silence_ms: float) -> Iterator[TurnAction]:
        """Take the silence since the latest speech; yields each limit that it has just reached."""
        if not self.is_silent and silence_ms >= settings.speculate_ms:
            self.is_silent = True
            yield TurnAction.SILENCE
        if not self.is_paused and silence_ms >= settings.pause_ms:
            self.is_paused = True
            yield TurnAction.PAUSE

    def end_pause(self) -> None:
        """Forget the answers about the pause."""
        self.is_silent = self.is_paused = False
        self.rated = self.predicted = None

    def rate(self, speech_end_ms: float, probability: float) -> bool:
        """The detector's answer about the pause after `speech_end_ms`; False if that is over."""
        is_present = self._is_present(speech_end_ms)
        self.rated = probability if is_present else self.rated
        return is_present

    def predict(self, speech_end_ms: float, probability: float) -> bool:
        """The language model's answer about the pause after `speech_end_ms`; False if that is over."""
        is_present = self._is_present(speech_end_ms)
        self.predicted = probability if is_present else self.predicted
        return is_present

    def _is_present(self, speech_end_ms: float) -> bool:
        return self.is_silent and speech_end_ms == self.end_ms

    def is_short(self, settings: TurnTakingSettings) -> bool:
        """Whether this is too little speech for a turn."""
        return self.speech_ms < settings.min_speech_ms

    def commit_after_ms(self, settings: TurnTakingSettings, calibration: VoiceCalibration) -> float:
        """Silence that commits the turn, by what is known so far."""
        policy = settings.policy
        if policy is None:
            return settings.end_ms
        rated = self._calibrated(calibration)
        return settings.fusion.silence_ms(policy, rated, self.predicted, settings.end_ms)

    def stage(self, settings: TurnTakingSettings, calibration: VoiceCalibration) -> Stage | None:
        """How detector and language model rated the present pause, None if neither has answered."""
        policy = settings.policy
        if policy is None:
            return None
        return settings.fusion.stage(policy, self._calibrated(calibration), self.predicted)

    def end_action(
        self, settings: TurnTakingSettings, calibration: VoiceCalibration, silence_ms: float
    ) -> TurnAction | None:
        """What the silence so far makes of the turn: a commit, a drop, or nothing yet."""
        if self.is_short(settings):
            return TurnAction.DROP if silence_ms >= settings.end_ms else None
        if silence_ms < self.commit_after_ms(settings, calibration):
            return None
        is_brief = self.end_ms - self.start_ms < settings.interruption.turn_ms
        needs_no_reply = self.stage(settings, calibration) is Stage.UNFINISHED
        return TurnAction.DROP if is_brief and needs_no_reply else TurnAction.COMMIT

    def _calibrated(self, calibration: VoiceCalibration) -> float | None:
        return None if self.rated is None else calibration.apply(self.rated)


class Press:
    """The present press of the push-to-talk button: what is speech meanwhile, and when it is over."""

    def __init__(self) -> None:
        self.is_down = False
        self._released_ms: float | None = None

    def begin(self) -> None:
        """The button went down."""
        self.is_down, self._released_ms = True, None

    def release(self, at_ms: float) -> None:
        """The button came up at `at_ms`: the frame that reaches this time ends the press."""
        self._released_ms = at_ms

    def end(self) -> None:
        """The press is over, or what it opened is."""
        self.is_down = False

    def hear(
        self,
        settings: TurnTakingSettings,
        speech: UserSpeech,
        probability: float,
        start_ms: float,
        end_ms: float,
    ) -> bool:
        """The next frame, which is added to `speech` if it is some; whether it is the first."""
        is_first = not speech.speech_ms
        if probability < (settings.start_threshold if is_first else settings.end_threshold):
            return False
        speech.add(start_ms, end_ms)
        if is_first:
            speech.start_ms = start_ms
        return is_first

    def ended(self, settings: TurnTakingSettings, speech: UserSpeech, end_ms: float) -> PressEnd | None:
        """How the frame that ends at `end_ms` ended the press, None if it did not."""
        if self._released_ms is not None and end_ms >= self._released_ms:
            return "released"
        return "length" if end_ms - speech.start_ms >= settings.max_turn_ms else None


class AwaitedReply:
    """The reply to one committed turn: does speech continue the turn, or interrupt the reply?"""

    def __init__(
        self, commit_ms: float = 0.0, *, may_reopen: bool = False, sounded_unfinished: bool = False
    ) -> None:
        """`sounded_unfinished`: to the detector the pause before `commit_ms` did not clearly end the turn."""
        self._commit_ms = commit_ms
        self._may_reopen = may_reopen
        self._sounded_unfinished = sounded_unfinished
        self._heard_ms: float | None = None

    @property
    def is_heard(self) -> bool:
        """Whether its first sample was handed to the loudspeaker."""
        return self._heard_ms is not None

    def begin_sound(self, at_ms: float) -> None:
        """Its first sample was handed to the loudspeaker."""
        self._heard_ms = at_ms

    def may_be_continued(self, settings: TurnTakingSettings, start_ms: float) -> bool:
        """Whether speech from `start_ms` on still belongs to the turn that was committed."""
        is_soon = start_ms <= self._commit_ms + settings.reopen_ms
        # Once it was heard, the reply is part of the conversation: speech then interrupts it and cannot undo
        # it.
        return is_soon and self._may_reopen and not self.is_heard

    def has_cut_off(self, settings: TurnTakingSettings, start_ms: float) -> bool:
        """Whether the reply has probably cut off a user who speaks from `start_ms` on."""
        if self._heard_ms is None or not self._sounded_unfinished:
            return False
        return start_ms - self._heard_ms <= settings.interruption.continuation_window_ms


class _Phase(Enum):
    IDLE = 0
    HEARING = 1
    REPLYING = 2
    INTERRUPTED = 3


class TurnTaking:
    """The state machine of one audio stream."""

    def __init__(self, settings: TurnTakingSettings) -> None:
        self.settings = settings
        """May be replaced between frames."""
        self.voice_level = VoiceLevel()
        self.calibration = VoiceCalibration()
        """May be replaced when a turn opens, for that of another voice."""
        self._phase = _Phase.IDLE
        self._recent = SpeechWindow()
        self._speech = UserSpeech()
        self._reply = AwaitedReply()
        self._now_ms = 0.0
        """End of the latest frame."""
        self._waits_for_silence = False
        self._press = Press()
        self._interruption: Interruption | None = None
        """The present interruption, or the latest one that was not a turn."""

    @property
    def is_hearing(self) -> bool:
        """Whether a user turn is open."""
        return self._phase is _Phase.HEARING

    @property
    def is_replying(self) -> bool:
        """Whether a committed turn has not been answered to its end."""
        return self._phase in (_Phase.REPLYING, _Phase.INTERRUPTED)

    @property
    def is_interrupted(self) -> bool:
        """Whether the user speaks over the reply, and it is open what that is."""
        interruption = self._interruption
        is_open = interruption is not None and not interruption.is_undone
        return self._phase is _Phase.INTERRUPTED and is_open

    @property
    def speech_end_ms(self) -> float:
        """End of the latest speech of the turn."""
        return self._speech.end_ms

    def update(
        self,
        probability: float,
        start_ms: float,
        end_ms: float,
        level_db: float | None = None,
        *,
        has_echo: bool = False,
    ) -> list[TurnEvent]:
        """One VAD frame that was captured from `start_ms` to `end_ms`; frames come in order. `level_db` is
        that of voice_level.voiced_level; `has_echo`: an echo of the reply is cancelled."""
        if end_ms <= start_ms:
            raise ValueError(f"a frame needs a length, got {start_ms} to {end_ms} ms")
        self._now_ms = end_ms
        is_speech = probability >= self.settings.end_threshold
        self.voice_level.hear(level_db, start_ms, end_ms, is_speech=is_speech)
        if self._press.is_down:
            return self._hear_press(probability, start_ms, end_ms)
        if self._phase is _Phase.HEARING:
            return self._hear(probability, start_ms, end_ms)
        if self._phase is _Phase.INTERRUPTED and self._interruption is not None:
            return self._hear_interruption(self._interruption, probability, start_ms, end_ms)
        self._recent.add(self.settings, probability, start_ms, end_ms)
        if self._phase is _Phase.IDLE:
            return self._await_speech(end_ms)
        return self._await_interruption(end_ms, has_echo=has_echo)

    def press(self, at_ms: float) -> list[TurnEvent]:
        """The button of push-to-talk went down: a turn is open until `release`, whatever is heard."""
        phase, self._phase = self._phase, _Phase.HEARING
        continues = phase is _Phase.REPLYING and self._reply.may_be_continued(self.settings, at_ms)
        self._press.begin()
        self.calibration.withdraw()
        self._speech.end_pause()
        self._recent.clear()
        if phase is _Phase.HEARING:
            return []
        self.voice_level.begin_turn()
        if phase is _Phase.INTERRUPTED and self._interruption is not None:
            return self._take_turn(self._interruption)
        if continues:
            return [self._event(TurnAction.REOPEN, at_ms)]
        self._speech.begin(at_ms, at_ms, 0.0)
        action = TurnAction.OPEN if phase is _Phase.IDLE else TurnAction.BARGE_IN
        return [self._event(action, at_ms)]

    def release(self, at_ms: float) -> None:
        """The button came up at `at_ms`: the frame that reaches this time ends the turn."""
        self._press.release(at_ms)

    def rate_pause(self, speech_end_ms: float, probability: float) -> Stage | None:
        """The detector's answer about the pause after `speech_end_ms`: how likely the user has finished.

        Returns its stage, or None for a pause that is over.
        """
        policy = self.settings.policy
        is_over_reply = self._phase is _Phase.INTERRUPTED
        if policy is not None and is_over_reply and self._interruption is not None:
            calibrated = self.calibration.apply(probability)
            is_rated = self._interruption.rate(speech_end_ms, calibrated)
            return policy.stage(calibrated) if is_rated else None
        if policy is None or not self.is_hearing or not self._speech.rate(speech_end_ms, probability):
            return None
        return policy.stage(self.calibration.apply(probability))

    def judge_overlap(self, first_ms: float, backchannel: float) -> bool:
        """The detector's answer what the speech over the reply from `first_ms` on is: how likely a
        backchannel, or no speech at all. The next frame acts on it. Returns False if that speech is over."""
        interruption = self._interruption
        if self._phase is not _Phase.INTERRUPTED or interruption is None:
            return False
        return interruption.judge(first_ms, backchannel)

    def predict_turn_end(self, speech_end_ms: float, probability: float) -> Stage | None:
        """The language model's answer about the pause after `speech_end_ms`, as in `rate_pause`."""
        if not self.is_hearing or not self._speech.predict(speech_end_ms, probability):
            return None
        return self.settings.fusion.verdict(probability)

    def begin_reply(self) -> None:
        """A typed question was committed: speech from now on interrupts its reply."""
        self._enter_reply(AwaitedReply())

    def reply_heard(self) -> None:
        """The first sample of the reply was handed to the loudspeaker: speech from now on is a barge-in."""
        self._reply.begin_sound(self._now_ms)

    def end_turn(self) -> None:
        """The reply was played to its end, or the turn was cancelled: nobody speaks."""
        # A turn calibrates the detector only once its reply was heard: before that the user may still show
        # that it was not finished.
        if self._reply.is_heard:
            self.calibration.confirm()
        self.calibration.withdraw()
        self._phase = _Phase.IDLE
        self._press.end()
        self._recent.clear()

    def forget_speech(self) -> list[TurnEvent]:
        """The source of the frames changes, and with it their clock and level: speech over a reply is no
        turn."""
        self.voice_level = VoiceLevel()
        interruption, self._interruption = self._interruption, None
        self._recent.clear()
        if self._phase is not _Phase.INTERRUPTED or interruption is None:
            return []
        self._phase = _Phase.REPLYING
        return [] if interruption.is_undone else [interruption.event(TurnAction.RESUME_REPLY)]

    # ---- phases ----

    def _await_speech(self, end_ms: float) -> list[TurnEvent]:
        start = self._recent.speech_start(self.settings)
        if start is None:
            return []
        if self._is_bystander:
            return self._ignore(end_ms)
        earlier = self._continued_by(start)
        self._begin_speech(start, end_ms)
        if earlier is not None:
            self._speech.start_ms = earlier.first_ms
        return [self._event(TurnAction.OPEN, end_ms)]

    def _hear(self, probability: float, start_ms: float, end_ms: float) -> list[TurnEvent]:
        settings, speech = self.settings, self._speech
        # Hysteresis: ending a pause takes clearer speech than continuing to speak, so that breath and noise
        # do not reset the silence.
        threshold = settings.start_threshold if speech.is_paused else settings.end_threshold
        events: list[TurnEvent] = []
        if probability >= threshold:
            if speech.add(start_ms, end_ms):
                events.append(self._event(TurnAction.RESUME, end_ms))
            if end_ms - speech.start_ms >= settings.max_turn_ms:
                events.append(self._event(TurnAction.COMMIT, end_ms))
                self._commit(end_ms, may_reopen=False)
                self._waits_for_silence = True
            return events
        silence_ms = end_ms - speech.end_ms
        events.extend(self._event(action, end_ms) for action in speech.fall_silent(settings, silence_ms))
        action = speech.end_action(settings, self.calibration, silence_ms)
        if action is not None:
            events.append(self._event(action, end_ms))
        if action is TurnAction.COMMIT:
            self._commit(end_ms, may_reopen=True)
        elif action is TurnAction.DROP:
            self.end_turn()
        return events

    def _hear_press(self, probability: float, start_ms: float, end_ms: float) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        if self._press.hear(self.settings, self._speech, probability, start_ms, end_ms):
            events.append(self._event(TurnAction.ONSET, end_ms))
        if how := self._press.ended(self.settings, self._speech, end_ms):
            events.append(self._end_press(end_ms, how))
        return events

    def _end_press(self, end_ms: float, how: PressEnd) -> TurnEvent:
        is_short = self._speech.is_short(self.settings)
        ended = self._event(TurnAction.DROP if is_short else TurnAction.COMMIT, end_ms, how)
        if is_short:
            self.end_turn()
        else:
            self._commit(end_ms, may_reopen=how == "released")
            self._waits_for_silence = how == "length"
        return ended

    def _await_interruption(self, end_ms: float, *, has_echo: bool) -> list[TurnEvent]:
        settings, recent = self.settings, self._recent
        if self._waits_for_silence and recent.quiet_ms(settings.end_threshold) >= settings.pause_ms:
            self._waits_for_silence = False
            recent.clear()
            return []
        again, start = recent.speech_start(settings), recent.interruption_start(settings)
        verdict = first_outcome(
            ONSET_RULES,
            Onset(
                is_rest=self._waits_for_silence,
                continues=again is not None and self._reply.may_be_continued(settings, again),
                may_interrupt=settings.barge_in,
                interrupts=start is not None,
                may_continue=start is not None and self._reply.may_be_continued(settings, start),
                is_bystander=self._is_bystander,
            ),
        )
        if verdict is OnsetVerdict.CONTINUATION and again is not None:
            return self._continue_turn(again, end_ms)
        if verdict is OnsetVerdict.BYSTANDER:
            return self._ignore(end_ms)
        if verdict is OnsetVerdict.INTERRUPTION and start is not None:
            return self._interrupt(start, end_ms, has_echo=has_echo)
        return []

    def _continue_turn(self, start_ms: float, end_ms: float) -> list[TurnEvent]:
        spoken_ms, first_ms = self._speech.speech_ms, self._speech.start_ms
        self._begin_speech(start_ms, end_ms)
        # Both parts are one turn: with the second part alone a short ending would be dropped as a cough.
        self._speech.speech_ms += spoken_ms
        self._speech.start_ms = first_ms
        return [self._event(TurnAction.REOPEN, end_ms)]

    def _interrupt(self, start_ms: float, end_ms: float, *, has_echo: bool) -> list[TurnEvent]:
        was_cut_off = self._reply.has_cut_off(self.settings, start_ms)
        self._interruption = Interruption(
            self.settings.interruption,
            start_ms,
            end_ms,
            self._continued_by(start_ms),
            was_cut_off=was_cut_off,
            has_echo=has_echo,
        )
        self._phase = _Phase.INTERRUPTED
        self._recent.clear()
        return [self._interruption.event(TurnAction.INTERRUPT), *self._judge(self._interruption)]

    def _hear_interruption(
        self, interruption: Interruption, probability: float, start_ms: float, end_ms: float
    ) -> list[TurnEvent]:
        settings = self.settings
        threshold = settings.start_threshold if interruption.is_paused else settings.end_threshold
        is_speech = probability >= threshold
        asks = interruption.add(start_ms, end_ms, is_speech=is_speech, pause_ms=settings.pause_ms)
        events = self._judge(interruption)
        if self._phase is _Phase.INTERRUPTED:
            asked = (TurnAction.PAUSE, asks), (TurnAction.LISTEN, interruption.is_to_be_judged())
            events += [interruption.event(action) for action, is_asked in asked if is_asked]
        return events

    def _judge(self, interruption: Interruption) -> list[TurnEvent]:
        """The consequence of the verdict about speech over the reply, if there is one by now."""
        verdict = interruption.verdict(may_interrupt=self.settings.barge_in, is_bystander=self._is_bystander)
        if verdict is SpeechVerdict.OPEN:
            return []
        if verdict is SpeechVerdict.TURN:
            return self._take_turn(interruption)
        resumed = [] if interruption.is_undone else [interruption.event(TurnAction.RESUME_REPLY)]
        if verdict is SpeechVerdict.BACKCHANNEL:
            interruption.is_undone = True
            return resumed
        self._phase = _Phase.REPLYING
        if verdict is SpeechVerdict.NO_TURN:
            return resumed
        self._interruption = None
        return [*resumed, *self._ignore(interruption.now_ms)]

    def _take_turn(self, interruption: Interruption) -> list[TurnEvent]:
        """The speech over the reply is a turn."""
        self._phase = _Phase.HEARING
        self._interruption = None
        self.calibration.withdraw()
        self.voice_level.begin_turn()
        self._speech.begin(interruption.first_ms, interruption.speech_end_ms, interruption.speech_ms)
        return [interruption.event(TurnAction.BARGE_IN)]

    @property
    def _is_bystander(self) -> bool:
        return self.voice_level.is_quieter(self.settings.bystander_db)

    def _ignore(self, end_ms: float) -> list[TurnEvent]:
        """A bystander speaks, or the user begins softly. It is reported once, when it is known."""
        start_ms = self.voice_level.start_ms
        is_long = end_ms - start_ms >= self.settings.interruption.bystander_ms
        is_new = is_long and self.voice_level.ignore()
        return [TurnEvent(TurnAction.IGNORE, end_ms, start_ms, end_ms)] if is_new else []

    def _continued_by(self, start_ms: float) -> Interruption | None:
        """The speech that was rated as a backchannel, if speech from `start_ms` on follows it soon."""
        # Cleared in any case: an old backchannel must not lengthen a turn that begins much later.
        earlier, self._interruption = self._interruption, None
        is_soon = earlier is not None and start_ms - earlier.now_ms <= self.settings.end_ms
        return earlier if is_soon else None

    # ---- changes of phase ----

    def _begin_speech(self, start_ms: float, end_ms: float) -> None:
        self._phase = _Phase.HEARING
        self.calibration.withdraw()
        self.voice_level.begin_turn()
        self._speech.begin(start_ms, end_ms, self._recent.speech_since(start_ms, self.settings.end_threshold))
        self._recent.clear()

    def _commit(self, at_ms: float, *, may_reopen: bool) -> None:
        self.voice_level.commit_turn()
        self.calibration.commit(self._speech.rated)
        is_likely = self._stage in (None, Stage.LIKELY)
        self._enter_reply(AwaitedReply(at_ms, may_reopen=may_reopen, sounded_unfinished=not is_likely))

    def _enter_reply(self, reply: AwaitedReply) -> None:
        self._phase = _Phase.REPLYING
        self._reply = reply
        self._waits_for_silence = False
        self._press.end()
        self._speech.end_pause()
        self._recent.clear()

    @property
    def _stage(self) -> Stage | None:
        return self._speech.stage(self.settings, self.calibration)

    def _event(self, action: TurnAction, at_ms: float, press_end: PressEnd | None = None) -> TurnEvent:
        speech = self._speech
        return TurnEvent(action, at_ms, speech.start_ms, speech.end_ms, self._stage, press_end)
