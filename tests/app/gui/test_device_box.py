"""Names of devices, long and short."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.gui.device_box import DeviceBox


def test_a_long_name_is_elided_but_complete_in_the_list(qtbot: QtBot) -> None:
    name = "Family 17h/19h HD Audio Controller Analog Stereo: front microphone (hw:1,0)"
    box = DeviceBox()
    qtbot.addWidget(box)
    box.addItem("pulse", "pulse")
    box.addItem(name, name)
    box.resize(200, box.sizeHint().height())
    box.show()
    assert box.shown_text() == "pulse"
    box.setCurrentIndex(1)
    QApplication.processEvents()
    shown = box.shown_text()
    assert shown.endswith("…")
    assert name.startswith(shown[:-1])
    assert box.fontMetrics().horizontalAdvance(shown) < 200
    assert (box.currentText(), box.currentData()) == (name, name)
    box.resize(900, box.height())
    assert box.shown_text() == name
