"""What needs no reply: unfinished questions, backchannels, pauses inside of questions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.assets.conftest import Recipe


@pytest.mark.parametrize(
    "words",
    [
        "what is the capital of", "three plus", "repeat after me", "could you tell me what day comes",
        "what is um",
        "what is the", "um", "count from three", "which is bigger seven", "can you please", "and of",
    ],
)  # fmt: skip
def test_prefixes_are_unfinished(recipe: Recipe, words: str) -> None:
    assert recipe("unfinished").is_unfinished(words)


@pytest.mark.parametrize(
    "words",
    [
        "three plus four", "what is three", "hello", "okay", "count from three to seven", "capital of france",
        "egypt has what capital", "monday comes before which day", "say that again", "what can you do", "",
    ],
)  # fmt: skip
def test_what_may_be_complete_is_not_unfinished(recipe: Recipe, words: str) -> None:
    assert not recipe("unfinished").is_unfinished(words)


def test_pauses_are_where_the_question_is_unfinished(recipe: Recipe) -> None:
    places = recipe("unfinished").pause_places("what is the capital of france")
    assert places == [2, 3, 4, 5]
    assert recipe("unfinished").pause_places("good morning") == []


@pytest.mark.slow
def test_no_complete_question_of_the_domain_is_taken_for_unfinished(dialogues: list[Any]) -> None:
    complete = {d.turns[0].question for d in dialogues if d.turns[0].units}
    without_reply = {d.turns[0].question for d in dialogues if not d.turns[0].units}
    assert len(without_reply) > 4_000
    assert not complete & without_reply


@pytest.mark.slow
def test_few_complete_questions_look_unfinished(recipe: Recipe, dialogues: list[Any]) -> None:
    unfinished = recipe("unfinished")
    complete = {turn.question for d in dialogues for turn in d.turns if turn.units}
    assert sum(map(unfinished.is_unfinished, complete)) < 0.002 * len(complete)


def test_what_follows_a_pause_is_the_rest_of_the_question(recipe: Recipe, dialogues: list[Any]) -> None:
    unfinished = recipe("unfinished")
    for dialogue in dialogues[::50]:
        question = dialogue.turns[0].question
        for place in unfinished.pause_places(question):
            assert 0 < place < len(question.split())
            assert unfinished.is_unfinished(" ".join(question.split()[:place]))
