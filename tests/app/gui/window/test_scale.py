"""The size of texts and plots: chosen with keys in every window, remembered, and the same everywhere."""

from __future__ import annotations

import dataclasses

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QLabel, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from app.gui.common.fitting_area import FittingArea
from app.gui.common.preferences import SCALES, PreferenceStore
from app.gui.common.themes import DARK, LIGHT, ThemeChoice, resolve, style_sheet
from app.gui.window.main_window import MainWindow
from tests.doubles.scripted_session import ScriptedSession, all_timings

CTRL = Qt.KeyboardModifier.ControlModifier


def test_a_theme_scales_lengths_and_sheet_and_keeps_its_colours() -> None:
    assert resolve(ThemeChoice.DARK) is DARK
    large = resolve(ThemeChoice.DARK, 2.5)
    assert dataclasses.replace(large, scale=1.0) == DARK
    assert (large.px(8), large.px(0.1), large.square(18).width()) == (20, 1, 45)
    assert "font-size: 9pt" in style_sheet(DARK)
    assert "font-size: 9pt" not in style_sheet(large)
    assert "padding: 15px 35px" in style_sheet(large)  # 6 and 14
    assert style_sheet(large).count("#") == style_sheet(DARK).count("#")


@pytest.mark.slow
def test_keys_step_through_the_sizes_which_are_remembered(
    qtbot: QtBot, ready: MainWindow, store: PreferenceStore
) -> None:
    def press(key: Qt.Key, times: int = 1) -> int:
        for _ in range(times):
            qtbot.keyClick(ready, key, CTRL)
        return store.load().scale_percent

    assert press(Qt.Key.Key_Minus) == 100
    assert press(Qt.Key.Key_Plus) == SCALES[1]
    assert press(Qt.Key.Key_Equal, 2) == SCALES[3]
    assert press(Qt.Key.Key_Minus) == SCALES[2]
    assert ready.notice.text() == "Texts and plots: 125 %"
    assert ready.look.theme.scale == 1.25
    assert press(Qt.Key.Key_Plus, 20) == 300
    assert QApplication.font().pointSizeF() == 30.0
    again = MainWindow(ScriptedSession(), store=store)
    qtbot.addWidget(again)
    assert again.look.theme.scale == 3.0
    assert press(Qt.Key.Key_0) == 100
    assert ready.look.theme is LIGHT
    assert QApplication.font().pointSizeF() == 10.0


@pytest.mark.slow
def test_keys_change_the_size_in_a_dialog_too(qtbot: QtBot, ready: MainWindow) -> None:
    dialog = ready.settings.open_guide()
    qtbot.waitUntil(lambda: QApplication.activeWindow() is dialog)
    for _ in range(3):
        qtbot.keyClick(dialog, Qt.Key.Key_Plus, CTRL)
    assert ready.applied.current.scale_percent == SCALES[3]
    qtbot.keyClick(dialog, Qt.Key.Key_0, CTRL)
    assert ready.applied.current.scale_percent == 100
    dialog.close()


@pytest.mark.slow
def test_texts_icons_and_plots_have_the_size(ready: MainWindow) -> None:
    ready.latency.add_events(all_timings())
    ready.latency.redraw()

    def sizes() -> dict[str, float]:
        QApplication.processEvents()
        (figure,) = [
            label
            for label in ready.latency.tiles[0].findChildren(QLabel)
            if label.property("role") == "figure"
        ]
        curve = ready.latency.plots["rtf"].curves[ready.latency.plots["rtf"].style_of_plot.curves[0].metric]
        return {
            "figure": figure.fontMetrics().height(),
            "start": ready.controls.start_button.fontMetrics().height(),
            "icon": ready.header.theme_button.iconSize().width(),
            "meter": ready.controls.input_meter.height(),
            "waterfall": ready.latency.waterfall.minimumHeight(),
            "symbol": curve.line.opts["symbolSize"],
        }

    before = sizes()
    ready.applied.apply(dataclasses.replace(ready.applied.current, scale_percent=200))
    after = sizes()
    assert {name: round(after[name] / size, 1) for name, size in before.items()} == pytest.approx(
        dict.fromkeys(before, 2.0), abs=0.11
    )


def test_content_that_is_larger_than_the_screen_is_scrolled(qtbot: QtBot) -> None:
    content, part = QWidget(), QWidget()
    layout = QVBoxLayout(content)
    layout.setContentsMargins(0, 0, 0, 0)
    layout.addWidget(part)
    area = FittingArea(content)
    qtbot.addWidget(area)
    part.setMinimumSize(300, 200)
    assert area.minimumSizeHint() == part.minimumSize()
    part.setMinimumSize(100_000, 200)
    assert area.minimumSizeHint().width() < area.screen().availableSize().width()
    area.resize(area.minimumSizeHint())
    area.show()
    QApplication.processEvents()
    assert area.horizontalScrollBar().maximum() > 0
