"""Templates of wordings: `expand` makes all forms of one, `hesitant` makes what people really say of a form.

A template is words with alternatives "(a|b)", optional parts "[a]" (also "[a|b]") and slots "{name}" that
stay: "(tell|give) me the capital [city] of {c}" has four forms. A form is a wording with its slots still
empty.
"""

from __future__ import annotations

import random
import re
from itertools import pairwise

FILLERS = ["um", "uh", "er"]
OPENERS = [
    "um", "uh", "er", "well", "okay so", "so", "okay", "hey", "right", "oh", "now", "hum", "excuse me",
    "listen", "hey nano", "all right", "let me think", "uh okay", "um so", "well um", "sorry",
    "one more thing", "next question", "i have a question",
]  # fmt: skip
# Words behind which people hesitate: what is asked about comes next.
BEFORE_ENTITY = {
    "is", "what's", "of", "to", "from", "plus", "minus", "times", "by", "after", "before", "or", "and", "me",
    "say", "repeat", "spell", "add", "than", "with", "know", "colour", "color", "follows", "about",
}  # fmt: skip


def expand(template: str) -> list[str]:
    """All forms of a template, each once."""
    forms, rest = _alternatives(re.findall(r"[()\[\]|]|[^()\[\]|]+", template))
    if rest:
        raise ValueError(f"unbalanced brackets in {template!r}")
    return list(dict.fromkeys(" ".join(form.split()) for form in forms))


def expand_all(templates: list[str]) -> list[str]:
    """All forms of all templates, each once."""
    return list(dict.fromkeys(form for template in templates for form in expand(template)))


def _alternatives(tokens: list[str]) -> tuple[list[str], list[str]]:
    """Forms of the tokens up to a closing bracket, and what follows it."""
    found: list[str] = []
    part = [""]
    while tokens and tokens[0] not in ")]":
        token, tokens = tokens[0], tokens[1:]
        if token == "|":
            found, part = found + part, [""]
        elif token in "([":
            inner, tokens = _alternatives(tokens)
            if not tokens:
                raise ValueError("a bracket is not closed")
            tokens = tokens[1:]
            part = [a + b for a in part for b in (inner if token == "(" else ["", *inner])]
        else:
            part = [a + token for a in part]
    return found + part, tokens


def hesitant(form: str, rng: random.Random) -> str:
    """The form with an opener before it, a filler inside it, or its first words said twice."""
    words = form.split()
    draw = rng.random()
    pairs = enumerate(pairwise(words), 1)
    gaps = [i for i, (word, after) in pairs if word in BEFORE_ENTITY and after != "please"]
    if draw < 0.35 and gaps:
        place = rng.choice(gaps)
        words[place:place] = [rng.choice(FILLERS)]
    elif draw < 0.55 and len(words) > 3:
        again = min(rng.choice([1, 2, 2, 3]), len(words) - 1)
        # A slot said twice would be another question: "three three plus four".
        if not any("{" in word for word in words[:again]):
            words = words[:again] + rng.choice([[], [], [rng.choice(FILLERS)]]) + words
        else:
            words = [rng.choice(OPENERS), *words]
    else:
        words = [*rng.choice(OPENERS).split(), *words]
    return " ".join(words)
