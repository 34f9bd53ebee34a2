"""Message boxes: a confirmation before something irreversible, with two buttons named after their actions, a
warning, and the description of the program. Only `tell_about` takes markup. GUI thread."""

from __future__ import annotations

from PySide6.QtWidgets import QMessageBox, QWidget

from app.gui.plain_text import clean, literal


def is_confirmed(parent: QWidget, question: str, consequence: str, action: str) -> bool:
    """Ask; whether the button with the text `action` was pressed. Escape and closing mean no."""
    box = QMessageBox(parent)
    box.setWindowTitle(clean(question))
    box.setText(literal(question))
    box.setInformativeText(literal(consequence))
    confirm = box.addButton(action, QMessageBox.ButtonRole.AcceptRole)
    box.setDefaultButton(box.addButton(QMessageBox.StandardButton.Cancel))
    box.exec()
    pressed = box.clickedButton()
    box.deleteLater()
    return pressed is confirm


def warn(parent: QWidget, title: str, text: str) -> None:
    """Show a failure, and wait until it is read."""
    QMessageBox.warning(parent, clean(title), literal(text))


def tell_about(parent: QWidget, title: str, markup: str) -> None:
    """Show what the program is; `markup` has only the program's own words."""
    QMessageBox.about(parent, title, markup)
