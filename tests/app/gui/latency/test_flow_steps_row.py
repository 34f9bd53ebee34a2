"""The slider of the flow steps in the latency view: for mouse and keyboard, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt, QTimer
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.gui.common.preferences import PreferenceStore
from app.gui.common.themes import DARK, LIGHT, Theme
from app.gui.latency.flow_steps_row import SETTLE_MS, FlowStepsRow
from app.gui.latency.latency_view import LatencyView
from app.gui.latency.metrics import LatencyMetrics
from app.gui.window.main_window import MainWindow
from app.session.commands import ApplySettings
from app.session.engine_jobs import FlowSteps, FlowStepsSet
from app.session.events import EngineReady
from engine_runtime.errors import Problem
from engine_runtime.timing import TimingEvent
from tests.doubles.scripted_session import ScriptedSession, opening
from tests.tools.widgets import content_of


@pytest.fixture
def row(qtbot: QtBot) -> FlowStepsRow:
    row = FlowStepsRow()
    qtbot.addWidget(row)
    row.show_steps(FlowSteps(10, 10))
    row.show()
    return row


def replies(*figures: tuple[int, float]) -> Sequence[TimingEvent]:
    """Replies with these flow steps and RTF."""
    return [
        TimingEvent(
            "reply",
            turn,
            turn * 10**9,
            10**8,
            "engine",
            {"rtf_total": rtf, "flow_steps": steps, "finish_reason": "stop"},
        )
        for turn, (steps, rtf) in enumerate(figures, 1)
    ]


def measured(*figures: tuple[int, float]) -> LatencyMetrics:
    metrics = LatencyMetrics()
    metrics.add_events(replies(*figures))
    return metrics


def let_go(row: FlowStepsRow) -> None:
    """The user takes the slider and releases it where it is."""
    row.slider.setSliderDown(True)
    row.slider.setSliderDown(False)


def test_keys_choose_once_the_user_stops(row: FlowStepsRow, qtbot: QtBot) -> None:
    chosen: list[int | None] = []
    row.chosen.connect(chosen.append)
    (settling,) = row.findChildren(QTimer)
    settling.setInterval(3_600_000)  # the user does not stop, however slow the machine is
    row.slider.setFocus()
    for _ in range(4):
        qtbot.keyClick(row.slider, Qt.Key.Key_Left)
    assert (row.slider.value(), chosen) == (6, [])
    assert row.value.text() == "6 from the next turn on"
    row.show_steps(FlowSteps(10, 10))
    assert row.slider.value() == 6, "an answer to an earlier choice does not move it"
    settling.setInterval(SETTLE_MS)
    qtbot.waitUntil(lambda: bool(chosen))
    assert chosen == [6]
    row.show_steps(FlowSteps(6, 10))
    assert row.value.text() == "6"
    qtbot.keyClick(row.slider, Qt.Key.Key_PageUp)
    assert row.slider.value() == 11
    qtbot.keyClick(row.slider, Qt.Key.Key_Left)
    let_go(row)
    assert chosen == [6, None], "those of the bundle"
    row.show_steps(FlowSteps(10, 10))
    assert row.value.text() == "10 (bundle default)"
    let_go(row)
    assert len(chosen) == 2, "they are in force"


def test_the_mouse_chooses_when_it_lets_go(row: FlowStepsRow) -> None:
    chosen: list[int | None] = []
    row.chosen.connect(chosen.append)
    row.slider.setSliderDown(True)
    for value in (9, 7, 4):
        row.slider.setValue(value)
    row.show_steps(FlowSteps(10, 10))
    assert (row.slider.value(), chosen) == (4, [])
    row.slider.setSliderDown(False)
    assert chosen == [4]


def test_the_wheel_scrolls_the_view(row: FlowStepsRow) -> None:
    event = QWheelEvent(
        QPointF(5, 5),
        QPointF(5, 5),
        QPoint(),
        QPoint(0, -120),
        Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase,
        False,
    )
    event.accept()
    QApplication.sendEvent(row.slider, event)
    assert row.slider.value() == 10
    assert not event.isAccepted()


def test_the_rtf_of_each_number_of_steps_is_beside_it(row: FlowStepsRow) -> None:
    row.refresh(measured())
    assert row.rtf.text() == ""
    row.refresh(measured((10, 0.3), (10, 0.5), (10, 0.4), (6, 0.25)))
    assert row.rtf.text() == "RTF 0.40 with 10 · 0.25 with 6"
    row.slider.setValue(4)
    assert row.rtf.text() == "No spoken reply with 4 yet · RTF 0.25 with 6 · 0.40 with 10"
    assert row.slider.accessibleDescription() == f"{row.value.text()}. {row.rtf.text()}"
    assert row.slider.accessibleName() == "Flow steps"


def test_a_narrow_view_has_the_figures_below(qtbot: QtBot, theme: Theme) -> None:
    view = LatencyView(theme)
    qtbot.addWidget(view)
    view.show()
    view.resize(390, 600)
    view.flow_steps.show_steps(FlowSteps(10, 10))
    view.add_events(replies((10, 0.4), (6, 0.25)))
    view.redraw()
    QApplication.processEvents()
    row = view.flow_steps
    assert content_of(view).width() <= view.viewport().width(), "it makes the view no wider"
    assert row.rtf.y() > row.slider.geometry().bottom()
    view.resize(900, 600)
    QApplication.processEvents()
    assert row.rtf.x() > row.value.geometry().right()
    assert row.rtf.geometry().right() <= row.width()


def test_more_steps_than_the_slider_has_are_shown(row: FlowStepsRow) -> None:
    row.show_steps(FlowSteps(50, 10))
    assert (row.slider.value(), row.slider.maximum()) == (50, 50)
    row.show_steps(FlowSteps(8, 10))
    assert (row.slider.value(), row.slider.maximum()) == (8, 20)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_it_is_there_only_with_an_engine_that_has_steps(qtbot: QtBot, theme: Theme) -> None:
    view = LatencyView(theme)
    qtbot.addWidget(view)
    view.show()
    assert not view.flow_steps.isVisible()
    view.flow_steps.show_steps(FlowSteps(2, 2))
    assert view.flow_steps.isVisible()
    view.add_events(replies((2, 0.25)))
    view.redraw()
    assert view.flow_steps.rtf.text() == "RTF 0.25 with 2"
    view.clear()
    assert view.flow_steps.rtf.text() == ""
    view.flow_steps.show_steps(None)
    assert not view.flow_steps.isVisible()


def applied(session: ScriptedSession) -> list[int | None]:
    """The flow steps of all settings that were applied."""
    return [command.settings.flow_steps for command in session.commands if isinstance(command, ApplySettings)]


def test_a_choice_is_applied_and_kept(
    window: MainWindow, session: ScriptedSession, store: PreferenceStore
) -> None:
    session.feed(*opening())
    window.bridge.poll()
    slider = window.latency.flow_steps.slider
    assert slider.focusPolicy() & Qt.FocusPolicy.TabFocus
    assert slider.value() == 2
    slider.setValue(7)
    let_go(window.latency.flow_steps)
    assert applied(session) == [None, 7]
    assert store.load().flow_steps == 7
    session.feed(FlowStepsSet(FlowSteps(7, 2)))
    window.bridge.poll()
    assert window.latency.flow_steps.value.text() == "7"


@pytest.mark.parametrize(("in_force", "kept"), [(2, None), (3, 3)])
def test_steps_that_cannot_be_used_are_taken_back(
    window: MainWindow, session: ScriptedSession, store: PreferenceStore, in_force: int, kept: int | None
) -> None:
    session.feed(EngineReady("nano", 1.0, 16_000, 24_000, flow_steps=FlowSteps(in_force, 2)))
    window.bridge.poll()
    window.latency.flow_steps.chosen.emit(20)
    assert store.load().flow_steps == 20
    session.feed(
        FlowStepsSet(FlowSteps(in_force, 2), Problem("The flow's caches are too small.", "Choose fewer."))
    )
    window.bridge.poll()
    assert window.latency.flow_steps.slider.value() == in_force
    assert applied(session) == [None, 20, kept]
    assert store.load().flow_steps == kept
