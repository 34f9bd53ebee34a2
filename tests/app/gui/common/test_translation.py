"""Translations: complete, up to date, and switched live."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QApplication

from app import gui, paths
from app.gui.common import translation
from app.gui.common.translation import Translation

TS = paths.assets_dir() / "translations" / "moss_voice_zh_CN.ts"
FILES = (TS, TS.with_name("errors_zh_CN.ts"))


def sources(file: Path) -> set[tuple[str, str]]:
    root = ElementTree.parse(file).getroot()
    return {
        (context.findtext("name", ""), message.findtext("source", ""))
        for context in root.iter("context")
        for message in context.iter("message")
    }


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_every_text_is_translated(file: Path) -> None:
    for message in ElementTree.parse(file).getroot().iter("message"):
        text = message.find("translation")
        assert text is not None
        assert text.text, message.findtext("source")
        assert text.get("type") is None, message.findtext("source")


def test_texts_fit_every_number_and_have_no_code() -> None:
    """ "1 rows" is wrong, and a backtick is shown as one."""
    nouns = "conversations|devices|entries|files|models|replies|rows|turns were|values|were used"
    for _, source in sources(TS):
        assert not re.search(rf"%\d ({nouns})\b", source), source
        assert "`" not in source, source


@pytest.mark.parametrize("file", FILES)
def test_each_text_is_translated_once(file: Path) -> None:
    for context in ElementTree.parse(file).getroot().iter("context"):
        found = [
            (message.findtext("source"), message.findtext("comment")) for message in context.iter("message")
        ]
        assert len(found) == len(set(found)), context.findtext("name")


def test_placeholders_survive_translation() -> None:
    for message in ElementTree.parse(TS).getroot().iter("message"):
        source, text = message.findtext("source", ""), message.findtext("translation", "")
        assert sorted(re.findall(r"%\d", source)) == sorted(re.findall(r"%\d", text)), source


@pytest.mark.slow
def test_the_translation_knows_every_text_of_the_code(tmp_path: Path) -> None:
    tool = shutil.which("pyside6-lupdate") or str(Path(sys.executable).parent / "pyside6-lupdate")
    if not Path(tool).is_file():
        pytest.skip("pyside6-lupdate is not installed")
    fresh = tmp_path / "fresh.ts"
    files = [str(file) for file in sorted(Path(gui.__file__).parent.rglob("*.py"))]
    subprocess.run([tool, *files, "-ts", str(fresh)], check=True, capture_output=True)
    assert sources(fresh) == sources(TS)


@pytest.mark.parametrize("file", FILES)
def test_the_compiled_file_is_that_of_the_texts(qapp: QApplication, file: Path) -> None:
    translator = Translation(qapp, TS.parent)
    translator.switch_to("zh_CN")
    try:
        for context in ElementTree.parse(file).getroot().iter("context"):
            for message in context.iter("message"):
                source, comment = message.findtext("source", ""), message.findtext("comment")
                translated = QCoreApplication.translate(context.findtext("name", ""), source, comment)
                assert translated == message.findtext("translation", "")
    finally:
        translator.remove_translators()


def test_english_needs_no_file(qapp: QApplication, tmp_path: Path) -> None:
    translator = Translation(qapp, tmp_path)
    assert translator.switch_to("en") == "en"
    assert QCoreApplication.translate("ControlBar", "Start") == "Start"


def test_choices_are_resolved() -> None:
    assert translation.resolve("en") == "en"
    assert translation.resolve("zh_CN") == "zh_CN"
    assert translation.resolve("system") in ("en", "zh_CN")
