"""Problems in the language of the window."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QApplication

from app import paths
from app.audio.devices import KINDS
from app.gpu_runtime.lock import GpuRuntimeError
from app.gui.common.error_texts import cause_in_words, in_words, remedy_in_words
from app.gui.common.translation import Translation
from engine_runtime.bundle.card import ModelCard
from engine_runtime.errors import LanguageError, Problem

LONG = Problem(
    "The question has {characters:,} characters; the limit is {limit:,}.",
    "Shorten it, or ask it in parts.",
    characters=10_000,
    limit=2_000,
)


@pytest.fixture
def _chinese(qapp: QApplication) -> Iterator[None]:
    translation = Translation(qapp, paths.assets_dir() / "translations")
    translation.switch_to("zh_CN")
    yield
    translation.remove_translators()


def test_english_stays_as_it_is() -> None:
    assert in_words(LONG) == str(LONG)


@pytest.mark.usefixtures("_chinese")
def test_values_are_put_into_the_translation() -> None:
    cause, remedy = cause_in_words(LONG), remedy_in_words(LONG)
    assert "10,000" in cause
    assert "2,000" in cause
    for text in (cause, remedy):
        assert re.search("[\u4e00-\u9fff]", text)
    assert in_words(LONG) == f"{cause} {remedy}"


@pytest.mark.usefixtures("_chinese")
def test_a_value_that_is_a_problem_is_translated() -> None:
    with pytest.raises(LanguageError) as refused:
        ModelCard(languages=("en",)).require_known_script("你好吗朋友")
    assert in_words(refused.value.problem) == "这个模型只懂英语。 请用英语提问，或选择另一个模型。"
    error = GpuRuntimeError("its test ended without a result")
    installed = Problem("The GPU runtime is installed, but {error}.", error=error)
    assert not re.search("its test", in_words(installed))


@pytest.mark.usefixtures("_chinese")
def test_unknown_templates_are_shown_as_they_are() -> None:
    assert in_words(Problem("Something else ({what}) failed.", what="{x}")) == "Something else ({x}) failed."


@pytest.mark.usefixtures("_chinese")
def test_a_value_may_hold_anything() -> None:
    text = in_words(
        Problem(
            "The {kind} {device!r} cannot be opened.",
            "Check that no other program uses it exclusively, or choose another one.",
            kind=KINDS["microphone"],
            device="Dr. Foo {Mic}",
        )
    )
    assert "'Dr. Foo {Mic}'" in text
    assert not re.search("microphone|Check", text)


def test_commands_are_shown_without_backticks() -> None:
    problem = Problem("It is {age}.", "The program runs; `moss-voice gpu install` repairs it.", age="`old`")
    assert in_words(problem) == "It is `old`. The program runs; “moss-voice gpu install” repairs it."
