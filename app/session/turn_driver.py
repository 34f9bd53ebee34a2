"""The driver of turn-taking: turns the user's actions into jobs for the engine, for the window and the
server.

In: frames of the user's voice, the button, answers of the end-of-turn detector, results of the engine, and
turns that are opened, answered or stopped otherwise. Out: jobs (OpenTurn, Hear, Commit, Confirm, Reopen,
Cancel, Interrupt); pauses for the detector; decisions as timing events; calls of `TurnHooks`, which play the
reply or send it. Dialog thread, or event loop.

    turn-taking     what the driver does
    open            opens a turn, or continues one that was not answered; hands its speech over from now on
    silence         commits speculatively: the reply is made and held, the language model rates the pause
    pause           asks the detector about it
    commit          closes the speech; then the held reply is confirmed, or a reply requested
    drop            cancels the turn
    reopen          takes back the commit and its reply
    listen          asks the detector what the speech over the reply is
    interrupt       pauses the reply; resume_reply resumes it; barge_in stops it and opens the next turn
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from app.dialog.end_of_turn import Stage, VoiceCalibration
from app.dialog.smart_turn import WINDOW_S
from app.dialog.turn_events import TurnAction, TurnEvent
from app.dialog.turn_taking import TurnTaking
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.voice_level import VoiceLevel
from app.session.end_of_turn_worker import Pause, PauseRated
from app.session.engine_jobs import (
    Cancel,
    Commit,
    Heard,
    Interrupt,
    JobQueue,
    OpenTurn,
    Reopen,
    ReplyMade,
    ReplyResult,
    RolledBack,
    TurnFailed,
)
from app.session.events import CancelReason, SpeculationStats
from app.session.speculation import HeldReply, Speculation
from app.session.voice_stream import SpeechFeed, VadFrame, VoiceStream
from app.settings import SpeculationMode
from engine_runtime.timing import TimingBus
from engine_runtime.types import CancelScope, Modality, ReplyEvent, TurnEndPrediction

_CERTAIN = 2.0
"""Above any rating of a pause, so that no reply is made beyond it."""
DecisionKind = Literal[
    "pause",
    "speculate",
    "predict",
    "confirm",
    "roll_back",
    "interrupt",
    "listen",
    "resume",
    "cut",
    "ignore",
]
TurnResult = Heard | ReplyResult | ReplyMade | RolledBack | TurnFailed


@dataclass(slots=True)
class UserTurn:
    """The turn in progress, or the earlier one that is played again."""

    turn_id: int
    modality: Modality
    """Modality of the reply."""
    scope: CancelScope = field(default_factory=CancelScope)
    """Cancelled when the turn is dropped or its reply stopped."""
    commit: CancelScope | None = None
    """Scope of the latest commit, within `scope`; None while the user has the turn."""
    max_new: int | None = None
    """Longest reply in codes or text tokens; None for the bundle's limit."""
    user_codes: int = 0
    last_speech_ns: int | None = None
    """When the user spoke last, by the session's clock; None for a typed question."""
    last_speech_wall_ns: int = 0
    """The same by the clock of the timing bus."""


@dataclass(frozen=True, slots=True)
class StoppedReply:
    """How far a reply was heard when it was stopped.

    cut: up to a number of samples, or of characters of a text reply; complete: to its end, so that nothing is
    to be cut; unheard: not at all, and the question waits for another reply.
    """

    outcome: Literal["cut", "complete", "unheard"]
    samples: int = 0
    characters: int = 0


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """Settings of the driver."""

    turn_taking: TurnTakingSettings
    """When turns start and end."""
    reply: Modality = Modality.SPEECH
    """Kind of reply, from the next turn on."""
    speculate: SpeculationMode = "auto"
    """Whether a reply is made and held before the turn is confirmed."""
    always_predicts: bool = False
    """Whether the language model rates pauses, if it can, also while no reply is made before the turn is
    confirmed: then the held reply ends with its rating."""
    seed: int | None = None
    """Sampling seed; None for the bundle's."""
    reports_stages: bool = False
    """Whether `ReplyMade` has the durations of the stages."""


class TurnHooks(Protocol):
    """Hooks of window and server for changes of a turn or its reply."""

    def turn_opened(self, turn: UserTurn, start_ms: float) -> None:
        """The user speaks, or pressed the button: the audio from `start_ms` of the stream on belongs to
        `turn`, which is the previous one if that was not answered."""

    def turn_committed(self, turn: UserTurn, event: TurnEvent) -> bool:
        """The user has finished speaking; returns whether to reply now."""

    def turn_reopened(self, turn: UserTurn, event: TurnEvent) -> None:
        """The user continues before the reply was heard: discard the reply."""

    def turn_stopped(self, turn: UserTurn, reason: CancelReason, stopped: StoppedReply | None) -> None:
        """The turn ended early: its reply was cut, or without a reply (`stopped` is None) it is dropped."""

    def turn_failed(self, failure: TurnFailed) -> None:
        """The engine has dropped a turn."""

    def begin_reply(self, turn: UserTurn, held: HeldReply | None) -> None:
        """A reply was requested, or `held` was confirmed, which already has events."""

    def add_reply(self, turn: UserTurn, event: ReplyEvent) -> None:
        """The next event of the reply."""

    def reply_made(self, made: ReplyMade) -> None:
        """The engine has made all of a spoken reply."""

    def pause_reply(self, event: TurnEvent) -> None:
        """The user speaks over the reply."""

    def resume_reply(self) -> None:
        """The user's speech over the reply was not a turn."""

    def stop_reply(self, turn: UserTurn, reason: CancelReason) -> StoppedReply | None:
        """Stop the reply; None if none was begun."""

    def speculated(self, stats: SpeculationStats) -> None:
        """A speculative reply was made, confirmed or discarded."""


class TurnDriver:
    """One turn at a time, from its first speech or its question to the last sample of its reply."""

    def __init__(
        self,
        stream: VoiceStream,
        jobs: JobQueue,
        hooks: TurnHooks,
        now_ns: Callable[[], int],
        settings: DriverSettings,
        ask_detector: Callable[[Pause], None] | None = None,
    ) -> None:
        """`now_ns` is the session's clock. `ask_detector` must not block; the answer comes to `take_rating`.
        Without it no pause is rated."""
        self.timing = TimingBus()
        """The engine's bus once it is loaded."""
        self.turn: UserTurn | None = None
        self._stream, self._jobs, self._hooks, self._now_ns = stream, jobs, hooks, now_ns
        self._settings = settings
        self._ask_detector = ask_detector
        self._taking = TurnTaking(settings.turn_taking)
        self._feed = SpeechFeed(stream, jobs)
        self._speculation = Speculation(jobs, now_ns, hooks.speculated)
        self._calibrations: defaultdict[bool, VoiceCalibration] = defaultdict(VoiceCalibration)
        """Calibration of the detector, separate for files: the voices of samples are not the user's."""
        self._model_predicts = False
        """Whether the language model has rated a pause."""
        self._count = 0

    # ---- state and settings ----

    @property
    def turn_id(self) -> int:
        """The turn in progress, or the latest one."""
        return self.turn.turn_id if self.turn else self._count

    @property
    def is_hearing(self) -> bool:
        """Whether the user has a turn by voice."""
        return self._taking.is_hearing

    @property
    def is_interrupted(self) -> bool:
        """Whether the user speaks over a reply that is not cut yet."""
        return self._taking.is_interrupted

    @property
    def is_replying(self) -> bool:
        """Whether speech interrupts a reply."""
        return self._taking.is_replying

    @property
    def speech_end_ms(self) -> float:
        """End of the audio that is known to belong to the turn."""
        return self._taking.speech_end_ms + self._settings.turn_taking.tail_ms

    def apply(self, settings: DriverSettings) -> None:
        """Use these settings from the next frame and turn on."""
        self._settings = settings
        self._taking.settings = settings.turn_taking

    def use_engine(self, input_sample_rate: int, *, can_speculate: bool = True) -> None:
        """An engine is ready. `can_speculate`: it can take back a reply before the turn is confirmed."""
        self._feed.set_rate(input_sample_rate)
        self._model_predicts = False
        self._speculation.use_engine(can_speculate=can_speculate)

    def forget_levels(self) -> None:
        """The microphone is processed in another way: forget the user's level, which no longer applies."""
        self._taking.voice_level = VoiceLevel()

    def forget_voices(self) -> None:
        """A new conversation: the next speaker may be somebody else."""
        self._calibrations.clear()

    def continue_after(self, last_turn_id: int) -> None:
        """Turn ids continue after those of an earlier run of the program."""
        self._count = max(self._count, last_turn_id)

    def report(self, kind: DecisionKind, turn_id: int, **details: float | int | str) -> None:
        """Report a decision as a timing event without length, stamped by the session's clock."""
        at_s = self._now_ns() / 1e9
        self.timing.emit("decision", turn_id, time.perf_counter_ns(), 0, kind=kind, at_s=at_s, **details)

    # ---- the user's voice ----

    def hear(self, frame: VadFrame) -> None:
        """The next frame of the stream."""
        stream = self._stream
        probability = frame.probability if self._counts(frame) else 0.0
        start_ms, end_ms = stream.ms_of(frame.start), stream.ms_of(frame.end)
        for event in self._taking.update(
            probability, start_ms, end_ms, frame.level_db, has_echo=frame.has_echo
        ):
            self._carry_out(event)
        if self.turn is not None and self.is_hearing:
            self._roll_back_if_continued()
            self._feed.give(self.turn.turn_id, self.speech_end_ms)

    def _counts(self, frame: VadFrame) -> bool:
        """Whether speech in the frame may begin something: with push-to-talk alone none does, apart from that
        of files, nor does what may be the assistant's own voice."""
        is_awaited = self._stream.is_file or self._settings.turn_taking.is_voice_activated
        return self.is_hearing or (is_awaited and not frame.may_be_echo)

    def press(self, at_ms: float) -> None:
        """The button of push-to-talk went down at this time of the stream."""
        for event in self._taking.press(at_ms):
            self._carry_out(event)

    def release(self, at_ms: float) -> None:
        """The button came up at this time of the stream."""
        self._taking.release(at_ms)

    def forget_speech(self) -> None:
        """The source of the frames is gone: a reply that was paused for it continues."""
        for event in self._taking.forget_speech():
            self._carry_out(event)

    def _carry_out(self, event: TurnEvent) -> None:
        action, turn = event.action, self.turn
        if action is TurnAction.OPEN:
            self._open_by_voice(event)
        elif action is TurnAction.BARGE_IN:
            if turn is not None:
                self._end_early(turn, "barge_in")
            self._open_by_voice(event)
        elif action is TurnAction.IGNORE:
            level = self._taking.voice_level
            self.report("ignore", self.turn_id, level_db=level.speech_db or 0.0, user_db=level.user_db or 0.0)
        elif turn is None:
            return
        elif action is TurnAction.SILENCE:
            self._speculate(turn, event)
        elif action is TurnAction.PAUSE:
            self.report("pause", turn.turn_id, silence_ms=event.silence_ms)
            self._have_rated(turn, event)
        elif action is TurnAction.LISTEN:
            self._have_rated(turn, event, overlap_ms=event.speech_start_ms)
        elif action is TurnAction.INTERRUPT:
            self._hooks.pause_reply(event)
        elif action is TurnAction.RESUME_REPLY:
            self._hooks.resume_reply()
            self.report("resume", turn.turn_id, silence_ms=event.silence_ms)
        elif action is TurnAction.COMMIT:
            self._commit_speech(turn, event)
        elif action is TurnAction.REOPEN:
            self._take_back(turn)
            self.report("roll_back", turn.turn_id, is_speculative=0)
            self._hooks.turn_reopened(turn, event)
        elif action is TurnAction.ONSET:
            self._open_feed(event)
        elif action is TurnAction.DROP:
            if event.stage is Stage.UNFINISHED:
                self.report("ignore", turn.turn_id, reason="backchannel", silence_ms=event.silence_ms)
            self._end_early(turn, "too_short" if event.press_end is None else "nothing_heard")

    def _open_by_voice(self, event: TurnEvent) -> None:
        start_ms = event.speech_start_ms
        if event.speech_end_ms > event.speech_start_ms:
            start_ms = self._open_feed(event)
        self._taking.calibration = self._calibrations[self._stream.is_file]
        is_new = self.turn is None
        turn = self.turn or self._next_turn()
        self._hooks.turn_opened(turn, start_ms)
        if is_new:
            self._jobs.submit(OpenTurn(turn.turn_id, turn.modality, turn.scope))

    def _open_feed(self, event: TurnEvent) -> float:
        return self._feed.open(self._start_ms_of(event))

    def _start_ms_of(self, event: TurnEvent) -> float:
        """Start of the audio that belongs to the speech."""
        return event.speech_start_ms - self._settings.turn_taking.pre_roll_ms

    def _commit_speech(self, turn: UserTurn, event: TurnEvent) -> None:
        self._roll_back_if_continued()
        was_held = self._speculation.is_held
        if not was_held:
            self._feed.finish(turn.turn_id, self.speech_end_ms)
        if not self._hooks.turn_committed(turn, event):
            self.roll_back()
            self.rest()
            return
        self.report(
            "confirm",
            turn.turn_id,
            silence_ms=event.silence_ms,
            reason=event.reason,
            is_speculative=int(was_held),
        )
        self._speculation.note_turn()
        self._reply(turn)

    # ---- pauses: speculation, detector, language model ----

    def _speculate(self, turn: UserTurn, event: TurnEvent) -> None:
        """The user may have finished: make the reply now, and hold it until that is sure."""
        settings, speculation = self._settings, self._speculation
        is_short = event.speech_end_ms - event.speech_start_ms < settings.turn_taking.min_speech_ms
        if speculation.is_held or is_short:
            return
        is_wanted = speculation.is_wanted(settings.speculate)
        if not is_wanted and not (settings.always_predicts and self._model_predicts):
            return
        self._feed.finish(turn.turn_id, self.speech_end_ms)
        self.report("speculate", turn.turn_id, silence_ms=event.silence_ms)
        heeds_model = settings.turn_taking.policy is not None
        finished = settings.turn_taking.fusion.finished if heeds_model else 0.0
        finished = finished if is_wanted else _CERTAIN
        commit = self._new_commit(turn, CancelScope(turn.scope), finished)
        speculation.begin(commit, event, self.timing)

    def _roll_back_if_continued(self) -> None:
        """Discard the held reply if the user has spoken since the pause that it answers."""
        if self._speculation.is_overtaken(self._taking.speech_end_ms):
            self.roll_back()

    def roll_back(self) -> None:
        """Discard the held reply, if there is one: it does not answer this turn."""
        if self._speculation.is_held:
            held = self._speculation.roll_back()
            self.report("roll_back", held.turn_id, is_speculative=1, held_ms=held.audio_s * 1e3)

    def _have_rated(self, turn: UserTurn, event: TurnEvent, overlap_ms: float | None = None) -> None:
        """Ask the detector about a pause, or what speech over a reply is."""
        if self._ask_detector is None or self._settings.turn_taking.policy is None:
            return
        window_ms = event.at_ms - WINDOW_S * 1e3
        start = self._stream.samples_of(max(self._start_ms_of(event), window_ms, 0.0))
        pcm = self._stream.utterance.since(start)
        self._ask_detector(Pause(turn.turn_id, event.speech_end_ms, event.silence_ms, pcm, overlap_ms))

    def take_rating(self, rated: PauseRated) -> None:
        """The detector's answer about a pause, or what speech over a reply is."""
        turn, pause, stage = self.turn, rated.pause, None
        if rated.probability is None:
            return
        if pause.overlap_ms is not None:
            if self._taking.judge_overlap(pause.overlap_ms, rated.probability):
                said_ms = pause.speech_end_ms - pause.overlap_ms
                self.report(
                    "listen",
                    pause.turn_id,
                    probability=rated.probability,
                    said_ms=said_ms,
                    silence_ms=pause.silence_ms,
                )
            return
        if turn is not None and turn.turn_id == pause.turn_id:
            stage = self._taking.rate_pause(pause.speech_end_ms, rated.probability)
        answered_ms = self._stream.end_ms - pause.speech_end_ms
        stage_name = "late" if stage is None else stage.value
        self.timing.emit(
            "end_of_turn",
            pause.turn_id,
            rated.start_ns,
            rated.duration_ns,
            by="detector",
            probability=rated.probability,
            stage=stage_name,
            asked_ms=pause.silence_ms,
            answered_ms=answered_ms,
        )
        calibration = self._taking.calibration
        self.report(
            "pause",
            pause.turn_id,
            silence_ms=answered_ms,
            probability=calibration.apply(rated.probability),
            shift=calibration.shift,
            stage=stage_name,
            cost_ms=rated.duration_ns / 1e6,
        )

    def _take_prediction(self, scope: CancelScope, prediction: TurnEndPrediction) -> None:
        """The language model's answer about the pause of a held reply; for a confirmed one it comes too
        late."""
        self._model_predicts = True
        held = self._speculation.held_of(scope)
        if held is None or self._settings.turn_taking.policy is None:
            return
        probability = prediction.probability
        stage = self._taking.predict_turn_end(held.speech_end_ms, probability)
        stage_name = "late" if stage is None else stage.value
        cost_ns = self._now_ns() - held.asked_ns
        answered_ms = self._stream.end_ms - held.speech_end_ms
        self.timing.emit(
            "end_of_turn",
            held.turn_id,
            time.perf_counter_ns() - cost_ns,
            cost_ns,
            by="language model",
            probability=probability,
            stage=stage_name,
            asked_ms=held.silence_ms,
            answered_ms=answered_ms,
        )
        self.report(
            "predict",
            held.turn_id,
            silence_ms=answered_ms,
            probability=probability,
            stage=stage_name,
            cost_ms=cost_ns / 1e6,
        )

    # ---- turns that are not opened or ended by voice ----

    def open(self, on_open: Callable[[UserTurn], None] = lambda turn: None) -> UserTurn:
        """Open a turn that does not begin with speech; `on_open` gets it before the engine does."""
        turn = self._next_turn()
        on_open(turn)
        self._jobs.submit(OpenTurn(turn.turn_id, turn.modality, turn.scope))
        return turn

    def reserve_turn_id(self) -> int:
        """A turn id for an exchange that was held elsewhere."""
        self._count += 1
        return self._count

    def finish_speech(self) -> None:
        """End the speech of the turn without an answer: hand over the rest of it."""
        if self.turn is not None:
            self.roll_back()
            self._feed.finish(self.turn.turn_id, self.speech_end_ms)
        self.rest()

    def answer(self, turn: UserTurn, finished: float | None = None) -> None:
        """The turn is complete: request the reply. Speech from now on interrupts it. With `finished` it is
        speculative, as in `Commit`, but its hooks are called at once: the caller confirms or stops it."""
        self.roll_back()
        self._taking.begin_reply()
        self._reply(turn, finished)

    def repeat(self, turn_id: int, modality: Modality) -> UserTurn:
        """The reply of an earlier turn is to be played again."""
        self.turn = UserTurn(turn_id, modality)
        self._taking.begin_reply()
        return self.turn

    def stop(self, reason: CancelReason) -> None:
        """Drop the turn in progress, or stop its reply; does nothing if there is none."""
        if self.turn is not None:
            self._end_early(self.turn, reason)
            self._taking.end_turn()

    def reply_heard(self) -> None:
        """The first sample of the reply is heard: the turn can no longer be continued."""
        self._taking.reply_heard()
        self._feed.close()

    def end_turn(self) -> None:
        """The engine has made all of the reply, or has dropped the turn."""
        self.turn = None

    def rest(self) -> None:
        """Nobody speaks, and no reply is played any more: speech from now on is another turn."""
        self._feed.close()
        self._taking.end_turn()

    # ---- the engine ----

    def on_result(self, result: TurnResult) -> None:
        """A result of the engine; stale results are dropped."""
        turn = self.turn
        if isinstance(result, TurnFailed):
            self._hooks.turn_failed(result)
        elif isinstance(result, ReplyMade):
            self._speculation.note_reply(result.rtf_total)
            if not self._speculation.keep(result):
                self._hooks.reply_made(result)
        elif isinstance(result, RolledBack):
            self._speculation.note_roll_back(result, self.timing)
        elif turn is None:
            return
        elif isinstance(result, Heard):
            if result.turn_id == turn.turn_id:
                turn.user_codes += result.codes
        elif result.scope.is_cancelled:
            return
        elif isinstance(result.event, TurnEndPrediction):
            self._take_prediction(result.scope, result.event)
        elif not self._speculation.hold(result.scope, result.event):
            self._hooks.add_reply(turn, result.event)

    def _next_turn(self) -> UserTurn:
        self._count += 1
        self.turn = UserTurn(self._count, self._settings.reply)
        return self.turn

    def _new_commit(self, turn: UserTurn, scope: CancelScope, finished: float | None = None) -> Commit:
        settings = self._settings
        return Commit(
            turn.turn_id,
            turn.modality,
            settings.seed,
            scope,
            timings=None if finished is None else self.timing,
            finished=finished or 0.0,
            max_new=turn.max_new,
            reports_stages=settings.reports_stages,
        )

    def _reply(self, turn: UserTurn, finished: float | None = None) -> None:
        """Confirm the held reply, or request one."""
        if self._speculation.is_held:
            held = self._speculation.confirm()
            turn.commit = held.scope
            self._hooks.begin_reply(turn, held)
            return
        turn.commit = CancelScope(turn.scope)
        self._hooks.begin_reply(turn, None)
        self._jobs.submit(self._new_commit(turn, turn.commit, finished))

    def _take_back(self, turn: UserTurn) -> None:
        """Revert the commit: the user has the turn again."""
        commit, turn.commit = turn.commit, None
        if commit is not None:
            commit.cancel()
            self._jobs.submit(Reopen(turn.turn_id, commit))

    def _end_early(self, turn: UserTurn, reason: CancelReason) -> None:
        """Drop the turn, or cut its reply unless it was fully played."""
        stopped = self._hooks.stop_reply(turn, reason)
        self._feed.close()
        if stopped is not None and stopped.outcome == "unheard":
            self._take_back(turn)
            return
        self.turn = None
        if stopped is not None and stopped.outcome == "complete":
            return
        turn.scope.cancel()
        if stopped is not None:
            self._jobs.submit(Interrupt(turn.turn_id, stopped.samples, stopped.characters))
        elif self._speculation.is_held:
            self._speculation.drop()
        else:
            self._jobs.submit(Cancel(turn.turn_id))
        self._hooks.turn_stopped(turn, reason, stopped)
