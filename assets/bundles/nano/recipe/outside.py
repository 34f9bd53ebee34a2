"""What training adds to the dialogues of `domain.py`: sentences outside the domain, whole and cut off, and
sums whose result nano has no word for.

In: the questions that are declined (`declined.py`) and the wordings of sums. Out: (skill, form, words);
`remark` and `beyond` are declined and `cut_off` has no reply. They are not among `domain.all_dialogues`, so
that `evaluate.py` asks what it always asked.

A remark is a template: at each "/", and at its end, the sentence may be over; a speaker who stops anywhere
else wants to go on. Slots are filled from `WORDS`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import groupby

import declined
import grammar
import topics
import unfinished
import wordings

PER_FORM = 14  # remarks of each form
CUTS_EACH = 3  # of a remark or a question
BEYOND_PLAIN, BEYOND_PER_FORM = 200, 3  # sums of each form

WORDS = {
    "who": "my sister|my brother|the teacher|the manager|our neighbour|the old man|her husband|"
    "the captain|the young woman|a friend of mine|my uncle|the mayor|the driver|the girl next door|"
    "his boss|the nurse|the lawyer|one of the guests|the person at the desk|my best friend|the children|"
    "the whole family|the people upstairs|the engineer|the lady from the bank|everybody|nobody|"
    "the plumber|our guide",
    "thing": "the report|the blue envelope|a bottle of wine|my suitcase|the broken chair|the package|"
    "the remote|the tickets|an old photograph|the washing machine|her glasses|the last piece of cake|"
    "the contract|a ladder|the spare key|the newspaper|my charger|the big umbrella|the recording|"
    "the garden hose|the password|the front door|the invoice|a pair of shoes|the wrong address|"
    "the message|the box of tools|your jacket|the account|the list of names|the phone number|that letter|"
    "the form|the conference room|the system",
    "place": "the office|the station|the library|the kitchen|the airport|the hotel|the market|the park|"
    "the other side of town|the second floor|the garage|a small village|the mailbox|the main entrance|"
    "the hospital|the beach|the corner shop|the waiting room|the parking lot|the north|the school|"
    "the theatre",
    "when": "yesterday|this morning|tomorrow|next week|last night|at noon|on thursday|in the afternoon|"
    "after dinner|before the meeting|at the moment|right now|every day|later today|in a few minutes|"
    "all day long|for two hours|at any time|during the holidays|by the end of the month|once again|"
    "as soon as possible",
    "past": "found|lost|sold|bought|forgot|moved|opened|repaired|dropped|delivered|checked|recorded|"
    "borrowed|cleaned|returned|cancelled|changed|signed|painted|carried|hid|received|entered|removed|"
    "selected",
    "verb": "find|sell|buy|move|open|repair|deliver|check|record|borrow|clean|return|cancel|change|sign|"
    "carry|bring|leave|send|hold|enter|remove|choose|replace|unlock|collect|wash|close|confirm|review|dial",
    "done": "sold|found|closed|delivered|cancelled|repaired|recorded|saved|deleted|stolen|changed|"
    "activated|locked|forwarded|transferred|received|cleaned|removed|accepted|disconnected|finished|"
    "updated",
    "how": "very cold|much too expensive|quite far away|not available|out of order|really beautiful|"
    "almost empty|already full|on the table|under the bed|ready|still open|not working|busy|"
    "later than usual|invalid|in the wrong place|made of wood|temporarily closed|not in service|"
    "behind the house|heavier than it looks",
    "went": "went|walked over|drove|ran|moved|hurried|flew|was on the way|went back",
    "reason": "the weather was bad|the train was late|we had no money|it was too dark|he was tired|"
    "the shop had closed|nobody was there|the line was busy|the road was blocked|i had forgotten the key|"
    "they wanted to go home|the battery was empty|it started to rain|she felt ill",
    "count": "two|three|four|five|six|seven|nine|eleven|twelve|fifteen|twenty|several|no|many",
    "things": "new messages|chairs|letters|old books|visitors|missed calls|bags|cups of tea|eggs|"
    "appointments|bicycles|open windows|callers|small children|mistakes|minutes|empty bottles|trees|"
    "questions about it",
    "quality": "large|wooden|friendly|quiet|very old|broken|expensive|second hand|yellow|strange|"
    "brand new|famous",
    "noun": "house|garden|restaurant|road|painting|story|dress|kitchen|bicycle|bridge|song|office|village|"
    "dog|film|computer|radio|meeting|machine|forest|party|neighbour|winter|church|telephone|breakfast",
}  # fmt: skip
CHOICES = {slot: words.split("|") for slot, words in WORDS.items()}

REMARKS = [
    "{who} {past} {thing} / {when}", "{who} {past} {thing} / because {reason}",
    "{who} {went} to {place} / {when}", "{who} [just|never] {past} {thing} / in {place} / {when}",
    "(yesterday|last week|in the end) {who} {past} {thing}", "{thing} is {how} / {when}",
    "{thing} (has been|was) {done} / {when}", "{thing} was {how} / because {reason}",
    "{thing} in {place} is {how}", "{thing} that {who} {past} / is {how}",
    "{who} and {who} {went} to {place}", "(there is|there was) a {quality} {noun} in {place}",
    "(this|that) is a {quality} {noun}", "(i|we|they|he|she) {past} {thing} / {when}",
    "(i|we|they) {past} {thing} / but {reason}",
    "(i think|i believe|i hope|he said|she says|they told us) that {who} {past} {thing} / {when}",
    "(i|we) (want|need|have|would like) to {verb} {thing} / {when}",
    "(i|we) (cannot|could not|will not|did not) {verb} {thing} / because {reason}",
    "(you|we) (can|should|may|must) {verb} {thing} / in {place}", "(please|just) {verb} {thing} / {when}",
    "please {verb} {thing} / and {verb} {thing}", "please {verb} {thing} / before you {verb} {thing}",
    "to {verb} {thing} {verb} {thing}", "(if|when) you {verb} {thing} please {verb} {thing}",
    "if (you want|you would like) to {verb} {thing} go to {place}",
    "(if|when|while) {reason} {who} {past} {thing}", "because {reason} {who} {went} to {place}",
    "(after|before) we {past} {thing} {who} {went} to {place}", "you have {count} {things} / in {place}",
    "there are {count} {things} / in {place} / {when}",
    "{who} (needs|wants|has|bought) {count} {things} / {when}", "{count} {things} are {how}",
    "your {noun} is {how} / {when}", "your {noun} (has been|will be|was) {done} / {when}",
    "the {noun} you {past} is {how}", "the {quality} {noun} is {how}",
    "the {quality} {noun} belongs to {who}",
    "(i am|we are) (looking for|waiting for|afraid of|thinking about) {thing}", "{who} lives near {place}",
    "(i would|i'd) like to (speak to|talk to|meet) {who} / {when}",
    "(let me|let us) {verb} {thing} / {when}", "(could|would|can) you [please] {verb} {thing} / for {who}",
    "(did|does|will) {who} {verb} {thing} / {when}", "(where|when|why|how) did {who} {verb} {thing}",
    "(where|why|when) is {thing} {how}", "what did {who} {verb} / in {place}",
    "(how many|which) {things} are in {place} / {when}",
    "(do you know|can you tell me|i wonder) (why|when|where|how) {who} {past} {thing}",
    "(do you have|have you seen|did you find) {thing} / {when}", "is {thing} {how} / {when}",
    "it is {how} / {when}", "it was so {quality} that {who} {went} to {place}", "{who} is {how} / {when}",
    "{who} who {past} {thing} {went} to {place}", "{who} says {thing} is {how}", "{who} gave {who} {thing}",
    "(today|tomorrow|on monday) (we will|i will|they will) {verb} {thing}",
    "instead of {thing} {who} {past} {thing}", "neither {who} nor {who} {past} {thing}",
    "{thing} and {thing} are in {place}", "{thing} costs {count} dollars",
    "{who} told me that {thing} is {how}", "the (first|last|only|best) {noun} in {place} is {how}",
]  # fmt: skip
# No question or remark ends with one of these.
CANNOT_END = {
    *unfinished.DANGLING, "a", "an", "my", "your", "his", "her", "our", "their", "i", "we", "they", "he",
    "she", "is", "are", "was", "were", "am", "do", "does", "did", "has", "can", "could", "will", "would",
    "should", "must", "in", "at", "for", "with", "into", "without", "very", "too", "some", "any", "every",
    "because", "but", "how's", "which", "there", "i'm", "let's", "made", "find", "explain", "set", "order",
    "buy", "wake", "translate", "who", "until", "where", "favourite", "best", "biggest", "tallest",
    "highest", "longest", "speed", "meaning",
} - {"say", "or", "to", "before", "after", "about"}  # fmt: skip

Item = tuple[str, str, str]  # skill, form, words


def items(complete: set[str]) -> list[Item]:
    """All of them, the words of each distinct; nothing is cut off to become one of `complete`."""
    rng = random.Random("outside")
    found: dict[str, Item] = {}
    whole = list(_remarks(rng))
    for skill, form, words in _beyond(rng):
        found.setdefault(words, (skill, form, words))
    for form, sentence in whole:
        words = " ".join(word for word in sentence if word != "/")
        found.setdefault(words, ("remark", _prefix(form, sentence, len(sentence)), words))
        for end in (place for place, word in enumerate(sentence) if word == "/"):
            words = " ".join(word for word in sentence[:end] if word != "/")
            found.setdefault(words, ("remark", _prefix(form, sentence, end), words))
    known = complete | found.keys()
    cuts = [cut for form, sentence in whole for cut in _cuts_of_remark(form, sentence, rng)]
    cuts += [cut for form, question in declined.unknown() for cut in _cuts_of_question(form, question, rng)]
    for form, words in cuts:
        if words not in known:
            found.setdefault(words, ("cut_off", form, words))
    return list(found.values())


def _remarks(rng: random.Random) -> Iterator[tuple[list[str], list[str]]]:
    """(form, sentence), both with the marks at which it may be over; a filled slot is one item of the form
    for each of its words."""
    for template in REMARKS:
        for wording in grammar.expand(template):
            for _ in range(PER_FORM):
                form: list[str] = []
                sentence: list[str] = []
                for item in wording.split():
                    said = rng.choice(CHOICES[item[1:-1]]).split() if item.startswith("{") else [item]
                    form += [item] * len(said)
                    sentence += said
                yield form, sentence


def _prefix(form: list[str], sentence: list[str], end: int) -> str:
    """The form of a sentence up to word `end`; of a slot that is cut it has a note."""
    is_cut = end < len(sentence) and form[end - 1] == form[end]
    return " ".join(item for item, _ in groupby(form[:end])) + (" ..." if is_cut else "")


def _cuts_of_remark(form: list[str], sentence: list[str], rng: random.Random) -> Iterator[tuple[str, str]]:
    places = [n for n in range(1, len(sentence)) if "/" not in (sentence[n], sentence[n - 1])]
    # Behind a mark it goes on: "i went home because".
    places += [n + 2 for n, word in enumerate(sentence[:-2]) if word == "/"]
    for place in rng.sample(places, min(CUTS_EACH, len(places))):
        words = [word for word in sentence[:place] if word != "/"]
        yield _prefix(form, sentence, place), _hesitating(words, rng)


def _cuts_of_question(form: str, question: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    words = question.split()
    places = [n for n in range(2, len(words)) if words[n - 1] in CANNOT_END]
    for place in rng.sample(places, min(CUTS_EACH, len(places))):
        yield f"{form} {place}", _hesitating(words[:place], rng)


def _hesitating(words: list[str], rng: random.Random) -> str:
    """Every sixth with a filler at its end."""
    return " ".join([*words, rng.choice(grammar.FILLERS)] if rng.random() < 1 / 6 else words)


def _beyond(rng: random.Random) -> Iterator[Item]:
    """Differences below zero and sums over twenty in the wordings of those that are answered; half of the
    differences are of small numbers, as people ask for."""
    for kind in (kind for kind in wordings.kinds() if kind.skill in ("minus", "plus")):
        plain = set(kind.plain_forms())
        for form in wordings.forms(kind):
            if "{A}" in form or "{B}" in form or "difference" in form:
                continue  # the difference of three and five might be two
            for _ in range(BEYOND_PLAIN if form in plain else BEYOND_PER_FORM):
                low, high = sorted(rng.sample(range(11 if rng.random() < 0.5 else 21), 2))
                if kind.skill == "minus" or low + high > 20:
                    filled = form.replace("{a}", topics.NUMBERS[low]).replace("{b}", topics.NUMBERS[high])
                    yield "beyond", form, filled
