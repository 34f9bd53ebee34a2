"""Names of devices, long and short."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.gui.common.device_box import DeviceBox


def test_a_long_name_is_elided_but_complete_in_the_list(qtbot: QtBot) -> None:
    name = "Family 17h/19h HD Audio Controller Analog Stereo: front microphone (hw:1,0)"
    box = DeviceBox()
    qtbot.addWidget(box)
    box.set_default("Default")
    box.addItem(name, name)
    box.resize(200, box.sizeHint().height())
    box.show()
    assert box.shown_text() == "Default"
    box.setCurrentIndex(1)
    QApplication.processEvents()
    shown = box.shown_text()
    assert shown.endswith("…")
    assert name.startswith(shown[:-1])
    assert box.fontMetrics().horizontalAdvance(shown) < 200
    assert (box.currentText(), box.currentData()) == (name, name)
    box.resize(900, box.height())
    assert box.shown_text() == name


def test_it_asks_for_the_room_of_a_usual_name_but_not_of_the_longest(qtbot: QtBot) -> None:
    box = DeviceBox()
    qtbot.addWidget(box)
    box.show_devices((), {}, "", "USB")
    box.set_default("Microphone")
    box.show()
    box.resize(box.sizeHint())
    assert box.shown_text() == "Microphone: USB"
    width = box.sizeHint().width()
    box.set_default("Microphone " * 20)
    assert width < box.sizeHint().width() < 3 * width
    assert box.minimumSizeHint().width() < width


def test_descriptions_are_shown_and_names_are_kept(qtbot: QtBot) -> None:
    box = DeviceBox()
    qtbot.addWidget(box)
    box.set_default("Default microphone")
    names = {"alsa_input.usb": "USB Headset", "alsa_input.pci": "Built-in Audio"}
    box.show_devices(names, names, "", "alsa_input.pci")
    items = [(box.itemText(index), box.itemData(index)) for index in range(box.count())]
    assert items == [
        ("Default microphone: Built-in Audio", ""),
        ("USB Headset", "alsa_input.usb"),
        ("Built-in Audio", "alsa_input.pci"),
    ]
    assert box.toolTip() == "In use: Built-in Audio"
    box.show_devices(names, names, "alsa_input.usb", "alsa_input.usb")
    assert (box.currentText(), box.currentData()) == ("USB Headset", "alsa_input.usb")
    assert box.itemText(0) == "Default microphone"


def test_a_chosen_device_that_is_absent_stays_chosen(qtbot: QtBot) -> None:
    box = DeviceBox()
    qtbot.addWidget(box)
    box.show_devices(("pulse",), {}, "alsa_input.usb", "pulse")
    assert (box.currentText(), box.currentData()) == ("alsa_input.usb (not connected)", "alsa_input.usb")
    assert box.toolTip() == "In use: pulse"
    monitor = {"speaker.monitor": "Monitor of Speaker"}  # known, though it is not offered
    box.show_devices(("pulse",), monitor, "speaker.monitor", "")
    assert box.currentText() == "Monitor of Speaker"
    assert box.toolTip() == ""
