"""The progress bar of an engine that is being loaded."""

from __future__ import annotations

import pytest
from pytestqt.qtbot import QtBot

from app.gui.window.main_window import MainWindow
from app.session.events import EngineLoading, SessionState, StateChanged
from tests.doubles.scripted_session import ScriptedSession


@pytest.mark.slow
def test_it_is_shown_while_an_engine_is_loaded(
    qtbot: QtBot, window: MainWindow, session: ScriptedSession
) -> None:
    bar = window.loading
    window.engine.loading.emit("moss-speech")
    session.feed(StateChanged(SessionState.LOADING), EngineLoading(0.25))
    qtbot.waitUntil(bar.isVisible)
    assert bar.words.text() == "Loading moss-speech …"
    assert bar.bar.value() / bar.bar.maximum() == pytest.approx(0.25)
    session.feed(EngineLoading(1.0))
    qtbot.waitUntil(lambda: bar.words.text() == "Preparing moss-speech …")
    assert bar.bar.maximum() == 0
    session.feed(StateChanged(SessionState.LISTENING))
    qtbot.waitUntil(bar.isHidden)


def test_a_model_that_is_there_at_once_shows_none(window: MainWindow, session: ScriptedSession) -> None:
    session.feed(StateChanged(SessionState.LOADING))
    window.bridge.poll()
    assert window.loading.delay.isActive()
    session.feed(StateChanged(SessionState.LISTENING))
    window.bridge.poll()
    assert not window.loading.delay.isActive()
    assert window.loading.isHidden()
