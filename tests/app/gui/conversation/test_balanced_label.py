"""The welcome label has lines of about the same length."""

from __future__ import annotations

import pytest
from PySide6.QtGui import QTextLayout, QTextOption
from pytestqt.qtbot import QtBot

from app.gui.conversation.balanced_label import BalancedLabel

CHINESE = "按“开始”说话，在下方输入问题，或试试示例。一切都留在这台电脑上。"
ENGLISH = "Press Start and speak, type a question below, or try one of the samples."


def _line_widths(label: BalancedLabel, width: float) -> list[float]:
    """The text wrapped at a width in pixels."""
    layout = QTextLayout(label.text(), label.font())
    layout.setTextOption(QTextOption())
    layout.beginLayout()
    widths = []
    while (line := layout.createLine()).isValid():
        line.setLineWidth(width)
        widths.append(line.naturalTextWidth())
    layout.endLayout()
    return widths


@pytest.mark.parametrize("text", [CHINESE, ENGLISH])
def test_the_last_of_two_lines_is_about_as_long_as_the_first(qtbot: QtBot, text: str) -> None:
    label = BalancedLabel()
    qtbot.addWidget(label)
    label.setText(text)
    label.show()
    full = label.fontMetrics().horizontalAdvance(text)
    shortest = 1.0
    for width in range(full * 6 // 10, full, 7):
        label.resize(width, 200)
        first, last = _line_widths(label, label.contentsRect().width())
        assert last > 0.7 * first
        shortest = min(shortest, _line_widths(label, width)[-1] / first)
    assert shortest < 0.5, "without balancing, the last line is short at some width"


def test_a_line_that_fits_stays_one_line(qtbot: QtBot) -> None:
    label = BalancedLabel()
    qtbot.addWidget(label)
    label.setText("short")
    label.resize(400, 50)
    label.show()
    assert len(_line_widths(label, label.contentsRect().width())) == 1


def test_the_height_does_not_depend_on_the_present_width(qtbot: QtBot) -> None:
    """A scroll area that tries two widths would change between them for ever."""
    label, fresh = BalancedLabel(), BalancedLabel()
    for made in (label, fresh):
        qtbot.addWidget(made)
    label.setText(ENGLISH)
    fresh.setText(ENGLISH)
    label.show()
    for present in (180, 260, 345, 500):
        label.resize(present, 200)
        heights = [label.heightForWidth(width) for width in range(150, 520, 10)]
        assert heights == sorted(heights, reverse=True)
        assert heights == [fresh.heightForWidth(width) for width in range(150, 520, 10)]
        assert label.minimumSizeHint().width() == fresh.minimumSizeHint().width()
