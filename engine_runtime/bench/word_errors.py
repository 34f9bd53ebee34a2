"""Word error rate of synthesized speech, by an independent recognizer (pocketsphinx).

In: speech, and the candidate texts. Out: recognized words, and error counts. The recognizer selects one of
the candidates or none, so it detects garbled speech but does not rank quality. pocketsphinx is optional. Any
thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from engine_runtime.codec.resample import resample
from engine_runtime.types import Pcm

RECOGNIZER_RATE = 16000
_PEAK, _SILENCE_S, _NOISE = 0.5, 0.25, 3e-4


class Recognizer:
    """Recognizes one of `texts`; words that are not in its dictionary are ignored. Raises ImportError without
    pocketsphinx."""

    def __init__(self, texts: Sequence[str]) -> None:
        from pocketsphinx import Config, Decoder, get_model_path

        acoustic, dictionary = get_model_path("en-us/en-us"), get_model_path("en-us/cmudict-en-us.dict")
        self._decoder = Decoder(Config(hmm=acoustic, dict=dictionary, lm=None, loglevel="FATAL"))
        texts = [" ".join(filter(self._decoder.lookup_word, words_of(text))) for text in texts]
        choices = " | ".join(sorted({text for text in texts if text}))
        grammar = f"#JSGF V1.0;\ngrammar replies;\npublic <reply> = {choices};\n"
        self._decoder.add_jsgf_string("replies", grammar)
        self._decoder.activate_search("replies")

    def words(self, pcm: Pcm, rate: int) -> str:
        """The words recognized in `pcm` [n] at `rate` Hz, separated by spaces; "" if none."""
        heard = resample(pcm, rate, RECOGNIZER_RATE)
        heard = heard * (_PEAK / max(float(np.abs(heard).max(initial=0.0)), 1e-3))
        heard = np.pad(heard, round(_SILENCE_S * RECOGNIZER_RATE))
        # The recognizer is trained on microphones and fails on digital silence.
        wave = heard + np.random.default_rng(0).normal(0, _NOISE, len(heard))
        self._decoder.start_utt()
        self._decoder.process_raw((wave.clip(-1, 1) * 32767).astype(np.int16).tobytes(), full_utt=True)
        self._decoder.end_utt()
        hypothesis = self._decoder.hyp()
        return str(hypothesis.hypstr) if hypothesis else ""


def words_of(text: str) -> list[str]:
    """Lower-case words of a text without punctuation."""
    return re.findall(r"[a-z']+", text.lower())


def word_errors(wanted: Sequence[str], heard: Sequence[str]) -> tuple[int, int]:
    """Insertions, deletions and substitutions over all pairs, and the number of wanted words (at least 1)."""
    pairs = [(words_of(a), words_of(b)) for a, b in zip(wanted, heard, strict=True)]
    return sum(_distance(a, b) for a, b in pairs), max(sum(len(a) for a, _ in pairs), 1)


def _distance(wanted: list[str], heard: list[str]) -> int:
    """Edit distance (Levenshtein) in words."""
    row = list(range(len(heard) + 1))
    for index, word in enumerate(wanted, start=1):
        before, row = row, [index]
        for place, other in enumerate(heard, start=1):
            row.append(min(before[place] + 1, row[-1] + 1, before[place - 1] + (word != other)))
    return row[-1]
