"""A confirmation before something irreversible: two buttons named after their actions. GUI thread."""

from __future__ import annotations

from PySide6.QtWidgets import QMessageBox, QWidget


def is_confirmed(parent: QWidget, question: str, consequence: str, action: str) -> bool:
    """Ask; whether the button with the text `action` was pressed. Escape and closing mean no."""
    box = QMessageBox(parent)
    box.setWindowTitle(question)
    box.setText(question)
    box.setInformativeText(consequence)
    confirm = box.addButton(action, QMessageBox.ButtonRole.AcceptRole)
    box.setDefaultButton(box.addButton(QMessageBox.StandardButton.Cancel))
    box.exec()
    pressed = box.clickedButton()
    box.deleteLater()
    return pressed is confirm
