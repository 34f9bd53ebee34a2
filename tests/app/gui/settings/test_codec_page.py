"""The settings page of the codec."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app import paths
from app.gui.common.preferences import Preferences
from app.gui.common.translation import Translation
from app.gui.settings.preference_pages import CodecPage


def make(qtbot: QtBot) -> CodecPage:
    page = CodecPage()
    qtbot.addWidget(page)
    page.show_preferences(Preferences())
    return page


def test_no_number_of_steps_stands_for_that_of_the_bundle(qtbot: QtBot) -> None:
    page = make(qtbot)
    assert page.flow_steps.text() == "as the bundle says"
    assert page.edited(Preferences(flow_steps=4)) == Preferences()


def test_exact_encoding_is_explained_in_both_languages(qtbot: QtBot, qapp: QApplication) -> None:
    translator = Translation(qapp, paths.assets_dir() / "translations")
    for language, text, hint in (
        ("en", "Encode my speech again at the end of my turn", "replies start a little later"),
        ("zh_CN", "我说完后重新编码我的语音", "回答稍晚"),
    ):
        translator.switch_to(language)
        try:
            page = make(qtbot)
        finally:
            translator.remove_translators()
        assert page.exact_encoding.text() == text
        assert hint in page.exact_encoding.accessibleDescription()
