"""The dialog thread: services commands, devices and results, advances the current turn, emits events.

In: commands, captured sound, results of the engine. Out: events, jobs for the engine, reply sound. One `step`
is a round; between rounds the thread waits for the clock. Nothing in a round blocks longer than a device
takes to open. Questions wait until the engine is ready; what cannot be done is answered by ErrorRaised.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue

from app.audio.levels import gain_of
from app.audio.supervisor import DeviceSupervisor
from app.heap import FreedMemory
from app.session.captions import Captions
from app.session.capture import Capture
from app.session.clocks import Clock, PendingWork, Standstill
from app.session.commands import (
    ApplySettings,
    AskText,
    CancelTurn,
    CheckLoudspeaker,
    CheckMicrophone,
    Command,
    ContinueConversation,
    DeleteTurn,
    HoldToTalk,
    LoadEngine,
    Mute,
    NewConversation,
    PlayAgain,
    PlayRecording,
    PlaySample,
    RescanDevices,
    RetryTurn,
    SetDevices,
    SetReply,
    SetVolume,
    Start,
    Stop,
)
from app.session.end_of_turn_worker import EndOfTurnWorker
from app.session.engine_jobs import (
    EngineLost,
    EngineNotice,
    FlowStepsSet,
    HistoryChanged,
    JobQueue,
    Loaded,
    LoadFailed,
    Restored,
    RestoreFailed,
    Result,
    Transcribed,
)
from app.session.events import (
    ConversationContinued,
    EngineReady,
    ErrorRaised,
    Event,
    SessionState,
    StateChanged,
)
from app.session.meters import Meters
from app.session.playback import Playback
from app.session.recorder import ConversationRecorder
from app.session.session_settings import SessionSettings
from app.session.sound_check import SoundCheck
from app.session.sources import Sources
from app.session.transcriber import Transcriber
from app.session.turn_control import TurnControl
from engine_runtime.errors import AudioInputError, MossVoiceError, Problem

_MAX_FAILURES = 3
_LAST_WORK_S = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Workers:
    """What works for the dialog in threads of its own."""

    engine: JobQueue
    results: SimpleQueue[Result]
    """The engine's answers."""
    end_of_turn: EndOfTurnWorker | None
    transcriber: Transcriber
    pending: PendingWork
    """All that they have to do, for a clock that waits for them."""


class DialogLoop:
    """State and loop of the dialog thread."""

    def __init__(
        self,
        workers: Workers,
        capture: Capture,
        supervisor: DeviceSupervisor,
        clock: Clock,
        emit: Callable[[Event], None],
        settings: SessionSettings,
        recorder: ConversationRecorder,
    ) -> None:
        self.stopping = threading.Event()
        self._workers = workers
        self._capture = capture
        supervisor.audio_out.gain = gain_of(settings.volume)
        self._playback = Playback(supervisor.audio_out)
        self._clock = clock
        self._standstill = Standstill(clock)
        self._emit = emit
        self._recorder = recorder
        recorder.apply(settings)
        self._captions = Captions(workers.engine, workers.transcriber, emit)
        self._captions.use(settings.captions)
        self.turns = TurnControl(
            self._captions, workers.end_of_turn, capture, self._playback, clock, emit, settings
        )
        self._sources = Sources(supervisor, capture, emit, self.turns.cancel_speech)
        self._sources.hears_samples = settings.hear_samples
        self._sound_check = SoundCheck(capture, self._playback, clock, emit)
        self._meters = Meters(capture, self._playback, supervisor.audio_in, supervisor.audio_out, emit)
        self._audio_out = supervisor.audio_out
        self.commands: SimpleQueue[Command] = SimpleQueue()
        """Commands of the user, in order. Any thread may append to it."""
        self._waiting: deque[AskText | PlaySample] = deque()
        """Questions that were asked before the engine was ready."""
        self._continued = Path()
        """The folder of the conversation that the engine is to continue."""
        self._is_loaded = False
        """Whether the engine is ready."""
        self._has_failed = False
        """Whether there is no engine, and none is being loaded."""
        self._is_reconnecting = False
        """Whether the connection to the engine's server was lost and is being restored."""
        self._loads = 1
        """Engines that were requested and have neither loaded nor failed; only the last one counts."""
        self._state: StateChanged | None = None
        self._failures = 0
        self._freed = FreedMemory(lambda: clock.now_ns() / 1e9, with_cycles=False)

    def run(self) -> None:
        """Body of the dialog thread."""
        self._report_state()
        self._sources.report()
        while not self.stopping.is_set():
            try:
                self._go_on(self._standstill.check())
                self.step()
                self._failures = 0
            except Exception as error:
                self._survive(error)
            self._clock.tick(self._workers.pending.idle, is_active=self._is_active)
        self._stop()
        self._report_state(SessionState.STOPPED)
        if self._recorder.is_on:
            self._workers.pending.idle.wait(_LAST_WORK_S)  # what was heard of the last reply
            self._take_results()
        self._captions.service()
        self._recorder.close()

    def step(self) -> None:
        """One round."""
        now_ns = self._clock.now_ns()
        turns, sources = self.turns, self._sources
        self._take_commands()
        state = turns.state
        is_answering = state not in (None, SessionState.HEARING)
        is_held = is_answering and turns.settings.holds_samples
        sources.service(now_ns, is_held=is_held, is_idle=state is None)
        self._go_on(self._standstill.check(with_devices=True))
        self._take_results()
        turns.take_ratings()
        for frame in self._capture.frames(is_muted=sources.hears_silence):
            if self._sound_check.is_active:
                self._sound_check.hear(frame.probability)
                frame = replace(frame, probability=0.0)
            if self._is_loaded:
                turns.hear(frame)
        if problem := self._capture.take_problem():
            self._emit(ErrorRaised(problem))
        turns.service(now_ns)
        self._captions.service(is_awaited=turns.state is SessionState.THINKING)
        self._sound_check.service()
        sources.end_finished_sample(now_ns, has_turn=turns.state is not None)
        if turns.state is not None:
            self._freed.note()
        else:
            self._freed.give_back(at_once=False)
            if not self._sound_check.is_active:
                sources.close_unused()
        self._recorder.service(now_ns)
        self._meters.service(now_ns, turns.timing, turns.turn_id, is_active=self._is_active)
        self._report_state()

    @property
    def _is_active(self) -> bool:
        return self._sources.is_listening or self._sources.has_sample or self._playback.is_active

    def _go_on(self, standstill_s: float) -> None:
        """After a standstill: drop speech and playback in progress, and the sound that the devices kept of
        that time. A file has just waited."""
        if not standstill_s:
            return
        _log.info("stood still for %.0f s", standstill_s)
        self._recorder.pause(self._standstill.began_ns)
        state = self.turns.state
        self.turns.timing.emit(
            "outage",
            0 if state is None else self.turns.turn_id,
            self._standstill.began_ns,
            max(self._clock.now_ns() - self._standstill.began_ns, 0),
            reason="standstill",
            seconds=standstill_s,
        )
        hears_file = state is SessionState.HEARING and self._sources.has_sample
        if state is not None and not hears_file:
            self.turns.cancel("stopped")
            self._emit(
                ErrorRaised(
                    Problem(
                        "The program was suspended for {seconds:,.0f} s, as when the computer sleeps.",
                        "Speech and playback in progress were dropped; continue as before.",
                        seconds=standstill_s,
                    ),
                    is_past=True,
                )
            )
        self._sources.reopen()

    # ---- commands ----

    def _take_commands(self) -> None:
        while True:
            try:
                command = self.commands.get_nowait()
            except Empty:
                return
            self._recorder.note(command)
            try:
                self._carry_out(command)
            except MossVoiceError as error:
                self._emit(ErrorRaised(error.problem))

    def _carry_out(self, command: Command) -> None:
        turns, sources = self.turns, self._sources
        match command:
            case Start():
                self._start()
            case Stop():
                self._stop()
            case Mute(on):
                sources.is_muted = on
            case HoldToTalk(on):
                self._hold(on)
            case SetDevices(audio_in, audio_out):
                self._apply(replace(turns.settings, input_device=audio_in, output_device=audio_out))
            case ApplySettings(settings):
                self._apply(settings)
            case SetVolume(volume):
                self._apply(replace(turns.settings, volume=volume))
            case CheckMicrophone() | CheckLoudspeaker():
                self._check_sound(command)
            case SetReply(modality):
                turns.apply(replace(turns.settings, reply=modality))
            case RescanDevices():
                sources.look_again()
            case CancelTurn():
                self._sound_check.cancel()
                turns.cancel("user")
                sources.end_sample()
            case PlayRecording():
                sources.open_output(turns.settings)
                turns.play_recording(command)
            case RetryTurn():
                sources.end_sample()
                sources.open_output(turns.settings)
                turns.retry(command)
            case DeleteTurn(turn_id):
                turns.delete(turn_id)
            case ContinueConversation():
                self._continued = command.folder
                turns.continue_conversation(command)
            case LoadEngine(factory):
                self._sound_check.cancel()
                sources.end_sample()
                self._is_loaded = self._has_failed = self._is_reconnecting = False
                self._loads += 1
                turns.load_engine(factory)
            case NewConversation():
                sources.end_sample()
                turns.new_conversation()
                self._recorder.begin_anew()
            case PlayAgain(turn_id):
                sources.open_output(turns.settings)
                turns.repeat(turn_id)
            case AskText() | PlaySample():
                self._ask(command)

    def _ask(self, command: AskText | PlaySample) -> None:
        if self._has_failed:
            self._refuse()
        elif not self._is_loaded:
            self._waiting.append(command)
        elif isinstance(command, AskText):
            self._sources.open_output(self.turns.settings)
            self.turns.ask(command.text)
        else:
            sample = self._sources.load_sample(command.path)
            self.turns.cancel("replaced")
            self._sources.open_output(self.turns.settings)
            self._sources.begin_sample(sample, self._clock.now_ns())

    def _hold(self, on: bool) -> None:
        if on:
            if not self._is_loaded:
                raise AudioInputError("The model is not loaded yet.", "Wait until it is ready.")
            self._sources.require_microphone()
            if self._sources.has_sample:
                self.turns.cancel("replaced")
                self._sources.end_sample()
        self.turns.hold(on)

    def _start(self) -> None:
        if self._has_failed:
            self._refuse()
            return
        self._sources.is_listening = True
        self._sources.open(self.turns.settings)

    def _check_sound(self, command: CheckMicrophone | CheckLoudspeaker) -> None:
        self.turns.cancel("replaced")
        self._sources.end_sample()
        if isinstance(command, CheckMicrophone):
            self._sources.require_microphone()
            self._sound_check.record()
        else:
            self._sources.open_output(self.turns.settings)
            self._sound_check.play_chime()

    def _stop(self) -> None:
        """End what is going on, and close the devices."""
        self._sound_check.cancel()
        self.turns.cancel("stopped")
        self._waiting.clear()
        self._sources.is_listening = False
        self._sources.end_sample()
        self._sources.close()

    def _apply(self, settings: SessionSettings) -> None:
        before = self.turns.settings
        self.turns.apply(settings)
        self._recorder.apply(settings)
        self._capture.apply(settings.audio_processing)
        if settings.captions != before.captions:
            self._captions.use(settings.captions)
        self._audio_out.gain = gain_of(settings.volume)
        self._sources.hears_samples = settings.hear_samples
        if _device_choice(before) != _device_choice(settings):
            self._sources.use(settings)

    def _refuse(self) -> None:
        problem = Problem("No engine is loaded.", "Choose a model that works in the settings.")
        self._emit(ErrorRaised(problem))

    # ---- the engine ----

    def _take_results(self) -> None:
        while True:
            try:
                result = self._workers.results.get_nowait()
            except Empty:
                return
            if isinstance(result, Loaded | LoadFailed):
                self._loads -= 1
                if self._loads == 0:
                    self._settle(result)
            elif isinstance(result, EngineNotice):
                if result.is_connected is not None:
                    self._is_reconnecting = not result.is_connected
                self._emit(result)
            elif isinstance(result, Transcribed):
                self._captions.take(result)
            elif isinstance(result, FlowStepsSet):
                self._emit(result)
                if result.problem is not None:
                    self._emit(ErrorRaised(result.problem))
            elif isinstance(result, EngineLost):
                if self._is_loaded:
                    self._give_up(result)
            elif isinstance(result, HistoryChanged):
                self._recorder.remember(result.snapshot)
            elif isinstance(result, Restored):
                self._recorder.settle(is_continued=True)
                self._emit(ConversationContinued(self._continued))
            elif isinstance(result, RestoreFailed):
                self._recorder.settle(is_continued=False)
                self._emit(ErrorRaised(result.problem))
            else:
                self.turns.on_result(result)

    def _settle(self, engine: Loaded | LoadFailed) -> None:
        if isinstance(engine, LoadFailed):
            self._give_up(engine)
            return
        if not engine.keeps_history:
            self._recorder.end(is_ended=True)
        self.turns.use_engine(engine)
        self._emit(
            EngineReady(
                engine.bundle,
                engine.load_s,
                engine.input_sample_rate,
                engine.output_sample_rate,
                engine.card,
                engine.keeps_history,
                engine.flow_steps,
                engine.machine,
            )
        )
        self._is_loaded = True
        waiting, self._waiting = self._waiting, deque()
        for command in waiting:
            self.commands.put(command)

    def _give_up(self, result: LoadFailed | EngineLost) -> None:
        """There is no engine until another one is loaded."""
        self._is_reconnecting = False
        self._recorder.lose_engine()
        self._emit(ErrorRaised(result.problem, is_fatal=True))
        self._fail()

    def _fail(self) -> None:
        """There is no engine: stop, and refuse questions until another one is loaded."""
        self._has_failed = True
        self._stop()

    # ---- state ----

    def _report_state(self, state: SessionState | None = None) -> None:
        is_paused = state is None and self.turns.is_paused
        changed = StateChanged(state or self._present_state(), is_paused, self._is_reconnecting)
        if changed != self._state:
            self._state = changed
            self._emit(changed)

    def _present_state(self) -> SessionState:
        if self._has_failed:
            return SessionState.ERROR
        if not self._is_loaded:
            return SessionState.LOADING
        is_listening = self._sources.is_listening or self._sources.has_sample
        return self.turns.state or (SessionState.LISTENING if is_listening else SessionState.STOPPED)

    def _survive(self, error: Exception) -> None:
        """A round failed: report it, cancel the current turn, and stop for good after repeated failures."""
        _log.error("the dialog failed", exc_info=error)
        self._failures += 1
        is_fatal = self._failures >= _MAX_FAILURES
        if isinstance(error, MossVoiceError):
            problem = error.problem
        else:
            problem = Problem(
                "{kind}: {error}.", "See the log file for details.", kind=type(error).__name__, error=error
            )
        self._emit(ErrorRaised(problem, is_fatal=is_fatal))
        self.turns.cancel("error")
        if is_fatal:
            self._fail()
            self._report_state()


def _device_choice(settings: SessionSettings) -> tuple[str | None, str | None, float]:
    return settings.input_device, settings.output_device, settings.device_latency_s
