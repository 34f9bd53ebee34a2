"""Errors made in questions: as many as asked for, of every kind, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType

import pytest

from engine_runtime.bench.word_errors import word_errors

QUESTIONS = [
    "What is the largest planet?",
    "Who wrote the night watch?",
    "Which knight had a write to see the sea?",
    "Where does the river rise in spring?",
]


@pytest.fixture(scope="module")
def misheard(recipe: Callable[[str], ModuleType]) -> ModuleType:
    return recipe("misheard")


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.2])
def test_the_rate_of_errors_is_met(misheard: ModuleType, rate: float) -> None:
    confusions = misheard.Confusions.of(QUESTIONS)
    rng, asked = random.Random(1), QUESTIONS * 200
    heard = [misheard.with_errors(text, rate, confusions, rng) for text in asked]
    errors, words = word_errors(asked, heard)
    assert errors / words == pytest.approx(rate, abs=0.01)
    assert all(text.endswith("?") for text in heard)


def test_every_kind_of_error_occurs_and_the_seed_decides(misheard: ModuleType) -> None:
    confusions = misheard.Confusions.of(QUESTIONS)

    def heard(seed: int) -> list[str]:
        rng = random.Random(seed)
        return [misheard.with_errors(text, 0.3, confusions, rng) for text in QUESTIONS * 20]

    assert heard(4) == heard(4) != heard(5)
    changes = {
        len(text.split()) - len(asked.split())
        for text, asked in zip(heard(4), QUESTIONS * 20, strict=True)
        if text != asked
    }
    assert {-1, 0, 1} <= changes


@pytest.mark.parametrize(("word", "other"), [("knight", "night"), ("Write", "right"), ("sea", "see")])
def test_words_of_one_sound(misheard: ModuleType, word: str, other: str) -> None:
    assert misheard.sound_of(word) == misheard.sound_of(other)
    assert misheard.sound_of(word) != misheard.sound_of("planet")


def test_a_near_word_is_never_the_word_itself(misheard: ModuleType) -> None:
    confusions = misheard.Confusions.of(QUESTIONS)
    assert confusions.near("knight") == ["night"]
    assert "planet" not in confusions.near("Planet")
    assert confusions.near("xylophone") == [] != confusions.others("planet")
