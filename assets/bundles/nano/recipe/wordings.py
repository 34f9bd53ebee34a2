"""The forms in which each skill is asked, by grammar; see `grammar.py` for the notation.

Out: `skill_forms()` -> for each kind of question its forms. `plain` ones are what most people say: they are
asked most and always trained. Of the others a third is held out (`domain.py`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

import grammar
import topics
from topics import Fact

FORMS = 330  # of one kind of question, at most
HESITANT_SHARE = 0.35

# Ways round a question, a noun ("the capital of france"), what one may know ("what the capital of france is")
# and what one is told to do ("count from one to three").
AROUND_QUESTION = [
    "{q} [please|then|again]", "(tell|please tell) me {q}", "(can|could) you tell me {q}",
    "do you know {q}", "quick question {q}", "my question is {q}", "(let me|can i|may i) ask [you] {q}",
    "here is a question {q}", "{q} do you know", "{q} can you tell me", "(and|but) {q}",
]  # fmt: skip
AROUND_NOUN = [
    "{q}", "{q} please", "[please] (tell|give) me {q}", "(tell|give) me {q} please", "(what is|what's) {q}",
    "(can|could|would|will) you [please] (tell|give) me {q}", "(can|could) you (tell|give) me {q} please",
    "do you [happen to] know {q}", "(i would|i'd) like [to know] {q}", "i want [to know] {q}", "i need {q}",
    "what would {q} be", "{q} is what", "{q} what is (it|that)", "what might {q} be", "name {q} [for me]",
    "i am looking for {q}", "(what is|what's) {q} (please|then|called)", "remind me of {q}",
    "(let's|let us) hear {q}", "you know {q} don't you",
]  # fmt: skip
AROUND_INDIRECT = [
    "[please] tell me {q} [please]", "(can|could|would|will) you [please] tell me {q}",
    "(can|could) you tell me {q} please", "do you [happen to] know {q}", "i would like to know {q}",
    "i'd like to know {q}", "i want to know {q}", "i was [just] wondering {q}", "i wonder {q}",
    "any idea {q}", "do you have any idea {q}", "let me know {q}", "would you mind telling me {q}",
    "may i ask {q}", "i (forgot|have forgotten) {q}", "remind me {q}", "i don't know {q}",
    "i need to know {q}",
    "can you say {q}", "(work|figure) out {q}",
]  # fmt: skip
AROUND_COMMAND = [
    "{q} [please|for me|for me please|now]", "please {q} [for me]",
    "(can|could|would|will) you [please] {q} [for me]", "(can|could) you {q} please",
    "i want you to {q}", "(i would|i'd) like you to {q}", "(go ahead and|now|just|try to) {q}",
    "i need you to {q}", "would you {q} for me please", "are you able to {q}", "(let me|let's) hear you {q}",
    "do you know how to {q}", "you should {q}", "your task is to {q}", "how about you {q}",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of question of a skill.

    `plain`, `question`, `noun`, `indirect` and `command` are templates; the last four go into the ways round
    them. A slot in upper case holds what the speaker takes back ("three plus five no three plus four").
    """

    skill: str
    facts: tuple[Fact, ...]
    plain: list[str]
    question: list[str]
    noun: list[str]
    indirect: list[str]
    command: list[str]
    corrected: list[str]

    def plain_forms(self) -> list[str]:
        """What most people say."""
        return grammar.expand_all(self.plain)

    @property
    def name(self) -> str:
        """Distinct among the kinds."""
        return f"{self.skill} {self.plain[0]}"


def forms(kind: Kind) -> list[str]:
    """At most `FORMS` forms, plain ones first, a part of the others hesitant; the same each time."""
    rng = random.Random(kind.name)
    plain = kind.plain_forms()
    around = (
        (kind.question, AROUND_QUESTION),
        (kind.noun, AROUND_NOUN),
        (kind.indirect, AROUND_INDIRECT),
        (kind.command, AROUND_COMMAND),
    )
    fluent = [
        way.replace("{q}", core)
        for cores, ways in around
        for core in grammar.expand_all(cores)
        for way in grammar.expand_all(ways)
    ]
    fluent = [form for form in dict.fromkeys(fluent) if form not in plain]
    corrected = grammar.expand_all(kind.corrected)
    rng.shuffle(fluent)
    room = FORMS - len(plain) - len(corrected)
    fluent = fluent[: round(room * (1 - HESITANT_SHARE))]
    return _with_hesitant([*plain, *corrected, *fluent], [*plain, *plain], rng)


def _sum_kind(sign: str, words: str, more: list[str], nouns: list[str], commands: list[str]) -> Kind:
    """Sums; `words` is a template of the sign in words."""
    return Kind(
        sign,
        tuple(topics.sums(sign)),
        [f"(what is|what's|how much is|) {{a}} {sign} {{b}}", *more],
        [
            f"(what is|what's|how much is) {{a}} {words} {{b}}",
            f"(what do you|what do i|what do we) get (for|from) {{a}} {words} {{b}}",
            f"(what does|how much does) {{a}} {words} {{b}} (make|equal|come to|give)",
            f"{{a}} {words} {{b}} (is what|equals what|makes what|makes how much)",
            f"if i have {{a}} {words} {{b}} what is that",
        ],
        [f"{{a}} {words} {{b}}", *nouns],
        [f"(what|how much) {{a}} {words} {{b}} (is|makes)"],
        commands + [f"(calculate|work out|compute|solve|do) {{a}} {words} {{b}}"],
        [
            f"[what is] {{A}} {sign} {{B}} (no|sorry|no wait|i mean) {{a}} {sign} {{b}}",
            f"[what's] {{a}} {sign} {{B}} (no|sorry|uh no) {{a}} {sign} {{b}}",
        ],
    )


def _compare_kind(bigger: bool) -> Kind:
    more = "bigger|larger|greater|higher" if bigger else "smaller|lower"
    most = "biggest|largest|greatest" if bigger else "smallest|lowest"
    word = "bigger" if bigger else "smaller"
    return Kind(
        "compare",
        tuple(topics.comparisons(bigger)),
        [f"(which|what) is {word} {{a}} or {{b}}", f"{word} {{a}} or {{b}}"],
        [
            f"(which|what|which one|which number|what number|which of the two) is ({more}) {{a}} or {{b}}",
            f"{{a}} or {{b}} (which|which one|what) is ({more})",
            f"(which is|which one's|what's) the ({more}) (number|one) {{a}} or {{b}}",
            f"is {{a}} or {{b}} the ({more}) (number|one)",
            f"(what is|which is) ({most}) {{a}} or {{b}}",
            f"(out of|of|between) {{a}} and {{b}} which [one] is ({more})",
        ],
        [
            f"the ({more}) [one|number] (of|out of) {{a}} and {{b}}",
            f"the ({more}) number {{a}} or {{b}}",
        ],
        [f"(which|which one|which number) is ({more}) {{a}} or {{b}}", f"whether {{a}} or {{b}} is ({more})"],
        [f"compare {{a}} and {{b}} which is ({more})", f"(pick|choose) the ({more}) of {{a}} and {{b}}"],
        [f"which is {word} {{A}} or {{B}} (no|sorry|i mean) {{a}} or {{b}}"],
    )


def _count_kind(up: bool) -> Kind:
    how = "up|upwards|forward" if up else "down|backwards|backward|back"
    also = "(say|list|give me|tell me|name)" if up else "(say|list)"
    return Kind(
        "count",
        tuple(topics.counts(up)),
        ["[please] count from {a} to {b}", "count {a} to {b}"] if up else
        ["[please] count (down|backwards) from {a} to {b}", "count down {a} to {b}"],
        [f"how do you count ({how}) from {{a}} to {{b}}"],
        [f"the numbers ({how}) from {{a}} to {{b}}" if not up else
         "(the|all the|all) numbers (from {a} to {b}|between {a} and {b} inclusive|{a} to {b})"],
        [],
        [
            f"count ({how}) from {{a}} (to|until|till|up to) {{b}}" if up else
            f"count ({how}) from {{a}} (to|until|till|down to) {{b}}",
            f"start (at|from|with) {{a}} and count ({how}) to {{b}}",
            f"begin (at|with) {{a}} and count ({how}) (to|until you reach) {{b}}",
            f"{also} (the|all the) numbers ({'' if up else how}) from {{a}} to {{b}}" if not up else
            f"{also} the numbers from {{a}} (to|up to) {{b}}",
            *(["count from {a} (to|until|till|up to|through) {b}"] if up else
              ["do a count down from {a} to {b}"]),
        ],
        [f"count {'' if up else 'down '}from {{A}} to {{B}} (no|sorry|i mean) from {{a}} to {{b}}"],
    )  # fmt: skip


def _neighbour_kind(skill: str, names: list[str], side: str) -> Kind:
    follows = (
        "follows|comes after|is after|is next after|goes after"
        if side == "after"
        else ("comes before|is before|precedes|goes before|comes right before")
    )
    word = {"number": "number", "day": "day", "month": "month"}[skill]
    sided = "after" if side == "after" else "before"
    short = ["what comes {s} {n}", "{s} {n}"] if skill == "number" else ["what comes {s} {n}"]
    plain = [*short, "what {k} (comes|is) {s} {n}", "what is the {k} {s} {n}", "which {k} comes {s} {n}"]
    return Kind(
        skill,
        tuple(topics.neighbours(names, side, wraps=skill != "number")),
        [template.replace("{s}", sided).replace("{k}", word) for template in plain],
        [
            f"(what|which|what {word}|which {word}) ({follows}) {{n}}",
            f"{{n}} (is followed by|comes before) (what|which {word})" if side == "after" else
            f"{{n}} (comes after|follows) (what|which {word})",
            f"what {word} is it [right] {sided} {{n}}",
            f"(if|when) it is {{n}} what {word} {'comes next' if side == 'after' else 'came before'}",
            f"{sided} {{n}} (what comes|comes what|which {word} comes|what is next)" if side == "after" else
            f"{sided} {{n}} (what comes|comes what|which {word} comes|what was it)",
        ],
        [f"the {word} [right|just|directly|that comes] {sided} {{n}}"],
        [f"(what|which {word}|what {word}) ({follows}) {{n}}", f"what the {word} {sided} {{n}} is"],
        [f"name the {word} {sided} {{n}}"],
        [f"what {word} comes {sided} {{N}} (no|sorry|i mean) {sided} {{n}}"],
    )  # fmt: skip


@cache
def kinds() -> tuple[Kind, ...]:
    """All kinds of questions about facts; greetings, strings to repeat and what is declined are apart."""
    return (
        _sum_kind(
            "plus", "(plus|and|added to)", ["add {a} and {b}", "{a} and {b}"],
            ["the sum of {a} and {b}", "{a} and {b} together"], ["add {a} (and|to|plus) {b}",
            "add up {a} and {b}",
            "sum [up] {a} and {b}", "put {a} and {b} together"],
        ),
        _sum_kind(
            "minus", "(minus|take away|less)", ["{a} take away {b}"],
            ["the difference of {a} and {b}", "what is left of {a} minus {b}"],
            ["(subtract|take) {b} from {a}", "take {b} away from {a}"],
        ),
        _sum_kind(
            "times", "(times|multiplied by|multiplied with)", ["{a} multiplied by {b}",
            "multiply {a} by {b}"],
            ["the product of {a} and {b}", "{a} by {b}"],
            ["multiply {a} (by|and|with|times) {b}"],
        ),
        _compare_kind(True), _compare_kind(False), _count_kind(True), _count_kind(False),
        *(_neighbour_kind(skill, names, side)
          for skill, names in (("number", topics.NUMBERS), ("day", topics.DAYS), ("month", topics.MONTHS))
          for side in ("after", "before")),
        Kind(
            "opposite", tuple(topics.opposites()),
            ["(what is|what's|) the opposite of {w}", "opposite of {w}"],
            ["(what is|what's|which word is|which is|what word is) the (opposite|contrary|reverse) of {w}",
             "what is (opposite to|the opposite to|the other side of) {w}",
             "{w} and its opposite (which is|what is it)", "{w} has what opposite",
             "which word (means|has) the opposite [meaning] of {w}", "what do you call the opposite of {w}",
             "if (something|it|he) is not {w} what is the opposite"],
            ["the (opposite|contrary|reverse|antonym) (of|to|for) {w}", "the word opposite to {w}",
             "a word (that means|for) the opposite of {w}"],
            ["(what|which word) is the (opposite|contrary) of {w}", "what the opposite of {w} is",
             "what the opposite word of {w} is"],
            ["(name|say|find|think of) (the|an) opposite (of|for|to) {w}"],
            ["[what is] the opposite of {W} (no|sorry|i mean) [of] {w}"],
        ),
        Kind(
            "capital", tuple(topics.capitals()),
            ["(what is|what's|) the capital of {c}", "capital of {c}", "{c} capital"],
            ["(what is|what's|which is|which city is|what city is) the capital [city] of {c}",
             "what is (the capital of the country|the capital city in) {c}",
             "{c} has (which|what) capital", "what capital [city] does {c} have",
             "which (city|town) is {c}'s capital", "what is {c}'s capital [city]",
             "in {c} what is the capital"],
            ["the capital [city|town] of {c}", "{c}'s capital [city]", "the name of the capital of {c}",
             "the main city of {c}"],
            ["what the capital [city] of {c} is", "(which|what) city is the capital of {c}",
             "what {c}'s capital is [called]", "which city {c} has as its capital"],
            ["(name|say) the capital [city] of {c}"],
            ["[what is] the capital of {C} (no|sorry|i mean|no wait) [of] {c}"],
        ),
        Kind(
            "colour", tuple(topics.colours()),
            ["(what|which) colour is {t}", "what color is {t}", "[the] colour of {t}"],
            ["(what|which) (colour|color) (is|has) {t}", "(what|which) (colour|color) does {t} have",
             "what is the (colour|color) of {t}",
             "what's the (colour|color) of {t}", "{t} (is|has) (what|which) (colour|color)",
             "(of|in) (what|which) (colour|color) is {t}", "what (colour|color) would you say {t} is",
             "{t} what (colour|color) is that", "what (colour|color) do you see on {t}"],
            ["the (colour|color) of {t}", "the (colour|color) {t} has"],
            ["(what|which) (colour|color) {t} (is|has)", "what the (colour|color) of {t} is"],
            ["(name|say) the (colour|color) of {t}"],
            ["what colour is {T} (no|sorry|i mean) {t}"],
        ),
        Kind(
            "spell", tuple(topics.spellings()),
            ["how do you spell {w}", "spell {w}", "how is {w} spelled"],
            ["how (do i|do you|would you|can i|do we|does one|should i) (spell|write) {w}",
             "how is [the word] {w} (spelled|spelt|written)", "how do you spell (the word|the animal|) {w}",
             "what (is|are) the (spelling|letters) of {w}", "(which|what) letters are in {w}",
             "{w} how do you (spell|write) (it|that)", "how to spell {w}"],
            ["the (spelling|letters) of [the word] {w}", "{w} letter by letter", "{w} spelled out"],
            ["how (to spell|you spell|one spells|you write) [the word] {w}", "how {w} is (spelled|spelt)"],
            ["spell [out|the word|out the word|me the word] {w}", "spell {w} letter by letter",
             "say the letters of {w}"],
            ["(spell|how do you spell) {W} (no|sorry|i mean) {w}"],
        ),
    )  # fmt: skip


AROUND_REPEAT = [
    "[please] (say|repeat) {r} [please|for me]", "[please] repeat after me {r}", "(say|repeat) after me {r}",
    "(can|could|would|will) you [please] (say|repeat) {r} [for me]", "now (say|repeat) {r}", "copy me {r}",
    "(say|repeat) the words {r}", "(say|repeat) the following [words] {r}", "(say|repeat) this {r}",
    "i want you to (say|repeat) {r}", "i'd like you to (say|repeat) {r}", "try to (say|repeat) {r}",
    "just (say|repeat) {r}", "say these words {r}", "(repeat|say) these words after me {r}",
    "repeat what i say {r}", "let me hear you say {r}", "let's hear you say {r}", "parrot me {r}",
    "(can|could) you repeat after me {r}", "(can|could) you say the words {r}", "say it back to me {r}",
    "echo {r}", "would you mind repeating {r}", "go ahead and (say|repeat) {r}",
    "i say {r} and you repeat it", "{r} repeat that", "{r} say that", "{r} now you", "and now {r}",
]  # fmt: skip
PLAIN_REPEAT = ["repeat after me {r}", "[please] (say|repeat) {r}", "can you say {r}"]


def plain_repeat_forms() -> list[str]:
    """What most people say to have words repeated."""
    return grammar.expand_all(PLAIN_REPEAT)


def repeat_forms() -> list[str]:
    """Forms of "repeat after me": the slot is a string of words, in upper case one that is taken back."""
    plain, fluent = plain_repeat_forms(), grammar.expand_all(AROUND_REPEAT)
    return _with_hesitant([*plain, *fluent, "say {R} no sorry {r}"], plain, random.Random("repeat"))


def _with_hesitant(forms: list[str], plain: list[str], rng: random.Random) -> list[str]:
    """Filled up to `FORMS`, plain ones twice as often."""
    found = dict.fromkeys(forms)
    for _ in range(10 * FORMS):
        if len(found) >= FORMS:
            break
        found.setdefault(grammar.hesitant(rng.choice([*plain, *forms]), rng))
    return list(found)


def greeting_forms() -> list[tuple[str, topics.Units, bool]]:
    """Forms of greetings and small talk with the answers, and whether they are plain: the shortest third."""
    found: dict[str, tuple[topics.Units, bool]] = {}
    rng = random.Random("greeting")
    for templates, units in topics.GREETINGS:
        fluent = grammar.expand_all(templates)
        plain = sorted(fluent, key=len)[: len(fluent) // 3]
        for form in fluent:
            found.setdefault(form, (tuple(units), form in plain))
        for form in fluent * 2:
            ending = "" if form.endswith("today") else rng.choice(["", "", "my friend", "nano", "today"])
            opener = rng.choice(["", "", "um", "uh", "well", "hey", "oh", "so", "okay", "hello", "hi"])
            opener = "" if opener == form.split()[0] else opener
            found.setdefault(" ".join(f"{opener} {form} {ending}".split()), (tuple(units), False))
    return [(form, units, plain) for form, (units, plain) in found.items()]
