"""Carries out the commands of the window.

In: commands, in their order. Out: turns, sources, sound check, recording and settings as the user wants them;
ErrorRaised for what cannot be done. Questions wait until the engine is ready. Dialog thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

from app.audio.levels import gain_of
from app.audio.streams import AudioOutput
from app.session.capture import Capture
from app.session.clocks import Clock
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
from app.session.events import ErrorRaised, Event
from app.session.recorder import ConversationRecorder
from app.session.session_settings import SessionSettings
from app.session.sound_check import SoundCheck
from app.session.sources import Sources
from app.session.turn_control import TurnControl
from engine_runtime.errors import AudioInputError, MossVoiceError


class CommandRunner:
    """Takes commands from a queue that any thread may fill."""

    def __init__(
        self,
        turns: TurnControl,
        sources: Sources,
        sound_check: SoundCheck,
        capture: Capture,
        audio_out: AudioOutput,
        recorder: ConversationRecorder,
        clock: Clock,
        emit: Callable[[Event], None],
    ) -> None:
        self.commands: SimpleQueue[Command] = SimpleQueue()
        self.continued = Path()
        """The folder of the conversation that the engine is to continue."""
        self.is_loaded = False
        """Whether the engine is ready."""
        self.has_failed = False
        """Whether there is no engine, and none is being loaded."""
        self._loads = 1
        """Engines that were requested and have neither come nor failed; only the last one counts."""
        self._turns = turns
        self._sources = sources
        self._sound_check = sound_check
        self._capture = capture
        self._audio_out = audio_out
        self._recorder = recorder
        self._clock = clock
        self._emit = emit
        self._waiting: deque[AskText | PlaySample] = deque()
        """What was asked before the engine was ready."""

    def settle_load(self) -> bool:
        """An engine was loaded, or could not be; False if another one is to take its place."""
        self._loads -= 1
        return self._loads == 0

    def use_engine(self) -> None:
        """The engine is ready: what was asked meanwhile comes next."""
        self.is_loaded = True
        waiting, self._waiting = self._waiting, deque()
        for command in waiting:
            self.commands.put(command)

    def fail(self) -> None:
        """There is no engine: stop, and refuse questions until another one is loaded."""
        self.has_failed = True
        self.stop()

    def run_all(self) -> None:
        """Carry out what has come since the last call."""
        while True:
            try:
                command = self.commands.get_nowait()
            except Empty:
                return
            self._recorder.note(command)
            try:
                self._carry_out(command)
            except MossVoiceError as error:
                self._emit(ErrorRaised(error.what_is_wrong, error.what_to_do))

    def _carry_out(self, command: Command) -> None:
        turns, sources = self._turns, self._sources
        match command:
            case Start():
                self._start()
            case Stop():
                self.stop()
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
                self.continued = command.folder
                turns.continue_conversation(command)
            case LoadEngine(factory):
                self._sound_check.cancel()
                sources.end_sample()
                self.is_loaded = self.has_failed = False
                self._loads += 1
                turns.load_engine(factory)
            case NewConversation():
                sources.end_sample()
                turns.new_conversation()
                self._recorder.end(is_ended=True)
            case PlayAgain(turn_id):
                sources.open_output(turns.settings)
                turns.repeat(turn_id)
            case AskText() | PlaySample():
                self._ask(command)

    def _ask(self, command: AskText | PlaySample) -> None:
        if self.has_failed:
            self._refuse()
        elif not self.is_loaded:
            self._waiting.append(command)
        elif isinstance(command, AskText):
            self._sources.open_output(self._turns.settings)
            self._turns.ask(command.text)
        else:
            sample = self._sources.load_sample(command.path)
            self._turns.cancel("replaced")
            self._sources.open_output(self._turns.settings)
            self._sources.begin_sample(sample, self._clock.now_ns())

    def _hold(self, on: bool) -> None:
        if on:
            if not self.is_loaded:
                raise AudioInputError("The model is not loaded yet. Wait until it is ready.")
            self._sources.require_microphone()
            if self._sources.has_sample:
                self._turns.cancel("replaced")
                self._sources.end_sample()
        self._turns.hold(on)

    def _start(self) -> None:
        if self.has_failed:
            self._refuse()
            return
        self._sources.is_listening = True
        self._sources.open(self._turns.settings)

    def _check_sound(self, command: CheckMicrophone | CheckLoudspeaker) -> None:
        self._turns.cancel("replaced")
        self._sources.end_sample()
        if isinstance(command, CheckMicrophone):
            self._sources.require_microphone()
            self._sound_check.record()
        else:
            self._sources.open_output(self._turns.settings)
            self._sound_check.play_chime()

    def stop(self) -> None:
        """End what is going on, and close the devices."""
        self._sound_check.cancel()
        self._turns.cancel("stopped")
        self._waiting.clear()
        self._sources.is_listening = False
        self._sources.end_sample()
        self._sources.close()

    def _apply(self, settings: SessionSettings) -> None:
        before = self._turns.settings
        self._turns.apply(settings)
        self._recorder.apply(settings)
        self._capture.apply(settings.audio_processing)
        self._audio_out.gain = gain_of(settings.volume)
        self._sources.hears_samples = settings.hear_samples
        if _device_choice(before) != _device_choice(settings):
            self._sources.use(settings)

    def _refuse(self) -> None:
        self._emit(ErrorRaised("There is no engine to answer.", "Choose a model that works in the settings."))


def _device_choice(settings: SessionSettings) -> tuple[str | None, str | None, float]:
    return settings.input_device, settings.output_device, settings.device_latency_s
