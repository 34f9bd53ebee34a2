"""The domain: held-out questions, and answers."""

from __future__ import annotations

import operator
import random
from collections import Counter, defaultdict
from types import ModuleType
from typing import Any

import pytest

from tests.assets.conftest import Recipe


@pytest.mark.slow
def test_the_domain_is_the_same_each_time(domain: ModuleType, dialogues: list[Any]) -> None:
    assert domain.all_dialogues() == dialogues
    assert len({dialogue.key for dialogue in dialogues}) == len(dialogues)


def _forms_by_skill(dialogues: list[Any]) -> dict[str, set[str]]:
    forms: dict[str, set[str]] = defaultdict(set)
    for dialogue in dialogues:
        forms[dialogue.skill].add(dialogue.form)
    return forms


def test_about_a_third_of_the_forms_of_every_skill_is_held_out(dialogues: list[Any]) -> None:
    forms = _forms_by_skill(dialogues)
    held_out = _forms_by_skill([dialogue for dialogue in dialogues if dialogue.held_out_form])
    trained = _forms_by_skill([dialogue for dialogue in dialogues if not dialogue.held_out])
    for skill, known in forms.items():
        assert len(known) > 100
        assert 0.25 < len(held_out[skill]) / len(known) < 0.4
        assert not held_out[skill] & trained[skill]


def test_a_tenth_of_the_combinations_of_trained_forms_is_held_out(dialogues: list[Any]) -> None:
    combinations = [dialogue for dialogue in dialogues if not dialogue.held_out_form]
    assert 0.08 < sum(dialogue.held_out for dialogue in combinations) / len(combinations) < 0.12


def test_what_most_people_say_is_always_trained(domain: ModuleType, dialogues: list[Any]) -> None:
    plain = {dialogue.form for dialogue in dialogues if dialogue.plain and not dialogue.held_out}
    assert {"what is {a} plus {b}", "capital of {c}", "hello", "um", "repeat {r}"} <= plain
    assert not any(dialogue.held_out_form for dialogue in dialogues if dialogue.plain)


def test_no_question_has_two_answers(dialogues: list[Any]) -> None:
    answers: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for dialogue in dialogues:
        if len(dialogue.turns) == 1:
            answers[dialogue.turns[0].question].add(dialogue.turns[0].units)
    assert {len(units) for units in answers.values()} == {1}


def test_the_domain_is_small_enough_to_be_synthesized(domain: ModuleType, dialogues: list[Any]) -> None:
    assert len({turn.question for dialogue in dialogues for turn in dialogue.turns}) < 60_000
    assert len(domain.all_units(dialogues)) <= 486 + 80


@pytest.mark.slow
def test_sampled_questions_cover_all_that_is_trained(domain: ModuleType, dialogues: list[Any]) -> None:
    questions = domain.training_questions(20_000, random.Random(1), dialogues)
    assert 18_000 < len(questions) <= 20_100
    known, trained = set(questions), [dialogue for dialogue in dialogues if not dialogue.held_out]
    assert len(known) == len(questions)
    assert known <= _trained_questions(dialogues)
    usable = [d for d in trained if known.issuperset(turn.question for turn in d.turns)]
    forms, usable_forms = _forms_by_skill(trained), _forms_by_skill(usable)
    for skill in forms.keys() - {"unfinished", "cannot"}:
        assert usable_forms[skill] == forms[skill]
    facts = {d.turns[0].units for d in trained if d.skill in ("plus", "minus", "times", "capital", "spell")}
    assert facts <= {d.turns[0].units for d in usable}
    assert sum(d.plain for d in usable) / len(usable) > sum(d.plain for d in trained) / len(trained)
    assert questions == domain.training_questions(20_000, random.Random(1), dialogues)


SIGNS = ("plus", "minus")


def _trained_questions(dialogues: list[Any]) -> set[str]:
    return {turn.question for dialogue in dialogues if not dialogue.held_out for turn in dialogue.turns}


def test_no_training_dialogue_asks_a_held_out_question(dialogues: list[Any]) -> None:
    held_out = {d.turns[0].question for d in dialogues if d.held_out and len(d.turns) == 1}
    assert len(held_out) > 1_000
    assert not held_out & _trained_questions(dialogues)


@pytest.mark.slow
def test_the_synthesis_says_only_training_questions_to_the_training(
    recipe: Recipe, domain: ModuleType, dialogues: list[Any]
) -> None:
    synthesize = recipe("synthesize")
    questions = domain.training_questions(500, random.Random(1), dialogues)
    users = synthesize.user_jobs(questions, 2, random.Random(1))
    assert len(users) == 2 * len(questions)
    assert {question for question, _ in users} <= _trained_questions(dialogues)
    assert not {recipe("voices").voice_group(rendition.label) for _, rendition in users} - {"seen"}
    held_out = {dialogue.key for dialogue in dialogues if dialogue.held_out}
    dev = synthesize.dev_jobs(dialogues, 3, ["flite-rms", "festival-kal"], random.Random(1))
    assert {job.key for job in dev} <= held_out
    groups = {recipe("voices").voice_group(job.job[1].label) for job in dev}
    assert groups == {"seen", "flite-rms", "festival"}


def test_every_sum_is_right(recipe: Recipe, dialogues: list[Any]) -> None:
    value = {recipe("topics").number_name(number): number for number in range(101)}
    sign = {"plus": operator.add, "minus": operator.sub, "times": operator.mul}
    checked = Counter[str]()
    for dialogue in dialogues:
        for turn in dialogue.turns:
            words = " ".join(turn.units).split()
            if len(words) >= 5 and words[1] in sign and words[3] == "is":
                result = value[" ".join(words[4:])]
                assert sign[words[1]](value[words[0]], value[words[2]]) == result
                checked[dialogue.skill] += 1
    assert min(checked[skill] for skill in ("plus", "minus", "times", "follow_up")) > 1000


def test_facts_are_right(dialogues: list[Any]) -> None:
    answers = {d.turns[0].question: " ".join(d.turns[0].units) for d in dialogues if len(d.turns) == 1}
    assert answers["which is bigger seven or four"] == "seven is bigger"
    assert answers["what is smaller four or seven"] == "four is smaller"
    assert answers["how do you spell cat"] == "C A T"
    assert answers["please count down from seven to four"] == "seven, six, five, four"
    assert answers["what day comes after sunday"] == "after sunday comes monday"


def test_the_second_turn_of_a_sum_continues_from_the_first(dialogues: list[Any]) -> None:
    sums = [d for d in dialogues if d.skill == "follow_up" and " ".join(d.turns[0].units).split()[1] in SIGNS]
    assert sums
    assert all(d.turns[1].units[0] == d.turns[0].units[-1].removeprefix("is ") for d in sums)


@pytest.mark.parametrize(
    ("units", "text"),
    [
        (("the capital of france", "is paris"), "The capital of France is Paris."),
        (("i am sorry", "i do not know that"), "I am sorry I do not know that."),
        (("after monday", "comes tuesday"), "After Monday comes Tuesday."),
        (("no,", "a frog", "is green"), "No, a frog is green."),
        (("C", "A", "T"), "C A T."),
        ((), ""),
    ],
)
def test_sentence_and_normalise(domain: ModuleType, units: tuple[str, ...], text: str) -> None:
    assert domain.sentence(units) == text
    assert domain.normalize(text) == " ".join(units).replace(",", "").lower()
    assert domain.normalize("  It's 3, ('OK')? ") == "it's 3 ok"


@pytest.mark.slow
def test_units_and_vocabulary_cover_all_answers(domain: ModuleType, dialogues: list[Any]) -> None:
    units, words = set(domain.all_units(dialogues)), set(domain.vocabulary(dialogues))
    assert set("".join(words)) <= set("abcdefghijklmnopqrstuvwxyz'")
    for turn in {turn for dialogue in dialogues for turn in dialogue.turns}:
        assert units.issuperset(turn.units)
        assert words.issuperset(turn.question.split())
    assert words.issuperset(word for unit in units for word in domain.normalize(unit).split())
