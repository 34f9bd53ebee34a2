"""A running conversation: starts and owns all of its threads.

In: commands (`send`). Out: events (`poll`). Sound flows device -> capture ring -> dialog thread -> engine
thread -> dialog thread -> playback ring -> device. The audio callbacks run in PortAudio's threads. `send` and
`poll` may be called from any one thread (a GUI polls with a timer) and never block.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from app.audio.device_streams import SoundInput, SoundOutput
from app.audio.devices import DeviceList, rescan
from app.audio.echo_cancellation import CaptureProcessor
from app.audio.sound_server import SoundServer
from app.audio.streams import AudioInput, AudioOutput
from app.audio.supervisor import DeviceSupervisor
from app.dialog.smart_turn import WINDOW_S
from app.dialog.vad import SileroVad, Vad
from app.session.capture import Capture
from app.session.clocks import Clock, PendingWork, RealClock
from app.session.commands import Command
from app.session.dialog_loop import DialogLoop, Workers
from app.session.end_of_turn_worker import DetectorFactory, EndOfTurnWorker
from app.session.engine_host import EngineHost
from app.session.engine_jobs import Result
from app.session.engine_slot import EngineSource
from app.session.event_log import EventLog
from app.session.events import EngineLoading, Event, Timing
from app.session.recorder import ConversationRecorder, RecordWriter
from app.session.session_settings import SessionSettings
from app.session.transcriber import Transcriber
from engine_runtime.timing import TimingBus, TimingEvent
from engine_runtime.types import Pcm

_HISTORY_BEYOND_PRE_ROLL_MS = 1_000
"""Time for the frames between the start of speech and its detection, or the interruption of a reply."""
_TURN_HISTORY_MS = round(WINDOW_S * 1000)
"""For the end-of-turn detector."""

_MAX_EVENTS = 100_000
"""If events are not polled, the oldest are dropped, to bound the memory."""


class Session:
    """One conversation between a user and an engine.

    session = Session(load_engine)
    session.start()
    session.send(AskText("what is two plus three"))
    ... session.poll() every few milliseconds ...
    session.stop()
    """

    def __init__(
        self,
        engine_factory: EngineSource,
        settings: SessionSettings | None = None,
        audio_in: AudioInput | None = None,
        audio_out: AudioOutput | None = None,
        *,
        clock: Clock | None = None,
        vad: Vad | None = None,
        end_of_turn: DetectorFactory | None = None,
        find_devices: Callable[[], DeviceList] | None = None,
        look_for_devices: Callable[[], None] = rescan,
        transcriber: Transcriber | None = None,
    ) -> None:
        """Make a session; no device is opened and no thread runs before `start`.

        `engine_factory` is called once, in the engine thread (it may report to `note_loading`), and
        `end_of_turn` in a thread of its own; without a detector silence alone ends a turn. Without
        `audio_in` and `audio_out` the sound devices named in `settings` are used; app.audio.wav_streams has
        files that take their place.
        `find_devices` and `look_for_devices` list them and look again; by default a thread follows those of
        the sound server. `transcriber` makes the captions that `settings` ask for. MossVoiceError if speech
        cannot be detected on this machine.
        """
        settings = settings or SessionSettings()
        self._events: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self._log = EventLog()
        pending = PendingWork()
        self._host = EngineHost(engine_factory, on_engine=self._on_engine, pending=pending)
        results: SimpleQueue[Result] = SimpleQueue()
        self._end_of_turn = EndOfTurnWorker(end_of_turn, pending) if end_of_turn is not None else None
        vad = vad or SileroVad()
        self._sound_server: SoundServer | None = None
        if find_devices is None:
            self._sound_server = SoundServer()
            find_devices = self._sound_server.devices
        supervisor = DeviceSupervisor(
            audio_in or SoundInput(find_devices),
            audio_out or SoundOutput(find_devices),
            _run_bounded,
            look_for_devices,
            find_devices,
        )
        processor = CaptureProcessor(supervisor.audio_out, settings.audio_processing, vad.sample_rate)
        keep_ms = max(settings.turn_taking.pre_roll_ms + _HISTORY_BEYOND_PRE_ROLL_MS, _TURN_HISTORY_MS)
        capture = Capture(vad, keep_ms, processor)
        clock = clock or RealClock()
        self._writer = RecordWriter(pending)
        self._transcriber = transcriber or Transcriber()
        self._recorder = ConversationRecorder(self._writer, capture, supervisor.audio_out, clock, self._emit)
        self._loop = DialogLoop(
            Workers(
                self._host.open_slot(results.put), results, self._end_of_turn, self._transcriber, pending
            ),
            capture,
            supervisor,
            clock,
            self._emit,
            settings,
            self._recorder,
        )
        self._threads = [
            threading.Thread(target=self._loop.run, name="dialog", daemon=True),
            threading.Thread(target=self._host.run, name="engine", daemon=True),
            threading.Thread(target=self._writer.run, name="record", daemon=True),
            threading.Thread(target=self._transcriber.run, name="transcription", daemon=True),
        ]
        if self._sound_server is not None:
            server = threading.Thread(target=self._sound_server.run, name="sound server", daemon=True)
            self._threads.append(server)
        if self._end_of_turn is not None:
            self._threads.append(
                threading.Thread(target=self._end_of_turn.run, name="end of turn", daemon=True)
            )
        self._is_started = False
        self._loaded_percent = 0
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        """Start the threads and load the engine; returns at once. First events: StateChanged(LOADING), later
        EngineReady and StateChanged(STOPPED), or LISTENING if `Start()` was sent meanwhile. Call it once."""
        self._is_started = True
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Cancel what runs, close devices and engine, end the threads. Waits at most `timeout_s`; returns
        False if a thread did not end in time (it is a daemon thread, so the process can exit anyway). May be
        called twice."""
        if not self._is_started:
            return True
        give_up_s = time.monotonic() + timeout_s
        if not self._loop.stopping.is_set():
            self._loop.stopping.set()
            self._threads[0].join(timeout_s)  # the dialog thread has last jobs for the others
            self._host.close()
            self._transcriber.close()
            if self._end_of_turn is not None:
                self._end_of_turn.close()
            if self._sound_server is not None:
                self._sound_server.close()
        for thread in self._threads:
            thread.join(max(give_up_s - time.monotonic(), 0.0))
        if self._unsubscribe is not None:
            # An engine that outlives its session must not keep it, with its rings, in memory.
            self._unsubscribe()
            self._unsubscribe = None
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def is_running(self) -> bool:
        """Whether all threads live: from `start` until `stop`, or until one of them failed."""
        return self._is_started and all(thread.is_alive() for thread in self._threads)

    def send(self, command: Command) -> None:
        """Hand over a command; never blocks. Commands are carried out in order; a failed command is answered
        with ErrorRaised."""
        self._loop.commands.put(command)

    def poll(self) -> list[Event]:
        """All events since the last call, oldest first; never blocks. Timings come here as Timing events."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def wait_for_captions(self, limit_s: float) -> None:
        """Wait until all that was said is written down, at most so long. The last events come with `stop`."""
        self._transcriber.wait(limit_s)

    def reply_audio(self, turn_id: int) -> tuple[Pcm, int]:
        """The speech of a finished reply and its rate in Hz, of a cut one the heard part; empty if it has
        none or is not kept any more. For turns whose ReplyFinished or ReplyCut was polled."""
        turn = self._loop.turns.transcript.get(turn_id)
        return (turn.pcm, turn.sample_rate) if turn else (np.zeros(0, dtype=np.float32), 0)

    def recorded_sound(self) -> Path | None:
        """The file with both sides of the conversation, as far as it is written; None if it is not recorded,
        or without sound."""
        return self._writer.sound

    def note_loading(self, share: float) -> None:
        """An engine factory has loaded this share of its files; each percent is reported once. Engine
        thread."""
        percent = int(share * 100)
        if percent != self._loaded_percent:
            self._loaded_percent = percent
            self._emit(EngineLoading(percent / 100))

    def _on_engine(self, timing: TimingBus) -> None:
        """Engine thread: from now on durations become events, and the session's own go to the same bus."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._unsubscribe = timing.subscribe(self._on_timing)
        self._loop.turns.use_timing(timing)

    def _on_timing(self, event: TimingEvent) -> None:
        self._emit(Timing(event))

    def _emit(self, event: Event) -> None:
        """Any thread."""
        self._events.append(event)
        self._log.note(event)
        self._recorder.note(event)


def _run_bounded(action: Callable[[], None], limit_s: float) -> bool:
    """Run `action` in its own thread for at most `limit_s`; False if it did not return (the thread is
    abandoned)."""
    thread = threading.Thread(target=action, name="closing a device", daemon=True)
    thread.start()
    thread.join(limit_s)
    return not thread.is_alive()
