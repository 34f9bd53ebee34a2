"""Text side of the recipe: the tokenizer, typed variants of questions, subtitles.

`build_tokenizer` trains a byte-level BPE on the domain: the words of answers and the frequent ones of
questions become one token, the others a few, anything else falls back to bytes. A line break is always a
token of its own, so that the prompt may be tokenized in pieces.
"""

from __future__ import annotations

import random
from pathlib import Path

import domain
import topics
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|modality_pad|>",
    "<|empty|>",
]
VOCAB = 1_280
ANSWER_WORDS = 2_000  # how often each word of the answers is seen
SYSTEM_SPEECH = "Answer with speech."
SYSTEM_TEXT = "Answer with text."


def build_tokenizer(path: Path) -> Tokenizer:
    """Train on the domain and save."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("\n"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_text(), trainer)
    tokenizer.save(str(path))
    return tokenizer


def _training_text() -> list[str]:
    """The words of answers and all names, again and again, then questions, answers and the words of the
    prompt."""
    dialogues = domain.all_dialogues(repeats=2_000)
    units = domain.all_units(dialogues)
    words = sorted({word for unit in units for word in unit.strip(",").split()})
    lines = [" ".join(["", *words])] * ANSWER_WORDS
    lines += [unit.split()[0].strip(",").capitalize() for unit in units] * (ANSWER_WORDS // 8)
    lines += [" " + name.capitalize() for name in sorted(topics.NAMES)] * ANSWER_WORDS
    for dialogue in dialogues:
        for turn in dialogue.turns:
            lines += [turn.question, turn.question.capitalize() + "?", domain.sentence(turn.units)]
    return lines + ["system\n", "user\n", "assistant\n", SYSTEM_SPEECH, SYSTEM_TEXT] * 2_000


def typed(question: str, rng: random.Random) -> str:
    """The question as somebody might type it."""
    words = question.split()
    if rng.random() < 0.35:
        words = [str(topics.NUMBERS.index(w)) if w in topics.NUMBERS else w for w in words]
        if rng.random() < 0.5:
            words = [{"plus": "+", "minus": "-", "times": "*"}.get(w, w) for w in words]
    words = ["I" if w == "i" and rng.random() < 0.7 else w for w in words]
    text = " ".join(words)
    if rng.random() < 0.6:
        text = " ".join(w.capitalize() if w in topics.NAMES else w for w in text.split())
        text = text[0].upper() + text[1:]
    return text + rng.choice(["", "?", "?", "."])


def subtitles(tokenizer: Tokenizer, units: tuple[str, ...], codes: list[int], empty: int) -> list[int]:
    """One text id for each code of the answer: the next token of a unit from its first code on, else `empty`.

    `codes` counts the codes of each unit. Joined, the tokens are the answer's text.
    """
    if not units:
        return []
    encoding = tokenizer.encode(domain.sentence(units), add_special_tokens=False)
    ends, position = [], 0
    for unit in units:
        position += len(unit) + 1
        ends.append(position - 1)  # the character before the space that follows
    ends[-1] = 1 << 30
    per_unit: list[list[int]] = [[] for _ in units]
    for token, (start, _) in zip(encoding.ids, encoding.offsets, strict=True):
        per_unit[next(i for i, end in enumerate(ends) if start < end)].append(token)
    labels, waiting = [], []
    for tokens, count in zip(per_unit, codes, strict=True):
        waiting += tokens
        for _ in range(count):
            labels.append(waiting.pop(0) if waiting else empty)
    return labels
