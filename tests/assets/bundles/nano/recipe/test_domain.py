"""The domain: held-out questions, and answers."""

from __future__ import annotations

import random
from collections import Counter

import pytest


@pytest.mark.slow
def test_the_domain_is_the_same_each_time(domain, dialogues) -> None:
    assert domain.all_dialogues() == dialogues
    assert len({dialogue.key for dialogue in dialogues}) == len(dialogues)


def test_about_a_tenth_is_held_out_in_every_skill(dialogues) -> None:
    held_out = [dialogue for dialogue in dialogues if dialogue.held_out]
    assert 0.09 < len(held_out) / len(dialogues) < 0.115
    assert {dialogue.skill for dialogue in held_out} == {dialogue.skill for dialogue in dialogues}


def _trained_questions(dialogues) -> set[str]:
    return {turn.question for dialogue in dialogues if not dialogue.held_out for turn in dialogue.turns}


def test_no_training_dialogue_asks_a_held_out_question(dialogues) -> None:
    held_out = {d.turns[0].question for d in dialogues if d.held_out and len(d.turns) == 1}
    assert len(held_out) > 1_000
    assert not held_out & _trained_questions(dialogues)


@pytest.mark.slow
def test_the_synthesis_says_only_training_questions_to_the_training(recipe, domain, dialogues) -> None:
    synthesize = recipe("synthesize")
    users = synthesize.user_jobs(dialogues, 1.0, random.Random(1))
    assert {question for question, _ in users} == _trained_questions(dialogues)
    assert not {recipe("voices").voice_group(rendition.label) for _, rendition in users} - {"seen"}
    held_out = {dialogue.key for dialogue in dialogues if dialogue.held_out}
    assert {job.key for job in synthesize.dev_jobs(dialogues, random.Random(1))} <= held_out


def test_every_sum_is_right(domain, dialogues) -> None:
    value = {word: number for number, word in enumerate(domain.NUMBERS)}
    checked = Counter()
    for dialogue in dialogues:
        for turn in dialogue.turns:
            words = " ".join(turn.units).split()
            if len(words) == 5 and words[1] in ("plus", "minus") and words[3] == "is":
                sign = 1 if words[1] == "plus" else -1
                assert value[words[0]] + sign * value[words[2]] == value[words[4]]
                checked[dialogue.skill] += 1
    assert min(checked[skill] for skill in ("plus", "minus", "follow_up")) > 1000


def test_the_second_turn_of_a_sum_continues_from_the_first(dialogues) -> None:
    sums = [d for d in dialogues if d.skill == "follow_up" and d.turns[0].units[-1].startswith("is ")]
    sums = [d for d in sums if d.turns[0].units[1].startswith(("plus", "minus"))]
    assert sums
    assert all(d.turns[1].units[0] == d.turns[0].units[-1].removeprefix("is ") for d in sums)


@pytest.mark.parametrize(
    ("units", "text"),
    [
        (("the capital of france", "is paris"), "The capital of France is Paris."),
        (("i am sorry", "i do not know that"), "I am sorry I do not know that."),
        (("after monday", "comes tuesday"), "After Monday comes Tuesday."),
    ],
)
def test_sentence_and_normalise(domain, units, text) -> None:
    assert domain.sentence(units) == text
    assert domain.normalize(text) == " ".join(units)
    assert domain.normalize("  It's 3, (OK)? ") == "it s 3 ok"


def test_units_and_vocabulary_cover_all_answers(domain, dialogues) -> None:
    units, words = set(domain.all_units(dialogues)), set(domain.vocabulary(dialogues))
    for dialogue in dialogues:
        for turn in dialogue.turns:
            assert units.issuperset(turn.units)
            assert words.issuperset(turn.question.split())
            assert words.issuperset(domain.normalize(" ".join(turn.units)).split())
