"""What the nano model knows, and the units of its answers. Used by `domain.py` and the modules of its
questions.

A unit is a phrase that the assistant's voice says in one piece ("the capital of france"); an answer's speech
is its units one after the other on the grid of the speech codes, its text their words. A letter that is
spelled is a unit in upper case.
"""

from __future__ import annotations

from collections.abc import Iterator

NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
MONTHS = "january february march april may june july august september october november december".split()
OPPOSITES = [
    ("hot", "cold"), ("big", "small"), ("fast", "slow"), ("happy", "sad"), ("early", "late"),
    ("open", "closed"), ("rich", "poor"), ("strong", "weak"), ("heavy", "light"), ("empty", "full"),
    ("young", "old"), ("clean", "dirty"), ("easy", "difficult"), ("loud", "quiet"), ("inside", "outside"),
    ("winter", "summer"), ("north", "south"), ("first", "last"), ("always", "never"), ("tall", "short"),
    ("thick", "thin"), ("brave", "afraid"), ("sweet", "bitter"), ("morning", "evening"),
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
    "grass": "green", "the sky": "blue", "snow": "white", "coal": "black", "a banana": "yellow",
    "a tomato": "red", "an orange": "orange", "chocolate": "brown", "an elephant": "grey",
    "a lemon": "yellow", "blood": "red", "milk": "white", "the sun": "yellow", "a raven": "black",
    "a frog": "green", "the ocean": "blue", "a flamingo": "pink", "a carrot": "orange",
}  # fmt: skip
# Words that the judge tells apart in the assistant's voice: of 87 tried, six (apple, guitar, purple, trumpet,
# umbrella, water) were often heard as others and are left out.
REPEAT_WORDS = (
    "banana orange lemon potato tomato coffee butter cheese chocolate sandwich elephant tiger monkey rabbit "
    "dolphin penguin spider butterfly table window mirror pencil paper basket hammer ladder bottle blanket "
    "camera piano violin doctor teacher farmer soldier sister mother grandfather captain island river "
    "mountain forest village castle bridge station airport hospital library garden kitchen yellow silver "
    "summer winter monday friday happy little beautiful quickly seven eleven twenty picture computer "
    "telephone bicycle airplane rocket diamond thunder jacket sunshine holiday birthday dragon magic planet "
    "music"
).split()
# Short words whose spelling follows from no other of them; every letter but q occurs.
SPELLED = (
    "cat dog bird fish horse cow pig duck mouse lion bear wolf fox zebra house door chair bed lamp clock "
    "book pen cup spoon knife plate bread milk egg rice cake soup apple grape plum tree leaf moon star rain "
    "snow wind fire sand hand foot nose eye girl boy king queen jump walk run swim green blue red black "
    "train boat plane box jazz vase"
).split()

GREETINGS: list[tuple[list[str], list[str]]] = [
    (
        ["(hello|hi|hey) [there]", "good (morning|afternoon|evening)", "good day [to you]", "greetings",
         "hello hello", "nice to meet you", "hello how do you do", "hi it is me", "hi i am back",
         "(hello|hi|hey) (assistant|computer)", "pleased to meet you", "well hello there"],
        ["hello", "how can i help you"],
    ),
    (
        ["who are you", "(what is|what's) your name", "what are you called", "tell me your name",
         "(may i|can i|could i) ask who you are", "introduce yourself", "what should i call you",
         "do you have a name", "(can|could) you introduce yourself", "who am i talking to", "who is this",
         "what are you", "tell me [something] about yourself", "who (is|am i) speaking [to|with]",
         "tell me who you are", "are you a (robot|computer|machine|program)"],
        ["i am the nano voice", "a small speech model"],
    ),
    (
        ["how are you [doing]", "how do you feel [today]", "are you well", "(how is|how's) it going",
         "how are (you|things) today", "how have you been", "are you (okay|all right|fine)",
         "how are you feeling [today]", "how is your day [going]", "(how is|how's) everything",
         "how are things [with you]"],
        ["i am fine", "thank you for asking"],
    ),
    (
        ["what can you do [for me]", "what do you know", "how can you help me", "what can i ask you",
         "help me [please]", "tell me what you can do", "what are you able to do",
         "(can|could) you help me", "i need [some] help", "what (questions|things) can i ask [you]",
         "what can we talk about", "what are you good at", "what do you know about",
         "how do you work", "what are your (skills|abilities)", "what else can you do"],
        ["i can count", "and do sums", "and name days and capitals"],
    ),
    (
        ["thank you [very much|so much]", "thanks [a lot|very much|so much]", "many thanks",
         "that was (great|good|nice|helpful) (thank you|thanks)", "(thanks|thank you) for your help",
         "thanks [that is all]", "great thank you", "cheers", "i thank you", "(perfect|great|lovely) thanks",
         "that is very kind [of you]", "(okay|all right) thank you"],
        ["you are welcome"],
    ),
    (
        ["goodbye", "bye [bye]", "see you [later|soon|tomorrow|around]", "good night", "i have to go [now]",
         "farewell", "(okay|all right|well) (bye|goodbye)", "take care", "until next time",
         "(thanks|thank you) (bye|goodbye)", "talk to you (later|soon|tomorrow)", "i am leaving now",
         "(i will|i'll) talk to you (later|soon)", "have a (good|nice) (day|evening)",
         "that is all goodbye"],
        ["goodbye", "see you soon"],
    ),
]  # fmt: skip

UNKNOWN_ANSWER = ("i am sorry", "i do not know that")
CANNOT_ANSWER = ("i am sorry", "i cannot do that")
AGREEMENT = ("yes that is right",)
CORRECTION = "no,"

Units = tuple[str, ...]


def number_name(number: int) -> str:
    """0 to 100 in words."""
    if number == 100:
        return "one hundred"
    if number <= 20:
        return NUMBERS[number]
    tens, ones = TENS[number // 10 - 2], number % 10
    return f"{tens} {NUMBERS[ones]}" if ones else tens


def arithmetic_units(a: int, b: int, sign: str) -> Units:
    """ "three" | "plus four" | "is seven"; `sign` is plus, minus or times."""
    result = {"plus": a + b, "minus": a - b, "times": a * b}[sign]
    return NUMBERS[a], f"{sign} {NUMBERS[b]}", f"is {number_name(result)}"


def compare_units(a: int, b: int, bigger: bool) -> Units:
    """ "seven" | "is bigger"."""
    return NUMBERS[max(a, b) if bigger else min(a, b)], f"is {'bigger' if bigger else 'smaller'}"


def count_units(first: int, last: int) -> Units:
    """Up or down; a comma is a pause behind the word."""
    step = 1 if first < last else -1
    words = [NUMBERS[n] for n in range(first, last + step, step)]
    return *(f"{word}," for word in words[:-1]), words[-1]


def neighbour_units(side: str, name: str, other: str) -> Units:
    """ "after monday" | "comes tuesday"."""
    return f"{side} {name}", f"comes {other}"


def opposite_units(word: str, other: str) -> Units:
    """ "the opposite of hot" | "is cold"."""
    return f"the opposite of {word}", f"is {other}"


def capital_units(country: str) -> Units:
    """ "the capital of france" | "is paris"."""
    return f"the capital of {country}", f"is {CAPITALS[country]}"


def spell_units(word: str) -> Units:
    """ "C" | "A" | "T"."""
    return tuple(word.upper())


Slots = dict[str, str]
Fact = tuple[Slots, Units]


def sums(sign: str) -> Iterator[Fact]:
    """Sums and differences from zero to twenty, products of numbers to ten."""
    for a in range(21):
        for b in range(21):
            in_range = max(a, b) <= 10 if sign == "times" else 0 <= (a + b if sign == "plus" else a - b) <= 20
            if in_range:
                yield {"a": NUMBERS[a], "b": NUMBERS[b]}, arithmetic_units(a, b, sign)


def comparisons(bigger: bool) -> Iterator[Fact]:
    """Two different numbers, either first."""
    for a in range(21):
        for b in range(21):
            if a != b:
                yield {"a": NUMBERS[a], "b": NUMBERS[b]}, compare_units(a, b, bigger)


def counts(up: bool) -> Iterator[Fact]:
    """Three to seven numbers in a row."""
    for low in range(21):
        for high in range(low + 2, min(low + 7, 21)):
            first, last = (low, high) if up else (high, low)
            yield {"a": NUMBERS[first], "b": NUMBERS[last]}, count_units(first, last)


def neighbours(names: list[str], side: str, wraps: bool) -> Iterator[Fact]:
    """The name after or before each name."""
    step = 1 if side == "after" else -1
    for index, name in enumerate(names):
        if wraps or 0 <= index + step < len(names):
            yield {"n": name}, neighbour_units(side, name, names[(index + step) % len(names)])


def opposites() -> Iterator[Fact]:
    """Both directions."""
    for pair in OPPOSITES:
        for word, other in (pair, pair[::-1]):
            yield {"w": word}, opposite_units(word, other)


def capitals() -> Iterator[Fact]:
    """All countries."""
    for country in CAPITALS:
        yield {"c": country}, capital_units(country)


def colours() -> Iterator[Fact]:
    """All things."""
    for thing, colour in COLOURS.items():
        yield {"t": thing}, (thing, f"is {colour}")


def spellings() -> Iterator[Fact]:
    """All words that are spelled."""
    for word in SPELLED:
        yield {"w": word}, spell_units(word)
