"""What a bundle says about itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.card import ModelCard, parse_card
from engine_runtime.bundle.manifest import Manifest, Table
from engine_runtime.bundle.released.description import describe_card
from engine_runtime.errors import BundleError, LanguageError

SUMMARY = {"en": "It counts.", "zh": "它会数数。"}


def parse(content: dict[str, Any]) -> ModelCard:
    return parse_card(Table(content, "card", Manifest({"card": content}, "bundle.toml")))


def test_a_card_is_for_readers_of_two_languages() -> None:
    card = parse({"languages": ["en"], "examples": ["Count to five."], "summary": SUMMARY})
    assert card == ModelCard(("en",), ("Count to five.",), SUMMARY)
    assert card.summary_for("zh_CN") == "它会数数。"
    assert card.summary_for("en") == card.summary_for("de_DE") == "It counts."
    assert not card.follows_instructions
    followed = {"languages": ["en"], "examples": ["Hi."], "summary": SUMMARY, "follows_instructions": True}
    assert parse(followed).follows_instructions
    assert card.speaks("en")
    assert not card.speaks("zh_CN")


def test_nothing_is_claimed_of_a_bundle_without_a_card(random_bundle: Path) -> None:
    card = Bundle.open(random_bundle).card
    assert card == ModelCard()
    assert card.summary_for("en") == ""
    assert card.speaks("zh_CN")


def test_the_released_model_speaks_both_languages() -> None:
    card = parse(describe_card())
    assert card.speaks("zh_CN")
    assert card.speaks("en")
    assert card.examples


ENGLISH, BOTH, JAPANESE, MACEDONIAN, UNKNOWN = ("en",), ("zh", "en"), ("ja",), ("mk",), ()


@pytest.mark.parametrize(
    ("languages", "text"),
    [
        (ENGLISH, "What is 3 + 4?"),
        (ENGLISH, "How do you spell café?"),
        (ENGLISH, "what does 你好 mean"),
        (ENGLISH, "is π bigger than 3"),
        (ENGLISH, "３＋４？ ✨"),
        (BOTH, "你好，3 加 4 等于几？"),
        (BOTH, "ＯＫ, tell me a story"),
        (JAPANESE, "こんにちは 世界"),
        (ENGLISH, "5 µm"),
        (ENGLISH, "β decay"),
        (BOTH, "π等于多少？"),
        (MACEDONIAN, "Здраво"),
        (UNKNOWN, "Привет"),
    ],
)
def test_text_in_a_known_script_is_left_to_the_model(languages: tuple[str, ...], text: str) -> None:
    ModelCard(languages).require_known_script(text)


@pytest.mark.parametrize(
    ("languages", "text", "known"),
    [
        (ENGLISH, "你好", "English"),
        (ENGLISH, "讲个joke吧", "English"),
        (ENGLISH, "你好 nano", "English"),
        (ENGLISH, "３加４", "English"),
        (ENGLISH, "привет", "English"),
        (ENGLISH, "こんにちは", "English"),
        (ENGLISH, "τι κάνεις ο Νίκος", "English"),
        (BOTH, "привет", "Chinese and English"),
        (BOTH, "안녕하세요", "Chinese and English"),
    ],
)
def test_text_in_another_script_is_refused_with_the_languages_that_are_known(
    languages: tuple[str, ...], text: str, known: str
) -> None:
    with pytest.raises(LanguageError) as refusal:
        ModelCard(languages).require_known_script(text)
    assert refusal.value.what_is_wrong == f"This model knows only {known}."
    assert refusal.value.what_to_do == f"Ask in {known}, or choose another model."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"languages": []}, "languages"),
        ({"examples": [1]}, "examples"),
        ({"summary": "It counts."}, "summary = 'It counts.', which must be a table"),
        ({"examples": ["x" * 501]}, "has a text of 501 characters"),
        ({"summary": {"en": ""}}, "has a text of 0 characters"),
    ],
)
def test_a_defect_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        parse({"languages": ["en"], "examples": ["Count."], "summary": SUMMARY} | change)
