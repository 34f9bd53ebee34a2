"""Errors of a recognizer, made in a text: a given share of its words is replaced, dropped or added to.

In: a question, the rate, a seeded generator. Out: the question with that many errors. Of the errors SHARES
are substitutions, deletions and insertions. A word is replaced by one that sounds like it (`sound_of`), or
else by one whose sound is spelled almost the same, out of the words of all questions, as a recognizer would
hear it; where none is near, by any of them. Inserted words are random ones.
"""

from __future__ import annotations

import difflib
import random
import re
from collections import defaultdict
from collections.abc import Iterable

SHARES = {"substitution": 0.7, "deletion": 0.15, "insertion": 0.15}
NEAR = 0.6
"""Least similarity of two sounds (difflib) to be taken for each other."""
_CLASSES = dict(
    pair.split("=")
    for pair in (
        "ght=t ph=f wh=w kn=n wr=r ck=k sh=S ch=S th=T q=k c=k x=ks z=s v=f d=t b=p g=k j=S m=n"
    ).split()
)
"""Spellings of consonants that are easily taken for others, longer ones first."""


def sound_of(word: str) -> str:
    """A key that words of similar sound share: classes of consonants, vowels as one letter, no doubles."""
    sound = re.sub(r"(?<=[^aeiou])e$", "", re.sub(r"[^a-z]", "", word.lower()))
    for letters, kind in _CLASSES.items():
        sound = sound.replace(letters, kind)
    sound = re.sub(r"[aeiouy]+", "a", sound)
    sound = re.sub(r"[hw](?!a)", "", sound)
    return re.sub(r"(.)\1+", r"\1", sound)


class Confusions:
    """Words to replace others by, out of a vocabulary."""

    def __init__(self, vocabulary: Iterable[str]) -> None:
        self.words = sorted(set(vocabulary))
        self._by_sound: dict[str, list[str]] = defaultdict(list)
        for word in self.words:
            self._by_sound[sound_of(word)].append(word)
        self._near: dict[str, list[str]] = {}

    @classmethod
    def of(cls, texts: Iterable[str]) -> Confusions:
        """The words of these texts."""
        return cls(word for text in texts for word in re.findall(r"[a-z']+", text.lower()))

    def near(self, word: str) -> list[str]:
        """Words that sound alike, or else similar; none if there is nothing similar."""
        word = word.lower()
        if word not in self._near:
            sound = sound_of(word)
            alike = [other for other in self._by_sound.get(sound, []) if other != word]
            if not alike:
                sounds = difflib.get_close_matches(sound, self._by_sound, n=4, cutoff=NEAR)
                alike = [other for one in sounds for other in self._by_sound[one] if other != word]
            self._near[word] = alike
        return self._near[word]

    def others(self, word: str) -> list[str]:
        """All words but this one."""
        return [one for one in self.words if one != word.lower()]


def with_errors(text: str, rate: float, confusions: Confusions, rng: random.Random) -> str:
    """The text with round(rate * words) errors on average; what falls between two counts is drawn."""
    said = text.rstrip("?!. ").split()
    mark = text[len(text.rstrip("?!. ")) :].strip()
    wanted = rate * len(said)
    count = int(wanted) + (rng.random() < wanted % 1)
    for place in sorted(rng.sample(range(len(said)), min(count, len(said))), reverse=True):
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        if kind == "deletion":
            del said[place]
        elif kind == "insertion":
            said.insert(place, rng.choice(confusions.words))
        else:
            said[place] = rng.choice(confusions.near(said[place]) or confusions.others(said[place]))
    return " ".join(said) + mark
