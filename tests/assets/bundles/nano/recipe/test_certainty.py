"""Curves of declining: counted on answers that are made up."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.assets.conftest import Recipe

REFUSAL = "i am sorry i do not know that"


@pytest.fixture(scope="module")
def certainty(recipe: Recipe) -> ModuleType:
    pytest.importorskip("scipy", reason="scipy is not installed")
    return recipe("certainty")


@pytest.fixture(scope="module")
def answer(certainty: ModuleType) -> Callable[..., Any]:
    """Makes an answer."""

    def make(said: str, value: float, wanted: str = "") -> Any:
        voice = certainty.voices.Rendition("flite", "slt")
        return certainty.Answer("s2s", certainty.Question("plus", ("q",), voice, wanted), said, value)

    return make


def test_refusals_are_neither_right_nor_wrong(answer: Callable[..., Any]) -> None:
    refused = answer(REFUSAL, 0.1, "two")
    assert not refused.is_right
    assert not refused.is_wrong
    assert answer("two", 0.9, "two").is_right
    assert answer("two", 0.9).is_wrong
    assert answer("three", 0.9, "two").is_wrong


def test_the_threshold_loses_at_most_one_right_answer_of_a_hundred(
    certainty: ModuleType, answer: Callable[..., Any]
) -> None:
    right = [answer("two", 0.85 if number < 2 else 0.999, "two") for number in range(200)]
    right.append(answer("two", 0.945, "two"))
    wrong = [answer("two", 0.6), answer("three", 0.93, "two"), answer("four", 0.999)]
    points = certainty.curve([*right, *wrong, answer(REFUSAL, 0.2)])
    by_threshold = {point["threshold"]: point for point in points}
    assert by_threshold[0.0] == {"threshold": 0.0, "right": 201, "right_lost": 0, "wrong": 3, "wrong_left": 3}
    assert by_threshold[0.94] == by_threshold[0.0] | {"threshold": 0.94, "right_lost": 2, "wrong_left": 1}
    assert by_threshold[0.95]["right_lost"] == 3
    assert certainty.chosen(points) == 0.94


@pytest.mark.slow
def test_no_question_outside_is_one_of_the_domain(certainty: ModuleType, domain: ModuleType) -> None:
    known = {turn.question for dialogue in domain.all_dialogues() for turn in dialogue.turns}
    found = certainty.outside(60, [], known, random.Random(1))
    assert len(found) >= 30
    assert not known.intersection(question for _, question in found)
    assert {"plus", "times"} <= {kind for kind, _ in found}
