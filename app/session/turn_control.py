"""The turns of a conversation: what asks, answers, cancels or repeats one, and the state that follows.

In: typed questions, cancels, results of the engine; `voice` takes the frames of the microphone. Out: jobs for
the engine, reply events for the player, the events TurnCommitted of complete questions and ErrorRaised.
Dialog thread.
"""

from __future__ import annotations

from collections.abc import Callable

from app.dialog.conversation import ConversationRecord, TranscriptTurn
from app.dialog.turn_taking import TurnTaking
from app.session.capture import Capture
from app.session.clocks import Clock
from app.session.decisions import Decisions
from app.session.end_of_turn_worker import EndOfTurnWorker
from app.session.engine_jobs import (
    Ask,
    AskAgain,
    Forget,
    Heard,
    JobQueue,
    Load,
    Loaded,
    ReplyMade,
    ReplyResult,
    RolledBack,
    TurnFailed,
    UseFlowSteps,
)
from app.session.engine_source import EngineSource
from app.session.events import CancelReason, ErrorRaised, Event, SessionState, TurnCommitted, TurnSource
from app.session.playback import Playback
from app.session.reply_player import ReplyPlayer
from app.session.session_settings import SessionSettings
from app.session.speculation import Speculation
from app.session.speech_feed import SpeechFeed
from app.session.turn_lifecycle import TurnLifecycle
from app.session.voice_turns import VoiceTurns
from engine_runtime.timing import TimingBus
from engine_runtime.types import CancelScope, ReplyEvent, TurnEndPrediction


class TurnControl:
    """One turn at a time, from its first speech or its question to the last sample of its reply."""

    def __init__(
        self,
        worker: JobQueue,
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
        self._emit = emit
        self._turn_taking = TurnTaking(settings.turn_taking)
        self._decisions = Decisions(clock)
        self._feed = SpeechFeed(capture, worker)
        self.speculation = Speculation(worker, clock, emit)
        self._player = ReplyPlayer(playback, self.transcript, clock, emit, settings.playback_start_ms)
        self._turns = TurnLifecycle(
            worker, self._feed, self.speculation, self._player, self.transcript, self._decisions, emit
        )
        self.voice = VoiceTurns(
            self._turns,
            self._turn_taking,
            end_of_turn,
            capture,
            clock,
            self.transcript,
            self._decisions,
            emit,
            settings,
        )

    # ---- state for the loop ----

    @property
    def state(self) -> SessionState | None:
        """The state of the current turn, None if there is none."""
        if self._turns.turn is None:
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
        return self._turns.turn_id

    @property
    def timing(self) -> TimingBus:
        """Where timings are put: the engine's bus once it is loaded."""
        return self._decisions.timing

    def use_timing(self, timing: TimingBus) -> None:
        """Put timings there from now on. Engine thread."""
        self._decisions.timing = self._player.timing = timing

    def use_engine(self, engine: Loaded) -> None:
        """The engine is ready."""
        self.speculation.use_engine(is_remote=engine.is_remote)
        self._player.use_engine(engine)
        self._feed.set_rate(engine.input_sample_rate)

    def apply(self, settings: SessionSettings) -> None:
        """Use these settings from the next frame and turn on."""
        if settings.flow_steps != self.settings.flow_steps:
            self._worker.submit(UseFlowSteps(settings.flow_steps))
        self.settings = settings
        self.voice.apply(settings)
        self._player.least_ms = settings.playback_start_ms

    # ---- the user ----

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
        turn = self._turns.open(source, self.settings.reply, text)
        self._worker.submit(give(turn.turn_id))
        self._turn_taking.begin_reply()
        self._emit(TurnCommitted(turn.turn_id, 0.0))
        self._turns.commit(turn, self.settings.seed)

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
        turn = self._turns.turn
        if turn is None or turn.turn_id != spoken.turn_id or self._player.is_repetition:
            self.cancel("replaced")
            self._turns.repeat(spoken.turn_id, spoken.modality)
            self._turn_taking.begin_reply()
        self._player.start_over(spoken)

    def cancel(self, reason: CancelReason) -> None:
        """Cancel the current turn or stop its reply; does nothing if there is none."""
        turn = self._turns.turn
        if turn is None:
            return
        self._turns.stop(turn, reason)
        self._turn_taking.end_turn()

    def cancel_speech(self) -> None:
        """Drop what the user is saying: its source is gone. A reply continues."""
        self.voice.forget_speech()
        if self.state is SessionState.HEARING:
            self.cancel("stopped")

    def continue_after(self, last_turn_id: int) -> None:
        """Turn ids continue after those of an earlier run of the program."""
        self._turns.continue_after(last_turn_id)

    def new_conversation(self) -> None:
        """Forget the conversation so far."""
        self.cancel("replaced")
        self.voice.forget_voices()
        self.transcript.clear()
        self._worker.submit(Forget())

    # ---- the engine ----

    def load_engine(self, factory: EngineSource) -> None:
        """Load another engine in place of the present one."""
        self.cancel("replaced")
        self._worker.submit(Load(factory))

    def on_result(self, result: Heard | ReplyResult | ReplyMade | RolledBack | TurnFailed) -> None:
        """Handle a result of the engine; stale results are dropped."""
        turn = self._turns.turn
        if isinstance(result, TurnFailed):
            self._on_failure(result)
        elif isinstance(result, ReplyMade):
            self.speculation.note_reply(result.rtf_total)
        elif isinstance(result, RolledBack):
            self.speculation.note_roll_back(result, self.timing)
        elif turn is None:
            return
        elif isinstance(result, Heard):
            if result.turn_id == turn.turn_id:
                turn.user_codes += result.codes
        elif not result.scope.is_cancelled:
            self._on_reply_event(result.scope, result.event)

    def _on_reply_event(self, scope: CancelScope, event: ReplyEvent) -> None:
        if isinstance(event, TurnEndPrediction):
            self.voice.take_prediction(scope, event)
        elif not self.speculation.hold(scope, event):
            self._player.add(event)

    def service(self, now_ns: int) -> None:
        """Advance the playback; notice its first and its last sample."""
        player = self._player
        if player.service(now_ns):
            self._turn_taking.reply_heard()
            self._feed.close()
        if player.is_lost:
            self.cancel("output_lost")
        elif player.is_played:
            self._turns.end()
            self._turn_taking.end_turn()

    def _on_failure(self, failure: TurnFailed) -> None:
        turn = self._turns.turn
        if turn is None or turn.turn_id != failure.turn_id or self._player.is_repetition:
            return
        self._emit(ErrorRaised(failure.message, failure.what_to_do, turn.turn_id))
        self.cancel("error")
