"""The pages that only edit preferences: what is shown is returned, and what cannot be used is refused."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDialog, QLabel, QPushButton, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from app import paths
from app.dialog import smart_turn
from app.gui.common.preferences import Preferences
from app.gui.common.translation import Translation
from app.gui.settings.preference_pages import CodecPage, ConversationPage, TalkPage


def conversation_page(qtbot: QtBot) -> ConversationPage:
    page = ConversationPage()
    qtbot.addWidget(page)
    return page


def test_no_seed_stands_for_that_of_the_bundle(qtbot: QtBot) -> None:
    page = conversation_page(qtbot)
    page.show_preferences(Preferences(seed=0))
    assert (page.seed.text(), page.edited(Preferences()).seed) == ("0", 0)
    page.show_preferences(Preferences())
    assert (page.seed.text(), page.edited(Preferences(seed=0)).seed) == ("bundle default", None)


def test_without_smart_turn_the_page_says_so(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    def helps(page: ConversationPage) -> str:
        return " ".join(label.text() for label in page.findChildren(QLabel))

    assert "sounds finished" in helps(conversation_page(qtbot))
    monkeypatch.setattr(smart_turn, "find_model", lambda package, file: None)
    assert "Smart Turn is not installed" in helps(conversation_page(qtbot))


@pytest.fixture
def talk_page(qtbot: QtBot) -> TalkPage:
    window = QWidget()
    qtbot.addWidget(window)
    QShortcut(QKeySequence("Ctrl+M"), window)
    talk_page = TalkPage(window)
    qtbot.addWidget(talk_page)
    return talk_page


def test_what_is_shown_is_returned(talk_page: TalkPage) -> None:
    chosen = Preferences(
        input_mode="both", hotkey="Ctrl+Alt+Space", mute_hotkey="Ctrl+Alt+U", window_hotkey="F12"
    )
    talk_page.show_preferences(chosen)
    assert talk_page.edited(Preferences()) == chosen
    assert not talk_page.talk_key.refusal.isVisibleTo(talk_page)
    talk_page.show_preferences(Preferences())
    assert talk_page.edited(chosen) == Preferences()


@pytest.mark.parametrize(
    ("keys", "reason"), [("A", "would type or edit"), ("Space", "would type"), ("Ctrl+M", "already in use")]
)
def test_a_combination_that_cannot_be_used_is_refused(talk_page: TalkPage, keys: str, reason: str) -> None:
    talk_page.show_preferences(Preferences(input_mode="push", hotkey="F9"))
    talk_page.talk_key.keys.setKeySequence(QKeySequence(keys))
    assert talk_page.talk_key.text == ""
    assert talk_page.talk_key.refusal.isVisibleTo(talk_page)
    assert talk_page.talk_key.refusal.text().startswith(f"{keys} ")
    assert reason in talk_page.talk_key.refusal.text()
    talk_page.talk_key.keys.setKeySequence(QKeySequence("Ctrl+Alt+M"))
    assert talk_page.talk_key.text == "Ctrl+Alt+M"
    assert not talk_page.talk_key.refusal.isVisibleTo(talk_page)


def test_two_hotkeys_are_not_the_same(talk_page: TalkPage) -> None:
    talk_page.show_preferences(Preferences(mute_hotkey="F9", window_hotkey="F12"))
    talk_page.window_key.keys.setKeySequence(QKeySequence("F9"))
    assert talk_page.window_key.text == ""
    assert talk_page.window_key.refusal.text().startswith("F9 is another hotkey already")
    assert talk_page.mute_key.text == "F9"


@pytest.mark.parametrize(
    ("key", "result"), [(Qt.Key.Key_Escape, "rejected"), (Qt.Key.Key_Return, "accepted")]
)
def test_the_keys_of_the_dialog_are_no_hotkeys(
    qtbot: QtBot, talk_page: TalkPage, key: Qt.Key, result: str
) -> None:
    dialog = QDialog()
    qtbot.addWidget(dialog)
    layout = QVBoxLayout(dialog)
    layout.addWidget(talk_page)
    ok = QPushButton("OK")
    ok.setDefault(True)
    ok.clicked.connect(dialog.accept)
    layout.addWidget(ok)
    dialog.show()
    talk_page.talk_key.keys.setFocus()
    with qtbot.waitSignal(getattr(dialog, result)):
        QTest.keyClick(talk_page.talk_key.keys, key)
    assert talk_page.talk_key.text == ""
    talk_page.setParent(None)


def codec_page(qtbot: QtBot) -> CodecPage:
    page = CodecPage()
    qtbot.addWidget(page)
    page.show_preferences(Preferences())
    return page


def test_no_number_of_steps_stands_for_that_of_the_bundle(qtbot: QtBot) -> None:
    page = codec_page(qtbot)
    assert page.flow_steps.text() == "bundle default"
    assert page.edited(Preferences(flow_steps=4)) == Preferences()


def test_exact_encoding_is_explained_in_both_languages(qtbot: QtBot, qapp: QApplication) -> None:
    translator = Translation(qapp, paths.assets_dir() / "translations")
    for language, text, hint in (
        ("en", "Encode my speech again at the end of my turn", "replies start a little later"),
        ("zh_CN", "我说完后重新编码我的语音", "回答稍晚"),
    ):
        translator.switch_to(language)
        try:
            page = codec_page(qtbot)
        finally:
            translator.remove_translators()
        assert page.exact_encoding.text() == text
        assert hint in page.exact_encoding.accessibleDescription()
