"""Which replies count as right."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def judge(recipe: Callable[[str], ModuleType]) -> ModuleType:
    return recipe("right_answers")


@pytest.mark.parametrize(
    ("reply", "answers"),
    [
        ("The largest planet is Jupiter.", ["Jupiter"]),
        ("It's the jupiter!", ["The Jupiter"]),
        ("A spider has eight legs.", ["8"]),
        ("It has 8 legs.", ["Eight legs"]),
        ("Twenty-one of them.", ["21"]),
        ("There are 1,500 of them.", ["1500"]),
        ("In nineteen forty-five.", ["1945"]),
        ("In 1945.", ["1945"]),
        ("In nineteen oh one, or 19 1.", ["1901"]),
        ("That was Padme Amidala.", ["Padmé Amidala"]),
        ("Parrots and other birds.", ["Parrot"]),
        ("Berries.", ["Berry"]),
        ("It is Einstein’s theory.", ["Marie Curie", "Einstein"]),
    ],
)
def test_right(judge: ModuleType, reply: str, answers: list[str]) -> None:
    assert judge.is_right(reply, answers)


@pytest.mark.parametrize(
    ("reply", "answers"),
    [
        ("The largest planet is Neptune.", ["Jupiter"]),
        ("Paris Hilton is a celebrity.", ["Hilton Paris"]),
        ("It is the capitalist system.", ["capital"]),
        ("Eighty eight of them.", ["8"]),
        ("In 1945.", ["1946"]),
        ("I am not sure, perhaps Jupiter.", ["Jupiter"]),
        ("I'm sorry, I can't say whether Jupiter is larger.", ["Jupiter"]),
        ("As an AI I like Jupiter.", ["Jupiter"]),
        ("Jupiter" + " is very large" * 10, ["Jupiter"]),
        ("", ["Jupiter"]),
        ("The.", ["the"]),
    ],
)
def test_not_right(judge: ModuleType, reply: str, answers: list[str]) -> None:
    assert not judge.is_right(reply, answers)


def test_a_reply_of_thirty_words_is_short_enough(judge: ModuleType) -> None:
    reply = "Jupiter " + "very " * 29
    assert len(reply.split()) == judge.MAX_WORDS
    assert judge.is_right(reply, ["Jupiter"])
    assert not judge.is_right(reply + "large", ["Jupiter"])
