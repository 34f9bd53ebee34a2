"""The independent recognizer: its grammars contain every answer, and it recognizes the assistant."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.assets.conftest import Recipe

pytest.importorskip("pocketsphinx", reason="pocketsphinx is not installed")


def _pattern(jsgf: str) -> re.Pattern[str]:
    """A JSGF grammar of words, ( | ), [ ] and rules as a regular expression; a space follows each word."""
    rules = dict(re.findall(r"<(\w+)> = (.*?);", jsgf))
    body = re.sub(r"<(\w+)>", lambda match: rules[match[1]], rules["answer"])
    signs = {"(": "(?:", "[": "(?:", ")": ")", "]": ")?", "|": "|"}
    return re.compile("".join(signs.get(word, f"{word} ") for word in body.split()))


def test_the_grammars_hold_every_answer(recipe: Recipe, domain: ModuleType, dialogues: list[Any]) -> None:
    recognizer = recipe("recognizer")
    answers, strings = _pattern(recognizer.answer_grammar()), _pattern(recognizer.repeat_grammar())
    for units in {turn.units for dialogue in dialogues for turn in dialogue.turns if turn.units}:
        grammar = strings if recognizer.grammar_of(units) == "repeat" else answers
        assert grammar.fullmatch(domain.normalize(" ".join(units)) + " "), units
    assert not answers.fullmatch("the capital of monday is seven ")


def test_words_to_repeat_have_their_own_grammar(recipe: Recipe) -> None:
    grammar_of = recipe("recognizer").grammar_of
    assert grammar_of(("banana", "tiger")) == "repeat"
    assert {grammar_of(units) for units in [(), ("seven", "is bigger"), ("C", "A", "T")]} == {"answer"}


@pytest.mark.usefixtures("_flite")
def test_it_hears_what_the_assistant_says(recipe: Recipe) -> None:
    recognizer, voices = recipe("recognizer"), recipe("voices")
    units = ("three", "plus four", "is seven")
    wave = np.concatenate(voices.render_units(list(units)))
    assert recognizer.recognize(wave, voices.ASSISTANT_RATE, units) == "three plus four is seven"


@pytest.mark.slow
@pytest.mark.usefixtures("_flite")
def test_afresh_it_forgets_what_it_heard_before(recipe: Recipe) -> None:
    recognizer, voices = recipe("recognizer"), recipe("voices")
    units = ("three", "plus four", "is seven")
    speech = np.concatenate(voices.render_units(list(units)))
    noise = np.random.default_rng(1).normal(0, 0.1, 24_000).astype(np.float32)

    def score() -> float:
        recognizer.recognize(speech, voices.ASSISTANT_RATE, units, afresh=True)
        return recognizer._decoder("answer", True).hyp().score

    first = score()
    recognizer.recognize(noise, voices.ASSISTANT_RATE, units, afresh=True)
    assert score() == first
