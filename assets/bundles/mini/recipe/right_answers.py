"""Judges a reply by its words: whether it says one of the known answers.

In: a reply, and the answers that count (aliases). Out: right or not. Case, accents, articles, punctuation,
plurals and the difference between number words and digits do not count. A reply of more than MAX_WORDS words,
or one that declines, is never right, whatever else it says. The same judge scores the checkpoint's text and,
by way of a recognizer, speech.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

MAX_WORDS = 30
ARTICLES = frozenset({"a", "an", "the"})
_DECLINES = re.compile(
    r"\bnot (sure|certain|aware)\b"
    r"|\b(do not|don't|cannot|can't|can not|could not|couldn't) (know|answer|say|help|tell)\b"
    r"|\bno (idea|information|answer)\b|\bi('m| am) (sorry|unable|not able)\b"
    r"|\bas an? (ai|language model)\b|\bdon't have (enough )?information\b"
)
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
NUMBERS = {word: number for number, word in enumerate(_SMALL)}
NUMBERS |= {word: 10 * number for number, word in enumerate(_TENS, start=2)}
_WORD = re.compile(r"\d+(?:\.\d+)?|[a-z]+")


def is_right(reply: str, answers: Iterable[str]) -> bool:
    """Whether one of the answers stands in the reply, word by word."""
    if len(reply.split()) > MAX_WORDS or declines(reply):
        return False
    said = words(reply)
    return any(_holds(said, form) for answer in answers for form in forms(answer))


def declines(reply: str) -> bool:
    """Whether the reply says that it has no answer."""
    return _DECLINES.search(reply.lower().replace("\u2019", "'")) is not None


def words(text: str) -> list[str]:
    """Comparable words of a text: no accents, articles, punctuation or plurals, and numbers as digits."""
    plain = unicodedata.normalize("NFKD", text.lower().replace("\u2019", "'"))
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", plain).replace("'s", "").replace("'", "")
    found = [word for word in _WORD.findall(plain) if word not in ARTICLES]
    return [_singular(word) for word in _with_digits(found)]


def forms(answer: str) -> list[list[str]]:
    """The words of an answer; of a year also as it is read in two halves (19 45)."""
    said = words(answer)
    if len(said) == 1 and re.fullmatch(r"1[1-9]\d\d|20[1-9]\d", said[0]):
        return [said, [said[0][:2], said[0][2:].lstrip("0") or "0"]]
    return [said]


def _holds(said: list[str], wanted: list[str]) -> bool:
    return bool(wanted) and any(
        said[start : start + len(wanted)] == wanted for start in range(len(said) - len(wanted) + 1)
    )


def _with_digits(found: list[str]) -> list[str]:
    """Number words below a hundred as digits: "twenty", "one" is "21"."""
    result: list[str] = []
    tens = 0
    for word in found:
        number = NUMBERS.get(word)
        if tens and number is not None and 0 < number < 10:
            result[-1], tens = str(tens + number), 0
            continue
        result.append(word if number is None else str(number))
        tens = number if number is not None and number >= 20 else 0
    return result


def _singular(word: str) -> str:
    """Without the ending of a plural; what is left need not be a word, but is the same on both sides."""
    if len(word) < 4 or not word.endswith("s") or word.endswith("ss"):
        return word
    return f"{word[:-3]}y" if word.endswith("ies") else word[:-1]
