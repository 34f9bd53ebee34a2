"""One turn at a time, from its first speech to the last sample of its reply.

In: rated frames, typed questions, cancels, results of the engine. Out: jobs for the engine, reply audio for
the playback, events for the user, and the timings that only a session knows (endpointing, voice-to-voice).
Dialog thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from app.dialog.conversation import Transcript
from app.dialog.echo_guard import EchoGuard
from app.dialog.turn_taking import TurnAction, TurnEvent, TurnTaking
from app.session.capture import Capture, VadFrame
from app.session.clocks import Clock
from app.session.engine_jobs import Ask, Commit, Forget, Heard, Loaded, OpenTurn, Reply, TurnFailed
from app.session.engine_worker import EngineWorker
from app.session.messages import (
    CancelReason,
    ErrorRaised,
    Event,
    PlaybackFinished,
    PlaybackStarted,
    ReplyCut,
    ReplyFinished,
    ReplyTextDelta,
    SessionState,
    TurnCancelled,
    TurnCommitted,
    TurnExtended,
    TurnOpened,
    TurnSource,
)
from app.session.playback import Playback
from app.session.session_settings import SessionSettings
from app.session.speech_feed import SpeechFeed
from app.session.turn_in_progress import TurnInProgress
from engine_runtime.timing import TimingBus
from engine_runtime.types import ReplyAudio, ReplyDone, ReplyText


class TurnControl:
    """Holds the turn in progress and the transcript."""

    def __init__(
        self,
        worker: EngineWorker,
        capture: Capture,
        playback: Playback,
        clock: Clock,
        emit: Callable[[Event], None],
        settings: SessionSettings,
    ) -> None:
        self.settings = settings
        self.transcript = Transcript()
        self.timing = TimingBus()
        """The engine's bus once it is loaded."""
        self._worker = worker
        self._capture = capture
        self._playback = playback
        self._clock = clock
        self._emit = emit
        self._turn_taking = TurnTaking(settings.turn_taking)
        self._echo_guard = EchoGuard()
        self._turn: TurnInProgress | None = None
        self._turn_count = 0
        self._commit_count = 0
        self._engine: Loaded | None = None
        self._feed = SpeechFeed(capture, worker)

    # ---- what the loop asks ----

    @property
    def state(self) -> SessionState | None:
        """What the turn in progress does, None if there is none."""
        return self._turn.state if self._turn else None

    @property
    def turn_id(self) -> int:
        """The turn in progress, or the latest one."""
        return self._turn.turn_id if self._turn else self._turn_count

    def use_engine(self, engine: Loaded) -> None:
        """The engine is ready."""
        self._engine = engine
        self._feed.set_rate(engine.input_sample_rate)

    def apply(self, settings: SessionSettings) -> None:
        """Use these settings from the next frame and turn on."""
        self.settings = settings
        self._turn_taking.settings = settings.turn_taking

    # ---- the user ----

    def hear(self, frame: VadFrame) -> None:
        """The next frame of the microphone."""
        capture = self._capture
        may_be_echo = self._echo_guard.update(frame.level, self._playback.take_played_level())
        is_own_voice = may_be_echo and not self._turn_taking.is_hearing and not capture.is_file
        probability = 0.0 if is_own_voice else frame.probability
        events = self._turn_taking.update(probability, capture.ms_of(frame.start), capture.ms_of(frame.end))
        for event in events:
            self._on_turn_event(event)
        if self._turn is not None and self._turn_taking.is_hearing:
            self._feed.give(self._turn.turn_id, self._speech_end_ms)

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
        self.cancel("replaced")
        turn = self._new_turn()
        self._emit(TurnOpened(turn.turn_id, "text", question))
        self.transcript.open(turn.turn_id, turn.modality, question)
        self._worker.submit(OpenTurn(turn.turn_id, turn.modality))
        self._worker.submit(Ask(turn.turn_id, question))
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
        turn = self._turn
        if turn is not None and turn.turn_id == turn_id and not turn.is_repetition:
            turn.samples_heard = self._samples_heard(turn)  # it is started over, and not cut
        else:
            self.cancel("replaced")
            turn = self._turn = TurnInProgress(
                turn_id, earlier.modality, is_repetition=True, is_answered=True, had_playback=True
            )
            self._turn_taking.begin_reply()
        self._playback.begin(earlier.sample_rate, self.settings.playback_start_ms, self._clock.now_ns())
        for chunk in earlier.chunks:
            self._playback.push(chunk)
        if turn.is_answered:
            self._playback.finish()

    def cancel(self, reason: CancelReason) -> None:
        """Drop the turn in progress or stop its reply; nothing if there is none."""
        turn = self._turn
        if turn is None:
            return
        self._stop(turn, reason)
        self._turn_taking.end_turn()

    def cancel_speech(self) -> None:
        """Drop the turn in progress if the user is still speaking: its source is gone."""
        if self.state is SessionState.HEARING:
            self.cancel("stopped")

    def new_conversation(self) -> None:
        """Forget everything said so far."""
        self.cancel("replaced")
        self.transcript.clear()
        self._worker.submit(Forget())

    # ---- the engine ----

    def on_result(self, result: Heard | Reply | TurnFailed) -> None:
        """What the engine made; stale results are dropped."""
        turn = self._turn
        if isinstance(result, TurnFailed):
            self._on_failure(result)
        elif turn is None or turn.is_repetition:
            return
        elif isinstance(result, Heard):
            if result.turn_id == turn.turn_id:
                turn.user_codes += result.codes
        elif result.commit_id == turn.commit_id:
            self._on_reply(turn, result.event)

    def service(self, now_ns: int) -> None:
        """Advance the playback; notice its first and its last sample."""
        self._playback.service(now_ns)
        turn = self._turn
        if turn is None:
            return
        if turn.had_playback and not turn.is_heard and self._playback.started_ns is not None:
            turn.is_heard = True
            self._turn_taking.reply_heard()
            self._feed.close()
            self._emit(PlaybackStarted(turn.turn_id))
            self._time_start(turn, self._playback.started_ns)
        if turn.had_playback and self._playback.is_lost:
            self.cancel("output_lost")
        elif turn.is_answered and not self._playback.is_active:
            self._end(turn)
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
        elif turn is None:
            return
        elif event.action is TurnAction.COMMIT:
            self._commit_voice(turn, event)
        elif event.action is TurnAction.REOPEN:
            self._reopen(turn)
        elif event.action is TurnAction.DROP:
            self._stop(turn, "too_short")

    def _open_voice(self, event: TurnEvent) -> None:
        turn = self._new_turn()
        self._feed.open(event.speech_start_ms - self.settings.turn_taking.pre_roll_ms)
        source: TurnSource = "sample" if self._capture.is_file else "voice"
        self._emit(TurnOpened(turn.turn_id, source))
        self.transcript.open(turn.turn_id, turn.modality)
        self._worker.submit(OpenTurn(turn.turn_id, turn.modality))

    @property
    def _speech_end_ms(self) -> float:
        """Up to where the audio belongs to the turn, as far as one knows."""
        return self._turn_taking.speech_end_ms + self.settings.turn_taking.tail_ms

    def _commit_voice(self, turn: TurnInProgress, event: TurnEvent) -> None:
        self._feed.finish(turn.turn_id, self._speech_end_ms)
        capture = self._capture
        start = capture.samples_of(event.speech_start_ms)
        end = capture.samples_of(event.speech_end_ms)
        turn.last_speech_ns = capture.spoken_at_ns(end)
        endpointing_ns = self._clock.now_ns() - turn.last_speech_ns
        turn.last_speech_wall_ns = time.perf_counter_ns() - endpointing_ns
        seconds = (end - start) / capture.sample_rate
        known = self.transcript.get(turn.turn_id)
        if known is not None:
            known.user_s = seconds
        self._emit(TurnCommitted(turn.turn_id, seconds, capture.place_s(start)))
        self.timing.emit("endpointing", turn.turn_id, turn.last_speech_wall_ns, endpointing_ns)
        self._submit_commit(turn)

    def _reopen(self, turn: TurnInProgress) -> None:
        turn.take_back()
        self._playback.stop()
        self._worker.reopen(turn.turn_id)
        self.transcript.take_back_reply(turn.turn_id)
        self._emit(TurnExtended(turn.turn_id))

    # ---- the reply ----

    def _submit_commit(self, turn: TurnInProgress) -> None:
        self._commit_count += 1
        turn.commit_id, turn.committed_ns = self._commit_count, self._clock.now_ns()
        self._worker.submit(Commit(turn.turn_id, turn.commit_id, turn.modality, self.settings.seed))

    def _on_reply(self, turn: TurnInProgress, event: ReplyText | ReplyAudio | ReplyDone) -> None:
        if isinstance(event, ReplyText):
            turn.pieces.append(event)
            self._emit(ReplyTextDelta(turn.turn_id, event.text, event.is_subtitle))
        elif isinstance(event, ReplyAudio):
            self.transcript.add_audio(turn.turn_id, event.pcm, event.sample_rate)
            if not turn.had_playback:
                turn.had_playback = True
                self._playback.begin(event.sample_rate, self.settings.playback_start_ms, turn.committed_ns)
            if self._playback.is_active:
                self._playback.push(event.pcm)
        else:
            self._on_reply_done(turn, event)

    def _on_reply_done(self, turn: TurnInProgress, event: ReplyDone) -> None:
        turn.is_answered = True
        text = event.text or turn.text
        self.transcript.finish(turn.turn_id, text, event.finish_reason)
        if self._playback.is_active:
            self._playback.finish()
        rate = self._engine.output_sample_rate if self._engine else 1
        self._emit(
            ReplyFinished(
                turn.turn_id,
                event.modality,
                event.audio_samples / rate,
                text,
                turn.user_codes,
                len(event.codes),
                event.finish_reason,
            )
        )

    def _on_failure(self, failure: TurnFailed) -> None:
        turn = self._turn
        if turn is None or turn.turn_id != failure.turn_id or turn.is_repetition:
            return
        self._emit(ErrorRaised(failure.message, failure.what_to_do, turn.turn_id))
        self.cancel("error")

    def _time_start(self, turn: TurnInProgress, started_ns: int) -> None:
        start = self._playback.start
        if start is not None and not turn.is_repetition:
            hold_ns = round(start.delay_ms * 1e6)
            self.timing.emit(
                "playback_hold",
                turn.turn_id,
                time.perf_counter_ns() - hold_ns,
                hold_ns,
                reason=start.reason,
                target_ms=start.target_ms,
            )
        if turn.last_speech_ns is None:
            return
        duration_ns = started_ns - turn.last_speech_ns
        self.timing.emit("voice_to_voice", turn.turn_id, turn.last_speech_wall_ns, duration_ns)

    # ---- beginnings and ends ----

    def _new_turn(self) -> TurnInProgress:
        self._turn_count += 1
        turn = self._turn = TurnInProgress(self._turn_count, self.settings.reply)
        return turn

    def _stop(self, turn: TurnInProgress, reason: CancelReason) -> None:
        """Drop the turn, or cut its reply; one that was heard to its end is whole."""
        samples, is_over = self._samples_heard(turn), self._is_over(turn)
        self._playback.stop()
        if is_over:
            self._end(turn)
            return
        self._turn = None
        self._feed.close()
        if turn.commit_id:
            self._worker.interrupt(turn.turn_id, samples, len(turn.text))
            self._cut(turn, reason, samples)
        else:
            self._worker.cancel(turn.turn_id)
            self.transcript.drop(turn.turn_id)
        self._emit(TurnCancelled(turn.turn_id, reason))

    def _is_over(self, turn: TurnInProgress) -> bool:
        """Whether stopping the turn changes nothing in what was said: the reply was heard to its end, or this
        is a repetition."""
        was_played = not turn.had_playback or self._playback.is_over(self._clock.now_ns())
        return turn.is_repetition or (turn.is_answered and was_played)

    def _end(self, turn: TurnInProgress) -> None:
        """The reply, or its repetition, came to its end."""
        self._turn = None
        self._feed.close()
        if turn.is_heard or turn.is_repetition:
            self._emit(PlaybackFinished(turn.turn_id))

    def _samples_heard(self, turn: TurnInProgress) -> int:
        """Samples of the reply that left the loudspeaker, at its own rate."""
        now = self._playback.heard_samples(self._clock.now_ns()) if turn.had_playback else 0
        return max(turn.samples_heard, now)

    def _cut(self, turn: TurnInProgress, reason: CancelReason, samples: int) -> None:
        """Keep and report what was heard of a reply that was stopped."""
        known = self.transcript.get(turn.turn_id)
        made_s = known.reply_s if known is not None else 0.0
        text, heard_text = turn.text, turn.heard_text(samples)
        self.transcript.cut(turn.turn_id, heard_text, samples)
        rate, samples_per_code = 1, 1
        if self._engine is not None:
            rate, samples_per_code = self._engine.output_sample_rate, self._engine.samples_per_code
        cut = ReplyCut(
            turn.turn_id,
            reason,
            turn.modality,
            heard_text,
            text[len(heard_text) :],
            samples / rate,
            made_s,
            turn.user_codes,
            -(-samples // samples_per_code),
        )
        self.timing.emit(
            "reply_cut",
            turn.turn_id,
            time.perf_counter_ns(),
            0,
            reason=reason,
            heard_ms=cut.heard_s * 1e3,
            made_ms=made_s * 1e3,
        )
        self._emit(cut)
