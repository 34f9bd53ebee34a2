"""The list of kept conversations, on real folders that a session recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import soundfile
from PySide6.QtCore import Qt
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QFileDialog, QLineEdit
from pytestqt.qtbot import QtBot

from app.gui.common.icons import Icons
from app.gui.common.themes import Theme
from app.gui.conversation.history_dialog import HistoryDialog
from app.session.commands import AskText, NewConversation, PlayRecording
from app.session.conversation_folder import list_conversations
from app.session.events import PlaybackFinished, RecordingStopped
from app.session.session_settings import Recording, SessionSettings
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.tools.session_driver import running
from tests.tools.widgets import question_of, reply_of


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two conversations of one turn each."""
    root = tmp_path_factory.mktemp("kept")
    settings = SessionSettings(recording=Recording(root))
    with running(ScriptedEngine(Script(chunks=1)), settings) as driver:
        for count, question in enumerate(("what is two plus three", "who are you"), 1):
            driver.session.send(AskText(question))
            driver.await_event(PlaybackFinished, count)
            driver.session.send(NewConversation())
    return root


@pytest.fixture
def root(recorded: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    import shutil

    shutil.copytree(recorded, tmp_path / "kept")
    return tmp_path / "kept"


@pytest.fixture
def dialog(qtbot: QtBot, root: Path, theme: Theme, icons: Icons) -> Iterator[HistoryDialog]:
    dialog = HistoryDialog(root, theme, icons)
    dialog.show()
    yield dialog
    dialog.deleteLater()


def choose(dialog: HistoryDialog, words: str) -> None:
    for row in range(dialog.list.topLevelItemCount()):
        item = dialog.list.topLevelItem(row)
        if item is not None and item.text(0) == words:
            dialog.list.setCurrentItem(item)
            return
    raise AssertionError(f"no conversation begins with {words}")


@pytest.mark.slow
def test_conversations_are_listed_and_shown(dialog: HistoryDialog, root: Path) -> None:
    assert dialog.list.topLevelItemCount() == 2
    choose(dialog, "who are you")
    user, reply = question_of(dialog.transcript, 2), reply_of(dialog.transcript, 2)
    assert user.body.text() == "who are you"
    assert reply.body.text().strip() == "word0"
    assert str(root) in dialog.summary.text()


@pytest.mark.slow
def test_a_turn_is_played_from_the_record(qtbot: QtBot, dialog: HistoryDialog) -> None:
    choose(dialog, "what is two plus three")
    reply = reply_of(dialog.transcript, 1)
    with qtbot.waitSignal(dialog.play_wanted) as caught:
        reply.again.click()
    (command,) = caught.args
    assert isinstance(command, PlayRecording)
    assert command.path.is_file()
    sound, rate = soundfile.read(command.path)
    first, last = round(command.start_s * rate), round((command.start_s + command.seconds) * rate)
    assert sound[first : last + rate // 10, 1].any()
    assert not sound[last + rate // 10 :, 1].any()


@pytest.mark.slow
def test_text_and_sound_are_exported(
    qtbot: QtBot, dialog: HistoryDialog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_saved(file: Path) -> bool:
        return dialog.notice.text() == f"Saved as {file}."

    choose(dialog, "who are you")
    exports = {
        "c.md": dialog.text_button,
        "c.txt": dialog.text_button,
        "c.flac": dialog.sound_button,
        "c.wav": dialog.sound_button,
    }
    for name, button in exports.items():
        monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_, name=name: (str(tmp_path / name), ""))
        button.click()
        qtbot.waitUntil(partial(is_saved, tmp_path / name))
    heading, date, question, reply = (tmp_path / "c.md").read_text().split("\n\n")
    assert (heading, reply) == ("# who are you", "**MOSS:** word0\n")
    assert dialog.chosen is not None
    assert date == f"{dialog.chosen.started:%Y-%m-%d %H:%M}"
    assert re.fullmatch(r"\*\*You, 0:\d\d:\*\* who are you", question)
    assert (tmp_path / "c.txt").read_text() == "You: who are you\n\nMOSS: word0\n"
    for name in ("c.wav", "c.flac"):
        assert soundfile.info(tmp_path / name).channels == 2
        assert soundfile.info(tmp_path / name).format == name[2:].upper()


@pytest.mark.slow
def test_deleting_needs_a_yes(
    qtbot: QtBot, dialog: HistoryDialog, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, asked = False, []
    monkeypatch.setattr(
        "app.gui.conversation.history_dialog.is_confirmed", lambda _, *words: asked.append(words) or answer
    )
    choose(dialog, "who are you")
    dialog.delete_button.click()
    assert len(list_conversations(root)) == 2
    assert asked == [("Delete this conversation?", "This cannot be undone.", "Delete")]
    answer = True
    dialog.delete_button.click()
    qtbot.waitUntil(lambda: dialog.list.topLevelItemCount() == 1)
    assert [found.first_words for found in list_conversations(root)] == ["what is two plus three"]
    dialog.delete_all_button.click()
    qtbot.waitUntil(lambda: dialog.list.topLevelItemCount() == 0)
    assert list_conversations(root) == []
    assert dialog.summary.text().startswith(f"No conversations in {root}.")
    assert not dialog.continue_button.isEnabled()


@pytest.mark.slow
@pytest.mark.parametrize("is_heard", [True, False], ids=["being written", "continued"])
def test_the_present_conversation_ends_before_it_is_deleted(
    qtbot: QtBot,
    root: Path,
    theme: Theme,
    icons: Icons,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_heard: bool,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "app.gui.conversation.history_dialog.is_confirmed",
        lambda _, _question, consequence, _action: asked.append(consequence) or True,
    )
    with running(ScriptedEngine(Script(chunks=1)), SessionSettings(recording=Recording(root))) as driver:
        if is_heard:
            driver.session.send(AskText("the present one"))
            driver.await_event(PlaybackFinished)
        folder = list_conversations(root)[0].folder
        dialog = HistoryDialog(root, theme, icons, present=None if is_heard else folder)
        qtbot.addWidget(dialog)
        dialog.new_wanted.connect(lambda: driver.session.send(NewConversation()))
        dialog.show()
        with qtbot.waitSignal(dialog.new_wanted):
            dialog.delete_button.click()
        qtbot.waitUntil(lambda: not folder.exists(), timeout=60_000)
        driver.session.send(AskText("the next one"))
        driver.await_event(PlaybackFinished, 1 + is_heard)
        assert driver.of(RecordingStopped) == []
    assert len(asked) == 1
    assert "present conversation" in asked[0]
    assert "the next one" in {found.first_words for found in list_conversations(root)}


@pytest.mark.slow
def test_one_can_be_continued(qtbot: QtBot, dialog: HistoryDialog, root: Path) -> None:
    choose(dialog, "who are you")
    with qtbot.waitSignal(dialog.continue_wanted) as caught:
        dialog.continue_button.click()
    assert caught.args[0].parent == root
    assert not dialog.isVisible()


@pytest.mark.slow
def test_a_player_that_does_not_open_is_reported(
    dialog: HistoryDialog, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("app.gui.common.question.warn", lambda _parent, _title, text: warnings.append(text))
    opened: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url.toLocalFile()) or True)
    choose(dialog, "who are you")
    assert dialog.chosen is not None
    sound = dialog.chosen.folder / "conversation.wav"
    dialog.play_button.click()
    assert (opened, warnings) == ([str(sound)], [])
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda _: False)
    dialog.play_button.click()
    assert "no program" in warnings[-1]
    sound.unlink()
    dialog.play_button.click()
    assert "no longer exists" in warnings[-1]


@pytest.mark.slow
def test_a_title_can_be_given_and_taken_back(qtbot: QtBot, dialog: HistoryDialog, root: Path) -> None:
    choose(dialog, "who are you")
    dialog.rename_button.click()
    editor = dialog.list.findChild(QLineEdit)
    assert isinstance(editor, QLineEdit)
    editor.setText("  About the\tassistant ")
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: dialog.notice.text() == "Renamed.")
    assert {found.title for found in list_conversations(root)} == {
        "About the assistant",
        "what is two plus three",
    }
    choose(dialog, "About the assistant")
    item = dialog.list.currentItem()
    assert item is not None
    item.setText(0, "")
    assert item.text(0) == "who are you"
    assert {found.title for found in list_conversations(root)} == {"who are you", "what is two plus three"}
    item.setText(1, "a date cannot be edited")
    assert len(list(root.glob("*/title.json"))) == 0


@pytest.mark.slow
def test_a_title_that_cannot_be_kept_is_reported(
    dialog: HistoryDialog, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(
        "app.gui.conversation.history_dialog.warn", lambda _parent, _title, text: warnings.append(text)
    )
    choose(dialog, "who are you")
    item, found = dialog.list.currentItem(), dialog.chosen
    assert item is not None
    assert found is not None
    (found.folder / "conversation.json").unlink()
    item.setText(0, "another")
    assert "not a recorded conversation" in warnings[-1]
    assert item.text(0) == "who are you"


@pytest.mark.slow
def test_titles_and_texts_are_searched(qtbot: QtBot, dialog: HistoryDialog) -> None:
    def shown() -> set[str]:
        items = map(dialog.list.topLevelItem, range(dialog.list.topLevelItemCount()))
        return {item.text(0) for item in items if item is not None and not item.isHidden()}

    everything = {"who are you", "what is two plus three"}
    assert shown() == everything
    dialog.search.setText("TWO plus")
    qtbot.waitUntil(lambda: shown() == {"what is two plus three"})
    dialog.search.setText("word0")  # of the replies
    qtbot.waitUntil(lambda: shown() == everything)
    dialog.search.setText("word0 who")
    qtbot.waitUntil(lambda: shown() == {"who are you"})
    assert dialog.chosen is not None
    assert dialog.chosen.first_words == "who are you"
    assert dialog.nothing_found.isHidden()
    dialog.search.setText("nothing of it")
    qtbot.waitUntil(lambda: shown() == set())
    assert not dialog.nothing_found.isHidden()
    assert dialog.chosen is None
    assert not dialog.delete_button.isEnabled()
    assert dialog.transcript.turn_count == 0
    dialog.search.clear()
    qtbot.waitUntil(lambda: shown() == everything)
    assert dialog.chosen is not None


@pytest.mark.slow
def test_a_search_keeps_the_conversation_on_show_if_it_has_the_words(
    qtbot: QtBot, dialog: HistoryDialog
) -> None:
    choose(dialog, "what is two plus three")
    dialog.search.setText("word0")
    qtbot.waitUntil(lambda: not dialog.nothing_found.isVisible() and dialog.is_searched)
    assert dialog.chosen is not None
    assert dialog.chosen.first_words == "what is two plus three"
