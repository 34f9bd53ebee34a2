"""The line on speculative replies."""

from __future__ import annotations

from pytestqt.qtbot import QtBot

from app.gui.latency.speculation_line import SpeculationLine
from app.session.events import SpeculationMeasured
from app.session.speculation_policy import SpeculationStats


def test_it_says_what_was_used_and_what_was_discarded(qtbot: QtBot) -> None:
    line = SpeculationLine()
    qtbot.addWidget(line)
    assert line.text() == ""
    line.show_speculation(SpeculationMeasured(SpeculationStats(None, 12, 9, 3, 245.3, 1.62, 40, 31.0)))
    assert "12, used: 9" in line.text()
    assert "245 ms of engine time, 1.6 s of speech" in line.text()
    assert " off" not in line.text()


def test_it_says_why_there_are_none(qtbot: QtBot) -> None:
    line = SpeculationLine()
    qtbot.addWidget(line)
    line.show_speculation(SpeculationMeasured(SpeculationStats("slow_engine")))
    assert line.text() == "Speculative replies are off: the engine is slower than real time."
    line.show_speculation(SpeculationMeasured(SpeculationStats("setting")))
    assert line.text() == ""
    line.show_speculation(
        SpeculationMeasured(SpeculationStats("slow_roll_back", 4, 1, 3, 900.0, 0.0, 9, 150.0))
    )
    assert "discarded: 900 ms" in line.text().lower()
    assert line.text().endswith("Speculative replies are off: the engine takes too long to be ready again.")
