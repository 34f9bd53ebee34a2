"""Conversations of two turns whose second turn needs the first: follow-ups, "is that right",
"say that again".

In: the plain questions of each kind (`Asked`), none of them held out. Out: (skill, form of the second turn,
opening, second turn) with their answers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import declined
import grammar
import topics
from topics import Units

Exchange = tuple[str, Units]  # question, answer


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that may open a conversation: of which skill, about what."""

    skill: str
    slots: topics.Slots
    exchange: Exchange


FollowUp = tuple[str, str, Exchange, Exchange]

AND = "[and|now|and now|and then|okay|okay and|so|then|um and|well and]"
PLUS = [
    f"{AND} plus {{n}}",
    f"{AND} add {{n}} [to that|to it]",
    "and (if i|when you) add {n}",
    "{n} more",
    "what (if i add|about plus|if you add) {n}",
    "plus {n} more",
    "that plus {n}",
    "what is that plus {n}",
]
MINUS = [
    f"{AND} minus {{n}}",
    f"{AND} (subtract|take away) {{n}} [from that|from it]",
    "and (if i|when you) take away {n}",
    "and {n} less",
    "what (if i take away|about minus) {n}",
    "that minus {n}",
    "what is that minus {n}",
]
STEP = [
    "[and] what comes {s} that", "[and] {s} that", "[and] the {k} {s} that", "and the {k} {s}",
    "(what about|how about) {s} that", "(and|so) what is {s} that", "which {k} comes {s} that",
    "and (which|what) {k} is {s} that", "okay and {s} that", "um and {s} that", "and what (follows|is next)",
    "[and] (then|the next one|what next|what then)", "[and] what comes next", "the next {k} [please]",
]  # fmt: skip
BACK = {"follows", "next", "then"}  # words of `STEP` that only lead on
OTHER = [
    "[and|okay and|um and|so|now] (what about|how about) {n}", "(and|and now|okay and|now) {n}",
    "and (for|of|with) {n}", "the same (for|with) {n}", "and (what is|what's) it for {n}", "{n} too please",
    "and if i say {n}", "can you do {n} too", "(and|now) the one of {n}", "do the same for {n}",
]  # fmt: skip
RIGHT = [
    "is that (right|correct|true|so)", "(are you|you are|are you really) (sure|certain) [about that]",
    "[um|well|oh|so|okay] is (that|this|it) [really] (right|correct|true)", "really", "oh really",
    "is it really", "that is (right|correct|true) isn't it", "that's (right|correct|true) isn't it",
    "(isn't|is not) that wrong", "do you think (that|it) is (right|correct)", "can i trust that",
    "(that|this) is right yes", "did you get that right", "you are right aren't you", "is that really so",
    "and is that (right|correct)", "is that your (final|last) answer", "right or wrong", "true or false",
]  # fmt: skip
IS_IT = [
    "[so|and|um|well|oh|okay so] is it {n}", "[so] (it is|it's|that is|that's) {n} right", "isn't it {n}",
    "is that {n}", "(i thought it was|is it not|did you say|you said|you mean|do you mean) {n}",
    "so (it is|the answer is) {n}", "[was|is] the answer {n}", "(not|or) {n}", "{n} right", "{n} is it",
]  # fmt: skip
AGAIN = [
    "[please] (say|repeat) that [again] [please]", "say (it|that) again [please|for me]", "again please",
    "(can|could|would) you [please] (say|repeat) that [again]", "(can|could) you say it again", "pardon [me]",
    "what did you [just] say", "(what was|what is) that [again]", "i did not (hear|catch|get) that",
    "once more",
    "i didn't (hear|catch|get|understand) (that|you)", "(sorry|excuse me) what [was that|did you say]",
    "[one more time|once again|once more] please", "repeat [it|your answer|the answer] [please]",
    "come again", "(could|can) you repeat (it|the answer|your answer|yourself)", "say what",
    "what was the answer",
    "[i am|i'm] sorry (could|can) you repeat that", "tell me (again|once more) [please]", "huh",
    "one more time",
    "um say that again", "well can you repeat that", "let me hear that again", "again", "say again",
]  # fmt: skip


def second_forms() -> list[str]:
    """Forms of second turns that name something new."""
    return grammar.expand_all([*PLUS, *MINUS, *OTHER, *IS_IT])


def follow_ups(opening: dict[str, list[Asked]], rng: random.Random, size: int) -> Iterator[FollowUp]:
    """About 5 x `size` conversations from the openings of each skill."""
    yield from _sums(opening["plus"] + opening["minus"], rng, size * 3 // 2)
    yield from _steps(opening["number"] + opening["day"] + opening["month"], rng, size)
    for skill in ("capital", "opposite", "colour", "spell"):
        yield from _others(skill, opening[skill], rng, size // 3)
    everything = sorted(opening)
    checkable = [
        s for s in everything if s not in ("greeting", "unknown", "count", "repeat", "spell", "cannot")
    ]
    right, is_it, again = map(grammar.expand_all, (RIGHT, IS_IT, AGAIN))
    for _ in range(size // 2):
        first = rng.choice(opening[rng.choice(checkable)])
        form = rng.choice(right)
        yield "confirm", form, first.exchange, (form, topics.AGREEMENT)
    for _ in range(size // 2):
        yield _guess(opening[rng.choice([s for s in checkable if s != "compare"])], rng.choice(is_it), rng)
    for _ in range(size):
        first = rng.choice(opening[rng.choice([s for s in everything if s != "cannot"])])
        form = rng.choice(again)
        yield "again", form, first.exchange, (form, first.exchange[1])
    wishes = declined.cannot_forms()
    for _ in range(size // 3):
        first = rng.choice(opening[rng.choice(everything)])
        form = rng.choice(wishes)
        yield "cannot", form, first.exchange, (form, topics.CANNOT_ANSWER)


def _sums(openings: list[Asked], rng: random.Random, size: int) -> Iterator[FollowUp]:
    """The result goes on: "and plus two"."""
    forms = {"plus": grammar.expand_all(PLUS), "minus": grammar.expand_all(MINUS)}
    done = 0
    while done < size:
        first = rng.choice(openings)
        result = topics.NUMBERS.index(first.exchange[1][-1].removeprefix("is "))
        more, sign = rng.randrange(11), rng.choice(["plus", "plus", "minus"])
        if 0 <= (result + more if sign == "plus" else result - more) <= 20:
            # A third in the shortest form, which most people use.
            form = rng.choice([f"and {sign} {{n}}", rng.choice(forms[sign]), rng.choice(forms[sign])])
            second = form.replace("{n}", topics.NUMBERS[more])
            units = topics.arithmetic_units(result, more, sign)
            yield "follow_up", form, first.exchange, (second, units)
            done += 1


def _steps(openings: list[Asked], rng: random.Random, size: int) -> Iterator[FollowUp]:
    """The neighbour's neighbour: "and after that"."""
    forms = grammar.expand_all(STEP)
    after = {(asked.skill, asked.exchange[1][0]): asked.exchange[1] for asked in openings}
    done = 0
    while done < size:
        first = rng.choice(openings)
        side, form = first.exchange[1][0].split()[0], rng.choice(forms)
        if side == "before" and BACK & set(form.split()):
            continue
        reached = f"{side} {first.exchange[1][1].removeprefix('comes ')}"
        units = after.get((first.skill, reached))
        if units is not None:
            second = form.replace("{s}", side).replace("{k}", first.skill)
            yield "follow_up", form, first.exchange, (second, units)
            done += 1


def _others(skill: str, openings: list[Asked], rng: random.Random, size: int) -> Iterator[FollowUp]:
    """The same about something else: "and of italy"."""
    forms = grammar.expand_all(OTHER)
    for _ in range(size):
        first, other = rng.sample(openings, 2)
        form = rng.choice([rng.choice(["and of {n}", "what about {n}", "and {n}"]), rng.choice(forms)])
        second = form.replace("{n}", next(iter(other.slots.values())))
        yield "follow_up", form, first.exchange, (second, other.exchange[1])


def _guess(openings: list[Asked], form: str, rng: random.Random) -> FollowUp:
    """ "is it seven": yes, or no and the answer again."""
    first, other = rng.choice(openings), rng.choice(openings)
    units = first.exchange[1]
    right = rng.random() < 0.5
    guess = (units if right else other.exchange[1])[-1].split(" ", 1)[1]
    is_right = guess == units[-1].split(" ", 1)[1]
    answer = topics.AGREEMENT if is_right else (topics.CORRECTION, *units)
    return "confirm", form, first.exchange, (form.replace("{n}", guess), answer)
