"""Stage 0 of the recipe: what the nano model can talk about.

Out: `all_dialogues()` -> Dialogue objects. A dialogue is one or two turns; a turn is the question as text and
the answer as a list of units (`topics.py`), empty where no reply is wanted: an unfinished question and a
backchannel. `training_dialogues` adds those of `outside.py`, `training_questions` samples what is worth
synthesizing.

Held out, never trained in any voice or modality:
- a third of the *forms* (a wording whose slots are empty) of each skill, but none of the plain ones, which
  most people say;
- of what is left, the tenth of the combinations of form and entities that a hash of the questions picks. Its
  entities do occur in other forms: the model is asked to understand, not to know sums that it never saw.
No training dialogue asks a held-out question, not even as the opening of a follow-up.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain

import declined
import follow_ups
import outside
import topics
import unfinished
import wordings
from follow_ups import Asked
from topics import Units

FACTS_PER_FORM = 4  # questions of each form that is not plain
PLAIN_FACTS = 240  # and of each plain one, if it has so many
REPEATED_PLAIN = 0.6  # share of plain forms among the strings to repeat
FOLLOW_UPS = 1_400
UNFINISHED = 5_000

# How the questions of a training set are shared out: hard and large skills more.
QUESTION_SHARES = {
    "repeat": 22, "unknown": 10, "unfinished": 10, "plus": 7, "minus": 7, "times": 6, "follow_up": 6,
    "count": 5, "spell": 5, "compare": 5, "opposite": 5, "capital": 4, "number": 4, "month": 4, "day": 3,
    "colour": 3, "confirm": 3, "again": 2, "greeting": 2, "cannot": 2, "backchannel": 1,
    "cut_off": 24, "remark": 14, "beyond": 7,
}  # fmt: skip
PLAIN_CHANCE = 4  # how much likelier a plain form is drawn than another


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its answer; no units are no reply."""

    question: str
    units: Units


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One or two turns of one skill. `form` is the wording of the last one; `key` names the dialogue."""

    skill: str
    turns: tuple[Turn, ...]
    form: str
    plain: bool = False

    @property
    def key(self) -> str:
        """Distinct, and the same in every run."""
        return "|".join([self.skill, self.form, *(turn.question for turn in self.turns)])

    @property
    def held_out_form(self) -> bool:
        """True for the third of the forms that is never trained."""
        return not self.plain and is_held_out_form(self.skill, self.form)

    @property
    def held_out(self) -> bool:
        """True for what is never trained: a held-out form, or a held-out combination of a trained one."""
        if self.plain and self.form == self.turns[-1].question:
            return False  # "hello" has no combinations
        return self.held_out_form or _byte(self.key) < 26


@cache
def _byte(key: str) -> int:
    return hashlib.md5(key.encode()).digest()[0]


def is_held_out_form(skill: str, form: str) -> bool:
    """Whether a form that is not plain is held out, whatever is asked about."""
    return _byte(f"form|{skill}|{form}") < 86


def sentence(units: Units | list[str]) -> str:
    """Units as text: names, the word "i" and the first letter in capitals, a full stop at the end."""
    words = " ".join(units).split()
    text = " ".join(
        "I" if word == "i" else word.capitalize() if word in topics.NAMES else word for word in words
    )
    return text[:1].upper() + text[1:] + "." if text else ""


def normalize(text: str) -> str:
    """Lower-case words without punctuation (but "what's" is one word): the form in which answers are
    compared."""
    words = "".join(c if c.isalnum() or c == "'" else " " for c in text.lower()).split()
    return " ".join(word for word in (word.strip("'") for word in words) if word)


def _fill(form: str, slots: topics.Slots, other: topics.Slots) -> str:
    """A slot in upper case is filled from the other fact: the speaker takes it back."""
    for name, value in slots.items():
        form = form.replace(f"{{{name}}}", value).replace(f"{{{name.upper()}}}", other[name])
    return form


def _kind_dialogues(kind: wordings.Kind, rng: random.Random) -> Iterator[tuple[Dialogue, Asked]]:
    """Each form with some facts, so that every fact is asked about equally often."""
    plain = set(kind.plain_forms())
    answers = {units for _, units in kind.facts}
    others = {units: [slots for slots, other in kind.facts if other != units] for units in answers}
    waiting: list[topics.Fact] = []
    for form in wordings.forms(kind):
        count = min(PLAIN_FACTS if form in plain else FACTS_PER_FORM, len(kind.facts))
        if count == len(kind.facts):
            facts = list(kind.facts)
        else:
            if len(waiting) < count:
                waiting = rng.sample(kind.facts, len(kind.facts))
            facts = [waiting.pop() for _ in range(count)]
        for slots, units in facts:
            exchange = (_fill(form, slots, rng.choice(others[units])), units)
            dialogue = Dialogue(kind.skill, (Turn(*exchange),), form, form in plain)
            yield dialogue, Asked(kind.skill, slots, exchange)


def repeat_dialogue(rng: random.Random, forms: list[str], plain: bool) -> Dialogue:
    """A random string of two to four words to say back."""
    words, other = (tuple(rng.choices(topics.REPEAT_WORDS, k=rng.choice([2, 3, 3, 4]))) for _ in range(2))
    form = rng.choice(forms)
    question = form.replace("{r}", " ".join(words)).replace("{R}", " ".join(other[:2]))
    return Dialogue("repeat", (Turn(question, words),), form, plain)


def _repeats(rng: random.Random, count: int) -> Iterator[Dialogue]:
    plain, forms = wordings.plain_repeat_forms(), wordings.repeat_forms()
    others = [form for form in forms if form not in plain]
    for index in range(count):
        is_plain = index < REPEATED_PLAIN * count
        yield repeat_dialogue(rng, plain if is_plain else others, is_plain)


def _small_talk() -> Iterator[Dialogue]:
    for form, units, plain in wordings.greeting_forms():
        yield Dialogue("greeting", (Turn(form, units),), form, plain)
    for form, question in declined.unknown():
        yield Dialogue("unknown", (Turn(question, topics.UNKNOWN_ANSWER),), form)
    for form in declined.cannot_forms():
        yield Dialogue("cannot", (Turn(form, topics.CANNOT_ANSWER),), form)
    for form in unfinished.backchannels():
        yield Dialogue("backchannel", (Turn(form, ()),), form)


def _unfinished(
    asked: list[tuple[str, topics.Slots]], plain: set[str], complete: set[str], rng: random.Random
) -> Iterator[Dialogue]:
    """Prefixes of questions, given as form and slots, that are no questions themselves: neither in `complete`
    nor a form of the domain. Those of a plain form are plain."""
    forms = {form for form, _ in asked}
    plain_prefixes = {prefix for form in plain for prefix in accumulate(form.split(), "{} {}".format)}
    found: dict[str, Dialogue] = {}
    for thinking in sorted(unfinished.THINKING):
        found[thinking] = Dialogue("unfinished", (Turn(thinking, ()),), thinking, plain=True)
    second_turns = ((form, topics.Slots()) for form in follow_ups.second_forms())
    drawn = (rng.choice(asked) for _ in range(20 * UNFINISHED))
    for whole, slots in chain(second_turns, drawn):
        if len(found) >= UNFINISHED:
            break
        for form, prefix in unfinished.prefixes(whole, slots, rng):
            if form not in forms and prefix not in complete:
                is_plain = form in plain_prefixes
                found.setdefault(prefix, Dialogue("unfinished", (Turn(prefix, ()),), form, is_plain))
    yield from found.values()


def all_dialogues(seed: int = 0, repeats: int = 13_000) -> list[Dialogue]:
    """Every dialogue of the domain, held-out ones included (see `Dialogue.held_out`)."""
    rng = random.Random(seed)
    singles: dict[str, Dialogue] = {}  # by question: no question has two answers
    openings: dict[str, list[Asked]] = defaultdict(list)
    asked_forms: list[tuple[str, topics.Slots]] = []
    for kind in wordings.kinds():
        for dialogue, asked in _kind_dialogues(kind, rng):
            singles.setdefault(dialogue.turns[0].question, dialogue)
            asked_forms.append((dialogue.form, asked.slots))
            if dialogue.plain and not dialogue.held_out:
                openings[dialogue.skill].append(asked)
    for dialogue in [*_repeats(rng, repeats), *_small_talk()]:
        if singles.setdefault(dialogue.turns[0].question, dialogue) is dialogue and not dialogue.held_out:
            turn = dialogue.turns[0]
            openings[dialogue.skill].append(Asked(dialogue.skill, {}, (turn.question, turn.units)))
    for empty in ("backchannel", "cannot"):
        openings.pop(empty)
    openings["repeat"] = openings["repeat"][:300]
    openings["unknown"] = openings["unknown"][:300]
    asked_forms += [(form, topics.Slots()) for form in wordings.repeat_forms()]
    plain = {dialogue.form for dialogue in singles.values() if dialogue.plain}
    found = [*singles.values(), *_unfinished(asked_forms, plain, set(singles), rng)]
    for skill, form, *exchanges in follow_ups.follow_ups(openings, rng, FOLLOW_UPS):
        found.append(Dialogue(skill, tuple(Turn(*exchange) for exchange in exchanges), form))
    return _without_leaks(list({dialogue.key: dialogue for dialogue in found}.values()))


def outside_dialogues(known: list[Dialogue]) -> list[Dialogue]:
    """Dialogues of `outside.py`, beside those of `all_dialogues`: of no question of theirs there are two."""
    questions = {turn.question for dialogue in known for turn in dialogue.turns}
    plain = {d.form for d in known if d.plain and d.skill in ("plus", "minus")}
    found = []
    for skill, form, words in outside.items({turn.question for d in known for turn in d.turns if turn.units}):
        if words not in questions:
            answer = () if skill == "cut_off" else topics.UNKNOWN_ANSWER
            found.append(Dialogue(skill, (Turn(words, answer),), form, skill == "beyond" and form in plain))
    return found


def training_dialogues() -> list[Dialogue]:
    """All that training draws from, held-out ones included."""
    known = all_dialogues()
    return known + outside_dialogues(known)


def _without_leaks(dialogues: list[Dialogue]) -> list[Dialogue]:
    """Drop training dialogues that ask a held-out question, be it as the opening of a follow-up."""
    unasked = {d.turns[0].question for d in dialogues if d.held_out and len(d.turns) == 1}
    return [d for d in dialogues if d.held_out or not any(turn.question in unasked for turn in d.turns)]


def training_questions(count: int, rng: random.Random, dialogues: list[Dialogue] | None = None) -> list[str]:
    """About `count` distinct questions of training dialogues, shuffled; both questions of a follow-up.

    Every skill has its share, every trained form and every answer of a fact occurs if `count` allows; then
    plain forms are likeliest.
    """
    piles: dict[str, list[Dialogue]] = defaultdict(list)
    for dialogue in dialogues or training_dialogues():
        if not dialogue.held_out:
            piles[dialogue.skill].append(dialogue)
    chosen: dict[str, None] = {}
    total = sum(QUESTION_SHARES[skill] for skill in piles)
    # The openings of two turns are among the questions of the skills that come first.
    for skill in sorted(piles, key=lambda skill: len(piles[skill][0].turns)):
        wanted, before = count * QUESTION_SHARES[skill] / total, len(chosen)
        for dialogue in _by_use(piles[skill], chosen, rng):
            if len(chosen) - before >= wanted:
                break
            chosen.update(dict.fromkeys(turn.question for turn in dialogue.turns))
    questions = list(chosen)
    rng.shuffle(questions)
    return questions


def _by_use(dialogues: list[Dialogue], chosen: dict[str, None], rng: random.Random) -> list[Dialogue]:
    """Shuffled: first what has a new form, then a new answer, then plain ones before others; dialogues whose
    opening is chosen already come before."""
    order = sorted(dialogues, key=lambda d: rng.random() ** (PLAIN_CHANCE if d.plain else 1))
    order.sort(key=lambda d: d.turns[0].question not in chosen and len(d.turns) > 1)
    forms: Counter[str] = Counter()
    answers: Counter[Units] = Counter()
    rank = {}
    for dialogue in order:
        form, units = dialogue.form, dialogue.turns[-1].units
        rank[dialogue.key] = 0 if not forms[form] else 1 if not answers[units] else 2
        forms[form] += 1
        answers[units] += 1
    return sorted(order, key=lambda d: rank[d.key])


def balanced(dialogues: list[Dialogue], count: int, rng: random.Random) -> list[Dialogue]:
    """About the same number of every skill."""
    by_skill: dict[str, list[Dialogue]] = defaultdict(list)
    for dialogue in dialogues:
        by_skill[dialogue.skill].append(dialogue)
    for pile in by_skill.values():
        rng.shuffle(pile)
    chosen: list[Dialogue] = []
    while len(chosen) < count and any(by_skill.values()):
        chosen += [pile.pop() for pile in by_skill.values() if pile]
    return chosen[:count]


def all_units(dialogues: list[Dialogue]) -> list[str]:
    """Every unit that the assistant's voice has to say, sorted."""
    return sorted({unit for dialogue in dialogues for turn in dialogue.turns for unit in turn.units})


def vocabulary(dialogues: list[Dialogue]) -> list[str]:
    """Every word in questions and answers, sorted."""
    turns = {turn for dialogue in dialogues for turn in dialogue.turns}
    parts = {part for turn in turns for part in (turn.question, *turn.units)}
    return sorted({word for part in parts for word in normalize(part).split()})


def _print_counts() -> None:
    everything = training_dialogues()
    print(len(everything), "dialogues;", len({t.question for d in everything for t in d.turns}), "questions")
    print(len(all_units(everything)), "units;", len(vocabulary(everything)), "words")
    for skill in QUESTION_SHARES:
        pile = [d for d in everything if d.skill == skill]
        forms = {d.form for d in pile}
        held_out = {d.form for d in pile if d.held_out_form}
        never = sum(d.held_out for d in pile)
        print(f"{skill:12} {len(pile):6} dialogues, {never:5} held out", end="; ")
        print(f"{len(forms)} forms, {len(held_out)} held out")


if __name__ == "__main__":
    _print_counts()
