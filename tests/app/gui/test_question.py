"""The question before something that cannot be taken back."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QApplication, QMessageBox, QPushButton
from pytestqt.qtbot import QtBot

from app.gui.main_window import MainWindow
from app.gui.question import is_confirmed


@pytest.mark.parametrize(("press", "expected"), [("Forget", True), ("Cancel", False), ("", False)])
def test_only_the_button_that_says_so_confirms(
    qtbot: QtBot, window: MainWindow, press: str, expected: bool
) -> None:
    def answer() -> None:
        box = QApplication.activeModalWidget()
        assert isinstance(box, QMessageBox)
        assert (box.text(), box.informativeText()) == ("Forget it?", "It is gone then.")
        buttons = {button.text().replace("&", ""): button for button in box.findChildren(QPushButton)}
        if press:
            qtbot.mouseClick(buttons[press], Qt.MouseButton.LeftButton)
        else:
            qtbot.keyClick(box, Qt.Key.Key_Escape)

    QTimer.singleShot(0, answer)
    assert is_confirmed(window, "Forget it?", "It is gone then.", "Forget") is expected
