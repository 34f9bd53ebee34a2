"""What training adds: sentences outside the domain, whole and cut off, and sums out of range."""

from __future__ import annotations

import random
from collections import defaultdict
from types import ModuleType
from typing import Any

import pytest

from tests.assets.conftest import Recipe


@pytest.fixture(scope="module")
def added(domain: ModuleType, dialogues: list[Any]) -> dict[str, list[Any]]:
    """The added dialogues by skill."""
    found = defaultdict(list)
    for dialogue in domain.outside_dialogues(dialogues):
        found[dialogue.skill].append(dialogue)
    return found


def test_there_are_more_cuts_than_in_the_domain(dialogues: list[Any], added: dict[str, list[Any]]) -> None:
    assert len(added["cut_off"]) > sum(d.skill == "unfinished" for d in dialogues)
    assert len(added["remark"]) > 3_000
    assert len(added["beyond"]) > 1_500


def test_only_whole_sentences_have_a_reply(recipe: Recipe, added: dict[str, list[Any]]) -> None:
    decline = recipe("topics").UNKNOWN_ANSWER
    assert {d.turns[0].units for d in added["cut_off"]} == {()}
    assert {d.turns[0].units for d in added["remark"] + added["beyond"]} == {decline}


def test_no_added_question_is_one_of_the_domain_or_has_two_answers(
    dialogues: list[Any], added: dict[str, list[Any]]
) -> None:
    known = {turn.question for d in dialogues for turn in d.turns}
    new = [d.turns[0].question for pile in added.values() for d in pile]
    assert len(new) == len(set(new))
    assert not known & set(new)


def test_a_sentence_is_cut_where_it_cannot_be_over(recipe: Recipe, added: dict[str, list[Any]]) -> None:
    outside = recipe("outside")
    form = "{who} {past} {thing} / because {reason}".split()
    sentence = "nobody found tickets / because it rained".split()
    form.append("{reason}")
    cuts = {
        words
        for seed in range(40)
        for _, words in outside._cuts_of_remark(form, sentence, random.Random(seed))
    }
    fillers = recipe("grammar").FILLERS
    plain = {" ".join(word for word in cut.split() if word not in fillers) for cut in cuts}
    assert plain == {
        "nobody", "nobody found", "nobody found tickets because", "nobody found tickets because it",
    }  # fmt: skip


def test_questions_are_cut_behind_words_that_end_none(recipe: Recipe) -> None:
    outside, rng = recipe("outside"), random.Random(1)
    cuts = {
        words
        for _ in range(40)
        for _, words in outside._cuts_of_question("", "how old is the oldest tree", rng)
    }
    assert {"how old is", "how old is the"} <= cuts
    assert not cuts & {"how old", "how old is the oldest tree"}


def test_sums_are_out_of_range(recipe: Recipe, added: dict[str, list[Any]]) -> None:
    wordings, names = recipe("wordings"), recipe("topics").NUMBERS
    minus = {form for kind in wordings.kinds() if kind.skill == "minus" for form in wordings.forms(kind)}
    for dialogue in added["beyond"]:
        said = zip(dialogue.form.split(), dialogue.turns[0].question.split(), strict=True)
        slots = {item: names.index(word) for item, word in said if item.startswith("{")}
        assert slots["{a}"] < slots["{b}"]
        assert dialogue.form in minus or slots["{a}"] + slots["{b}"] > 20
    plain = {d.form for d in added["beyond"] if d.plain}
    assert {"{a} minus {b}", "what is {a} minus {b}"} <= plain


@pytest.mark.slow
def test_no_training_question_is_held_out_anywhere(
    domain: ModuleType, dialogues: list[Any], added: dict[str, list[Any]]
) -> None:
    everything = [*dialogues, *(d for pile in added.values() for d in pile)]
    held_out = {d.turns[0].question for d in everything if d.held_out and len(d.turns) == 1}
    questions = domain.training_questions(19_400, random.Random(1), everything)
    assert len(questions) > 18_000
    assert not held_out.intersection(questions)


def test_a_third_of_the_forms_is_held_out(added: dict[str, list[Any]]) -> None:
    for pile in added.values():
        forms, held_out = {d.form for d in pile}, {d.form for d in pile if d.held_out_form}
        assert 0.25 < len(held_out) / len(forms) < 0.4
        assert not held_out & {d.form for d in pile if not d.held_out}


def test_half_of_what_is_unfinished_sounds_as_if_it_went_on(recipe: Recipe) -> None:
    questions = [f"question {n}" for n in range(400)]
    jobs = recipe("synthesize").user_jobs(questions, 1, random.Random(1), set(questions[:200]))
    continued = {question for question, rendition in jobs if rendition.continues}
    assert 70 < len(continued) < 130
    assert continued <= set(questions[:200])
