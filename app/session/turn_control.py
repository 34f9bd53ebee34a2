"""The turns of the window: asking, cancelling, repeating and removing them, their playback, and what is
shown.

In: typed questions, cancels, the button, results of the engine; frames and pauses go to the driver. Out:
`TurnDriver` gets the turns, `ReplyPlayer` the replies; the transcript; events of turns, the endpointing time,
ErrorRaised. Dialog thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from app.audio.wav import WavReader
from app.dialog.conversation import ConversationRecord, TranscriptTurn
from app.dialog.turn_events import TurnEvent
from app.session.captions import Captions
from app.session.capture import Capture
from app.session.clocks import Clock
from app.session.commands import ContinueConversation, PlayRecording, RetryTurn
from app.session.end_of_turn_worker import EndOfTurnWorker
from app.session.engine_jobs import (
    Ask,
    AskAgain,
    Forget,
    Load,
    Loaded,
    Remove,
    ReplyMade,
    Restore,
    TurnFailed,
    UseFlowSteps,
)
from app.session.engine_slot import EngineSource
from app.session.events import (
    CancelReason,
    ErrorRaised,
    Event,
    ReplyCut,
    SessionState,
    SpeculationMeasured,
    SpeculationStats,
    TurnCancelled,
    TurnCommitted,
    TurnExtended,
    TurnOpened,
    TurnSource,
    TurnsRemoved,
)
from app.session.playback import Playback
from app.session.reply_player import ReplyPlayer
from app.session.session_settings import SessionSettings
from app.session.speculation import HeldReply
from app.session.turn_driver import DriverSettings, StoppedReply, TurnDriver, TurnResult, UserTurn
from app.session.voice_stream import VadFrame
from app.settings import DEFAULT_OVERLAP, OverlapManner
from engine_runtime.errors import Problem
from engine_runtime.timing import TimingBus
from engine_runtime.types import ReplyEvent

_MOST_PLAYED_S = 300.0
"""Longest part of a recording that is played, because it is read into memory at once."""


class TurnControl:
    """The hooks of a `TurnDriver` that plays its replies, and the commands of the user."""

    def __init__(
        self,
        captions: Captions,
        end_of_turn: EndOfTurnWorker | None,
        capture: Capture,
        playback: Playback,
        clock: Clock,
        emit: Callable[[Event], None],
        settings: SessionSettings,
    ) -> None:
        self.settings = settings
        self.transcript = ConversationRecord()
        self._jobs = self._captions = captions
        self._end_of_turn = end_of_turn
        self._capture = capture
        self._stream = capture.stream
        self._clock = clock
        self._emit = emit
        self._player = ReplyPlayer(playback, self.transcript, clock, emit, settings.playback_start_ms)
        self._cut: ReplyCut | None = None
        """The cut of the reply that is being stopped."""
        ask = None if end_of_turn is None else end_of_turn.submit
        self._driver = TurnDriver(self._stream, captions, self, clock.now_ns, _driver_settings(settings), ask)

    # ---- state for the loop ----

    @property
    def state(self) -> SessionState | None:
        """The state of the current turn, None if there is none."""
        if self._driver.turn is None:
            return None
        if not self._player.has_reply or self.is_paused:
            return SessionState.HEARING
        return SessionState.SPEAKING if self._player.is_heard else SessionState.THINKING

    @property
    def is_paused(self) -> bool:
        """Whether the user speaks over a reply that is not cut yet."""
        return self._driver.is_interrupted

    @property
    def turn_id(self) -> int:
        """The turn in progress, or the latest one."""
        return self._driver.turn_id

    @property
    def timing(self) -> TimingBus:
        """The timing bus: the engine's once it is loaded."""
        return self._driver.timing

    def use_timing(self, timing: TimingBus) -> None:
        """Emit timings on this bus from now on. Engine thread."""
        self._driver.timing = self._player.timing = timing

    def use_engine(self, engine: Loaded) -> None:
        """The engine is ready."""
        self._captions.use_engine(engine.input_sample_rate)
        self._driver.use_engine(engine.input_sample_rate, can_speculate=engine.can_speculate)
        self._player.use_engine(engine)

    def apply(self, settings: SessionSettings) -> None:
        """Use these settings from the next frame and turn on."""
        before, self.settings = self.settings, settings
        if settings.flow_steps != before.flow_steps:
            self._jobs.submit(UseFlowSteps(settings.flow_steps))
        if settings.audio_processing != before.audio_processing:
            self._driver.forget_levels()
        self._driver.apply(_driver_settings(settings))
        self._player.least_ms = settings.playback_start_ms

    # ---- the user's voice ----

    def hear(self, frame: VadFrame) -> None:
        """The next frame of the microphone."""
        self._driver.hear(frame)

    def hold(self, on: bool) -> None:
        """The button of push-to-talk went down or came up; a source has to be attached when it goes down."""
        if on:
            self._driver.press(self._capture.ms_at(self._clock.now_ns()))
        elif self._capture.source is not None:
            self._driver.release(self._capture.ms_at(self._clock.now_ns()))

    def take_ratings(self) -> None:
        """What the end-of-turn detector answered since the last round."""
        if self._end_of_turn is not None:
            for rated in self._end_of_turn.take_answers():
                self._driver.take_rating(rated)

    def cancel_speech(self) -> None:
        """Drop what the user is saying: its source is gone. A reply continues."""
        self._driver.forget_speech()
        if self.state is SessionState.HEARING:
            self.cancel("stopped")

    # ---- commands ----

    def ask(self, text: str) -> None:
        """A typed question; it replaces the turn in progress."""
        question = text.strip()
        limit = self.settings.max_text_chars
        if not question:
            self._emit(ErrorRaised(Problem("The question is empty.", "Type a question first.")))
            return
        if len(question) > limit:
            self._emit(
                ErrorRaised(
                    Problem(
                        "The question has {characters:,} characters; the limit is {limit:,}.",
                        "Shorten it, or ask it in parts.",
                        characters=len(question),
                        limit=limit,
                    )
                )
            )
            return
        self.answer("text", question, lambda turn_id: Ask(turn_id, question))

    def answer(self, source: TurnSource, text: str, give: Callable[[int], Ask | AskAgain]) -> None:
        """Ask a complete question, whose job `give` makes for a turn; it replaces the turn in progress."""
        self.cancel("replaced")
        turn = self._driver.open(lambda turn: self._show_turn(turn, source, text))
        self._jobs.submit(give(turn.turn_id))
        self._emit(TurnCommitted(turn.turn_id, 0.0))
        self._driver.answer(turn)

    def repeat(self, turn_id: int) -> None:
        """Play the reply of an earlier turn again."""
        earlier = self.transcript.get(turn_id)
        if earlier is None or not earlier.chunks:
            self._emit(
                ErrorRaised(
                    Problem(
                        "That reply has no sound to play again.",
                        "Choose a spoken reply of this conversation.",
                    )
                )
            )
            return
        self.play(earlier)

    def play(self, spoken: TranscriptTurn) -> None:
        """Play the audio of a turn again; a reply in progress is cancelled, or starts over if it is its."""
        turn = self._driver.turn
        if turn is None or turn.turn_id != spoken.turn_id or self._player.is_repetition:
            self.cancel("replaced")
            turn = self._driver.repeat(spoken.turn_id, spoken.modality)
            self._player.begin(turn, is_repetition=True)
        self._player.start_over(spoken)

    def cancel(self, reason: CancelReason) -> None:
        """Cancel the current turn or stop its reply; does nothing if there is none."""
        self._driver.stop(reason)

    def delete(self, turn_id: int) -> None:
        """Remove one turn, also from what is kept of it; its reply is stopped if it is in progress."""
        if self.state is not None and self.turn_id == turn_id:
            self.cancel("user")
        self._jobs.submit(Remove(turn_id))
        self._remove((turn_id,), is_deleted=True)

    def retry(self, command: RetryTurn) -> None:
        """Ask the question of a turn again, in its place."""
        earlier_id = command.turn_id
        self.cancel("replaced")
        self._remove(tuple(range(earlier_id, self.turn_id + 1)))
        self.answer(command.source, command.text, lambda turn_id: AskAgain(turn_id, earlier_id))

    def _remove(self, turn_ids: tuple[int, ...], *, is_deleted: bool = False) -> None:
        for turn_id in turn_ids:
            self.transcript.drop(turn_id)
        self._emit(TurnsRemoved(turn_ids, is_deleted))

    def play_recording(self, command: PlayRecording) -> None:
        """Play a part of a recording. AudioInputError if it cannot be read."""
        with WavReader(command.path) as reader:
            rate = reader.sample_rate
            reader.skip(max(round(command.start_s * rate), 0))
            sound = reader.read(round(min(command.seconds, _MOST_PLAYED_S) * rate))
        self.play(TranscriptTurn(0, sample_rate=rate, chunks=[sound]))

    def continue_conversation(self, command: ContinueConversation) -> None:
        """Continue an earlier conversation instead of the current one."""
        self.cancel("replaced")
        self.transcript.clear()
        self._driver.continue_after(command.last_turn_id)
        self._jobs.submit(Restore(command.history))

    def new_conversation(self) -> None:
        """Forget the conversation so far."""
        self.cancel("replaced")
        self._driver.forget_voices()
        self.transcript.clear()
        self._jobs.submit(Forget())

    # ---- the engine ----

    def load_engine(self, factory: EngineSource) -> None:
        """Load another engine in place of the present one."""
        self.cancel("replaced")
        self._jobs.submit(Load(factory))

    def on_result(self, result: TurnResult) -> None:
        """Handle a result of the engine; stale results are dropped."""
        self._driver.on_result(result)

    def service(self, now_ns: int) -> None:
        """Advance the playback; notice its first and its last sample."""
        player = self._player
        if player.service(now_ns):
            self._driver.reply_heard()
        if player.is_lost:
            self.cancel("output_lost")
        elif player.is_played and not self.is_paused:  # else what the user says over its end would be lost
            self._driver.end_turn()
            player.end()
            self._driver.rest()

    # ---- hooks of the driver: the turn ----

    def turn_opened(self, turn: UserTurn, start_ms: float) -> None:
        """A turn by voice, or of a sample."""
        self._show_turn(turn, "sample" if self._stream.is_file else "voice")

    def turn_committed(self, turn: UserTurn, event: TurnEvent) -> bool:
        """Report the place of the turn, its length, and the time since its last speech; a reply is made."""
        capture, stream = self._capture, self._stream
        start = stream.samples_of(event.speech_start_ms)
        end = stream.samples_of(event.speech_end_ms)
        turn.last_speech_ns = capture.spoken_at_ns(end if event.press_end else stream.end_of_sound(end))
        endpointing_ns = self._clock.now_ns() - turn.last_speech_ns
        turn.last_speech_wall_ns = time.perf_counter_ns() - endpointing_ns
        seconds = (end - start) / stream.sample_rate
        known = self.transcript.get(turn.turn_id)
        if known is not None:
            known.user_s = seconds
        self._emit(TurnCommitted(turn.turn_id, seconds, capture.place_s(start)))
        self._captions.commit(turn.turn_id)
        self.timing.emit(
            "endpointing",
            turn.turn_id,
            turn.last_speech_wall_ns,
            endpointing_ns,
            reason=event.reason,
            silence_ms=event.silence_ms,
        )
        return True

    def turn_reopened(self, turn: UserTurn, event: TurnEvent) -> None:
        """Take back what was played or shown of the reply."""
        self._player.take_back()
        self._emit(TurnExtended(turn.turn_id))

    def turn_stopped(self, turn: UserTurn, reason: CancelReason, stopped: StoppedReply | None) -> None:
        """Report the end of the turn and its cut; a turn without a reply is treated as if it had never
        existed."""
        if stopped is None:
            self.transcript.drop(turn.turn_id)
        self._emit(TurnCancelled(turn.turn_id, reason))
        cut, self._cut = self._cut, None
        if cut is not None:
            heard_ms, made_ms = cut.heard_s * 1e3, cut.made_s * 1e3
            self._driver.report("cut", turn.turn_id, reason=reason, heard_ms=heard_ms, made_ms=made_ms)

    def turn_failed(self, failure: TurnFailed) -> None:
        """Report the error and end the turn; a repetition needs no engine and goes on."""
        turn = self._driver.turn
        if turn is None or turn.turn_id != failure.turn_id or self._player.is_repetition:
            return
        self._emit(ErrorRaised(failure.problem, turn.turn_id))
        self.cancel("error")

    # ---- hooks of the driver: the reply ----

    def begin_reply(self, turn: UserTurn, held: HeldReply | None) -> None:
        """Play the reply; a held one with all of its events so far."""
        if held is None:
            self._player.begin(turn)
        else:
            self._player.begin_held(turn, held)

    def add_reply(self, turn: UserTurn, event: ReplyEvent) -> None:
        """Play and show the next part."""
        self._player.add(event)

    def reply_made(self, made: ReplyMade) -> None:
        """Nothing to do: the end of the reply tells the player."""

    def pause_reply(self, event: TurnEvent) -> None:
        """Pause or duck the reply, or leave it alone; the engine continues with it."""
        overlap = self._overlap_manner()
        self._player.pause(overlap)
        onset_ns = self._capture.spoken_at_ns(self._stream.samples_of(event.speech_start_ms))
        self._driver.report("interrupt", self.turn_id, onset_s=onset_ns / 1e9, overlap=overlap)

    def _overlap_manner(self) -> OverlapManner:
        """What happens to the reply now; "auto" ducks it where that spares more backchannels and loses no
        interruption: an interruption is detected later beneath a cancelled echo."""
        overlap = self.settings.overlap or DEFAULT_OVERLAP
        if overlap != "auto":
            return overlap
        return "pause" if self._capture.has_echo else "duck"

    def resume_reply(self) -> None:
        """Resume where it was paused, or raise its volume again."""
        self._player.resume()

    def stop_reply(self, turn: UserTurn, reason: CancelReason) -> StoppedReply | None:
        """Stop the playback; what was heard is measured and kept."""
        if self._player.is_complete:
            self._player.end()
            return StoppedReply("complete")
        reply = self._player.stop()
        if reply is None:
            return None
        self._cut = self._player.cut(reply, reason)
        return StoppedReply("cut", reply.samples_heard, len(reply.said.text))

    def speculated(self, stats: SpeculationStats) -> None:
        """Report what speculation brought."""
        self._emit(SpeculationMeasured(stats))

    def _show_turn(self, turn: UserTurn, source: TurnSource, text: str = "") -> None:
        self._emit(TurnOpened(turn.turn_id, source, text))
        self.transcript.open(turn.turn_id, turn.modality, text)


def _driver_settings(settings: SessionSettings) -> DriverSettings:
    return DriverSettings(
        turn_taking=settings.turn_taking,
        reply=settings.reply,
        speculate=settings.speculate or "auto",
        seed=settings.seed,
    )
