"""What a bundle says about itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.card import ModelCard, parse_card
from engine_runtime.bundle.manifest import Manifest, Table
from engine_runtime.bundle.released.description import describe_card
from engine_runtime.errors import BundleError

SUMMARY = {"en": "It counts.", "zh": "它会数数。"}


def parse(content: dict[str, Any]) -> ModelCard:
    return parse_card(Table(content, "card", Manifest({"card": content}, "bundle.toml")))


def test_a_card_is_for_readers_of_two_languages() -> None:
    card = parse({"languages": ["en"], "examples": ["Count to five."], "summary": SUMMARY})
    assert card == ModelCard(("en",), ("Count to five.",), SUMMARY)
    assert card.summary_for("zh_CN") == "它会数数。"
    assert card.summary_for("en") == card.summary_for("de_DE") == "It counts."
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
