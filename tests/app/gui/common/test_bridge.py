"""Events of a session as Qt signals."""

from __future__ import annotations

from typing import get_args

from PySide6.QtCore import Signal
from PySide6.QtTest import QSignalSpy
from pytestqt.qtbot import QtBot

from app.gui.common.bridge import SessionBridge
from app.session.commands import Mute
from app.session.events import (
    Event,
    Levels,
    SessionState,
    StateChanged,
    Timing,
    TurnCommitted,
    TurnOpened,
)
from engine_runtime.timing import TimingEvent
from tests.doubles.scripted_session import ScriptedSession


def test_every_event_has_a_signal(session: ScriptedSession) -> None:
    bridge = SessionBridge(session)
    seen: list[object] = []
    for name, value in vars(SessionBridge).items():
        if isinstance(value, Signal):
            getattr(bridge, name).connect(seen.append)
    events = [object.__new__(kind) for kind in get_args(Event) if kind not in (StateChanged, Timing)]
    events.append(StateChanged(SessionState.LISTENING))
    timing = TimingEvent("step", 1, 0, 10, "engine")
    session.feed(*events, Timing(timing))
    bridge.poll()
    assert [id(event) for event in seen[:-1]] == [id(event) for event in events]
    assert seen[-1] == [timing]


def test_events_come_in_order(qtbot: QtBot, session: ScriptedSession) -> None:
    bridge = SessionBridge(session)
    seen: list[object] = []
    for signal in (bridge.state_changed, bridge.turn_opened, bridge.turn_committed, bridge.levels):
        signal.connect(seen.append)
    events: list[Event] = [
        TurnOpened(1, "voice"),
        StateChanged(SessionState.HEARING),
        Levels(-20.0, -120.0, 0.9),
        TurnCommitted(1, 1.5),
        Levels(-50.0, -120.0, 0.1),
    ]
    session.feed(*events)
    bridge.poll()
    assert seen == events


def test_timings_of_a_batch_come_as_one_list(qtbot: QtBot, session: ScriptedSession) -> None:
    bridge = SessionBridge(session)
    spy = QSignalSpy(bridge.timings)
    timings = [TimingEvent("step", 1, index, 10, "engine") for index in range(5)]
    session.feed(*(Timing(timing) for timing in timings))
    bridge.poll()
    bridge.poll()
    assert spy.count() == 1
    assert spy.at(0)[0] == timings


def test_the_timer_polls(qtbot: QtBot, session: ScriptedSession) -> None:
    bridge = SessionBridge(session)
    bridge.start_polling()
    with qtbot.waitSignal(bridge.state_changed):
        session.feed(StateChanged(SessionState.LISTENING))
    bridge.stop_polling()


def test_a_session_that_fails_is_reported_once(qtbot: QtBot) -> None:
    class Broken(ScriptedSession):
        def poll(self) -> list[Event]:
            raise RuntimeError("the engine thread is gone")

    bridge = SessionBridge(Broken())
    spy = QSignalSpy(bridge.lost)
    bridge.start_polling()
    bridge.poll()
    qtbot.wait(150)
    assert spy.count() == 1
    assert "engine thread" in spy.at(0)[0]


def test_commands_are_handed_on(session: ScriptedSession) -> None:
    SessionBridge(session).send(Mute(True))
    assert session.commands == [Mute(True)]
