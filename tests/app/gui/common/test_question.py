"""The question before something that cannot be taken back."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QApplication, QFileDialog, QMessageBox, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from app.gui.common.question import asked_file, is_confirmed


@pytest.mark.parametrize(
    ("press", "expected"), [("Forget", True), ("Cancel", False), ("Escape", False), ("Return", False)]
)
def test_only_the_button_that_says_so_confirms(
    qtbot: QtBot, host: QWidget, press: str, expected: bool
) -> None:
    def answer() -> None:
        box = QApplication.activeModalWidget()
        assert isinstance(box, QMessageBox)
        assert (box.text(), box.informativeText()) == ("Forget it?", "It is gone then.")
        buttons = {button.text().replace("&", ""): button for button in box.findChildren(QPushButton)}
        if press in buttons:
            qtbot.mouseClick(buttons[press], Qt.MouseButton.LeftButton)
        else:
            qtbot.keyClick(box, getattr(Qt.Key, f"Key_{press}"))

    QTimer.singleShot(0, answer)
    assert is_confirmed(host, "Forget it?", "It is gone then.", "Forget") is expected


@pytest.mark.parametrize(
    ("chosen", "kind", "expected"),
    [
        ("talk", "Markdown (*.md)", "talk.md"),
        ("talk", "Text (*.txt)", "talk.txt"),
        ("talk", "", "talk.md"),
        ("talk.txt", "Markdown (*.md)", "talk.txt"),
        ("talk 26.11.2026", "Markdown (*.md)", "talk 26.11.2026.md"),
        ("", "", None),
    ],
)
def test_a_file_gets_the_ending_of_its_kind(
    host: QWidget,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chosen: str,
    kind: str,
    expected: str | None,
) -> None:
    given = str(tmp_path / chosen) if chosen else ""
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (given, kind))
    kinds = "Markdown (*.md);;Text (*.txt)"
    assert asked_file(host, "t", "n.md", kinds) == (tmp_path / expected if expected else None)


def test_a_file_that_got_its_ending_is_not_overwritten_without_a_question(
    host: QWidget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "talk.md").write_text("mine")
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(tmp_path / "talk"), ""))
    for answer, expected in ((False, None), (True, tmp_path / "talk.md")):
        monkeypatch.setattr("app.gui.common.question.is_confirmed", lambda *_, answer=answer: answer)
        assert asked_file(host, "t", "n.md", "Markdown (*.md)") == expected
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: ("/dev/null", ""))
    assert asked_file(host, "t", "n.md", "Markdown (*.md)") == Path("/dev/null")
