"""What needs no reply: unfinished questions and backchannels; and the places where a speaker may pause.

`is_unfinished` looks at the words alone. It is careful: "what is three" might be a question, "what is three
plus" cannot be one.
"""

from __future__ import annotations

import random
import re

import grammar
import topics

# Words behind which something must follow.
DANGLING = {
    "the", "of", "from", "plus", "minus", "times", "by", "and", "or", "than", "spell", "between", "if",
    "what's", "multiplied", "about", "to", "after", "before", "say",
}  # fmt: skip
# Before a question begins in earnest.
PREAMBLE = {
    "i", "have", "a", "question", "can", "could", "would", "will", "you", "please", "tell", "do",
    "happen", "to", "know", "want", "like", "need", "i'd", "let", "think", "me", "excuse", "listen",
    "hey", "nano", "right", "oh", "now", "hum", "all", "sorry", "one", "more", "thing", "next", "so",
    "well", "okay", "and", "but", "may", "ask", "was", "just", "wondering", "wonder", "any", "idea",
    "forgot", "forgotten", "here", "is", "my", "quick", "remind", "out", "say", *grammar.FILLERS,
}  # fmt: skip
NUMBER = "|".join(topics.NUMBERS)
THING = "number|day|month|city|town|colour|color|word|one"
# The beginning of a question, to be found behind the preamble.
BEGINNING = re.compile(
    rf"(what|which) ({THING})|(what|which)( ({THING}))? (is|does|has|comes|goes|follows|precedes)"
    r"|how (much )?(is|does)"
    r"|how (do|would|should|can) (you|i)"
)
REQUEST = re.compile(r"(.* )?((can|could|would|will) you( please)?|tell me|to know|i was wondering|i wonder)")
REST = re.compile(
    r".*\b(repeat after me|say after me|"
    r"the (capital|capital city|opposite|contrary|colour|color|sum|product|difference)|"
    r"the (number|numbers|spelling)|"
    rf"count .*from ({NUMBER})|(bigger|smaller|larger|greater|higher|lower) ({NUMBER}))"
)
# Complete although such a word ends it.
COMPLETE = re.compile(
    r"say|or|tell me|.*\b(come|comes|speaking|talking) to|and .*\b(after|before)|.*\bdid you( just)? say"
    r"|(.* )?(in|not) .* the (capital|capital city|opposite)|and what follows|.* came before"
    r"|.*\bis .* or .* the \w+ one"
)
THINKING = {"um", "uh", "er", "well", "so", "okay so", "let me think", "well um", "um so", "so um", "uh well"}

BACKCHANNELS = [
    "(uh huh|um hum|hum|yeah|yes|yep|okay|right|all right|sure|i see|got it|ah|oh|oh okay)",
    "(ah|oh|yeah|yes|okay|right|uh huh|um hum) (okay|i see|yes|yeah|right|sure|got it)",
    "(yeah yeah|yes yes|okay okay|right right|uh huh uh huh)",
    "(ah|oh|okay|yeah) (good|nice|great|cool|fine)",
    "(good|nice|great|cool|fine|perfect|interesting|exactly|absolutely|of course|very good|very nice)",
    "[okay|ah|yeah|yes] (that makes sense|i understand|understood|i know|makes sense|that's right)",
    "(wow|oh wow|my goodness|oh my|ha ha|indeed|i thought so|fair enough|no problem|never mind|not bad)",
    "(um hum|uh huh) (good|great|nice|fine|interesting)",
    "[oh] (that's|that is) (good|nice|great|interesting)",
]  # fmt: skip


def backchannels() -> list[str]:
    """Short words of a listener, spelled so that synthesizers say them: "um hum" for "mm-hm"."""
    return grammar.expand_all(BACKCHANNELS)


def is_unfinished(words: str) -> bool:
    """Whether somebody who stops here must want to go on."""
    if words in THINKING:
        return True
    spoken = words.split()
    while spoken and spoken[-1] in grammar.FILLERS:
        spoken.pop()
    said = " ".join(spoken)
    if not spoken or COMPLETE.fullmatch(said):
        return False
    if spoken[-1] in DANGLING or REST.fullmatch(said):
        return True
    if REQUEST.fullmatch(said) and PREAMBLE.issuperset(spoken):
        return True
    begun = next((i for i, word in enumerate(spoken) if word not in PREAMBLE), len(spoken))
    return BEGINNING.fullmatch(" ".join(spoken[begun:])) is not None


def pause_places(question: str) -> list[int]:
    """Numbers of words before which a speaker may pause without having said something complete."""
    words = question.split()
    return [n for n in range(1, len(words)) if is_unfinished(" ".join(words[:n]))]


def prefixes(form: str, slots: topics.Slots, rng: random.Random) -> list[tuple[str, str]]:
    """(form, words) of a question up to each of its pauses, every sixth with a filler at its end."""
    words = form.split()
    found = []
    for place in range(1, len(words)):
        said = words[:place]
        if rng.random() < 1 / 6 and said[-1] not in grammar.FILLERS:
            said = [*said, rng.choice(grammar.FILLERS)]
        filled = " ".join(slots.get(word.strip("{}"), word) if "{" in word else word for word in said)
        if "{" not in filled and is_unfinished(filled):
            found.append((" ".join(said), filled))
    return found
