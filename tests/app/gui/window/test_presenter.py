"""The presentation: what a room sees, how it begins and ends, and that everything fits."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication, QScrollArea, QWidget
from pytestqt.qtbot import QtBot

from app.gui.common.preferences import Preferences, PreferenceStore
from app.gui.common.themes import DARK, ThemeChoice
from app.gui.common.turn_times import LatencyStage
from app.gui.latency.definitions import define, number, stage_sentence
from app.gui.latency.metrics import Metric
from app.gui.window.main_window import MainWindow
from app.gui.window.presenter import Presenter
from app.session.commands import CancelTurn
from app.session.events import ReplyTextDelta, SessionState, StateChanged, Timing, TurnCommitted, TurnOpened
from tests.doubles.scripted_session import ScriptedSession, conversation
from tests.doubles.timed_turns import spoken_turn

CTRL, NONE = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.NoModifier


def present(qtbot: QtBot, window: MainWindow, width: int = 1280, height: int = 720) -> Presenter:
    """The presenter on show, with the focus."""
    window.modes.toggle_presenter()
    presenter = window.modes.presenter
    assert presenter is not None
    qtbot.waitUntil(lambda: QApplication.activeWindow() is presenter)
    presenter.showNormal()  # the screen of the offscreen platform is small
    presenter.resize(width, height)
    QApplication.processEvents()
    return presenter


def area_of(presenter: Presenter) -> QScrollArea:
    (area,) = [found for found in presenter.findChildren(QScrollArea) if found.parent() is presenter]
    return area


def is_cut(presenter: Presenter) -> bool:
    """Whether a part of the presentation is outside its window."""
    area = area_of(presenter)
    return area.horizontalScrollBar().maximum() > 0 or area.verticalScrollBar().maximum() > 0


@pytest.mark.slow
def test_f11_covers_the_screen_and_escape_leaves(
    qtbot: QtBot, ready: MainWindow, session: ScriptedSession
) -> None:
    assert ready.modes.presenter is None  # it costs nothing before
    qtbot.keyClick(ready, Qt.Key.Key_F11)
    presenter = ready.modes.presenter
    assert presenter is not None
    assert presenter.isFullScreen()
    qtbot.waitUntil(lambda: QApplication.activeWindow() is presenter)
    qtbot.keyClick(presenter, Qt.Key.Key_Escape)
    assert not presenter.isVisible()
    assert session.commands == []  # nothing was stopped
    qtbot.waitUntil(lambda: QApplication.activeWindow() is ready)
    qtbot.keyClick(ready, Qt.Key.Key_Escape)
    assert session.commands == [CancelTurn()]
    ready.latency.present_button.click()
    assert presenter.isVisible()
    qtbot.waitUntil(lambda: QApplication.activeWindow() is presenter)
    qtbot.keyClick(presenter, Qt.Key.Key_F11)
    assert not presenter.isVisible()
    ready.modes.toggle_presenter()
    presenter.leave_button.click()
    assert not ready.modes.is_presenting


@pytest.mark.slow
def test_captions_and_state_are_those_of_the_conversation(
    qtbot: QtBot, ready: MainWindow, session: ScriptedSession
) -> None:
    presenter = present(qtbot, ready)
    assert presenter.question.text() == "Ask something."
    session.feed(TurnOpened(1, "voice"), StateChanged(SessionState.HEARING))
    ready.bridge.poll()
    assert presenter.question.text() == "You speak …"
    assert presenter.badge.state is SessionState.HEARING
    session.feed(
        TurnCommitted(1, 1.9), ReplyTextDelta(1, "two plus", True), ReplyTextDelta(1, " three", True)
    )
    ready.bridge.poll()
    assert (presenter.question.text(), presenter.reply.text()) == ("You spoke 1.9 s", "two plus three")
    assert presenter.model.text() == ready.header.bundle.text()


@pytest.mark.slow
def test_the_waterfall_grows_with_the_turn(qtbot: QtBot, ready: MainWindow, session: ScriptedSession) -> None:
    presenter = present(qtbot, ready)
    first, second = spoken_turn(1), spoken_turn(2, at_ms=9_000.0)
    session.feed(*(Timing(event) for event in first))
    ready.bridge.poll()
    presenter.redraw()
    assert presenter.waterfall_sum.text() == "840 ms"
    sums = []
    for event in second[: [event.name for event in second].index("first_audio") + 1]:
        session.feed(Timing(event))
        ready.bridge.poll()
        presenter.redraw()
        sums.append(presenter.waterfall_sum.text())
    so_far = ["625 ms so far", "640 ms so far", "655 ms so far", "750 ms so far", "800 ms so far", "800 ms"]
    assert sums == ["840 ms", "840 ms", "600 ms so far", *so_far]


@pytest.mark.slow
def test_the_plots_show_the_newest_values_and_start_over(
    qtbot: QtBot, ready: MainWindow, session: ScriptedSession
) -> None:
    presenter = present(qtbot, ready)
    for events in conversation():
        session.feed(*events)
    ready.bridge.poll()
    presenter.redraw()
    main = {"prefill": Metric.PREFILL_AT_COMMIT, "vocoder": Metric.VOCODER, "rtf": Metric.RTF_TOTAL}
    assert list(presenter.plots) == list(main)
    for name, metric in main.items():
        summary = ready.latency.metrics.summary(metric)
        assert summary is not None
        unit = define(metric).unit
        assert presenter.plots[name].value.text() == number(summary.last, unit)
        assert presenter.plots[name].unit.text() == unit
    ready.latency.clear()
    presenter.redraw()
    assert {plot.value.text() for plot in presenter.plots.values()} == {"–"}
    assert presenter.waterfall_sum.text() == ""


@pytest.mark.slow
def test_each_stage_is_explained_in_a_sentence(qtbot: QtBot, ready: MainWindow) -> None:
    presenter = present(qtbot, ready)
    assert not presenter.stages.isVisible()
    qtbot.keyClick(presenter, Qt.Key.Key_E)
    assert presenter.stages.isVisible()
    text = presenter.stages.accessibleDescription()
    for stage in (LatencyStage.ENDPOINTING, LatencyStage.PREFILL, LatencyStage.VOCODER, LatencyStage.DEVICE):
        assert stage_sentence(stage) in text
    assert presenter.explain_button.isChecked()
    qtbot.keyClick(presenter, Qt.Key.Key_E)
    assert presenter.plots["rtf"].isVisible()


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh_CN"])
@pytest.mark.parametrize(("width", "height"), [(1024, 700), (1280, 720), (1920, 1080), (3840, 2160)])
def test_everything_fits_at_any_size(
    qtbot: QtBot,
    session: ScriptedSession,
    store: PreferenceStore,
    width: int,
    height: int,
    language: str,
) -> None:
    store.save(Preferences(theme=ThemeChoice.DARK, language="zh_CN" if language == "zh_CN" else "en"))
    window = MainWindow(session, store=store)
    qtbot.addWidget(window)
    window.show()
    presenter = present(qtbot, window, width, height)
    for events in conversation():
        session.feed(*events)
    window.bridge.poll()
    presenter.redraw()
    for is_explaining in (False, True):
        presenter.explain_button.setChecked(is_explaining)
        qtbot.waitUntil(lambda: not is_cut(presenter))
    presenter.explain_button.setChecked(False)
    for plot in presenter.plots.values():
        for label in (plot.title, plot.value, plot.unit):
            needed = label.fontMetrics().horizontalAdvance(label.text())
            assert needed <= label.width()
            corner = label.mapTo(presenter, QPoint(label.width(), label.height()))
            assert corner.x() <= width
    assert presenter.plots["rtf"].value.fontMetrics().height() > height / 24
    window.close()


@pytest.mark.slow
def test_its_size_has_keys_of_its_own(qtbot: QtBot, ready: MainWindow, store: PreferenceStore) -> None:
    presenter = present(qtbot, ready)
    before = presenter.plots["rtf"].value.fontMetrics().height()
    for _ in range(5):
        qtbot.keyClick(presenter, Qt.Key.Key_Plus, CTRL)
    QApplication.processEvents()
    assert presenter.plots["rtf"].value.fontMetrics().height() >= 1.9 * before
    qtbot.waitUntil(lambda: is_cut(presenter))  # and can be scrolled
    assert store.load().scale_percent == 100
    qtbot.keyClick(presenter, Qt.Key.Key_0, CTRL)
    qtbot.waitUntil(lambda: not is_cut(presenter))


@pytest.mark.slow
def test_theme_and_errors_reach_it(qtbot: QtBot, ready: MainWindow) -> None:
    presenter = present(qtbot, ready)
    qtbot.keyClick(presenter, Qt.Key.Key_T, CTRL)
    assert DARK.surface in presenter.styleSheet()
    ready.banner.show_words(lambda: ("The loudspeaker is gone.", "Connect it.", ""))
    assert presenter.banner.isVisible()
    assert presenter.banner.message == "The loudspeaker is gone."


@pytest.mark.slow
def test_all_of_it_can_be_reached_and_read_out(qtbot: QtBot, ready: MainWindow) -> None:
    presenter = present(qtbot, ready)
    focusable = [
        widget
        for widget in presenter.findChildren(QWidget)
        if widget.focusPolicy() & Qt.FocusPolicy.TabFocus and widget.isVisible()
    ]
    assert {presenter.explain_button, presenter.leave_button} <= set(focusable)
    for part in (presenter.question, presenter.reply, presenter.waterfall, *presenter.plots.values()):
        assert part.accessibleName()
