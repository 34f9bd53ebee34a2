"""General English sentences for training the ears, and others of the same kinds for their tests.

Sources: usage examples, words and names of WordNet (Debian `wordnet-base`), questions of WebQuestions (CC BY
4.0), and templates of everyday requests with numbers, times and names. Out: distinct sentences of 4 to 17
words, spelled without digits or abbreviations, so that a text is what every synthesizer says.

A sentence is held out by the MD5 sum of its words, whatever its source: one of twenty is for tests only.

    python sentences.py QUESTIONS.jsonl.gz SENTENCES.json [--count 46000]
    python sentences.py QUESTIONS.jsonl.gz --show 5
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from engine_runtime.bench.word_errors import words_of

WORDNET = Path("/usr/share/wordnet")
LETTERS = " abcdefghijklmnopqrstuvwxyz'"
"""What the ears write: the characters of `plain`."""
WORDS, CHARACTERS = range(4, 18), range(15, 110)
HELD_OUT_ONE_OF = 20
SHARES = {"examples": 0.55, "questions": 0.10, "asked": 0.20, "talk": 0.15}
"""Parts of the training sentences; where a source has fewer, the templates (asked, talk) make up for it."""

_SAID = re.compile(r"[A-Za-z][A-Za-z' ,;!?-]*[A-Za-z!?.]")
_GLOSS_EXAMPLE = re.compile(r'"([^"]+)"')
# WordNet's lexicographer files whose nouns people ask about: event, animal, artifact, body, food, object,
# person, phenomenon, plant, substance.
_ASKED_FILES = {11, 5, 6, 8, 13, 17, 18, 19, 20, 27}
_INSTANCE = "@i"


@dataclass
class Lexicon:
    """What WordNet has to say."""

    examples: list[str] = field(default_factory=list)
    common: list[str] = field(default_factory=list)
    """Nouns that occur in WordNet's own tagged texts."""
    rare: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """People and places, as they are spelled."""


def plain(text: str) -> str:
    """Lower-case words with single spaces: what is recognized and compared."""
    return " ".join(words_of(text))


def is_held_out(text: str) -> bool:
    """Whether only tests may use this sentence; case and punctuation make no difference."""
    digest = hashlib.md5(plain(text).encode(), usedforsecurity=False).digest()
    return digest[0] * 256 + digest[1] < 65_536 // HELD_OUT_ONE_OF


def is_usable(text: str) -> bool:
    """Whether a text is spelled as it is said, and of a fitting length."""
    count = len(words_of(text))
    return count in WORDS and len(text) in CHARACTERS and _SAID.fullmatch(text) is not None


def read_wordnet(folder: Path = WORDNET) -> Lexicon:
    """Examples of all words, nouns and names; SystemExit without the files."""
    if not (folder / "data.noun").is_file():
        raise SystemExit(f"{folder} has no data.noun: apt install wordnet-base")
    found = Lexicon()
    tagged = _tagged_nouns(folder / "index.noun")
    for part in ("noun", "verb", "adj", "adv"):
        for line in _lines(folder / f"data.{part}"):
            head, _, gloss = line.partition(" | ")
            found.examples += [example for example in _GLOSS_EXAMPLE.findall(gloss) if is_usable(example)]
            if part == "noun":
                _add_nouns(found, head.split(), tagged)
    for words in (found.examples, found.common, found.rare, found.names):
        words[:] = dict.fromkeys(words)
    return found


def _add_nouns(found: Lexicon, fields: list[str], tagged: set[str]) -> None:
    """The words of one line of data.noun: offset, file, type, count of words (hexadecimal), words and ids."""
    count = int(fields[3], 16)
    lemmas = [word.replace("_", " ") for word in fields[4 : 4 + 2 * count : 2]]
    is_name = _INSTANCE in fields
    if not is_name and int(fields[1]) not in _ASKED_FILES:
        return
    for lemma in lemmas[:2]:
        if not re.fullmatch(r"[A-Za-z]{3,}( [A-Za-z]{3,})?", lemma):
            continue
        if is_name and lemma.istitle():
            found.names.append(lemma)
        elif not is_name and lemma.islower():
            (found.common if lemma in tagged else found.rare).append(lemma)


def _tagged_nouns(file: Path) -> set[str]:
    """Lemmas with a positive count of tagged senses: the field before the offsets of the synsets."""
    found = set()
    for line in _lines(file):
        fields = line.split()
        synsets, pointers = int(fields[2]), int(fields[3])
        if int(fields[5 + pointers]) and len(fields) == 6 + pointers + synsets:
            found.add(fields[0].replace("_", " "))
    return found


def _lines(file: Path) -> list[str]:
    """Without the licence at the top, whose lines are indented."""
    return [line for line in file.read_text("ascii", "replace").splitlines() if not line.startswith("  ")]


def read_questions(file: Path) -> list[str]:
    """Usable questions of WebQuestions: JSON lines with `question`, gzipped."""
    with gzip.open(file, "rt") as lines:
        asked = [str(json.loads(line)["question"]).strip() for line in lines]
    return [question for question in dict.fromkeys(asked) if is_usable(question)]


UNITS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
""".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth",
            "nine": "ninth", "twelve": "twelfth"}  # fmt: skip
MONTHS = "January February March April May June July August September October November December".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
FIRST_NAMES = """
Adam Alice Amy Andrew Anna Ben Carla Charlie Clara Daniel David Diana Eleanor Emily Emma Erik Eva
Fatima Felix Frank George Grace Hannah Harry Helen Ibrahim Isabel Jack James Jane Jason Jessica John
Julia Karen Kevin Laura Leo Linda Lisa Lucy Luke Maria Mark Martin Mary Matthew Maya Michael
Mohammed Nadia Nina Oliver Olivia Omar Oscar Patricia Paul Peter Rachel Ravi Rebecca Robert Rosa
Ruth Samuel Sandra Sarah Simon Sofia Steven Susan Thomas Victor Victoria Walter William Yuki Zoe
""".split()


def number(value: int) -> str:
    """0 to 999,999 in words."""
    if value < 20:
        return UNITS[value]
    if value < 100:
        return TENS[value // 10 - 2] + (f" {UNITS[value % 10]}" if value % 10 else "")
    size, name = (1_000, "thousand") if value >= 1_000 else (100, "hundred")
    rest = value % size
    joint = " and " if 0 < rest < 100 else " "
    return f"{number(value // size)} {name}" + (f"{joint}{number(rest)}" if rest else "")


def ordinal(value: int) -> str:
    """1 to 99 as a place in a row."""
    *before, last = number(value).split()
    if last not in ORDINALS:
        last = (last[:-1] + "ie" if last.endswith("y") else last) + "th"
    return " ".join([*before, ORDINALS.get(last, last)])


def year(value: int) -> str:
    """1100 to 2099 as people say it."""
    if 2_000 <= value < 2_010:
        return number(value)
    century, rest = divmod(value, 100)
    return f"{number(century)} " + (
        "hundred" if not rest else f"oh {UNITS[rest]}" if rest < 10 else number(rest)
    )


def clock(rng: random.Random) -> str:
    """A time of day."""
    hour = rng.randint(1, 12)
    minute = rng.choice((5, 10, 20, 25))
    return rng.choice((
        f"{UNITS[hour]} o'clock", f"half past {UNITS[hour]}", f"a quarter to {UNITS[hour]}",
        f"a quarter past {UNITS[hour]}", f"{number(minute)} past {UNITS[hour]}",
        f"{number(minute)} to {UNITS[hour]}", f"{UNITS[hour]} {number(rng.randint(10, 59))}",
        f"{UNITS[hour]} in the {rng.choice(('morning', 'afternoon', 'evening'))}",
    ))  # fmt: skip


def _amount(rng: random.Random) -> str:
    return number(rng.choice((rng.randint(0, 20), rng.randint(0, 100), rng.randint(0, 9_999))))


ASKED = tuple(
    """
What is {a_thing}?
What is a {thing} used for?
How big is {a_thing}?
Where can I find {a_thing}?
What colour is {a_thing}?
Tell me about the {thing}.
How does {a_thing} work?
Who invented the {thing}?
What is the difference between {a_thing} and {a_thing}?
Is {a_thing} bigger than {a_thing}?
How do you spell {thing}?
What does the word {thing} mean?
Explain what {a_thing} is, please.
How long does {a_thing} live?
How much does {a_thing} weigh?
I bought {a_thing} and {a_thing} yesterday.
Have you ever seen {a_thing}?
I think the {thing} is next to the {thing}.
There is {a_thing} in the garden.
Can you describe {a_thing} in one sentence?
My brother is afraid of the {thing}.
The {thing} was made by {name}.
Who was {name}?
Where is {name}?
What is {name} known for?
When was {name} born?
How far is it from {name} to {name}?
Tell me something about {name}.
Is {name} in {name}?
I read a book about {name} and the {thing}.
What happened to {name} in {year}?
Did {name} ever meet {name}?
Why is {name} famous?
{first} told me about {name}.
How many people live in {name}?
What is the capital of {name}?
Which river flows through {name}?
What is the {most} {thing} in the world?
Which {thing} is the {most}?
Name the {most} {thing} in {name}.
We need more than one {thing} for the {thing}.
{first} lost the {thing} in {name}.
""".strip().splitlines()
)
TALK = tuple(
    """
Set a timer for {amount} minutes.
Set a timer for {amount} seconds, please.
Wake me up at {clock}.
Cancel the timer for the {thing}.
How much time is left on the timer?
Remind me at {clock} to call {first}.
What is {amount} plus {amount}?
What is {amount} minus {amount}?
How much is {amount} times {amount}?
Divide {amount} by {amount}.
What is the {ordinal} of {month}?
I was born on the {ordinal} of {month}, {year}.
What day was the {ordinal} of {month} {year}?
My name is {first} and I live in {name}.
Hello, this is {first}, can you hear me?
Is {first} coming on {day} or on {day}?
The train to {name} leaves at {clock} on {day}.
It costs {amount} pounds and {amount} pence.
It is {amount} degrees outside today.
There were {amount} people at the {thing}.
The year is {year}.
My phone number ends in {digit} {digit} {digit} {digit}.
Please repeat the number {amount} after me.
I will be there in {amount} minutes.
We met in {month} {year}.
Read me the {ordinal} line again.
What time is it in {name}?
Roll a dice and tell me the result.
Tell me a short joke about {a_thing}.
Good morning, {first}, how did you sleep?
Thank you very much for your help, {first}.
No, I meant the {ordinal} one.
Could you say that again, a little slower?
I did not understand {thing}.
What should I cook with {thing} and {thing}?
I feel a bit {mood} today.
Why do people feel {mood}?
{first} is {amount} years old.
The meeting with {first} and {first} is on {day}.
Can I ask you something about my {thing}?
What would you do if you were {mood}?
It happened in {year}.
""".strip().splitlines()
)
MOST = (
    "largest", "smallest", "oldest", "longest", "fastest", "highest", "deepest", "heaviest", "most expensive",
    "most popular",
)  # fmt: skip
MOODS = "tired happy sad bored excited nervous lonely hungry angry calm worried proud".split()


class Templates:
    """Fills templates with what WordNet and the number words have."""

    def __init__(self, lexicon: Lexicon, rng: random.Random) -> None:
        self.rng = rng
        self.lexicon = lexicon
        self.slots: dict[str, Callable[[], str]] = {
            "thing": self._thing,
            "a_thing": self._a_thing,
            "name": lambda: rng.choice(lexicon.names),
            "first": lambda: rng.choice(FIRST_NAMES),
            "amount": lambda: _amount(rng),
            "digit": lambda: UNITS[rng.randrange(10)],
            "ordinal": lambda: ordinal(rng.randint(1, 31)),
            "year": lambda: year(rng.randint(1_500, 2_039)),
            "month": lambda: rng.choice(MONTHS),
            "day": lambda: rng.choice(DAYS),
            "clock": lambda: clock(rng),
            "most": lambda: rng.choice(MOST),
            "mood": lambda: rng.choice(MOODS),
        }

    def one(self, templates: tuple[str, ...]) -> str:
        """A sentence of one of the templates."""
        made = re.sub(r"\{(\w+)\}", lambda slot: self.slots[slot[1]](), self.rng.choice(templates))
        return made[0].upper() + made[1:]

    def _thing(self) -> str:
        words = self.lexicon.common if self.rng.random() < 0.75 else self.lexicon.rare
        return self.rng.choice(words)

    def _a_thing(self) -> str:
        thing = self._thing()
        return f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}"


def compose(
    lexicon: Lexicon, questions: list[str], count: int, *, held_out: bool, seed: int = 0
) -> list[str]:
    """So many distinct sentences in random order, all of them held out or none; sources as in `SHARES`."""
    rng = random.Random(seed)
    templates = Templates(lexicon, rng)
    found: dict[str, str] = {}

    def add(sentence: str) -> None:
        if is_usable(sentence) and is_held_out(sentence) == held_out:
            found.setdefault(plain(sentence), sentence)

    for name, given in (("examples", lexicon.examples), ("questions", questions)):
        wanted = len(found) + int(SHARES[name] * count)
        for sentence in rng.sample(given, len(given)):
            if len(found) == wanted:
                break
            add(sentence)
    talk = SHARES["talk"] / (SHARES["talk"] + SHARES["asked"])
    while len(found) < count:
        add(templates.one(TALK if rng.random() < talk else ASKED))
    sentences = list(found.values())
    rng.shuffle(sentences)
    return sentences


def main() -> None:
    """Write training and test sentences, or show some."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("questions", type=Path, help="WebQuestions as gzipped JSON lines")
    parser.add_argument("file", type=Path, nargs="?", help="written as {train: [...], test: [...]}")
    parser.add_argument("--count", type=int, default=46_000, help="training sentences")
    parser.add_argument("--tests", type=int, default=400, help="held-out sentences")
    parser.add_argument("--show", type=int, default=0, help="print so many")
    args = parser.parse_args()
    lexicon, questions = read_wordnet(), read_questions(args.questions)
    train = compose(lexicon, questions, args.count, held_out=False)
    test = compose(lexicon, questions, args.tests, held_out=True, seed=1)
    if args.file:
        args.file.write_text(json.dumps({"train": train, "test": test}))
    words = {word for sentence in train for word in words_of(sentence)}
    unknown = [word for sentence in test for word in words_of(sentence) if word not in words]
    print(
        f"{len(lexicon.examples)} examples, {len(questions)} questions, {len(lexicon.common)} + "
        f"{len(lexicon.rare)} nouns, {len(lexicon.names)} names; {len(train)} sentences of "
        f"{len(words)} words, {len(test)} for tests, {len(unknown)} of whose words are new"
    )
    print("\n".join(train[: args.show]))


if __name__ == "__main__":
    main()
