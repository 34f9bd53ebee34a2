"""What is asked of the user, and shown until it is read: a confirmation before something irreversible, the
name of a file to write, a warning, the description of the program. Only `tell_about` takes markup. No other
module makes a QMessageBox (tests/test_architecture.py). GUI thread."""

from __future__ import annotations

import re
from pathlib import Path

from PySide6.QtCore import QCoreApplication, QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QFileDialog, QMessageBox, QWidget

from app.gui.common.plain_text import clean, literal


def is_confirmed(parent: QWidget, question: str, consequence: str, action: str) -> bool:
    """Ask; whether the button with the text `action` was pressed. Enter, Escape and closing mean no."""
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


def warn(parent: QWidget | None, title: str, text: str) -> None:
    """Show a failure, and wait until it is read."""
    QMessageBox.warning(parent, clean(title), literal(text))


def asked_file(parent: QWidget, title: str, name: str, kinds: str) -> Path | None:
    """Ask for a file to write, `name` in the home folder at first; None if the user does not want to. A name
    without an ending gets that of the chosen kind, such as "Text (*.txt)"."""
    chosen, kind = QFileDialog.getSaveFileName(parent, title, str(Path.home() / name), kinds)
    if not chosen:
        return None
    file, ending = Path(chosen), re.search(r"\*(\.\w+)", kind or kinds)
    is_other = file.exists() and not file.is_file()  # a device, or a folder, which is refused later
    if ending is None or is_other or re.fullmatch(r"\.[A-Za-z]\w{0,9}", file.suffix):
        return file
    file = file.with_name(file.name + ending[1])
    question = QCoreApplication.translate("Question", "Replace %1?").replace("%1", file.name)
    consequence = QCoreApplication.translate("Question", "A file with this name already exists.")
    replace = QCoreApplication.translate("Question", "Replace")
    return file if not file.exists() or is_confirmed(parent, question, consequence, replace) else None


def open_outside(parent: QWidget, title: str, path: Path) -> None:
    """Open a file or a folder in the program that the desktop has for it; a warning if there is none."""
    if not path.exists():
        text = QCoreApplication.translate("Question", "%1 no longer exists.")
    elif QDesktopServices.openUrl(QUrl.fromLocalFile(str(path))):
        return
    else:
        text = QCoreApplication.translate(
            "Question", "This desktop has no program that opens %1. Open it from another program."
        )
    warn(parent, title, text.replace("%1", str(path)))


def tell_about(parent: QWidget, title: str, markup: str) -> None:
    """Show what the program is; `markup` has only the program's own words."""
    QMessageBox.about(parent, title, markup)
