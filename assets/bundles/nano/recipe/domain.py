"""Stage 0 of the recipe: what the nano model can talk about.

Out: `dialogues(split)` -> Dialogue objects. A dialogue is one or two turns; a turn is the question as text and the
answer as a list of *units*. A unit is a phrase that the assistant's voice says in one piece ("the capital of france");
an answer's speech is its units one after the other on the grid of the speech codes, its text their words.

Held out: a (wording, entities) combination whose hash falls into the held-out tenth is never trained, in no voice and
in no modality. The entities of a held-out combination do occur in other wordings: the model is asked to understand,
not to know sums that it never saw.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
).split()
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
MONTHS = "january february march april may june july august september october november december".split()
OPPOSITES = [
    ("hot", "cold"), ("big", "small"), ("fast", "slow"), ("happy", "sad"), ("early", "late"), ("open", "closed"),
    ("rich", "poor"), ("strong", "weak"), ("heavy", "light"), ("empty", "full"), ("young", "old"), ("clean", "dirty"),
    ("easy", "difficult"), ("loud", "quiet"), ("inside", "outside"), ("winter", "summer"), ("north", "south"),
    ("first", "last"), ("always", "never"), ("tall", "short"), ("thick", "thin"), ("brave", "afraid"),
    ("sweet", "bitter"), ("morning", "evening"),
]  # fmt: skip
CAPITALS = {
    "france": "paris", "italy": "rome", "spain": "madrid", "germany": "berlin", "england": "london",
    "austria": "vienna", "poland": "warsaw", "portugal": "lisbon", "greece": "athens", "russia": "moscow",
    "japan": "tokyo", "china": "beijing", "egypt": "cairo", "kenya": "nairobi", "norway": "oslo",
    "sweden": "stockholm", "denmark": "copenhagen", "finland": "helsinki", "hungary": "budapest",
    "ireland": "dublin", "canada": "ottawa", "cuba": "havana", "turkey": "ankara", "belgium": "brussels",
}  # fmt: skip
NAMES = {*DAYS, *MONTHS, *CAPITALS, *CAPITALS.values()}
COLOURS = {
    "grass": "green", "the sky": "blue", "snow": "white", "coal": "black", "a banana": "yellow", "a tomato": "red",
    "an orange": "orange", "chocolate": "brown", "an elephant": "grey", "a lemon": "yellow", "blood": "red",
    "milk": "white", "the sun": "yellow", "a raven": "black", "a frog": "green", "the ocean": "blue",
    "a flamingo": "pink", "a carrot": "orange",
}  # fmt: skip
REPEAT_WORDS = (
    "apple banana orange lemon potato tomato coffee water butter cheese chocolate sandwich elephant tiger monkey "
    "rabbit dolphin penguin spider butterfly table window mirror pencil paper basket hammer ladder bottle blanket "
    "camera guitar piano violin trumpet doctor teacher farmer soldier sister mother grandfather captain island river "
    "mountain forest village castle bridge station airport hospital library garden kitchen yellow purple silver "
    "summer winter monday friday happy little beautiful quickly seven eleven twenty picture computer telephone "
    "bicycle airplane rocket diamond thunder umbrella jacket sunshine holiday birthday dragon magic planet music"
).split()

GREETINGS: list[tuple[list[str], list[str]]] = [
    (
        ["hello", "hi there", "hello there", "good morning", "good day to you", "hey", "good afternoon", "greetings"],
        ["hello", "how can i help you"],
    ),
    (
        ["who are you", "what is your name", "what are you called", "tell me your name", "may i ask who you are",
         "introduce yourself", "what should i call you"],
        ["i am the nano voice", "a small speech model"],
    ),
    (
        ["how are you", "how are you doing", "how do you feel today", "are you well", "how is it going",
         "how are you today"],
        ["i am fine", "thank you for asking"],
    ),
    (
        ["what can you do", "what do you know", "how can you help me", "what can i ask you", "help me please",
         "tell me what you can do"],
        ["i can count", "and do sums", "and name days and capitals"],
    ),
    (
        ["thank you", "thanks a lot", "thank you very much", "many thanks", "that was great thank you",
         "thanks for your help"],
        ["you are welcome"],
    ),
    (
        ["goodbye", "bye bye", "see you later", "good night", "see you tomorrow", "i have to go now", "farewell"],
        ["goodbye", "see you soon"],
    ),
]  # fmt: skip

UNKNOWN_ANSWER = ["i am sorry", "i do not know that"]
UNKNOWN_THINGS = (
    "the weather|the news|the traffic|the football match|my mother|your favourite film|the president|the meaning of "
    "life|my shopping list|the stock market|the new phone|my neighbour|the train to the city|quantum physics|the "
    "recipe for soup|a good restaurant|the king of spain|the longest bridge|the next holiday|my email|the concert "
    "tonight|the oldest tree|the lottery|the history of rome|the best doctor"
).split("|")
UNKNOWN_WORDINGS = [
    "what do you think about {}", "tell me about {}", "can you explain {}", "how much is {}", "where can i find {}",
    "who knows {}", "tell me a story about {}", "what happened with {}", "do you like {}", "why is there {}",
    "please call {}", "how old is {}",
]  # fmt: skip
UNKNOWN_PLAIN = [
    "play some music", "turn on the light", "set an alarm for six", "how tall is a giraffe", "open the door",
    "what time is it", "sing me a song", "tell me a joke", "where do you live", "how many people live in china",
    "who wrote this book", "order a pizza", "is it raining outside", "what should i cook for dinner",
    "how far is the moon", "drive me home", "find my keys", "take a picture", "what is love", "which team won",
]  # fmt: skip

PREFIXES = ["", "", "", "", "please tell me ", "tell me ", "can you tell me ", "do you know ", "i want to know "]


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its answer."""

    question: str
    units: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One or two turns of one skill. `key` decides whether it is held out."""

    skill: str
    turns: tuple[Turn, ...]
    key: str

    @property
    def held_out(self) -> bool:
        """True for the tenth that is never trained."""
        return hashlib.md5(self.key.encode()).digest()[0] < 26


def sentence(units: tuple[str, ...] | list[str]) -> str:
    """Units as text: names, the word "i" and the first letter in capitals, a full stop at the end."""
    text = " ".join("I" if word == "i" else word.capitalize() if word in NAMES else word for word in " ".join(units).split())
    return text[0].upper() + text[1:] + "."


def normalise(text: str) -> str:
    """Lower-case words without punctuation: the form in which two answers are compared."""
    return " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


# ---------------------------------------------------------------- skills: each yields (wording id, question, units)
Item = tuple[str, str, list[str]]


def arithmetic_units(a: int, b: int, plus: bool) -> list[str]:
    """ "three" | "plus four" | "is seven"."""
    result = a + b if plus else a - b
    return [NUMBERS[a], f"{'plus' if plus else 'minus'} {NUMBERS[b]}", f"is {NUMBERS[result]}"]


def _arithmetic(plus: bool) -> Iterator[Item]:
    wordings = (
        ["what is {} plus {}", "how much is {} plus {}", "{} plus {}", "add {} and {}", "what do you get for {} plus {}",
         "can you add {} and {}"]
        if plus
        else ["what is {} minus {}", "how much is {} minus {}", "{} minus {}", "what is left of {} minus {}",
              "what do you get for {} minus {}", "please work out {} minus {}"]
    )  # fmt: skip
    for a in range(21):
        for b in range(21):
            if 0 <= (a + b if plus else a - b) <= 20:
                for i, wording in enumerate(wordings):
                    yield f"{i}", wording.format(NUMBERS[a], NUMBERS[b]), arithmetic_units(a, b, plus)


def _count() -> Iterator[Item]:
    up = ["count from {} to {}", "please count from {} to {}", "count up from {} to {}", "say the numbers from {} to {}"]
    down = ["count down from {} to {}", "please count down from {} to {}", "count backwards from {} to {}"]
    for start in range(21):
        for length in range(3, 8):
            if start + length <= 21:
                for i, wording in enumerate(up):
                    numbers = [NUMBERS[n] for n in range(start, start + length)]
                    yield f"u{i}", wording.format(numbers[0], numbers[-1]), numbers
            if start - length >= -1:
                for i, wording in enumerate(down):
                    numbers = [NUMBERS[n] for n in range(start, start - length, -1)]
                    yield f"d{i}", wording.format(numbers[0], numbers[-1]), numbers


def _neighbours() -> Iterator[tuple[str, str, str, list[str]]]:
    for n in range(21):
        if n < 20:
            for i, wording in enumerate(
                ["what comes after {}", "what number comes after {}", "which number follows {}", "what is the number after {}"]
            ):
                yield "number", f"a{i}", wording.format(NUMBERS[n]), [f"after {NUMBERS[n]}", f"comes {NUMBERS[n + 1]}"]
        if n > 0:
            for i, wording in enumerate(
                ["what comes before {}", "what number comes before {}", "what is the number before {}", "which number is before {}"]
            ):
                yield "number", f"b{i}", wording.format(NUMBERS[n]), [f"before {NUMBERS[n]}", f"comes {NUMBERS[n - 1]}"]
    for kind, names in (("day", DAYS), ("month", MONTHS)):
        for index, name in enumerate(names):
            for side, other in (("after", names[(index + 1) % len(names)]), ("before", names[index - 1])):
                for i, wording in enumerate(
                    ["what {k} comes {s} {n}", "which {k} is {s} {n}", "what is the {k} {s} {n}", "name the {k} {s} {n}",
                     "what {k} is it {s} {n}"]
                ):  # fmt: skip
                    yield kind, f"{side}{i}", wording.format(k=kind, s=side, n=name), [f"{side} {name}", f"comes {other}"]


def _facts() -> Iterator[tuple[str, str, str, list[str]]]:
    for first, second in OPPOSITES:
        for word, other in ((first, second), (second, first)):
            for i, wording in enumerate(
                ["what is the opposite of {}", "tell me the opposite of {}", "the opposite of {}", "what is the contrary of {}",
                 "give me the opposite of {}", "name the opposite of {}"]
            ):  # fmt: skip
                yield "opposite", f"{i}", wording.format(word), [f"the opposite of {word}", f"is {other}"]
    for country, city in CAPITALS.items():
        for i, wording in enumerate(
            ["what is the capital of {}", "tell me the capital of {}", "which city is the capital of {}", "the capital of {}",
             "name the capital of {}", "what is the capital city of {}"]
        ):  # fmt: skip
            yield "capital", f"{i}", wording.format(country), [f"the capital of {country}", f"is {city}"]
    for thing, colour in COLOURS.items():
        for i, wording in enumerate(
            ["what colour is {}", "which colour is {}", "what is the colour of {}", "tell me the colour of {}", "what colour has {}"]
        ):
            yield "colour", f"{i}", wording.format(thing), [thing, f"is {colour}"]


def _follow_ups(rng: random.Random) -> Iterator[tuple[str, list[tuple[str, list[str]]]]]:
    """Two turns; the second needs the first."""
    for a in range(21):
        for b in range(21):
            for plus in (True, False):
                result = a + b if plus else a - b
                if not 0 <= result <= 20:
                    continue
                for _ in range(5):
                    c, plus2 = rng.randrange(0, 11), rng.random() < 0.6
                    result2 = result + c if plus2 else result - c
                    if not 0 <= result2 <= 20:
                        continue
                    word = "plus" if plus2 else "minus"
                    opening = rng.choice(["what is {} {} {}", "how much is {} {} {}", "{} {} {}"])
                    wording = rng.choice(["and {} {}", "{} {}", "now {} {}", "and then {} {}"])
                    first = (opening.format(NUMBERS[a], "plus" if plus else "minus", NUMBERS[b]), arithmetic_units(a, b, plus))
                    second = (wording.format(word, NUMBERS[c]), arithmetic_units(result, c, plus2))
                    yield f"{wording}{a}{plus}{b}{plus2}{c}", [first, second]
    for kind, names in (("day", DAYS), ("month", MONTHS)):
        for index, name in enumerate(names):
            for step, side in ((1, "after"), (-1, "before")):
                one, two = names[(index + step) % len(names)], names[(index + 2 * step) % len(names)]
                for opening in ("what {k} comes {s} {n}", "what is the {k} {s} {n}"):
                    for wording in (f"and {side} that", f"and the {kind} {side} that", "and then", f"what comes {side} that"):
                        first = (opening.format(k=kind, s=side, n=name), [f"{side} {name}", f"comes {one}"])
                        yield f"{wording}{name}{opening}", [first, (wording, [f"{side} {one}", f"comes {two}"])]
    countries, words = list(CAPITALS), [w for pair in OPPOSITES for w in pair]
    opposite = {**dict(OPPOSITES), **{b: a for a, b in OPPOSITES}}
    for wording in ("and of {}", "and what about {}", "what about {}", "and {}"):
        for country in countries:
            for other in rng.sample([c for c in countries if c != country], 4):
                first = (f"what is the capital of {country}", [f"the capital of {country}", f"is {CAPITALS[country]}"])
                yield f"{wording}{country}{other}", [first, (wording.format(other), [f"the capital of {other}", f"is {CAPITALS[other]}"])]
        for word in words:
            for other in rng.sample([w for w in words if w != word], 3):
                first = (f"what is the opposite of {word}", [f"the opposite of {word}", f"is {opposite[word]}"])
                yield f"{wording}{word}{other}", [first, (wording.format(other), [f"the opposite of {other}", f"is {opposite[other]}"])]


REPEAT_WORDINGS = ["repeat after me {}", "please repeat {}", "say {}", "repeat {}", "can you say {}", "please say {}"]


def repeat_item(rng: random.Random) -> Item:
    """A random string of two to four words to say back."""
    words = [rng.choice(REPEAT_WORDS) for _ in range(rng.choice([2, 3, 3, 4]))]
    i = rng.randrange(len(REPEAT_WORDINGS))
    return f"{i}", REPEAT_WORDINGS[i].format(" ".join(words)), words


def all_dialogues(seed: int = 0, repeats: int = 24000) -> list[Dialogue]:
    """Every dialogue of the domain, held-out ones included (see `Dialogue.held_out`)."""
    rng = random.Random(seed)
    found: dict[str, Dialogue] = {}

    def add(skill: str, wording: str, *turns: tuple[str, list[str]]) -> None:
        key = f"{skill}|{wording}|" + "|".join(question for question, _ in turns)
        found.setdefault(key, Dialogue(skill, tuple(Turn(q, tuple(u)) for q, u in turns), key))

    for wording, question, units in _arithmetic(True):
        add("plus", wording, (question, units))
    for wording, question, units in _arithmetic(False):
        add("minus", wording, (question, units))
    for wording, question, units in _count():
        add("count", wording, (question, units))
    for skill, wording, question, units in list(_neighbours()) + list(_facts()):
        for prefix in {"", rng.choice(PREFIXES)} if question.startswith(("what", "which")) else {""}:
            add(skill, prefix + wording, (prefix + question, units))
    for questions, units in GREETINGS:
        for i, question in enumerate(questions):
            for ending in ("", " my friend", " nano"):
                add("greeting", f"{i}{ending}", (question + ending, units))
    for thing in UNKNOWN_THINGS:
        for wording in UNKNOWN_WORDINGS:
            add("unknown", wording, (wording.format(thing), UNKNOWN_ANSWER))
    for question in UNKNOWN_PLAIN:
        for ending in ("", " please", " now"):
            add("unknown", ending, (question + ending, UNKNOWN_ANSWER))
    for _ in range(repeats):
        wording, question, units = repeat_item(rng)
        add("repeat", wording, (question, units))
    for wording, turns in _follow_ups(rng):
        add("follow_up", wording, *turns)
    return list(found.values())


def all_units(dialogues: list[Dialogue]) -> list[str]:
    """Every unit that the assistant's voice has to say, sorted."""
    return sorted({unit for dialogue in dialogues for turn in dialogue.turns for unit in turn.units})


def vocabulary(dialogues: list[Dialogue]) -> list[str]:
    """Every word in questions and answers, sorted."""
    return sorted({w for d in dialogues for t in d.turns for w in (t.question + " " + " ".join(t.units)).split()})


if __name__ == "__main__":
    from collections import Counter

    everything = all_dialogues()
    print(len(everything), "dialogues;", sum(d.held_out for d in everything), "held out")
    print(Counter(d.skill for d in everything))
    print(len(all_units(everything)), "units;", len(vocabulary(everything)), "words")
    print(len({t.question for d in everything for t in d.turns}), "questions")
