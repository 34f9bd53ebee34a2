"""The counters: a warning while they are new, then a number."""

from __future__ import annotations

from PySide6.QtCore import QTimer
from pytestqt.qtbot import QtBot

from app.gui.window.control_bar import ALERT_MS, CounterStrip
from app.session.events import Counters


def test_an_under_run_is_a_warning_for_a_while_and_stays_in_the_count(qtbot: QtBot) -> None:
    strip = CounterStrip()
    qtbot.addWidget(strip)
    underruns, dropped = strip.findChildren(QTimer)
    assert underruns.interval() == dropped.interval() == ALERT_MS
    strip.show_counters(Counters(1, 0))
    assert (strip.underruns.text(), strip.underruns.property("alert")) == ("⚠ under-runs 1", True)
    assert not strip.dropped.property("alert")
    underruns.setInterval(1)  # what is left of the minute
    qtbot.waitUntil(lambda: not underruns.isActive())
    assert (strip.underruns.text(), strip.underruns.property("alert")) == ("under-runs 1", False)
    underruns.setInterval(ALERT_MS)
    strip.show_counters(Counters(1, 480))
    assert (strip.underruns.text(), strip.dropped.text()) == ("under-runs 1", "⚠ dropped input 480")
    strip.show_counters(Counters(2, 480))
    assert strip.underruns.text() == "⚠ under-runs 2"
    strip.count_from_zero()
    assert (strip.underruns.text(), strip.dropped.text()) == ("under-runs 0", "dropped input 0")
    assert not strip.dropped.property("alert")
