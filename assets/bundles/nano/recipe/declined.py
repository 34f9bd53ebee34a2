"""Questions that the nano model declines: out of its domain, near to it, and wishes about its voice.

Out: `unknown()` -> (form, question) pairs answered with "I do not know that", `cannot_forms()` -> wishes that
are answered with "I cannot do that".
"""

from __future__ import annotations

import random

import grammar
import topics

# Each line is one way to ask with what it is asked about; the form is the template with an empty slot.
THINGS = (
    "the weather|the news|the traffic|the football match|my mother|your favourite film|the president|"
    "the meaning of life|my shopping list|the stock market|the new phone|my neighbour|the train to the city|"
    "quantum physics|the recipe for soup|a good restaurant|the king of spain|the longest bridge|"
    "the next holiday|my email|the concert tonight|the oldest tree|the lottery|the history of rome|"
    "the best doctor|climate change|the election|my bank account|world history|chess|basketball|politics|"
    "your childhood|the universe|dinosaurs|black holes|the pyramids|my homework|the economy|religion|"
    "electric cars|my dog|vegetables|space travel|shakespeare|the internet"
).split("|")
PLACES = "london|paris|new york|my town|the city|berlin|the mountains|tokyo|here".split("|")
PEOPLE = (
    "the president|the king|my sister|my boss|the winner|the teacher|einstein|the author|your father"
).split("|")
COUNTRIES = (
    "brazil|mexico|india|australia|argentina|iceland|switzerland|morocco|vietnam|thailand|peru|chile|"
    "nigeria|pakistan|scotland|ukraine|romania|mars|the moon|africa|europe|texas|california|the sea"
).split("|")
ODD_WORDS = (
    "table|music|seven|france|monday|a car|my house|banana|water|yourself|a dream|green|a cat|history"
).split("|")
ODD_THINGS = (
    "my car|love|the wind|my shirt|time|your hair|a house|the number seven|my eyes|music|a shadow|"
    "the president|water|glass|a dream"
).split("|")
LONG_WORDS = "encyclopedia|mississippi|onomatopoeia|philosophy|rhythm|my last name|your name".split("|")
MINUTES = "one|five|ten|twenty|thirty|forty".split("|")
SONGS = "some music|a song|jazz|the radio|my favourite song|something relaxing|a podcast|rock music".split(
    "|"
)
DEVICES = "the light|the lights|the television|the heating|the fan|the oven|my computer|the alarm".split("|")
DISHES = "pizza|soup|pancakes|a cake|rice|an omelette|bread|pasta".split("|")
LANGUAGES = "french|spanish|german|chinese|italian|latin".split("|")
NUMBERS = topics.NUMBERS

ABOUT: list[tuple[list[str], str]] = [
    (THINGS, "what do you think (about|of) {}"), (THINGS, "[please] tell me [something] about {}"),
    (THINGS, "(can|could) you [please] explain {}"), (THINGS, "(how much|how expensive) is {}"),
    (THINGS, "where can i find {}"), (THINGS, "who knows {}"), (THINGS, "tell me a story about {}"),
    (THINGS, "what happened (with|to) {}"), (THINGS, "do you like {}"), (THINGS, "why is there {}"),
    (THINGS, "how old is {}"), (THINGS, "what do you know about {}"), (THINGS, "i want to talk about {}"),
    (THINGS, "what is the latest on {}"), (THINGS, "(let's|let us) talk about {}"),
    (THINGS, "(what's|what is) your opinion (on|of) {}"), (THINGS, "have you heard about {}"),
    (THINGS, "look up {} [for me]"), (THINGS, "search for {}"), (THINGS, "write a poem about {}"),
    (THINGS, "what is {}"), (THINGS, "what's {}"), (THINGS, "why do people care about {}"),
    (THINGS, "sing a song about {}"), (THINGS, "what should i do about {}"),
    (PLACES, "(what is|what's|how is|how's) the weather (in|like in) {} [today|tomorrow]"),
    (PLACES, "will it (rain|snow) in {} [today|tomorrow|tonight]"),
    (PLACES, "is it (cold|warm|raining) in {}"),
    (PLACES, "how (far|long) is it to {}"), (PLACES, "how do i get to {}"),
    (PLACES, "how many people live in {}"), (PLACES, "(what time|how late) is it in {}"),
    (PLACES, "(book|find) me a (flight|hotel|train) (to|in) {}"), (PLACES, "have you been to {}"),
    (PLACES, "what can i see in {}"), (PLACES, "where is {}"), (PLACES, "is {} a nice place"),
    (PEOPLE, "who is {}"), (PEOPLE, "(call|text|phone) {} [please|now]"), (PEOPLE, "how old is {}"),
    (PEOPLE, "when was {} born"), (PEOPLE, "where does {} live"), (PEOPLE, "what did {} say"),
    (PEOPLE, "is {} at home"), (PEOPLE, "send a message to {}"), (PEOPLE, "how tall is {}"),
    (PEOPLE, "what is the name of {}"), (PEOPLE, "why is {} so famous"),
    (COUNTRIES, "(what is|what's|tell me) the capital of {}"), (COUNTRIES, "capital of {}"),
    (COUNTRIES, "[do you know] which city is the capital of {}"), (COUNTRIES, "where is {} on the map"),
    (COUNTRIES, "how big is {}"), (COUNTRIES, "who is the president of {}"),
    (COUNTRIES, "what language do they speak in {}"), (COUNTRIES, "(what is|what's) the population of {}"),
    (list(topics.CAPITALS), "who is the (president|king|queen) of {}"),
    (list(topics.CAPITALS), "how (big|far|old) is {}"),
    (list(topics.CAPITALS), "(what is|what's) the flag of {}"),
    (list(topics.CAPITALS), "what is the (largest|biggest) river in {}"),
    (list(topics.CAPITALS), "(what is|what's) the population of {}"),
    (list(topics.CAPITALS), "tell me about {}"), (list(topics.CAPITALS), "have you ever been to {}"),
    (list(topics.CAPITALS), "what language do they speak in {}"),
    (list(topics.CAPITALS), "what is the money of {}"),
    (list(topics.CAPITALS), "who won the war in {}"),
    (ODD_WORDS, "(what is|what's|tell me) the opposite of {}"), (ODD_WORDS, "opposite of {}"),
    (ODD_WORDS, "what does {} mean"), (ODD_WORDS, "what is {} in (french|german|spanish)"),
    (ODD_WORDS, "what rhymes with {}"), (ODD_WORDS, "where does the word {} come from"),
    (ODD_THINGS, "(what|which) (colour|color) is {}"), (ODD_THINGS, "what is the colour of {}"),
    (ODD_THINGS, "how (big|heavy|long) is {}"), (ODD_THINGS, "what is {} made of"),
    (LONG_WORDS, "(how do you spell|spell|can you spell) {}"),
    (NUMBERS, "(what is|what's) the square root of {}"), (NUMBERS, "(what is|what's) {} squared"),
    (NUMBERS, "what is half of {}"), (NUMBERS, "is {} a prime number"), (NUMBERS, "is {} (even|odd)"),
    (NUMBERS, "(what is|how much is) {} percent of a hundred"), (NUMBERS, "what is {} in roman numerals"),
    (NUMBERS, "(what is|what's) {} divided by (two|three|four)"), (NUMBERS, "{} divided by two"),
    (NUMBERS, "how do you say {} in (french|german|chinese)"), (NUMBERS, "(what is|what's) the cube of {}"),
    (NUMBERS, "count from {} to (a thousand|a hundred|a million)"), (NUMBERS, "what is a hundred plus {}"),
    (NUMBERS, "how many (days|hours) are there in {} (weeks|years)"), (NUMBERS, "roll {} dice"),
    (topics.DAYS, "what happened [on|last] {}"), (topics.DAYS, "am i free (on|next) {}"),
    (topics.DAYS, "what is the weather (on|for) {}"), (topics.DAYS, "why is it called {}"),
    (topics.DAYS, "what is on television on {}"), (topics.DAYS, "who was born on a {}"),
    (topics.MONTHS, "how many days (are in|has) {}"), (topics.MONTHS, "is it cold in {}"),
    (topics.MONTHS, "what is the weather like in {}"), (topics.MONTHS, "who has a birthday in {}"),
    (topics.MONTHS, "where does the name {} come from"), (topics.MONTHS, "what holidays are in {}"),
    (MINUTES, "set (a timer|an alarm) for {} (minutes|hours) [please]"),
    (MINUTES, "wake me [up] in {} minutes"),
    (MINUTES, "remind me in {} (minutes|hours)"), (MINUTES, "start a {} minute timer"),
    (MINUTES, "how (far|long) is {} (miles|kilometers)"),
    (SONGS, "[please|can you|could you] play {} [please|for me]"), (SONGS, "turn on {}"),
    (SONGS, "put on {}"),
    (SONGS, "(i want|i'd like) to hear {}"), (SONGS, "what is {} called"), (SONGS, "who sings {}"),
    (DEVICES, "[please|can you] (turn|switch) (on|off) {} [please]"), (DEVICES, "is {} (on|off)"),
    (DISHES, "how do (i|you) (make|cook) {}"), (DISHES, "order [me] {} [please]"),
    (DISHES, "what goes well with {}"), (DISHES, "do you like {}"), (DISHES, "i am hungry i want {}"),
    (DISHES, "give me a recipe for {}"), (DISHES, "how long does {} take in the oven"),
    (LANGUAGES, "do you (speak|understand) {}"), (LANGUAGES, "how do you say hello in {}"),
    (LANGUAGES, "teach me [some] {}"), (LANGUAGES, "translate this into {}"),
]  # fmt: skip

PLAIN = [
    "how tall is a giraffe", "(open|close) the (door|window)", "what time is it [now]",
    "(what's|what is) the time",
    "what day is it [today]", "what is [today's|the] date", "(what's|what is) the date today",
    "sing me a song",
    "[can you|please] tell me a (joke|story|secret|riddle|poem)", "where do you live", "who wrote this book",
    "is it raining [outside]", "what should i (cook for dinner|wear today|do today|eat|read|watch)",
    "how far is the (moon|sun)", "drive me home", "find my (keys|phone|glasses)",
    "take a (picture|photo|note)",
    "what is love", "(which|what) team won [the game]", "who won [the game] [last night|yesterday]",
    "how much does it cost", "what is the news [today]", "read me the news", "any news today",
    "is there life on mars", "who invented the (telephone|wheel|light bulb|computer)", "why is the sky blue",
    "how does a (car|computer|plane) work", "what is the speed of light", "who was the first man on the moon",
    "how many (stars|planets|oceans|countries|people) are there", "what is the (tallest|highest) mountain",
    "what is the (longest|deepest) river", "when does the (shop|bank|train|bus|show) (open|leave|start)",
    "how old are you", "where are you from", "where were you born",
    "are you (happy|human|alive|married|real)",
    "do you have (friends|feelings|a family|a brother|children)", "who made you",
    "what do you (eat|drink|want)",
    "what is your favourite (colour|food|song|book|animal|number|day)",
    "do you (sleep|dream|like me|love me)",
    "can you (dance|cook|drive|swim|see me|think)", "will you marry me",
    "i am (bored|tired|hungry|lonely|cold)",
    "i (had a bad day|lost my keys|can't sleep|feel sick|need a doctor|love you)",
    "call (a taxi|the police|home)",
    "order a (taxi|book|coffee)", "book a table [for two|for four]", "buy (milk|bread|a ticket)",
    "add (milk|eggs|bread) to my [shopping] list", "what is on my (list|calendar)",
    "read my (email|messages)",
    "do i have any (messages|meetings) [today]", "cancel my (meeting|alarm|order)", "what is my name",
    "who am i", "how old am i", "where am i", "what did i say yesterday", "what is in my pocket",
    "what am i thinking", "guess what i did", "(flip a coin|roll the dice|pick a card)",
    "play a game [with me]",
    "stop the (music|timer)", "next song", "volume up", "what song is this", "who is singing",
    "what is the best (phone|car|film|school|restaurant)", "which (phone|car|film) should i (buy|watch)",
    "who is the (richest|oldest|tallest) (man|person) [in the world]", "who will win the election",
    "is (god|magic|santa claus) real", "what happens when we die", "what is the meaning of life",
    "is (coffee|sugar|milk|chocolate) healthy", "how many calories are in (a banana|an egg|bread)",
    "how do planes fly", "what is (gravity|electricity|music|art|money|water|time)",
    "what causes (rain|thunder)",
    "why do (cats|dogs|birds|people) (sleep|sing|cry) [so much]", "how long do (cats|elephants|dogs) live",
    "what do (cats|penguins|rabbits|bears) eat", "how fast is a (tiger|train|rocket)", "how high is the sky",
    "how deep is the ocean", "how many legs has a spider", "what sound does a (cow|dog) make",
    "what is the biggest (animal|country|city|number) [in the world]",
    "what is the (first|last) letter of the alphabet",
    "say the alphabet", "how many letters are in the alphabet", "what is pi", "what is infinity plus one",
    "what comes after (twenty|spring|z|lunch|death|friday the thirteenth)",
    "what comes before (zero|a|breakfast)",
    "count to (a million|one hundred|infinity)", "count the stars", "count my money", "count in french",
    "how much is (a lot|enough|too much)",
    "what season comes after (winter|summer)", "what year comes after this",
    "how many days are in a (week|year|month)",
    "which day is the best", "what is the shortest month", "what is the longest day",
    "when is (easter|christmas)",
    "when is my birthday", "(how many|what) hours are in a day",
    "which is better (tea or coffee|cats or dogs)",
    "which is bigger (the sun or the moon|a cat or a dog|china or russia)",
    "which is faster a car or a train",
    "is (an elephant|a whale) bigger than a (mouse|house)", "which is older rome or athens",
    "spell it backwards", "how many words do you know", "what rhymes with orange", "define happiness",
    "what is the past tense of go", "what is the plural of mouse", "translate good morning",
    "speak (french|german|chinese|spanish)", "(whisper|shout|laugh|cry|cough)", "do my homework [for me]",
    "solve this equation", "what is x plus y", "what is (one|two) (third|half) plus a quarter",
    "what is minus one", "write (a letter|an email|a program)", "draw a (cat|circle|house)",
    "show me a (map|picture)",
    "go to (sleep|work)", "shut down", "restart [the computer]", "open my (email|browser)", "save the file",
    "what is the wifi password", "is my battery full", "why are you so slow",
    "you are (funny|wrong|stupid|great)",
    "i don't believe you", "that makes no sense", "i don't understand", "what are the lottery numbers",
    "how much money do i have", "what is a good investment", "how much is (gold|a house|a ticket|the dollar)",
    "give me (advice|a hint|an example|some money)",
    "how can i (lose weight|get rich|learn to cook|sleep better)",
    "does (she|he) love me", "did you hear that", "is anybody there", "who is at the door",
    "what was that noise",
]  # fmt: skip
ASK = ["", "", "", "", "um", "uh", "well", "so", "okay so", "please", "hey", "can you tell me", "do you know",
       "i want to know", "tell me", "i have a question", "now", "could you tell me"]  # fmt: skip
AFTER = ["", "", "", "", "please", "now", "again"]
BEYOND = [
    "what is {a} plus {b}", "{a} plus {b}", "how much is {a} plus {b}", "what's {a} plus {b}",
    "add {a} and {b}",
]  # fmt: skip
BELOW = ["what is {a} minus {b}", "{a} minus {b}", "how much is {a} minus {b}", "what's {a} minus {b}"]
PER_FORM = 7

WISHES = [
    "(speak|talk) (louder|slower|more slowly|faster|more quietly|quieter|up) [please]",
    "(can|could|would) you [please] (speak|talk|say it|say that) (louder|slower|more slowly|faster) [please]",
    "(louder|slower|faster|quieter) [please]", "a (little|bit) (louder|slower|faster|quieter) [please]",
    "not so (fast|loud|slow) [please]", "slow down [please]", "turn (up|down) the volume [please]",
    "(can|could) you (slow down|speak up) [please]", "(you are|you're) too (fast|loud|quiet|slow)",
    "(you speak|you talk) too (fast|slowly|quietly)", "speak with another voice", "change your voice",
    "[please] speak (clearly|more clearly)", "i can't hear you [well]", "say it (louder|slower) [please]",
    "raise your voice [please]", "make it (louder|slower|quieter)", "less (loud|fast) please",
    "would you mind (speaking|talking) (louder|slower|more slowly)", "that was too (fast|quiet|loud)",
]  # fmt: skip


def cannot_forms() -> list[str]:
    """Wishes about loudness and speed."""
    forms, rng = grammar.expand_all(WISHES), random.Random("cannot")
    return list(dict.fromkeys([*forms, *(grammar.hesitant(form, rng) for form in forms)]))


def unknown() -> list[tuple[str, str]]:
    """(form, question): of each form some questions, some of them with words before and after."""
    rng = random.Random("unknown")
    found: dict[str, str] = {}
    for things, template in ABOUT:
        for form in grammar.expand(template):
            for thing in rng.sample(things, min(PER_FORM, len(things))):
                asked = _asked(form, rng)
                found.setdefault(asked.replace("{}", thing), form)
    for form in grammar.expand_all(PLAIN):
        for asked in [form, *(_asked(form, rng) for _ in range(2))]:
            found.setdefault(asked, form)
    for form, sign in [*((form, "plus") for form in BEYOND), *((form, "minus") for form in BELOW)]:
        for _ in range(60):
            low, high = sorted(rng.sample(range(21), 2))
            if sign == "minus" or low + high > 20:
                question = form.replace("{a}", NUMBERS[low]).replace("{b}", NUMBERS[high])
                found.setdefault(question, f"{form} beyond")
    return [(form, question) for question, form in found.items()]


def _asked(form: str, rng: random.Random) -> str:
    before, after = rng.choice(ASK), rng.choice(AFTER)
    questions = ("what", "which", "who", "where", "when", "why", "how", "is", "do")
    if before.endswith(("me", "know")) and not form.startswith(questions[:7]):
        before = ""
    return " ".join(f"{before} {form} {after}".split())
