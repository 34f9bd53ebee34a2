"""An independent ear: pocketsphinx with the grammar of possible answers. Used by `evaluate.py`.

In: reply speech. Out: the words of the most likely answer. Two grammars, because one over everything is slow:
the word strings of "repeat after me", and all other answers together (a wrong skill is therefore heard as
wrong). Letters are recognized as those of the words that are spelled.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import topics
from numpy.typing import NDArray
from pocketsphinx import Config, Decoder, get_model_path
from scipy.signal import resample_poly
from topics import Units


def _one_of(words: list[str] | tuple[str, ...]) -> str:
    return "( " + " | ".join(dict.fromkeys(words)) + " )"


def answer_grammar() -> str:
    """JSGF of every answer but the repeated strings."""
    number, day, month = _one_of(topics.NUMBERS), _one_of(topics.DAYS), _one_of(topics.MONTHS)
    opposite = _one_of([word for pair in topics.OPPOSITES for word in pair])
    result = _one_of([topics.number_name(n) for n in range(101)])
    facts = [
        f"{number} ( plus | minus | times ) {number} is {result}",
        f"( before | after ) {number} comes {number}",
        f"( before | after ) {day} comes {day}",
        f"( before | after ) {month} comes {month}",
        f"the opposite of {opposite} is {opposite}",
        f"the capital of {_one_of(list(topics.CAPITALS))} is {_one_of(list(topics.CAPITALS.values()))}",
        f"{_one_of(list(topics.COLOURS))} is {_one_of(list(topics.COLOURS.values()))}",
    ]
    fixed = [units for _, units in topics.GREETINGS]
    fixed += [topics.UNKNOWN_ANSWER, topics.CANNOT_ANSWER, topics.AGREEMENT]
    rules = [
        *(f"[ no ] {fact}" for fact in facts),
        f"{number} {number} {number} [ {number} ] [ {number} ] [ {number} ] [ {number} ]",
        f"{number} is ( bigger | smaller )",
        _one_of([" ".join(word) for word in topics.SPELLED]),
        *(" ".join(units) for units in fixed),
    ]
    return "#JSGF V1.0;\ngrammar answers;\npublic <answer> = " + " | ".join(rules) + ";\n"


def repeat_grammar() -> str:
    """JSGF of two to four words of the repeat list."""
    word = _one_of(topics.REPEAT_WORDS)
    return f"#JSGF V1.0;\ngrammar strings;\n<w> = {word};\npublic <answer> = <w> <w> [ <w> ] [ <w> ];\n"


@lru_cache
def _decoder(kind: str, afresh: bool = False) -> Decoder:
    acoustic, words = get_model_path("en-us/en-us"), get_model_path("en-us/cmudict-en-us.dict")
    decoder = Decoder(Config(hmm=acoustic, dict=words, lm=None, loglevel="FATAL"))
    decoder.add_jsgf_string(kind, repeat_grammar() if kind == "repeat" else answer_grammar())
    decoder.activate_search(kind)
    return decoder


def grammar_of(wanted: Units) -> str:
    """The grammar that holds this answer: "repeat" or "answer"."""
    return "repeat" if wanted and set(wanted) <= set(topics.REPEAT_WORDS) else "answer"


def recognize(pcm: NDArray[np.float32], rate: int, wanted: Units, afresh: bool = False) -> str:
    """Words heard in `pcm` (mono at `rate`), which should say `wanted`; empty if nothing fits.

    A decoder goes on with the noise level of what it heard before, which decides on close calls. `afresh`:
    with another decoder than that of the replies, which forgets it.
    """
    up, down = {24_000: (2, 3), 16_000: (1, 1)}[rate]
    pcm = resample_poly(pcm, up, down)
    pcm = np.pad(pcm * (0.5 / max(float(np.abs(pcm).max()), 1e-3)), 4_000)
    pcm = pcm + np.random.default_rng(0).normal(0, 3e-4, len(pcm))
    decoder = _decoder(grammar_of(wanted), afresh)
    if afresh:
        decoder.reinit_feat()
    decoder.start_utt()
    decoder.process_raw((np.clip(pcm, -1, 1) * 32767).astype(np.int16).tobytes(), full_utt=True)
    decoder.end_utt()
    hypothesis = decoder.hyp()
    return hypothesis.hypstr if hypothesis else ""
