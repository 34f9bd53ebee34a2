"""Carries a session's events into Qt: a timer polls the session, each kind of event becomes a signal.

In: `Session.poll()` on the GUI thread, twenty times a second. Out: Qt signals, timing events as one list per
tick. Nothing here blocks, and the threads of the session never use Qt.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal

from app.session.commands import Command
from app.session.engine_jobs import EngineNotice, FlowStepsSet
from app.session.events import (
    CaptionsNoticed,
    ConversationContinued,
    Counters,
    DeviceNoticed,
    DevicesChanged,
    EchoMeasured,
    EngineLoading,
    EngineReady,
    ErrorRaised,
    Levels,
    MicrophoneSilent,
    PlaybackFinished,
    PlaybackLevel,
    PlaybackStarted,
    RecordingStopped,
    ReplyCut,
    ReplyFinished,
    ReplyTextDelta,
    SampleFinished,
    SampleProgress,
    SampleStarted,
    SessionState,
    SoundChecked,
    SpeculationMeasured,
    StateChanged,
    Timing,
    TurnCancelled,
    TurnCommitted,
    TurnExtended,
    TurnOpened,
    TurnsRemoved,
    TurnTranscribed,
)
from engine_runtime.timing import TimingEvent

if TYPE_CHECKING:
    from app.session.session import Session

POLL_MS = 50

_log = logging.getLogger(__name__)


class SessionBridge(QObject):
    """Signals of one session. The argument of each signal is the event itself.

    Attributes:
        state: the latest state, None before the first one.
        devices: the latest devices, likewise.

    Signals:
        noticed: what needs no action: DeviceNoticed, EngineNotice, CaptionsNoticed.
        timings: a list of timing events, once per tick that had any.
        lost: the session could not be polled; a text. Polling has stopped.
    """

    state_changed = Signal(object)
    engine_loading = Signal(object)
    engine_ready = Signal(object)
    flow_steps_set = Signal(object)
    levels = Signal(object)
    turn_opened = Signal(object)
    turn_extended = Signal(object)
    turn_committed = Signal(object)
    turn_transcribed = Signal(object)
    turn_cancelled = Signal(object)
    turns_removed = Signal(object)
    conversation_continued = Signal(object)
    reply_text = Signal(object)
    reply_cut = Signal(object)
    playback_started = Signal(object)
    reply_finished = Signal(object)
    playback_finished = Signal(object)
    playback_level = Signal(object)
    counters = Signal(object)
    echo_measured = Signal(object)
    sound_checked = Signal(object)
    microphone_silent = Signal(object)
    speculation_measured = Signal(object)
    error_raised = Signal(object)
    recording_stopped = Signal(object)
    devices_changed = Signal(object)
    noticed = Signal(object)
    sample_started = Signal(object)
    sample_progress = Signal(object)
    sample_finished = Signal(object)
    timings = Signal(list)
    lost = Signal(str)

    def __init__(self, session: Session, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.session = session
        self.state: SessionState | None = None
        self.devices: DevicesChanged | None = None
        self._signals = {
            StateChanged: self.state_changed,
            EngineLoading: self.engine_loading,
            EngineReady: self.engine_ready,
            FlowStepsSet: self.flow_steps_set,
            Levels: self.levels,
            TurnOpened: self.turn_opened,
            TurnExtended: self.turn_extended,
            TurnCommitted: self.turn_committed,
            TurnTranscribed: self.turn_transcribed,
            TurnCancelled: self.turn_cancelled,
            TurnsRemoved: self.turns_removed,
            ConversationContinued: self.conversation_continued,
            ReplyTextDelta: self.reply_text,
            ReplyCut: self.reply_cut,
            PlaybackStarted: self.playback_started,
            ReplyFinished: self.reply_finished,
            PlaybackFinished: self.playback_finished,
            PlaybackLevel: self.playback_level,
            Counters: self.counters,
            EchoMeasured: self.echo_measured,
            SoundChecked: self.sound_checked,
            MicrophoneSilent: self.microphone_silent,
            SpeculationMeasured: self.speculation_measured,
            ErrorRaised: self.error_raised,
            RecordingStopped: self.recording_stopped,
            DevicesChanged: self.devices_changed,
            DeviceNoticed: self.noticed,
            EngineNotice: self.noticed,
            CaptionsNoticed: self.noticed,
            SampleStarted: self.sample_started,
            SampleProgress: self.sample_progress,
            SampleFinished: self.sample_finished,
        }
        self._timer = QTimer(self)
        self._timer.setInterval(POLL_MS)
        self._timer.timeout.connect(self.poll)

    def start_polling(self) -> None:
        """Begin to poll."""
        self._timer.start()

    def stop_polling(self) -> None:
        """Stop polling; pending events are not fetched."""
        self._timer.stop()

    def send(self, command: Command) -> None:
        """Hand a command to the session."""
        self.session.send(command)

    def poll(self) -> None:
        """Poll and emit the events in order; the timings of the batch come last."""
        try:
            events = self.session.poll()
        except (
            Exception
        ) as error:  # the border to the window: shown to the user, with the traceback in the log
            _log.exception("the session could not be polled")
            self.stop_polling()
            self.lost.emit(str(error))
            return
        timings: list[TimingEvent] = []
        for event in events:
            if isinstance(event, StateChanged):
                self.state = event.state
            elif isinstance(event, DevicesChanged):
                self.devices = event
            if isinstance(event, Timing):
                timings.append(event.event)
            elif (signal := self._signals.get(type(event))) is not None:
                signal.emit(event)
        if timings:
            self.timings.emit(timings)
