"""Errors in the language of the window."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication

from app import paths
from app.gui.common.error_texts import TEMPLATES, in_words
from app.gui.common.translation import Translation


@pytest.fixture
def _chinese(qapp: QApplication) -> Iterator[None]:
    translation = Translation(qapp, paths.assets_dir() / "translations")
    translation.switch_to("zh_CN")
    yield
    translation.remove_translators()


@pytest.fixture(scope="module")
def sources() -> str:
    """All code but the templates, with strings on several lines joined."""
    root = Path(paths.__file__).parent.parent
    files = [file for folder in ("app", "engine_runtime") for file in sorted((root / folder).rglob("*.py"))]
    code = "\n".join(file.read_text("utf-8") for file in files if file.name != "error_texts.py")
    return re.sub(r'"\s*\n\s*f?"', "", code)


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_are_those_of_the_code(template: str, sources: str) -> None:
    fixed = re.sub(r"The (microphone|loudspeaker) %1|No (microphone|loudspeaker) ", "", template)
    for part in re.split(r"%\d", fixed):
        assert part.strip(" .") in sources


def test_english_stays_as_it_is() -> None:
    for template in TEMPLATES:
        text = template.replace("%1", "3").replace("%2", "four")
        assert in_words(text) == re.sub("`([^`]+)`", "“\\1”", text)


@pytest.mark.usefixtures("_chinese")
def test_values_are_put_into_the_translation() -> None:
    text = in_words("The question has 10,000 characters, more than the 2,000 that fit.")
    assert re.search("[\u4e00-\u9fff]", text)
    assert "10,000" in text
    assert "2,000" in text


@pytest.mark.usefixtures("_chinese")
def test_sentences_are_translated_one_by_one() -> None:
    text = in_words(
        "The connection to a:1 was lost. It is being restored, and the conversation goes on then."
    )
    assert "a:1" in text
    assert not re.search("lost|restored", text)


@pytest.mark.usefixtures("_chinese")
def test_a_value_that_has_a_translation_is_translated() -> None:
    assert in_words("This model knows only English.") == "这个模型只懂英语。"
    exposed = "The GPU runtime is not used: other users of this computer could have changed its folder."
    assert in_words(exposed) == "未使用 GPU 运行时：这台电脑的其他用户可能更改过它的文件夹。"
    assert in_words("Ask in English, or choose another model.") == "请用英语提问，或选择另一个模型。"


@pytest.mark.usefixtures("_chinese")
def test_unknown_texts_are_shown_as_they_are() -> None:
    assert in_words("Something else (%1) failed.") == "Something else (%1) failed."


@pytest.mark.usefixtures("_chinese")
@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_is_translated(template: str) -> None:
    assert re.search("[\u4e00-\u9fff]", in_words(template.replace("%1", "3").replace("%2", "4")))


@pytest.mark.usefixtures("_chinese")
def test_a_value_with_the_end_of_a_sentence_is_translated() -> None:
    text = in_words(
        "The microphone 'Dr. Foo Mic' cannot be opened. Check that no other program uses it exclusively, or "
        "choose another one."
    )
    assert "'Dr. Foo Mic'" in text
    assert not re.search("microphone|Check", text)


def test_commands_are_shown_without_backticks() -> None:
    text = "The GPU runtime is not used: it is old. The program runs; `moss-voice gpu install` repairs it."
    assert in_words(text).endswith("The program runs; “moss-voice gpu install” repairs it.")
