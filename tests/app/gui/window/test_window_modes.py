"""The window with and without its latency view, and the compact window in its place."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.gui.common.preferences import PreferenceStore
from app.gui.window.main_window import MainWindow
from app.gui.window.window_modes import NARROWEST
from app.session.commands import CancelTurn, Mute
from app.session.events import (
    Event,
    Levels,
    ReplyCut,
    ReplyTextDelta,
    SessionState,
    StateChanged,
    TurnCancelled,
    TurnCommitted,
    TurnExtended,
    TurnOpened,
    TurnTranscribed,
)
from engine_runtime.types import Modality
from tests.doubles.scripted_session import ScriptedSession


@pytest.mark.slow
def test_the_latency_view_is_hidden_and_stays_so(
    qtbot: QtBot, window: MainWindow, store: PreferenceStore
) -> None:
    words = window.header.panel_button.accessibleName
    assert words() == "Hide the latency view"
    handle = window.splitter.saveState()
    window.header.panel_button.click()
    assert window.latency.isHidden()
    assert words() == "Show the latency view"
    window.close()
    assert store.kept_bytes("splitter") == handle
    again = MainWindow(ScriptedSession(), store=store)
    qtbot.addWidget(again)
    again.show()
    assert again.latency.isHidden()
    again.header.panel_button.click()
    QApplication.processEvents()
    assert again.latency.width() >= NARROWEST


def test_a_view_that_is_dragged_away_is_hidden_and_leaves_no_sliver(window: MainWindow) -> None:
    sizes = window.splitter.sizes()
    window.splitter.moveSplitter(sum(sizes) - NARROWEST // 3, 1)
    QApplication.processEvents()
    assert window.latency.isHidden()
    window.modes.show_panel(True)
    QApplication.processEvents()
    assert window.splitter.sizes()[1] >= NARROWEST
    window.splitter.moveSplitter(sum(sizes) - NARROWEST + 60, 1)
    assert window.splitter.sizes()[1] >= NARROWEST


@pytest.mark.slow
def test_the_latency_view_is_detached_and_put_back(window: MainWindow) -> None:
    modes, width = window.modes, window.latency.width()
    window.modes.toggle_detached()
    QApplication.processEvents()
    assert window.latency.window() is modes.detached
    assert modes.detached.isVisible()
    assert window.latency.isVisible()
    assert window.header.detach_action.isChecked()
    window.header.panel_button.click()
    assert not modes.detached.isVisible()
    window.header.panel_button.click()
    assert modes.detached.isVisible()
    modes.detached.close()  # as the user does
    QApplication.processEvents()
    assert window.latency.window() is window
    assert window.latency.isVisible()
    assert abs(window.latency.width() - width) <= 2
    assert not window.header.detach_action.isChecked()


@pytest.mark.slow
def test_a_detached_view_comes_and_goes_with_the_window_and_stays_detached(
    qtbot: QtBot, window: MainWindow, store: PreferenceStore
) -> None:
    handle = window.splitter.saveState()
    window.header.detach_action.trigger()
    window.modes.enter_compact()
    assert not window.modes.detached.isVisible()
    window.modes.show_large()
    assert window.modes.detached.isVisible()
    window.close()
    assert not window.modes.detached.isVisible()
    assert store.kept_bytes("splitter") == handle
    assert store.load().latency_window
    again = MainWindow(ScriptedSession(), store=store)
    qtbot.addWidget(again)
    assert not again.modes.detached.isVisible()
    again.show()
    assert again.latency.window() is again.modes.detached
    assert again.modes.detached.isVisible()
    again.modes.detach_panel(False)
    QApplication.processEvents()
    assert again.latency.window() is again
    assert again.latency.width() >= NARROWEST


@pytest.mark.slow
def test_the_compact_window_takes_the_place_of_the_large_one(window: MainWindow) -> None:
    compact = window.modes.compact
    window.header.compact_button.click()
    assert compact.isVisible()
    assert not window.isVisible()
    compact.pin_button.click()
    assert compact.isVisible()
    compact.expand_button.click()
    assert window.isVisible()
    assert not compact.isVisible()
    window.modes.enter_compact()
    window.show()  # as from the tray
    assert not compact.isVisible()


def test_the_compact_window_shows_the_last_exchange(window: MainWindow, session: ScriptedSession) -> None:
    compact = window.modes.compact

    def after(*events: Event) -> tuple[str, str]:
        session.feed(*events)
        window.bridge.poll()
        return compact.question.text(), compact.reply.text()

    assert after(TurnOpened(1, "text", "Who are you?"), TurnCommitted(1, 0.0)) == ("Who are you?", "")
    assert after(ReplyTextDelta(1, "I am", True), ReplyTextDelta(1, " Moss.", True))[1] == "I am Moss."
    assert after(TurnOpened(2, "voice")) == ("You speak …", "")
    assert after(ReplyTextDelta(1, "stale", True))[1] == ""
    assert after(TurnCommitted(2, 1.64)) == ("You spoke 1.6 s", "")
    assert after(ReplyTextDelta(2, "the sky", True), TurnExtended(2)) == ("You speak …", "")
    cut = ReplyCut(2, "barge_in", Modality.SPEECH, "the sky", " is blue", 0.6, 1.2, 20, 8)
    said = after(TurnCommitted(2, 2.5), ReplyTextDelta(2, "the sky is blue", True), cut)
    assert said == ("You spoke 2.5 s", "the sky …")
    assert after(TurnTranscribed(1, "stale"))[0] == "You spoke 2.5 s"
    assert after(TurnTranscribed(2, "What colour is the sky?"))[0] == "What colour is the sky?"
    assert after(TurnOpened(3, "voice"), TurnCancelled(3, "too_short")) == ("", "")


@pytest.mark.slow
def test_the_compact_window_follows_the_language(window: MainWindow, session: ScriptedSession) -> None:
    compact = window.modes.compact
    for events, english, chinese in (
        ([TurnOpened(1, "voice")], "You speak …", "您在说……"),
        ([TurnCommitted(1, 1.52)], "You spoke 1.5 s", "您说了 1.5 秒"),
        ([TurnOpened(2, "text", "who are you")], "who are you", "who are you"),
    ):
        session.feed(*events)
        window.bridge.poll()
        for words in (english, chinese, english):
            assert compact.question.text() == words
            window.toggle_language()
            QApplication.processEvents()
        window.toggle_language()
        QApplication.processEvents()


def test_the_compact_window_mutes_and_stops(window: MainWindow, session: ScriptedSession) -> None:
    compact = window.modes.compact
    session.feed(StateChanged(SessionState.LISTENING), Levels(-20.0, -120.0, 0.9))
    window.bridge.poll()
    assert compact.input_meter.level_dbfs == -20.0
    assert not compact.stop_button.isEnabled()
    compact.mute_button.click()
    assert session.commands[-1] == Mute(True)
    assert window.controls.mute_button.isChecked()
    assert "Muted" in compact.badge.accessibleName()
    window.controls.mute_button.click()
    assert not compact.mute_button.isChecked()
    session.feed(StateChanged(SessionState.SPEAKING))
    window.bridge.poll()
    compact.stop_button.click()
    assert session.commands[-1] == CancelTurn()


def test_a_paused_reply_can_be_stopped_with_the_mouse(window: MainWindow, session: ScriptedSession) -> None:
    buttons = (window.composer.button, window.modes.compact.stop_button)
    for is_paused in (False, True):
        session.feed(StateChanged(SessionState.HEARING, is_paused))
        window.bridge.poll()
        assert [button.isEnabled() for button in buttons] == [is_paused] * 2
    for button in buttons:
        sent = len(session.commands)
        button.click()
        assert session.commands[sent:] == [CancelTurn()]
