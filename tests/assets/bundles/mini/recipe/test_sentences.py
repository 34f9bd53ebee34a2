"""General sentences: what may be said, how numbers are written, what only tests may use."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from engine_runtime.bench.word_errors import words_of
from tests.assets.conftest import Recipe

NOUN = """\
  1 This software and database is being provided to you
00000001 06 n 01 lantern 0 001 @ 00000009 n 0000 | a light with a cover; "he hung the lantern over the door"
00000002 06 n 02 kettle_drum 0 timpani 0 001 @ 00000009 n 0000 | "the 1st drum"; "a drum"
00000003 15 n 01 Lisbon 0 001 @i 00000009 n 0000 | capital of Portugal
00000004 24 n 01 friendship 0 001 @ 00000009 n 0000 | the state of being friends
"""
VERB = '00000005 30 v 01 hang 0 001 @ 00000009 v 01 + 08 00 | "the picture is hanging on the wall"\n'
INDEX = """\
  1 This software and database is being provided to you
lantern n 1 1 @ 1 1 00000001
kettle_drum n 1 1 @ 1 0 00000002
"""


@pytest.fixture
def wordnet(tmp_path: Path) -> Path:
    """Four nouns and a verb in WordNet's files."""
    files = {"data.noun": NOUN, "data.verb": VERB, "data.adj": "", "data.adv": "", "index.noun": INDEX}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def lexicon(recipe: Recipe, wordnet: Path) -> Any:
    """What those files say."""
    return recipe("sentences").read_wordnet(wordnet)


def test_wordnet_has_examples_nouns_and_names(lexicon: Any) -> None:
    assert lexicon.examples == ["he hung the lantern over the door", "the picture is hanging on the wall"]
    assert lexicon.common == ["lantern"]
    assert lexicon.rare == ["kettle drum", "timpani"]
    assert lexicon.names == ["Lisbon"]


def test_missing_files_are_named(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="wordnet-base"):
        recipe("sentences").read_wordnet(tmp_path)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "zero"), (19, "nineteen"), (40, "forty"), (73, "seventy three"), (100, "one hundred"),
        (205, "two hundred and five"), (999, "nine hundred and ninety nine"), (1_000, "one thousand"),
        (1_006, "one thousand and six"), (12_345, "twelve thousand three hundred and forty five"),
    ],
)  # fmt: skip
def test_numbers_in_words(recipe: Recipe, value: int, words: str) -> None:
    assert recipe("sentences").number(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(1, "first"), (3, "third"), (8, "eighth"), (12, "twelfth"), (20, "twentieth"), (31, "thirty first")],
)
def test_places_in_words(recipe: Recipe, value: int, words: str) -> None:
    assert recipe("sentences").ordinal(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1969, "nineteen sixty nine"), (1900, "nineteen hundred"), (1805, "eighteen oh five"),
        (2004, "two thousand and four"), (2021, "twenty twenty one"),
    ],
)  # fmt: skip
def test_years_in_words(recipe: Recipe, value: int, words: str) -> None:
    assert recipe("sentences").year(value) == words


@pytest.mark.parametrize(
    ("text", "is_usable"),
    [
        ("Where does the lantern hang?", True),
        ("He doesn't see well-known people", True),
        ("He left in 1969 with them", False),
        ("Mr. Brown lives next door", False),
        ("a long walk", False),
    ],
)
def test_a_sentence_is_spelled_as_it_is_said(recipe: Recipe, text: str, is_usable: bool) -> None:
    assert recipe("sentences").is_usable(text) is is_usable


def test_training_and_tests_have_no_sentence_in_common(recipe: Recipe, lexicon: Any) -> None:
    sentences = recipe("sentences")
    train = sentences.compose(lexicon, [], 300, held_out=False)
    test = sentences.compose(lexicon, [], 40, held_out=True)
    assert len({sentences.plain(text) for text in train}) == 300
    assert len(test) == 40
    assert not {*map(sentences.plain, train)} & {*map(sentences.plain, test)}
    assert train == sentences.compose(lexicon, [], 300, held_out=False)
    for text in train + test:
        assert sentences.is_usable(text)
        assert set(sentences.plain(text)) <= set(sentences.LETTERS)


def test_case_and_punctuation_hold_out_nothing_else(recipe: Recipe) -> None:
    is_held_out = recipe("sentences").is_held_out
    texts = [f"{a} {b} is here" for a in ("lantern", "kettle", "drum") for b in "abcdefghijklmnop"]
    assert [is_held_out(text) for text in texts] == [is_held_out(f"{text.upper()}!") for text in texts]
    assert any(map(is_held_out, texts))
    assert not all(map(is_held_out, texts))


def test_every_template_can_be_filled(recipe: Recipe, lexicon: Any) -> None:
    sentences = recipe("sentences")
    templates = sentences.Templates(lexicon, random.Random(0))
    for template in sentences.ASKED + sentences.TALK:
        assert "{" not in templates.one((template,))
        assert words_of(templates.one((template,)))


def test_questions_are_those_that_can_be_said(recipe: Recipe, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl.gz"
    asked = ["where does the lantern hang?", "who won the 1966 cup?", "where does the lantern hang?"]
    with gzip.open(file, "wt") as out:
        out.writelines(json.dumps({"question": question, "answers": []}) + "\n" for question in asked)
    assert recipe("sentences").read_questions(file) == asked[:1]
