from __future__ import annotations

from pytestqt.qtbot import QtBot

from app.gui.settings.settings_page import FileField


def test_a_path_is_typed_or_browsed_for(qtbot: QtBot) -> None:
    asked: list[str] = []
    chosen = ["/b.wav", ""]

    def browse(start: str) -> str:
        asked.append(start)
        return chosen.pop(0)

    field = FileField("Recording", "none", browse)
    qtbot.addWidget(field)
    with qtbot.waitSignal(field.changed):
        qtbot.keyClicks(field.line, " /a.wav ")
    assert field.path == "/a.wav"
    with qtbot.waitSignal(field.changed):
        field.button.click()
    with qtbot.assertNotEmitted(field.changed):
        field.button.click()  # nothing was chosen
    assert asked == ["/a.wav", "/b.wav"]
    assert field.path == "/b.wav"


def test_a_line_is_there_only_when_something_is_said(qtbot: QtBot) -> None:
    field = FileField("Recording", "none", lambda start: "")
    qtbot.addWidget(field)
    field.show()
    assert not field.note.isVisible()
    field.show_note("It is silent.", is_usable=False)
    assert field.note.isVisible()
    assert (field.note.text(), field.is_usable) == ("It is silent.", False)
    field.show_note("", is_usable=True)
    assert not field.note.isVisible()
    assert field.is_usable
