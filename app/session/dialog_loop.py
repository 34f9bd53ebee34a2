"""The dialog thread: carries out commands, watches the devices, feeds the turn in progress, reports.

In: commands, captured sound, results of the engine. Out: events, jobs for the engine, reply sound. One `step`
is a round; between rounds the thread waits for the clock. Nothing in a round blocks longer than a device
takes to open.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

from app.audio.devices import DeviceList
from app.audio.supervisor import DeviceNotice, DeviceSupervisor
from app.audio.wav_streams import WavMicrophone
from app.session import messages
from app.session.capture import Capture
from app.session.clocks import Clock
from app.session.engine_jobs import Loaded, LoadFailed
from app.session.engine_worker import EngineWorker
from app.session.messages import Command, ErrorRaised, Event, SessionState, StateChanged
from app.session.meters import Meters
from app.session.playback import Playback
from app.session.session_settings import SessionSettings
from app.session.turn_control import TurnControl
from engine_runtime.errors import MossVoiceError
from engine_runtime.types import Pcm

_SILENCE_AFTER_FILE_NS = 1_000_000_000
"""A file counts as heard this long after its end if no turn is open: longer than speech needs to be
noticed."""
_MAX_FAILURES = 3
_log = logging.getLogger(__name__)


class DialogLoop:
    """Everything that the dialog thread owns."""

    def __init__(
        self,
        worker: EngineWorker,
        capture: Capture,
        supervisor: DeviceSupervisor,
        clock: Clock,
        emit: Callable[[Event], None],
        settings: SessionSettings,
        find_devices: Callable[[], DeviceList],
        sample_listener: Callable[[Pcm], None] | None,
    ) -> None:
        self.commands: SimpleQueue[Command] = SimpleQueue()
        self.stopping = threading.Event()
        playback = Playback(supervisor.audio_out)
        self.turns = TurnControl(worker, capture, playback, clock, emit, settings)
        self._worker = worker
        self._capture = capture
        self._supervisor = supervisor
        self._playback = playback
        self._clock = clock
        self._emit = emit
        self._find_devices = find_devices
        self._sample_listener = sample_listener
        self._meters = Meters(capture, playback, supervisor.audio_in, supervisor.audio_out, emit)
        self._waiting: deque[messages.AskText | messages.PlaySample] = deque()
        """What was asked before the engine was ready."""
        self._state: SessionState | None = None
        self._is_loaded = False
        self._has_failed = False
        self._is_listening = False
        self._is_muted = False
        self._sample: WavMicrophone | None = None
        self._sample_path = Path()
        self._quiet_since_ns = 0
        self._failures = 0

    def run(self) -> None:
        """Body of the dialog thread."""
        self._report_state()
        self._report_devices()
        while not self.stopping.is_set():
            try:
                self.step()
                self._failures = 0
            except Exception as error:
                self._survive(error)
            self._clock.tick(self._worker.idle, is_active=self._is_active)
        self.turns.cancel("stopped")
        self._end_sample()
        self._supervisor.close()
        self._report_state(SessionState.STOPPED)

    def step(self) -> None:
        """One round."""
        now_ns = self._clock.now_ns()
        self._take_commands()
        self._service_devices(now_ns)
        self._take_results()
        for frame in self._capture.frames(is_muted=self._is_muted and self._sample is None):
            if self._is_loaded:
                self.turns.hear(frame)
        self.turns.service(now_ns)
        if self._sample is not None and self._is_sample_over(self._sample, now_ns):
            self._end_sample()
        self._close_unused_devices()
        self._meters.service(now_ns, self.turns.timing, self.turns.turn_id, is_active=self._is_active)
        self._report_state()

    @property
    def _is_active(self) -> bool:
        return self._is_listening or self._sample is not None or self._playback.is_active

    # ---- commands ----

    def _take_commands(self) -> None:
        while True:
            try:
                command = self.commands.get_nowait()
            except Empty:
                return
            try:
                self._carry_out(command)
            except MossVoiceError as error:
                self._emit(ErrorRaised(error.what_is_wrong, error.what_to_do))

    def _carry_out(self, command: Command) -> None:
        turns = self.turns
        match command:
            case messages.Start():
                self._start()
            case messages.Stop():
                self._stop()
            case messages.Mute(on):
                self._is_muted = on
            case messages.SetDevices(audio_in, audio_out):
                self._apply(replace(turns.settings, input_device=audio_in, output_device=audio_out))
            case messages.ApplySettings(settings):
                self._apply(settings)
            case messages.SetReply(modality):
                turns.apply(replace(turns.settings, reply=modality))
            case messages.RescanDevices():
                self._notify(self._supervisor.refresh())
                self._reattach()
                self._report_devices()
            case messages.CancelTurn():
                turns.cancel("user")
                if self._sample is not None:
                    self._end_sample()
            case messages.NewConversation():
                self._end_sample()
                turns.new_conversation()
            case messages.PlayAgain(turn_id):
                self._open_output()
                turns.repeat(turn_id)
            case messages.AskText() | messages.PlaySample():
                self._ask(command)

    def _ask(self, command: messages.AskText | messages.PlaySample) -> None:
        if self._has_failed:
            self._emit(
                ErrorRaised("There is no engine to answer.", "Start the program with a bundle that works.")
            )
        elif not self._is_loaded:
            self._waiting.append(command)
        elif isinstance(command, messages.AskText):
            self._open_output()
            self.turns.ask(command.text)
        else:
            self._begin_sample(command.path)

    def _start(self) -> None:
        if self._has_failed:
            self._emit(
                ErrorRaised("There is no engine to talk to.", "Start the program with a bundle that works.")
            )
            return
        self._is_listening = True
        self._open_devices()

    def _stop(self) -> None:
        self.turns.cancel("stopped")
        self._waiting.clear()
        self._end_sample()
        self._is_listening = False
        self._notify(self._supervisor.close())
        self._capture.attach(None)
        self._report_devices()

    def _apply(self, settings: SessionSettings) -> None:
        before = self.turns.settings
        self.turns.apply(settings)
        if _device_choice(before) != _device_choice(settings):
            if self._is_listening:
                self._open_devices()
            else:
                self._notify(self._supervisor.close())
                self._report_devices()

    # ---- devices and sources ----

    def _open_devices(self) -> None:
        settings = self.turns.settings
        self._notify(
            self._supervisor.open(
                settings.device_latency_s,
                input_device=settings.input_device,
                output_device=settings.output_device,
                with_input=self._is_listening,
            )
        )
        self._reattach()
        self._report_devices()

    def _open_output(self) -> None:
        """A loudspeaker for a reply while nobody listens."""
        if not self._is_listening and not self._supervisor.is_output_open:
            self._open_devices()

    def _close_unused_devices(self) -> None:
        if not self._is_active and self.turns.state is None and self._supervisor.is_output_open:
            self._notify(self._supervisor.close())

    def _reattach(self) -> None:
        """Listen to what is the source now; speech that was not finished on another one is dropped."""
        if self._sample is not None:
            return
        if self.turns.state is SessionState.HEARING:
            self.turns.cancel("stopped")
        self._capture.attach(self._supervisor.audio_in if self._supervisor.is_input_open else None)

    def _service_devices(self, now_ns: int) -> None:
        notices = self._supervisor.service(now_ns)
        if notices:
            if not self._supervisor.is_input_open and self.turns.state is SessionState.HEARING:
                self.turns.cancel("error")
            self._notify(notices)
            self._report_devices()
            self._reattach()
        if self._sample is not None:
            self._sample.is_held = self.turns.state not in (None, SessionState.HEARING)
            self._sample.service(now_ns)
            if self._supervisor.is_input_open:  # what the microphone hears meanwhile is not wanted
                ring = self._supervisor.audio_in.ring
                ring.read(ring.available)
        elif self._capture.has_moved:
            self._reattach()

    def _notify(self, notices: list[DeviceNotice]) -> None:
        for notice in notices:
            if notice.is_error:
                self._emit(ErrorRaised(notice.message, notice.what_to_do))

    def _report_devices(self) -> None:
        found = self._find_devices()
        self._emit(
            messages.DevicesChanged(
                tuple(device.name for device in found.inputs),
                tuple(device.name for device in found.outputs),
                self._supervisor.audio_in.name,
                self._supervisor.audio_out.name,
            )
        )

    # ---- samples ----

    def _begin_sample(self, path: Path) -> None:
        sample = WavMicrophone(path, self._sample_listener)
        self.turns.cancel("replaced")
        self._end_sample()
        self._open_output()
        sample.open(None, 0.0)
        self._sample, self._sample_path = sample, path
        self._quiet_since_ns = self._clock.now_ns()
        self._capture.attach(sample)
        self._emit(messages.SampleStarted(path, sample.seconds))

    def _is_sample_over(self, sample: WavMicrophone, now_ns: int) -> bool:
        if not sample.is_finished or self.turns.state is not None:
            self._quiet_since_ns = now_ns
        return now_ns - self._quiet_since_ns >= _SILENCE_AFTER_FILE_NS

    def _end_sample(self) -> None:
        sample, self._sample = self._sample, None
        if sample is None:
            return
        sample.close()
        if self.turns.state is SessionState.HEARING:
            self.turns.cancel("stopped")
        self._reattach()
        self._emit(messages.SampleFinished(self._sample_path))

    # ---- the engine ----

    def _take_results(self) -> None:
        while True:
            try:
                result = self._worker.results.get_nowait()
            except Empty:
                return
            if isinstance(result, Loaded):
                self._use_engine(result)
            elif isinstance(result, LoadFailed):
                self._has_failed = True
                self._waiting.clear()
                self._emit(ErrorRaised(result.message, result.what_to_do, is_fatal=True))
                self._stop()
            else:
                self.turns.on_result(result)

    def _use_engine(self, engine: Loaded) -> None:
        self._is_loaded = True
        self.turns.use_engine(engine)
        self._emit(
            messages.EngineReady(
                engine.bundle, engine.load_s, engine.input_sample_rate, engine.output_sample_rate
            )
        )
        waiting, self._waiting = self._waiting, deque()
        for command in waiting:
            self.commands.put(command)

    # ---- state ----

    def _report_state(self, state: SessionState | None = None) -> None:
        state = state or self._present_state()
        if state is not self._state:
            self._state = state
            self._emit(StateChanged(state))

    def _present_state(self) -> SessionState:
        if self._has_failed:
            return SessionState.ERROR
        if not self._is_loaded:
            return SessionState.LOADING
        is_hearing_something = self._is_listening or self._sample is not None
        return self.turns.state or (SessionState.LISTENING if is_hearing_something else SessionState.STOPPED)

    def _survive(self, error: Exception) -> None:
        """A round failed: say so, give up what was in progress, and give up for good if it happens again and
        again."""
        _log.error("the dialog failed", exc_info=error)
        self._failures += 1
        is_fatal = self._failures >= _MAX_FAILURES
        what = (
            error.what_is_wrong if isinstance(error, MossVoiceError) else f"{type(error).__name__}: {error}."
        )
        advice = error.what_to_do if isinstance(error, MossVoiceError) else "The log file tells more."
        self._emit(ErrorRaised(what, advice, is_fatal=is_fatal))
        self.turns.cancel("error")
        if is_fatal:
            self._has_failed = True
            self._end_sample()
            self._supervisor.close()
            self._capture.attach(None)
            self._is_listening = False
            self._report_state()


def _device_choice(settings: SessionSettings) -> tuple[str | None, str | None, float]:
    return settings.input_device, settings.output_device, settings.device_latency_s
