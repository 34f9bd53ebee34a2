"""Text: the tokenizer, typed questions, subtitles."""

from __future__ import annotations

import random
from collections import Counter
from types import ModuleType
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.assets.conftest import Recipe


@pytest.mark.slow
@pytest.mark.parametrize("text", ["What is 3 plus four?", "Grüße, 你好!\n", "system\nAnswer with speech."])
def test_anything_survives_the_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


@pytest.mark.slow
def test_frequent_words_are_single_tokens_and_the_others_short(
    tokenizer: Tokenizer, domain: ModuleType, dialogues: list[Any]
) -> None:
    def tokens(word: str) -> int:
        return len(tokenizer.encode(" " + word, add_special_tokens=False).ids)

    answers = {word.strip(",") for unit in domain.all_units(dialogues) for word in unit.split()}
    assert {tokens(word) for word in answers} == {1}
    asked = Counter(word for d in dialogues for turn in d.turns for word in turn.question.split())
    assert sum(tokens(word) * count for word, count in asked.items()) < 1.25 * asked.total()


@pytest.mark.slow
def test_special_tokens_come_first(recipe: Recipe, tokenizer: Tokenizer) -> None:
    special = recipe("text").SPECIAL
    assert [tokenizer.token_to_id(name) for name in special] == list(range(len(special)))


@pytest.mark.slow
def test_the_prompt_may_be_tokenised_in_chunks(tokenizer: Tokenizer) -> None:
    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    assert ids("user\n") + ids("What is love?") == ids("user\nWhat is love?")


@pytest.mark.slow
def test_subtitles_join_to_the_text_and_keep_their_unit(
    recipe: Recipe, domain: ModuleType, dialogues: list[Any], tokenizer: Tokenizer
) -> None:
    text, rng = recipe("text"), random.Random(2)
    empty = tokenizer.token_to_id("<|empty|>")
    for dialogue in rng.sample(dialogues, 300):
        units = dialogue.turns[-1].units
        if not units:
            assert text.subtitles(tokenizer, units, [], empty) == []
            continue
        codes = [6 * len(unit.split()) + rng.randint(0, 4) for unit in units]
        labels = text.subtitles(tokenizer, units, codes, empty)
        assert len(labels) == sum(codes)
        said = tokenizer.decode([label for label in labels if label != empty])
        assert said == domain.sentence(units)
        first = tokenizer.decode([label for label in labels[: codes[0]] if label != empty])
        assert domain.normalize(first) == domain.normalize(units[0])


@pytest.mark.slow
def test_subtitles_that_do_not_fit_wait_for_the_next_unit(recipe: Recipe, tokenizer: Tokenizer) -> None:
    text = recipe("text")
    units = ("the capital of france", "is paris")
    labels = text.subtitles(tokenizer, units, [2, 8], empty=-1)
    assert -1 not in labels[:6]
    assert tokenizer.decode([label for label in labels if label != -1]) == "The capital of France is Paris."


def test_typed_questions_vary_but_say_the_same(recipe: Recipe, domain: ModuleType) -> None:
    text, rng = recipe("text"), random.Random(0)
    variants = {text.typed("what is three plus four", rng) for _ in range(200)}
    assert {"what is three plus four", "What is three plus four?", "What is 3 + 4?"} <= variants
    back = {"3": "three", "4": "four"}
    for variant in variants:
        words = variant.lower().replace("+", "plus").rstrip("?.").split()
        assert [back.get(word, word) for word in words] == "what is three plus four".split()
    assert any("March" in text.typed("what comes after march", rng) for _ in range(20))
