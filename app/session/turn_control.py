"""One turn at a time, from its first speech to the last sample of its reply.

In: rated frames, typed questions, cancels, results of the engine, answers of the end-of-turn detector. Out:
jobs for the engine, pauses for the detector, reply events for the player, the events of the turn (opened,
extended, committed, cancelled), its endpointing time, and every decision as a timing event. Dialog thread.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Literal

from app.dialog.conversation import ConversationRecord, TranscriptTurn
from app.dialog.turn_events import TurnAction, TurnEvent
from app.dialog.turn_taking import TurnTaking
from app.dialog.voice_calibration import VoiceCalibration
from app.dialog.voice_level import VoiceLevel
from app.session.capture import Capture, VadFrame
from app.session.clocks import Clock
from app.session.end_of_turn_worker import EndOfTurnWorker
from app.session.engine_jobs import (
    Ask,
    AskAgain,
    Commit,
    Forget,
    Heard,
    Loaded,
    OpenTurn,
    Reopen,
    ReplyMade,
    ReplyResult,
    RolledBack,
    TurnFailed,
)
from app.session.engine_worker import EngineWorker
from app.session.events import (
    CancelReason,
    ErrorRaised,
    Event,
    ReplyCut,
    SessionState,
    TurnCancelled,
    TurnCommitted,
    TurnExtended,
    TurnOpened,
    TurnSource,
)
from app.session.pause_rating import PauseRating
from app.session.playback import Playback
from app.session.reply_player import ReplyPlayer, UserTurn
from app.session.session_settings import SessionSettings
from app.session.speculation import Speculation
from app.session.speech_feed import SpeechFeed
from engine_runtime.timing import TimingBus
from engine_runtime.types import CancelScope

DecisionKind = Literal["pause", "speculate", "confirm", "roll_back", "interrupt", "resume", "cut", "ignore"]


class TurnControl:
    """Holds the turn in progress and the transcript."""

    def __init__(
        self,
        worker: EngineWorker,
        end_of_turn: EndOfTurnWorker | None,
        capture: Capture,
        playback: Playback,
        clock: Clock,
        emit: Callable[[Event], None],
        settings: SessionSettings,
    ) -> None:
        self.settings = settings
        self.transcript = ConversationRecord()
        self._worker = worker
        self._capture = capture
        self._playback = playback
        self._clock = clock
        self._emit = emit
        self._turn_taking = TurnTaking(settings.turn_taking)
        self._calibrations: defaultdict[TurnSource, VoiceCalibration] = defaultdict(VoiceCalibration)
        """The voices of samples are not the user's."""
        self._pauses = PauseRating(end_of_turn, capture)
        self._turn: UserTurn | None = None
        self._turn_count = 0
        self._feed = SpeechFeed(capture, worker)
        self._speculation = Speculation(worker, clock, emit)
        self._player = ReplyPlayer(playback, self.transcript, clock, emit, settings.playback_start_ms)

    # ---- state for the loop ----

    @property
    def state(self) -> SessionState | None:
        """The state of the current turn, None if there is none."""
        if self._turn is None:
            return None
        if not self._player.has_reply or self.is_paused:
            return SessionState.HEARING
        return SessionState.SPEAKING if self._player.is_heard else SessionState.THINKING

    @property
    def is_paused(self) -> bool:
        """Whether the user speaks over a reply that is not cut yet."""
        return self._turn_taking.is_interrupted

    @property
    def turn_id(self) -> int:
        """The turn in progress, or the latest one."""
        return self._turn.turn_id if self._turn else self._turn_count

    @property
    def timing(self) -> TimingBus:
        """Where timings are put: the engine's bus once it is loaded."""
        return self._player.timing

    def use_timing(self, timing: TimingBus) -> None:
        """Put timings there from now on. Engine thread."""
        self._player.timing = timing

    def use_engine(self, engine: Loaded) -> None:
        """The engine is ready."""
        self._player.use_engine(engine)
        self._feed.set_rate(engine.input_sample_rate)

    def apply(self, settings: SessionSettings) -> None:
        """Use these settings from the next frame and turn on."""
        if settings.audio_processing != self.settings.audio_processing:
            self._turn_taking.voice_level = VoiceLevel()
        self.settings = settings
        self._turn_taking.settings = settings.turn_taking
        self._player.least_ms = settings.playback_start_ms

    # ---- the user ----

    def hear(self, frame: VadFrame) -> None:
        """The next frame of the microphone."""
        capture = self._capture
        probability = frame.probability if self._counts(frame) else 0.0
        start_ms, end_ms = capture.ms_of(frame.start), capture.ms_of(frame.end)
        for event in self._turn_taking.update(probability, start_ms, end_ms, frame.level_db):
            self._on_turn_event(event)
        if self._turn is not None and self._turn_taking.is_hearing:
            self._roll_back_if_continued(self._turn)
            self._feed.give(self._turn.turn_id, self._speech_end_ms)

    def _counts(self, frame: VadFrame) -> bool:
        """Whether speech in the frame may begin something: with push-to-talk alone none does, apart from that
        of files, nor does what may be the assistant's own voice."""
        is_awaited = self._capture.is_file or self.settings.turn_taking.is_voice_activated
        return self._turn_taking.is_hearing or (is_awaited and not frame.may_be_echo)

    def hold(self, on: bool) -> None:
        """The button of push-to-talk went down or came up; a source has to be attached when it goes down."""
        if on:
            for event in self._turn_taking.press(self._capture.ms_at(self._clock.now_ns())):
                self._on_turn_event(event)
        elif self._capture.source is not None:
            self._turn_taking.release(self._capture.ms_at(self._clock.now_ns()))

    def take_ratings(self) -> None:
        """What the end-of-turn detector answered since the last round."""
        for rated in self._pauses.answers():
            pause, stage = rated.pause, None
            if self._turn is not None and self._turn.turn_id == pause.turn_id:
                stage = self._turn_taking.rate_pause(pause.speech_end_ms, rated.probability)
            answered_ms = self._pauses.report(rated, stage, self.timing)
            calibration = self._turn_taking.calibration
            self._decide(
                "pause",
                pause.turn_id,
                silence_ms=answered_ms,
                probability=calibration.apply(rated.probability),
                shift=calibration.shift,
                stage="late" if stage is None else stage.value,
                cost_ms=rated.duration_ns / 1e6,
            )

    def ask(self, text: str) -> None:
        """A typed question; it replaces the turn in progress."""
        question = text.strip()
        limit = self.settings.max_text_chars
        if not question:
            self._emit(ErrorRaised("The question is empty.", "Type a question first."))
            return
        if len(question) > limit:
            self._emit(
                ErrorRaised(
                    f"The question has {len(question):,} characters, more than the {limit:,} that fit.",
                    "Shorten it, or ask it in parts.",
                )
            )
            return
        self.answer("text", question, lambda turn_id: Ask(turn_id, question))

    def answer(self, source: TurnSource, text: str, give: Callable[[int], Ask | AskAgain]) -> None:
        """A complete question, which `give` makes the job of for a turn; it replaces the turn in progress."""
        self.cancel("replaced")
        turn = self._new_turn()
        self._emit(TurnOpened(turn.turn_id, source, text))
        self.transcript.open(turn.turn_id, turn.modality, text)
        self._worker.submit(OpenTurn(turn.turn_id, turn.modality, turn.scope))
        self._worker.submit(give(turn.turn_id))
        self._turn_taking.begin_reply()
        self._emit(TurnCommitted(turn.turn_id, 0.0))
        self._submit_commit(turn)

    def repeat(self, turn_id: int) -> None:
        """Play the reply of an earlier turn again."""
        earlier = self.transcript.get(turn_id)
        if earlier is None or not earlier.chunks:
            self._emit(
                ErrorRaised(
                    "That reply has no sound to play again.", "Choose a spoken reply of this conversation."
                )
            )
            return
        self.play(earlier)

    def play(self, spoken: TranscriptTurn) -> None:
        """Play the audio of a turn again; a reply in progress is cancelled, or starts over if it is its."""
        turn = self._turn
        if turn is None or turn.turn_id != spoken.turn_id or self._player.is_repetition:
            self.cancel("replaced")
            turn = self._turn = UserTurn(spoken.turn_id, spoken.modality)
            self._player.begin(turn, is_repetition=True)
            self._turn_taking.begin_reply()
        self._player.start_over(spoken)

    def cancel(self, reason: CancelReason) -> None:
        """Cancel the current turn or stop its reply; does nothing if there is none."""
        turn = self._turn
        if turn is None:
            return
        self._stop(turn, reason)
        self._turn_taking.end_turn()

    def cancel_speech(self) -> None:
        """Drop what the user is saying: its source is gone. A reply continues."""
        for event in self._turn_taking.forget_speech():
            self._on_turn_event(event)
        if self.state is SessionState.HEARING:
            self.cancel("stopped")

    def continue_after(self, last_turn_id: int) -> None:
        """Turn ids continue after those of an earlier run of the program."""
        self._turn_count = max(self._turn_count, last_turn_id)

    def new_conversation(self) -> None:
        """Forget the conversation so far."""
        self.cancel("replaced")
        self._calibrations.clear()
        self.transcript.clear()
        self._worker.submit(Forget())

    # ---- the engine ----

    def on_result(self, result: Heard | ReplyResult | ReplyMade | RolledBack | TurnFailed) -> None:
        """Handle a result of the engine; stale results are dropped."""
        turn = self._turn
        if isinstance(result, TurnFailed):
            self._on_failure(result)
        elif isinstance(result, ReplyMade):
            self._speculation.note_reply(result.rtf)
        elif isinstance(result, RolledBack):
            self._speculation.note_roll_back(result, self.timing)
        elif turn is None:
            return
        elif isinstance(result, Heard):
            if result.turn_id == turn.turn_id:
                turn.user_codes += result.codes
        elif not result.scope.is_cancelled and not self._speculation.hold(result.scope, result.event):
            self._player.add(result.event)

    def service(self, now_ns: int) -> None:
        """Advance the playback; notice its first and its last sample."""
        player = self._player
        if player.service(now_ns):
            self._turn_taking.reply_heard()
            self._feed.close()
        if player.is_lost:
            self.cancel("output_lost")
        elif player.is_played:
            self._end()
            self._turn_taking.end_turn()

    # ---- turn events ----

    def _on_turn_event(self, event: TurnEvent) -> None:
        turn = self._turn
        if event.action is TurnAction.OPEN:
            self._open_voice(event)
        elif event.action is TurnAction.BARGE_IN:
            if turn is not None:
                self._stop(turn, "barge_in")
            self._open_voice(event)
        elif event.action is TurnAction.IGNORE:
            level = self._turn_taking.voice_level
            self._decide(
                "ignore", self.turn_id, level_db=level.speech_db or 0.0, user_db=level.user_db or 0.0
            )
        elif turn is None:
            return
        elif event.action is TurnAction.PAUSE:
            self._decide("pause", turn.turn_id, silence_ms=event.silence_ms)
            if self.settings.turn_taking.policy is not None:
                self._pauses.ask(turn.turn_id, event, self._start_ms_of(event))
            if not self._turn_taking.is_interrupted:
                self._speculate(turn, event)
        elif event.action is TurnAction.INTERRUPT:
            self._player.pause()
            onset_ns = self._capture.spoken_at_ns(self._capture.samples_of(event.speech_start_ms))
            self._decide("interrupt", turn.turn_id, onset_s=onset_ns / 1e9)
        elif event.action is TurnAction.RESUME_REPLY:
            self._player.resume()
            self._decide("resume", turn.turn_id, silence_ms=event.silence_ms)
        elif event.action is TurnAction.COMMIT:
            self._commit_voice(turn, event)
        elif event.action is TurnAction.REOPEN:
            self._reopen(turn)
        elif event.action is TurnAction.ONSET:
            self._open_feed(event)
        elif event.action is TurnAction.DROP:
            self._stop(turn, "too_short" if event.press_end is None else "nothing_heard")

    def _open_voice(self, event: TurnEvent) -> None:
        turn = self._new_turn()
        if event.speech_end_ms > event.speech_start_ms:
            self._open_feed(event)
        source: TurnSource = "sample" if self._capture.is_file else "voice"
        self._turn_taking.calibration = self._calibrations[source]
        self._emit(TurnOpened(turn.turn_id, source))
        self.transcript.open(turn.turn_id, turn.modality)
        self._worker.submit(OpenTurn(turn.turn_id, turn.modality, turn.scope))

    def _open_feed(self, event: TurnEvent) -> None:
        self._feed.open(self._start_ms_of(event))

    def _start_ms_of(self, event: TurnEvent) -> float:
        """Start of the audio that belongs to the speech."""
        return event.speech_start_ms - self.settings.turn_taking.pre_roll_ms

    @property
    def _speech_end_ms(self) -> float:
        """End of the audio that is known to belong to the turn."""
        return self._turn_taking.speech_end_ms + self.settings.turn_taking.tail_ms

    def _speculate(self, turn: UserTurn, event: TurnEvent) -> None:
        """The user may have finished: make the reply now, and hold it until that is sure."""
        settings, speculation = self.settings, self._speculation
        is_short = event.speech_end_ms - event.speech_start_ms < settings.turn_taking.min_speech_ms
        if speculation.is_held or is_short or not speculation.is_wanted(settings.speculate or "auto"):
            return
        self._feed.finish(turn.turn_id, self._speech_end_ms)
        self._decide("speculate", turn.turn_id, silence_ms=event.silence_ms)
        commit = Commit(turn.turn_id, turn.modality, settings.seed, CancelScope(turn.scope))
        speculation.begin(commit, event.speech_end_ms, self.timing)

    def _roll_back_if_continued(self, turn: UserTurn) -> None:
        """Speech after the pause: it is given to the engine after the pause, and the reply was none."""
        if self._speculation.is_overtaken(self._turn_taking.speech_end_ms):
            held = self._speculation.roll_back()
            self._decide("roll_back", turn.turn_id, is_speculative=1, held_ms=held.audio_s * 1e3)

    def _commit_voice(self, turn: UserTurn, event: TurnEvent) -> None:
        self._roll_back_if_continued(turn)
        was_held = self._speculation.is_held
        if not was_held:
            self._feed.finish(turn.turn_id, self._speech_end_ms)
        self._close_voice(turn, event)
        self._decide(
            "confirm",
            turn.turn_id,
            silence_ms=event.silence_ms,
            reason=event.reason,
            is_speculative=int(was_held),
        )
        self._speculation.note_turn()
        if was_held:
            held = self._speculation.confirm()
            turn.commit = held.scope
            self._player.begin_held(turn, held)
        else:
            self._submit_commit(turn)

    def _close_voice(self, turn: UserTurn, event: TurnEvent) -> None:
        """The turn is committed: its place, its length, and the time since its last speech."""
        capture = self._capture
        start = capture.samples_of(event.speech_start_ms)
        end = capture.samples_of(event.speech_end_ms)
        turn.last_speech_ns = capture.spoken_at_ns(end if event.press_end else capture.end_of_sound(end))
        endpointing_ns = self._clock.now_ns() - turn.last_speech_ns
        turn.last_speech_wall_ns = time.perf_counter_ns() - endpointing_ns
        seconds = (end - start) / capture.sample_rate
        known = self.transcript.get(turn.turn_id)
        if known is not None:
            known.user_s = seconds
        self._emit(TurnCommitted(turn.turn_id, seconds, capture.place_s(start)))
        self.timing.emit(
            "endpointing",
            turn.turn_id,
            turn.last_speech_wall_ns,
            endpointing_ns,
            reason=event.reason,
            silence_ms=event.silence_ms,
        )

    def _reopen(self, turn: UserTurn) -> None:
        self._player.take_back()
        if turn.commit is not None:
            turn.commit.cancel()
            self._worker.submit(Reopen(turn.turn_id, turn.commit))
        self._decide("roll_back", turn.turn_id, is_speculative=0)
        self._emit(TurnExtended(turn.turn_id))

    def _decide(self, kind: DecisionKind, turn_id: int, **details: float | int | str) -> None:
        """A decision of turn-taking, for trace, report and log. `at_s` is by the session's clock."""
        at_s = self._clock.now_ns() / 1e9
        self.timing.emit("decision", turn_id, time.perf_counter_ns(), 0, kind=kind, at_s=at_s, **details)

    # ---- beginnings and ends ----

    def _new_turn(self) -> UserTurn:
        self._turn_count += 1
        turn = self._turn = UserTurn(self._turn_count, self.settings.reply)
        return turn

    def _submit_commit(self, turn: UserTurn) -> None:
        turn.commit = CancelScope(turn.scope)
        self._player.begin(turn)
        self._worker.submit(Commit(turn.turn_id, turn.modality, self.settings.seed, turn.commit))

    def _on_failure(self, failure: TurnFailed) -> None:
        turn = self._turn
        if turn is None or turn.turn_id != failure.turn_id or self._player.is_repetition:
            return
        self._emit(ErrorRaised(failure.message, failure.what_to_do, turn.turn_id))
        self.cancel("error")

    def _stop(self, turn: UserTurn, reason: CancelReason) -> None:
        """Drop the turn, or cut its reply unless it was fully played."""
        if self._player.is_complete:
            self._end()
            return
        turn.scope.cancel()
        reply = self._player.stop()
        self._turn = None
        self._feed.close()
        cut: ReplyCut | None = None
        if reply is not None:
            self._worker.interrupt(turn.turn_id, reply.samples_heard, len(reply.text))
            cut = self._player.cut(reply, reason)
        else:
            if self._speculation.is_held:
                self._speculation.drop()
            else:
                self._worker.cancel(turn.turn_id)
            self.transcript.drop(turn.turn_id)
        self._emit(TurnCancelled(turn.turn_id, reason))
        if cut is not None:
            heard_ms, made_ms = cut.heard_s * 1e3, cut.made_s * 1e3
            self._decide("cut", turn.turn_id, reason=reason, heard_ms=heard_ms, made_ms=made_ms)

    def _end(self) -> None:
        """The reply, or its repetition, came to its end."""
        self._turn = None
        self._feed.close()
        self._player.end()
