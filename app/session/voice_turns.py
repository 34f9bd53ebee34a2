"""Turns by voice: from rated frames, the button and the detector's answers to a committed turn.

In: frames of the microphone, the button of push-to-talk, answers of detector and language model. Out: the
turn opened, reopened, committed or dropped, its speech for the engine, pauses for the detector, the reply
paused or resumed, the event TurnCommitted, the endpointing time, and the decisions. Dialog thread.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from app.dialog.conversation import ConversationRecord
from app.dialog.end_of_turn import Stage
from app.dialog.turn_events import TurnAction, TurnEvent
from app.dialog.turn_taking import TurnTaking
from app.dialog.voice_calibration import VoiceCalibration
from app.dialog.voice_level import VoiceLevel
from app.session.capture import Capture, VadFrame
from app.session.clocks import Clock
from app.session.decisions import Decisions
from app.session.end_of_turn_worker import EndOfTurnWorker
from app.session.engine_jobs import Commit
from app.session.events import Event, TurnCommitted, TurnSource
from app.session.pause_rating import PauseRating
from app.session.reply_player import UserTurn
from app.session.session_settings import SessionSettings
from app.session.turn_lifecycle import TurnLifecycle
from engine_runtime.types import CancelScope, TurnEndPrediction


class VoiceTurns:
    """Carries out what turn-taking finds in the speech of the user."""

    def __init__(
        self,
        turns: TurnLifecycle,
        turn_taking: TurnTaking,
        end_of_turn: EndOfTurnWorker | None,
        capture: Capture,
        clock: Clock,
        transcript: ConversationRecord,
        decisions: Decisions,
        emit: Callable[[Event], None],
        settings: SessionSettings,
    ) -> None:
        self._turns = turns
        self._turn_taking = turn_taking
        self._pauses = PauseRating(end_of_turn, capture)
        self._capture = capture
        self._clock = clock
        self._transcript = transcript
        self._decisions = decisions
        self._emit = emit
        self._settings = settings
        self._calibrations: defaultdict[TurnSource, VoiceCalibration] = defaultdict(VoiceCalibration)
        """The voices of samples are not the user's."""

    def apply(self, settings: SessionSettings) -> None:
        """Use these settings from the next frame on."""
        if settings.audio_processing != self._settings.audio_processing:
            self._turn_taking.voice_level = VoiceLevel()
        self._settings = settings
        self._turn_taking.settings = settings.turn_taking

    def forget_voices(self) -> None:
        """A new conversation: the next speaker may be somebody else."""
        self._calibrations.clear()

    def hear(self, frame: VadFrame) -> None:
        """The next frame of the microphone."""
        capture = self._capture
        probability = frame.probability if self._counts(frame) else 0.0
        start_ms, end_ms = capture.ms_of(frame.start), capture.ms_of(frame.end)
        for event in self._turn_taking.update(
            probability, start_ms, end_ms, frame.level_db, has_echo=frame.has_echo
        ):
            self._carry_out(event)
        turn = self._turns.turn
        if turn is not None and self._turn_taking.is_hearing:
            self._roll_back_if_continued(turn)
            self._turns.feed.give(turn.turn_id, self._speech_end_ms)

    def _counts(self, frame: VadFrame) -> bool:
        """Whether speech in the frame may begin something: with push-to-talk alone none does, apart from that
        of files, nor does what may be the assistant's own voice."""
        is_awaited = self._capture.is_file or self._settings.turn_taking.is_voice_activated
        return self._turn_taking.is_hearing or (is_awaited and not frame.may_be_echo)

    def hold(self, on: bool) -> None:
        """The button of push-to-talk went down or came up; a source has to be attached when it goes down."""
        if on:
            for event in self._turn_taking.press(self._capture.ms_at(self._clock.now_ns())):
                self._carry_out(event)
        elif self._capture.source is not None:
            self._turn_taking.release(self._capture.ms_at(self._clock.now_ns()))

    def take_ratings(self) -> None:
        """What the end-of-turn detector answered since the last round."""
        for rated in self._pauses.answers():
            turn, pause, stage = self._turns.turn, rated.pause, None
            if turn is not None and turn.turn_id == pause.turn_id:
                stage = self._turn_taking.rate_pause(pause.speech_end_ms, rated.probability)
            answered_ms = self._pauses.report(rated, stage, self._decisions.timing)
            calibration = self._turn_taking.calibration
            self._decisions.report(
                "pause",
                pause.turn_id,
                silence_ms=answered_ms,
                probability=calibration.apply(rated.probability),
                shift=calibration.shift,
                stage="late" if stage is None else stage.value,
                cost_ms=rated.duration_ns / 1e6,
            )

    def take_prediction(self, scope: CancelScope, prediction: TurnEndPrediction) -> None:
        """What the language model says about the pause that the reply of this commit is for; it says nothing
        about a turn that is committed."""
        held = self._turns.speculation.held_of(scope)
        if held is None or self._settings.turn_taking.policy is None:
            return
        probability = prediction.probability
        stage = self._turn_taking.predict_turn_end(held.speech_end_ms, probability)
        cost_ns = self._clock.now_ns() - held.asked_ns
        timing = self._decisions.timing
        answered_ms = self._pauses.report_prediction(held, probability, stage, cost_ns, timing)
        self._decisions.report(
            "predict",
            held.turn_id,
            silence_ms=answered_ms,
            probability=probability,
            stage="late" if stage is None else stage.value,
            cost_ms=cost_ns / 1e6,
        )

    def forget_speech(self) -> None:
        """The source of the frames is gone: a reply that was paused for it continues."""
        for event in self._turn_taking.forget_speech():
            self._carry_out(event)

    # ---- turn events ----

    def _carry_out(self, event: TurnEvent) -> None:
        turns = self._turns
        turn = turns.turn
        if event.action is TurnAction.OPEN:
            self._open_voice(event)
        elif event.action is TurnAction.BARGE_IN:
            if turn is not None:
                turns.stop(turn, "barge_in")
            self._open_voice(event)
        elif event.action is TurnAction.IGNORE:
            level = self._turn_taking.voice_level
            self._decisions.report(
                "ignore", turns.turn_id, level_db=level.speech_db or 0.0, user_db=level.user_db or 0.0
            )
        elif turn is None:
            return
        elif event.action is TurnAction.SILENCE:
            self._speculate(turn, event)
        elif event.action is TurnAction.PAUSE:
            self._decisions.report("pause", turn.turn_id, silence_ms=event.silence_ms)
            if self._settings.turn_taking.policy is not None:
                self._pauses.ask(turn.turn_id, event, self._start_ms_of(event))
        elif event.action is TurnAction.INTERRUPT:
            turns.player.pause()
            onset_ns = self._capture.spoken_at_ns(self._capture.samples_of(event.speech_start_ms))
            self._decisions.report("interrupt", turn.turn_id, onset_s=onset_ns / 1e9)
        elif event.action is TurnAction.RESUME_REPLY:
            turns.player.resume()
            self._decisions.report("resume", turn.turn_id, silence_ms=event.silence_ms)
        elif event.action is TurnAction.COMMIT:
            self._commit_voice(turn, event)
        elif event.action is TurnAction.REOPEN:
            turns.reopen(turn)
        elif event.action is TurnAction.ONSET:
            self._open_feed(event)
        elif event.action is TurnAction.DROP:
            if event.stage is Stage.UNFINISHED:
                self._decisions.report(
                    "ignore", turn.turn_id, reason="backchannel", silence_ms=event.silence_ms
                )
            turns.stop(turn, "too_short" if event.press_end is None else "nothing_heard")

    def _open_voice(self, event: TurnEvent) -> None:
        if event.speech_end_ms > event.speech_start_ms:
            self._open_feed(event)
        source: TurnSource = "sample" if self._capture.is_file else "voice"
        self._turn_taking.calibration = self._calibrations[source]
        self._turns.open(source, self._settings.reply)

    def _open_feed(self, event: TurnEvent) -> None:
        self._turns.feed.open(self._start_ms_of(event))

    def _start_ms_of(self, event: TurnEvent) -> float:
        """Start of the audio that belongs to the speech."""
        return event.speech_start_ms - self._settings.turn_taking.pre_roll_ms

    @property
    def _speech_end_ms(self) -> float:
        """End of the audio that is known to belong to the turn."""
        return self._turn_taking.speech_end_ms + self._settings.turn_taking.tail_ms

    def _speculate(self, turn: UserTurn, event: TurnEvent) -> None:
        """The user may have finished: make the reply now, and hold it until that is sure."""
        settings, speculation = self._settings, self._turns.speculation
        is_short = event.speech_end_ms - event.speech_start_ms < settings.turn_taking.min_speech_ms
        if speculation.is_held or is_short or not speculation.is_wanted(settings.speculate or "auto"):
            return
        self._turns.feed.finish(turn.turn_id, self._speech_end_ms)
        self._decisions.report("speculate", turn.turn_id, silence_ms=event.silence_ms)
        heeds_model = settings.turn_taking.policy is not None
        commit = Commit(
            turn.turn_id,
            turn.modality,
            settings.seed,
            CancelScope(turn.scope),
            finished=settings.turn_taking.fusion.finished if heeds_model else 0.0,
        )
        speculation.begin(commit, event, self._decisions.timing)

    def _roll_back_if_continued(self, turn: UserTurn) -> None:
        """Speech after the pause: it is given to the engine after the pause, and the reply was none."""
        speculation = self._turns.speculation
        if speculation.is_overtaken(self._turn_taking.speech_end_ms):
            held = speculation.roll_back()
            self._decisions.report("roll_back", turn.turn_id, is_speculative=1, held_ms=held.audio_s * 1e3)

    def _commit_voice(self, turn: UserTurn, event: TurnEvent) -> None:
        self._roll_back_if_continued(turn)
        was_held = self._turns.speculation.is_held
        if not was_held:
            self._turns.feed.finish(turn.turn_id, self._speech_end_ms)
        self._close_voice(turn, event)
        self._decisions.report(
            "confirm",
            turn.turn_id,
            silence_ms=event.silence_ms,
            reason=event.reason,
            is_speculative=int(was_held),
        )
        self._turns.speculation.note_turn()
        self._turns.commit(turn, self._settings.seed)

    def _close_voice(self, turn: UserTurn, event: TurnEvent) -> None:
        """The turn is committed: its place, its length, and the time since its last speech."""
        capture = self._capture
        start = capture.samples_of(event.speech_start_ms)
        end = capture.samples_of(event.speech_end_ms)
        turn.last_speech_ns = capture.spoken_at_ns(end if event.press_end else capture.end_of_sound(end))
        endpointing_ns = self._clock.now_ns() - turn.last_speech_ns
        turn.last_speech_wall_ns = time.perf_counter_ns() - endpointing_ns
        seconds = (end - start) / capture.sample_rate
        known = self._transcript.get(turn.turn_id)
        if known is not None:
            known.user_s = seconds
        self._emit(TurnCommitted(turn.turn_id, seconds, capture.place_s(start)))
        self._decisions.timing.emit(
            "endpointing",
            turn.turn_id,
            turn.last_speech_wall_ns,
            endpointing_ns,
            reason=event.reason,
            silence_ms=event.silence_ms,
        )
