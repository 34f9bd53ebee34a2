"""Short questions with short known answers, out of public question sets, to evaluate and to set thresholds.

In: the folder with `opentriviaqa.jsonl.gz`, `webquestions.jsonl.gz` and `nq_open_dev.jsonl.gz`. Out:
questions of 4 to 10 words that are complete without choices, with a well-known answer of one to three words
that the question does not contain ("What is the largest planet?"). The texts are under share-alike licences
(CC BY-SA; WebQuestions CC BY 4.0): nothing is trained on them.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import right_answers

SOURCES = ("opentriviaqa", "webquestions", "nq_open_dev")
WORDS, ANSWER_WORDS = range(4, 11), range(1, 4)
GENERAL = frozenset(
    "animals for-kids general geography history hobbies humanities literature rated religion-faith"
    " science-technology world".split()
)
"""Categories of trivia that are not about films, music, sport and their people."""
WELL_KNOWN = 8
"""Answers that so many trivia questions share are well known: countries, colours, numbers, great names."""
_ASKS = re.compile(r"^(what|which|who|where|when|how many|in which|in what|on which|whose)\b", re.IGNORECASE)
# Refers to choices or a picture that are not there, or asks for what changes.
_INCOMPLETE = re.compile(
    r"\b(these|this|those|following|not|except|odd|below|above|choose|true|false|last|latest|current|currently|now|today|new"
    r"|best|recent|next|you|your)\b|_|\.\.\.|[\"()]", re.IGNORECASE)  # fmt: skip
_NO_ANSWER = re.compile(r"\b(all|none|both|neither|yes|no|true|false|these|them|above)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Question:
    """`answers` are those that count as right; `category` is that of a trivia question."""

    text: str
    answers: tuple[str, ...]
    source: str
    category: str = ""


def read(folder: Path, source: str) -> Iterator[Question]:
    """All questions of one set, as they are."""
    with gzip.open(folder / f"{source}.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            answers = tuple(row.get("answers") or [row["answer"]])
            yield Question(row["question"].strip(), answers, source, row.get("category", ""))


def is_short(question: Question) -> bool:
    """Whether the question is complete and short, and has a short answer that it does not give away."""
    if len(question.text.split()) not in WORDS or not _ASKS.match(question.text):
        return False
    if _INCOMPLETE.search(question.text) or not question.text.isascii():
        return False
    asked = set(right_answers.words(question.text))
    answers = [right_answers.words(answer) for answer in question.answers]
    return all(
        len(said) in ANSWER_WORDS and not asked & set(said) and not _NO_ANSWER.search(answer)
        for said, answer in zip(answers, question.answers, strict=True)
    )


def well_known(folder: Path) -> set[str]:
    """Answers, as comparable words, of at least WELL_KNOWN trivia questions; no years."""
    counts = Counter(as_key(one.answers[0]) for one in read(folder, "opentriviaqa"))
    return {key for key, count in counts.items() if count >= WELL_KNOWN and not re.fullmatch(r"\d{4}", key)}


def as_key(answer: str) -> str:
    """An answer as comparable words."""
    return " ".join(right_answers.words(answer))


def spoken_form(text: str) -> str:
    """The question as a sentence: first letter large, a question mark at the end."""
    text = text.rstrip(" ?.")
    return f"{text[0].upper()}{text[1:]}?"


def draw(folder: Path, counts: dict[str, int], seed: int) -> list[Question]:
    """So many different questions of each source, in mixed order; the same for the same seed."""
    rng, found, known = random.Random(seed), [], well_known(folder)
    for source, count in counts.items():
        usable = {
            one.text.lower(): one
            for one in read(folder, source)
            if is_short(one)
            and (one.category in GENERAL or not one.category)
            and any(as_key(answer) in known for answer in one.answers)
        }
        if len(usable) < count:
            raise SystemExit(f"{source} has {len(usable)} short questions, {count} were asked for.")
        found += [usable[text] for text in rng.sample(sorted(usable), count)]
    rng.shuffle(found)
    return [replace(one, text=spoken_form(one.text)) for one in found]
