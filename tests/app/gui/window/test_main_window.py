"""The complete window: events in, commands out."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from PySide6.QtCore import QEvent, QObject, Qt, QTimer
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QApplication, QComboBox, QLabel, QWidget
from pytestqt.qtbot import QtBot

from app.audio.echo_cancellation import EchoMeasurement
from app.gui.common.preferences import Language, Preferences, PreferenceStore
from app.gui.common.themes import DARK, LIGHT, ThemeChoice
from app.gui.settings.settings_dialog import SettingsDialog
from app.gui.window.main_window import MainWindow
from app.session.commands import (
    ApplySettings,
    AskText,
    CancelTurn,
    Command,
    Mute,
    NewConversation,
    PlayAgain,
    PlaySample,
    RescanDevices,
    SetDevices,
    SetReply,
    SetVolume,
    Start,
    Stop,
)
from app.session.events import (
    Counters,
    DeviceNoticed,
    DevicesChanged,
    EchoMeasured,
    EngineReady,
    ErrorRaised,
    SampleFinished,
    SampleStarted,
    SessionState,
    StateChanged,
    Timing,
    TurnOpened,
)
from app.settings import InputMode
from engine_runtime.errors import Problem
from engine_runtime.timing import TimingEvent
from engine_runtime.types import Modality
from tests.doubles.scripted_session import EXCHANGES, ScriptedSession, conversation, opening
from tests.tools.widgets import content_of, question_of, reply_of

SAMPLE = Path("hello.wav")


@pytest.mark.slow
def test_the_session_is_started_with_the_preferences(window: MainWindow, session: ScriptedSession) -> None:
    assert session.is_started
    assert session.commands == [ApplySettings(window.applied.current.session_settings())]


@pytest.mark.slow
def test_a_complete_conversation_is_shown(ready: MainWindow, session: ScriptedSession) -> None:
    for events in conversation():
        session.feed(*events)
        ready.bridge.poll()
    ready.latency.redraw()
    assert ready.transcript.turn_count == len(EXCHANGES)
    for turn_id, exchange in enumerate(EXCHANGES, start=1):
        reply = reply_of(ready.transcript, turn_id)
        assert reply.body.text() == exchange.answer
        assert reply.again.isVisibleTo(reply) == (exchange.modality is Modality.SPEECH)
    assert not ready.banner.isVisible()
    assert len(ready.export.events) > 100


def test_nothing_can_be_asked_before_the_engine_is_ready(
    window: MainWindow, session: ScriptedSession
) -> None:
    session.commands.clear()
    window.composer.edit.setPlainText("hello")
    window.composer.submit()
    assert session.commands == []
    assert window.composer.edit.toPlainText() == "hello"


def test_a_typed_question_is_asked_with_enter(
    qtbot: QtBot, ready: MainWindow, session: ScriptedSession
) -> None:
    qtbot.keyClicks(ready.composer.edit, "two plus three")
    qtbot.keyClick(ready.composer.edit, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    qtbot.keyClicks(ready.composer.edit, "is what")
    qtbot.keyClick(ready.composer.edit, Qt.Key.Key_Return)
    assert session.commands == [AskText("two plus three\nis what")]
    assert ready.composer.edit.toPlainText() == ""


@pytest.mark.slow
def test_the_button_of_the_composer_stops_a_reply(
    qtbot: QtBot, ready: MainWindow, session: ScriptedSession
) -> None:
    button = ready.composer.button
    assert not button.isEnabled()
    for state in (SessionState.THINKING, SessionState.SPEAKING):
        ready.bridge.state_changed.emit(StateChanged(state))
        assert button.isEnabled()
        assert button.toolTip() == "Stop the reply (Esc)"
        qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert session.commands == [CancelTurn(), CancelTurn()]
    qtbot.keyClicks(ready.composer.edit, "two plus three")  # a question of one's own is sent instead
    assert button.toolTip() == "Ask (Enter)"
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert session.commands[2:] == [AskText("two plus three")]
    ready.bridge.state_changed.emit(StateChanged(SessionState.LISTENING))
    assert not button.isEnabled()


@pytest.mark.slow
def test_a_text_that_is_too_long_is_kept_and_explained(ready: MainWindow, session: ScriptedSession) -> None:
    text = "x" * 10_000
    ready.composer.edit.setPlainText(text)
    ready.composer.submit()
    assert session.commands == []
    assert ready.composer.edit.toPlainText() == text
    assert "10000" in ready.banner.message
    assert ready.banner.advice


@pytest.mark.slow
def test_start_stop_mute(qtbot: QtBot, ready: MainWindow, session: ScriptedSession) -> None:
    session.feed(StateChanged(SessionState.STOPPED))
    ready.bridge.poll()
    qtbot.mouseClick(ready.controls.start_button, Qt.MouseButton.LeftButton)
    session.feed(StateChanged(SessionState.LISTENING))
    ready.bridge.poll()
    qtbot.mouseClick(ready.controls.mute_button, Qt.MouseButton.LeftButton)
    qtbot.mouseClick(ready.controls.mute_button, Qt.MouseButton.LeftButton)
    qtbot.mouseClick(ready.controls.start_button, Qt.MouseButton.LeftButton)
    assert session.commands == [
        Start(),
        Mute(True),
        Mute(False),
        Stop(),
    ]


@pytest.mark.slow
def test_start_while_loading_waits_for_the_engine(
    qtbot: QtBot, window: MainWindow, session: ScriptedSession
) -> None:
    session.commands.clear()
    qtbot.mouseClick(window.controls.start_button, Qt.MouseButton.LeftButton)
    assert session.commands == [Start()]
    assert window.controls.is_running


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "modifier", "command"),
    [
        (Qt.Key.Key_Escape, Qt.KeyboardModifier.NoModifier, CancelTurn()),
        (Qt.Key.Key_R, Qt.KeyboardModifier.ControlModifier, RescanDevices()),
        (Qt.Key.Key_M, Qt.KeyboardModifier.ControlModifier, Mute(True)),
        (Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier, NewConversation()),
        (Qt.Key.Key_Space, Qt.KeyboardModifier.ControlModifier, Stop()),
    ],
)
def test_shortcuts(
    qtbot: QtBot,
    ready: MainWindow,
    session: ScriptedSession,
    key: Qt.Key,
    modifier: Qt.KeyboardModifier,
    command: Command,
) -> None:
    with qtbot.waitActive(ready):
        ready.activateWindow()
    qtbot.keyClick(ready, key, modifier)
    assert session.commands == [command]


@pytest.mark.slow
def test_devices_are_listed_and_chosen(
    ready: MainWindow, session: ScriptedSession, store: PreferenceStore
) -> None:
    box = ready.controls.input_box
    box.setCurrentIndex(box.findData("USB headset"))
    box.activated.emit(box.currentIndex())
    assert session.commands == [SetDevices("USB headset", None)]
    assert store.load().input_device == "USB headset"
    session.feed(DevicesChanged(("pulse",), ("pulse",), "pulse", "pulse"))
    ready.bridge.poll()
    assert box.currentData() == "USB headset", "a device that is away for now is still the chosen one"


@pytest.mark.slow
def test_reply_as_text(
    qtbot: QtBot, ready: MainWindow, session: ScriptedSession, store: PreferenceStore
) -> None:
    qtbot.mouseClick(ready.controls.text_button, Qt.MouseButton.LeftButton)
    assert session.commands == [SetReply(Modality.TEXT)]
    assert store.load().reply is Modality.TEXT


@pytest.mark.slow
def test_play_again(ready: MainWindow, session: ScriptedSession) -> None:
    ready.transcript.play_again.emit(3)
    assert session.commands == [PlayAgain(3)]


def test_errors_are_shown_in_words_and_can_be_dismissed(
    qtbot: QtBot, ready: MainWindow, session: ScriptedSession
) -> None:
    session.feed(ErrorRaised(Problem("The microphone was lost.", "Plug it in again.")))
    ready.bridge.poll()
    assert (ready.banner.message, ready.banner.advice) == ("The microphone was lost.", "Plug it in again.")
    assert ready.banner.isVisible()
    qtbot.mouseClick(ready.banner.close_button, Qt.MouseButton.LeftButton)
    assert not ready.banner.isVisible()


@pytest.mark.slow
def test_a_start_that_fails_leaves_the_start_button(
    qtbot: QtBot, ready: MainWindow, session: ScriptedSession
) -> None:
    session.feed(StateChanged(SessionState.STOPPED))
    ready.bridge.poll()
    qtbot.mouseClick(ready.controls.start_button, Qt.MouseButton.LeftButton)
    session.feed(
        ErrorRaised(Problem("No microphone was found.", "Connect one; it is used as soon as it is found."))
    )
    ready.bridge.poll()
    assert ready.controls.start_button.text() == "Start"
    assert not ready.controls.is_running


@pytest.mark.slow
def test_a_session_that_is_lost_is_explained(ready: MainWindow) -> None:
    ready.bridge.lost.emit("thread ended")
    assert "thread ended" in ready.banner.message
    assert not ready.controls.start_button.isEnabled()


def badge_word(window: MainWindow) -> str:
    return window.header.badge.accessibleName().removeprefix("State: ")


@pytest.mark.slow
def test_the_badge_says_that_no_microphone_is_open(ready: MainWindow, session: ScriptedSession) -> None:
    assert badge_word(ready) == "Listening"
    session.feed(DevicesChanged((), ("pulse",), "", "pulse"))
    ready.bridge.poll()
    assert badge_word(ready) == "No microphone"
    session.feed(SampleStarted(SAMPLE, 2.0))
    ready.bridge.poll()
    assert badge_word(ready) == "Listening", "a sample needs no microphone"
    session.feed(SampleFinished(SAMPLE), StateChanged(SessionState.SPEAKING))
    ready.bridge.poll()
    assert badge_word(ready) == "Speaking"
    session.feed(StateChanged(SessionState.LISTENING))
    ready.bridge.poll()
    assert badge_word(ready) == "No microphone"
    session.feed(DevicesChanged(("pulse",), ("pulse",), "pulse", "pulse"))
    ready.bridge.poll()
    assert badge_word(ready) == "Listening"


@pytest.mark.slow
def test_a_loudspeaker_that_is_away_is_said_and_noticed(ready: MainWindow) -> None:
    bridge = ready.bridge
    bridge.devices_changed.emit(DevicesChanged(("usb",), (), "usb", ""))
    assert badge_word(ready) == "No loudspeaker"
    bridge.devices_changed.emit(DevicesChanged(("usb",), ("pci",), "usb", "pci", {"pci": "Built-in"}))
    bridge.noticed.emit(DeviceNoticed(Problem("The loudspeaker Built-in is back.")))
    assert badge_word(ready) == "Listening"
    assert ready.notice.text() == "The loudspeaker Built-in is back."
    assert ready.controls.output_box.itemText(0) == "Default loudspeaker: Built-in"


def test_the_badge_says_that_the_microphone_is_muted(ready: MainWindow, session: ScriptedSession) -> None:
    ready.controls.mute_button.click()
    assert badge_word(ready) == "Muted"
    session.feed(StateChanged(SessionState.STOPPED))
    ready.bridge.poll()
    assert badge_word(ready) == "Ready"
    session.feed(StateChanged(SessionState.LISTENING))
    ready.bridge.poll()
    ready.controls.mute_button.click()
    assert badge_word(ready) == "Listening"


def test_the_badge_says_that_the_server_is_away(ready: MainWindow, session: ScriptedSession) -> None:
    session.feed(StateChanged(SessionState.THINKING, is_reconnecting=True))
    ready.bridge.poll()
    assert badge_word(ready) == "Reconnecting"
    assert ready.modes.compact.badge.word == "Reconnecting"
    session.feed(StateChanged(SessionState.ERROR, is_reconnecting=True))
    ready.bridge.poll()
    assert badge_word(ready) == "Not available"
    session.feed(StateChanged(SessionState.LISTENING))
    ready.bridge.poll()
    assert badge_word(ready) == "Listening"


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("wss://voice.example.org/v1/realtime", "voice.example.org (TLS)"),
        ("voice.example.org:8000", "voice.example.org:8000 (not encrypted)"),
        ("ws://127.0.0.1:8000", "127.0.0.1:8000 (this computer)"),
    ],
)
def test_the_badge_says_where_the_voice_goes(ready: MainWindow, server: str, words: str) -> None:
    compact = ready.modes.compact.badge
    assert "server" not in compact.accessibleDescription()
    ready.header.show_engine(EngineReady("nano", 0.0, 16_000, 24_000), server)
    assert f"What you say goes to the server {words}." in compact.accessibleDescription()
    assert words in [label.text() for label in compact.findChildren(QLabel) if label.isVisibleTo(compact)]
    ready.header.show_engine(EngineReady("nano", 1.0, 16_000, 24_000))
    assert "server" not in compact.accessibleDescription()


def test_nobody_is_invited_to_ask_a_session_that_failed(window: MainWindow, session: ScriptedSession) -> None:
    transcript = window.transcript
    assert transcript.welcome.title.text() == "Ask something"
    assert "Press Start" in transcript.welcome.text.text()
    session.feed(
        ErrorRaised(Problem("The bundle is damaged.", "Copy it again.")), StateChanged(SessionState.ERROR)
    )
    window.bridge.poll()
    assert transcript.welcome.title.text() == "Not available"
    assert "Press Start" not in transcript.welcome.text.text()


@pytest.mark.slow
def test_counters_are_visible(ready: MainWindow, session: ScriptedSession) -> None:
    session.feed(Counters(2, 480))
    ready.bridge.poll()
    assert "2" in ready.controls.counters.underruns.text()
    assert "480" in ready.controls.counters.dropped.text()
    assert ready.controls.counters.underruns.property("alert")


@pytest.mark.slow
def test_no_part_is_a_window_of_its_own(qtbot: QtBot, store: PreferenceStore) -> None:
    class Watch(QObject):
        shown: ClassVar[list[str]] = []

        def eventFilter(self, watched: QObject, event: QEvent) -> bool:
            if event.type() is QEvent.Type.Show and isinstance(watched, QWidget) and watched.isWindow():
                self.shown.append(type(watched).__name__)
            return False

    application, watch = QApplication.instance(), Watch()
    assert application is not None
    application.installEventFilter(watch)
    window = MainWindow(ScriptedSession(), store=store)
    qtbot.addWidget(window)
    window.show()
    application.removeEventFilter(watch)
    assert watch.shown == ["MainWindow"]


@pytest.mark.slow
def test_the_volume_is_sent_and_kept(
    qtbot: QtBot, ready: MainWindow, session: ScriptedSession, store: PreferenceStore
) -> None:
    slider = ready.controls.volume
    assert (slider.value(), slider.accessibleName()) == (100, "Volume of replies")
    qtbot.keyClick(slider, Qt.Key.Key_Left)
    qtbot.keyClick(ready, Qt.Key.Key_Down, Qt.KeyboardModifier.ControlModifier)
    assert session.commands[-2:] == [SetVolume(0.95), SetVolume(0.9)]
    assert "90 %" in slider.toolTip()
    ready.close()
    assert store.load().volume == 90
    assert store.load().session_settings().volume == 0.9
    again = MainWindow(ScriptedSession(), store=store)
    qtbot.addWidget(again)
    assert again.controls.volume.value() == 90


@pytest.mark.slow
def test_clear_starts_counters_and_exported_timings_over(ready: MainWindow, session: ScriptedSession) -> None:
    session.feed(Counters(2, 480), Timing(TimingEvent("first_audio", 1, 0, 1_000_000, "engine")))
    ready.bridge.poll()
    counters = ready.controls.counters
    ready.latency.clear_button.click()
    assert (counters.underruns.text(), counters.dropped.text()) == ("under-runs 0", "dropped input 0")
    assert list(ready.export.events) == []
    session.feed(Counters(3, 480))
    ready.bridge.poll()
    assert counters.underruns.text() == "⚠ under-runs 1"
    session.feed(Counters(9_999, 99_999))
    ready.bridge.poll()
    assert counters.sizeHint().width() <= counters.minimumWidth()  # so the bar does not shift


@pytest.mark.slow
def test_the_echo_is_visible_with_its_definition(ready: MainWindow, session: ScriptedSession) -> None:
    for echo, text in (
        (EchoMeasurement("cancelling"), "echo not measured"),
        (EchoMeasurement("cancelling", 12.3, 31.6, 85.0), "echo -12 → -44 dB"),
        (EchoMeasurement("no_echo", 12.3, 31.6, 85.0), "no echo"),
        (EchoMeasurement("unavailable"), "⚠ echo not cancelled"),
        (EchoMeasurement("off"), "echo not cancelled"),
    ):
        session.feed(EchoMeasured(echo))
        ready.bridge.poll()
        assert ready.controls.counters.echo.text() == text
    assert "echo return loss" in ready.controls.counters.echo.toolTip()
    assert ready.controls.counters.echo.accessibleDescription() == ready.controls.counters.echo.toolTip()


@pytest.mark.slow
def test_theme_is_switched_and_kept(ready: MainWindow, store: PreferenceStore) -> None:
    assert ready.look.theme is LIGHT
    ready.toggle_theme()
    assert ready.look.theme is DARK
    assert store.load().theme is ThemeChoice.DARK
    assert ready.latency.plots["rtf"].plot.backgroundBrush().color().name() == DARK.surface
    ready.toggle_theme()
    assert ready.look.theme is LIGHT


@pytest.mark.slow
def test_language_is_switched_live(ready: MainWindow, session: ScriptedSession) -> None:
    for events in conversation(EXCHANGES[:2]):
        session.feed(*events)
    ready.bridge.poll()
    ready.latency.redraw()
    english = ready.controls.start_button.text()
    ready.toggle_language()
    QApplication.processEvents()
    assert ready.controls.start_button.text() == "停止"
    assert ready.header.badge.word == "聆听中"
    assert "您说" in question_of(ready.transcript, 2).caption.text()
    assert reply_of(ready.transcript, 2).again.text() == "再听一遍"
    names = [label.text() for label in ready.latency.tiles[0].findChildren(QLabel)]
    assert "声到声" in names
    ready.toggle_language()
    QApplication.processEvents()
    assert ready.controls.start_button.text() == english == "Stop"
    names = [label.text() for label in ready.latency.tiles[0].findChildren(QLabel)]
    assert "Voice to voice" in names


@pytest.mark.slow
def test_a_sample_is_fed_and_named(ready: MainWindow, session: ScriptedSession) -> None:
    button = ready.sample_row.buttons[0]
    button.click()
    (command,) = session.commands
    assert isinstance(command, PlaySample)
    session.feed(SampleStarted(command.path, 1.2), TurnOpened(1, "sample"))
    ready.bridge.poll()
    user = question_of(ready.transcript, 1)
    assert user.body.text() == button.text() != ""


@pytest.mark.slow
def test_closing_stops_the_session_and_keeps_the_geometry(
    window: MainWindow, session: ScriptedSession, store: PreferenceStore
) -> None:
    window.resize(1000, 700)
    window.close()
    assert session.is_stopped
    assert not store.kept_bytes("geometry").isEmpty()
    assert [timer.isActive() for timer in window.bridge.findChildren(QTimer)] == [False]


@pytest.mark.slow
def test_every_control_has_a_name_for_screen_readers(ready: MainWindow) -> None:
    from PySide6.QtWidgets import QAbstractButton, QComboBox, QPlainTextEdit

    for kind in (QAbstractButton, QComboBox, QPlainTextEdit):
        for control in ready.findChildren(kind):
            if control.isVisible() and control.focusPolicy() is not Qt.FocusPolicy.NoFocus:
                named = control.accessibleName() or (isinstance(control, QAbstractButton) and control.text())
                assert named, control


@pytest.mark.slow
def test_nothing_is_cut_off_in_the_smallest_window(ready: MainWindow) -> None:
    ready.resize(1, 1)
    QApplication.processEvents()
    body = content_of(ready.latency)
    assert body.width() <= ready.latency.viewport().width()
    for part in (ready.header, ready.controls, body):
        assert part.width() >= part.minimumSizeHint().width()


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh_CN"])
@pytest.mark.parametrize("mode", typing.get_args(InputMode))
def test_the_window_fits_a_screen_of_1024_pixels(
    ready: MainWindow, language: Language, mode: InputMode
) -> None:
    controls = ready.controls
    ready.applied.apply(
        dataclasses.replace(
            ready.applied.current, input_mode=mode, language=language, hotkey="Ctrl+Alt+Space"
        )
    )
    for is_muted in (False, True):
        controls.mute_button.setChecked(is_muted)
        QApplication.processEvents()
        assert ready.minimumSizeHint().width() <= 1000
        ready.resize(1, 1)
        QApplication.processEvents()
        assert ready.width() <= 1000
        assert controls.width() >= controls.minimumSizeHint().width()  # nothing is cut off


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "texts"),
    [
        ("en", ("Default microphone: …", "Default loudspeaker: …")),
        ("zh_CN", ("默认麦克风：pulse", "默认扬声器：pulse")),
    ],
)
def test_devices_are_named_in_a_window_of_1024_pixels(
    ready: MainWindow, session: ScriptedSession, language: Language, texts: tuple[str, str]
) -> None:
    ready.applied.apply(dataclasses.replace(ready.applied.current, language=language))
    session.feed(DevicesChanged(("pulse",), ("pulse",), "pulse", "pulse"))
    ready.bridge.poll()
    ready.resize(1024, 700)
    QApplication.processEvents()
    boxes = ready.controls.input_box, ready.controls.output_box
    for box, text in zip(boxes, texts, strict=True):
        assert len(box.shown_text()) >= len(text)
    assert boxes[0].y() == boxes[1].y()


@pytest.mark.slow
def test_a_narrow_window_leaves_out_words_and_a_wide_one_shows_them(ready: MainWindow) -> None:
    controls = ready.controls
    (label,) = [found for found in controls.findChildren(QLabel) if found.text() == "Reply as"]
    ready.applied.apply(dataclasses.replace(ready.applied.current, input_mode="push"))
    for width, is_wide in ((1400, True), (1000, False), (1400, True)):
        ready.resize(width, 700)
        QApplication.processEvents()
        assert ready.width() == width
        assert label.isVisible() is is_wide
        style = controls.mute_button.toolButtonStyle()
        assert (style is Qt.ToolButtonStyle.ToolButtonTextBesideIcon) is is_wide
        controls.mute_button.toggle()  # another text
        QApplication.processEvents()
        assert controls.mute_button.toolButtonStyle() is style


@pytest.fixture
def second(qtbot: QtBot, session: ScriptedSession, store: PreferenceStore) -> Iterator[MainWindow]:
    """A window beside the one that has the settings."""
    window = MainWindow(session, PreferenceStore(store.file, is_kept=False))
    window.show()
    window.start_session()
    yield window
    window.close()
    window.deleteLater()


def test_a_second_window_says_that_it_keeps_nothing(second: MainWindow) -> None:
    assert second.unkept.isVisible()
    assert "neither settings nor conversations" in second.unkept.text()
    assert second.windowTitle() == "Second window"
    second.applied.apply(dataclasses.replace(second.applied.current, language="zh_CN"))
    assert "设置" in second.unkept.text()


def test_a_second_window_shares_no_folder(second: MainWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(second.conversations, "open_history", lambda *given: opened.append(given))
    second.header.history_wanted.emit()
    assert not opened
    assert second.notice.text() == second.unkept.text()


def test_the_first_window_says_nothing_of_others(window: MainWindow) -> None:
    assert not window.unkept.isVisible()
    assert window.windowTitle() == "MOSS Voice"


def test_damaged_settings_are_reported_at_the_start(
    qtbot: QtBot, session: ScriptedSession, tmp_path: Path
) -> None:
    (tmp_path / "window.ini").write_bytes(b"\0" * 500)
    window = MainWindow(session, PreferenceStore(tmp_path / "window.ini"))
    window.start_session()
    assert str(tmp_path / "window.ini.damaged") in window.banner.advice
    window.close()
    window.deleteLater()


@pytest.mark.slow
def test_every_box_is_named_for_a_screen_reader(window: MainWindow) -> None:
    """Qt on Linux takes the chosen item for the name of a combo box: its label is asked for then."""
    dialog = SettingsDialog(Preferences(), None, window)
    boxes = [*window.controls.findChildren(QComboBox), *dialog.findChildren(QComboBox)]
    assert len(boxes) > 15
    is_label = QAccessible.RelationFlag.Label
    for box in boxes:
        relations = QAccessible.queryAccessibleInterface(box).relations()
        labels = [part.text(QAccessible.Text.Name) for part, kind in relations if kind & is_label]
        assert labels == [box.accessibleName()]
    dialog.deleteLater()


def test_it_listens_at_the_start_where_that_is_chosen(
    session: ScriptedSession, store: PreferenceStore, window: MainWindow
) -> None:
    """Once; an engine that is loaded later opens no microphone that was closed."""
    window.start_session()
    session.feed(*opening())
    window.bridge.poll()
    assert Start() not in session.commands, "off by default"
    store.save(dataclasses.replace(store.load(), starts_listening=True))
    other = MainWindow(session, store=store)
    other.start_session()
    session.commands.clear()
    for _ in range(2):
        session.feed(*opening())
        other.bridge.poll()
    assert session.commands.count(Start()) == 1
    other.close()
    other.deleteLater()
