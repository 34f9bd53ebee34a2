"""Quality of what is heard, by weight format and by steps of the flow: mel distance, predicted MOS, word
errors.

In: engines, one after the other, and questions. Out: a table, and checks against its first row: the first
engine with the most steps. The replies of each engine are its own. Speech that was judged already, the same
codes at as many steps, is not judged again. Engine thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from engine_runtime.bench.predicted_mos import MosPredictor
from engine_runtime.bench.teacher_forcing import Question, no_reply
from engine_runtime.bench.verdict import Check
from engine_runtime.bench.word_errors import Recognizer, language_of, word_errors
from engine_runtime.table import Cell, Section
from engine_runtime.types import Codes, Mel, Modality, ReplyDone
from engine_runtime.work import run_alone

if TYPE_CHECKING:
    from engine_runtime.engine import Engine

FINE_STEPS, FAST_STEPS = 10, 5
MOST_MEL = 0.1
"""In natural logarithms: 0.9 dB."""
MOST_LOSS = 0.05
"""Largest loss of MOS against the first row, as a share of it; and most additional word errors, as a share
of the words."""
MOST_ROWS = 200

COLUMNS = {
    "weights": "format of the language model; each one speaks its own replies",
    "steps": "Euler steps of the flow",
    "replies": "different spoken replies",
    "mel": "mean absolute difference of natural-log mels from those of the same codes at the most steps",
    "mos": "predicted MOS (Distill-MOS, 1 to 5), mean",
    "mos_lost": "share of the MOS of the first row",
    "words": "words of these replies",
    "word_errors": "insertions, deletions and substitutions that Whisper hears, as a share of the words",
}


@dataclass(frozen=True, slots=True)
class _Spoken:
    """One reply: its codes, and its text if the model writes one."""

    codes: Codes
    text: str


@dataclass(frozen=True, slots=True)
class _Judged:
    """One reply at some steps. None where it was not judged."""

    mel: Mel
    mos: float | None
    heard: str | None


@dataclass(frozen=True, slots=True)
class _Row:
    """All replies of an engine at some steps."""

    weights: str
    steps: int
    replies: int
    frames: int
    mel: float
    mos: float | None
    words: int
    errors: float | None


class QualityBench:
    """`add` each engine, then read `section` and `checks`.

    Args:
        steps: of the flow, in addition to those of each engine; None is FINE_STEPS and FAST_STEPS.
        predictor, recognizer: None leaves out what they judge.
    """

    def __init__(
        self, steps: Sequence[int] | None, predictor: MosPredictor | None, recognizer: Recognizer | None
    ) -> None:
        self._steps = steps
        self._predictor, self._recognizer = predictor, recognizer
        self._judged: dict[tuple[bytes, int], _Judged] = {}
        self._rows: list[_Row] = []
        self.notes: list[str] = []

    def add(self, weights: str, engine: Engine, questions: Sequence[Question]) -> None:
        """Ask each question in a conversation of its own. VerifyError if none gets a spoken reply."""
        replies = [reply for question in questions if (reply := _reply(engine, question)) is not None]
        distinct = list({reply.codes.tobytes(): reply for reply in replies}.values())
        if not distinct:
            raise no_reply()
        chosen = self._steps or (FINE_STEPS, FAST_STEPS, engine.stages.token2mel.steps)
        ordered = sorted(set(chosen), reverse=True)
        finest = [self._judge(engine, reply, ordered[0]) for reply in distinct]
        texts = [reply.text for reply in distinct]
        has_texts = any(texts)
        if not has_texts and self._recognizer is not None:
            texts = [one.heard or "" for one in finest]
            self.notes.append(
                f"the model writes no text of its speech: words are those heard at {ordered[0]} steps"
            )
        for steps in ordered:
            judged = [self._judge(engine, reply, steps) for reply in distinct]
            counts_words = self._recognizer is not None and (has_texts or steps != ordered[0])
            self._rows.append(_row(weights, steps, judged, finest, texts, counts_words=counts_words))

    @torch.inference_mode()
    def _judge(self, engine: Engine, reply: _Spoken, steps: int) -> _Judged:
        key = (reply.codes.tobytes(), steps)
        if key not in self._judged:
            stages = engine.stages
            mel = stages.token2mel.convert(reply.codes, steps)
            pcm, rate = stages.vocoder.vocode(mel), stages.vocoder.sample_rate
            language = language_of(reply.text) if reply.text else None
            self._judged[key] = _Judged(
                mel,
                None if self._predictor is None else self._predictor.score(pcm, rate),
                None if self._recognizer is None else self._recognizer.words(pcm, rate, language),
            )
        return self._judged[key]

    def section(self) -> Section:
        """One row for each engine and number of steps."""
        section = Section("quality", COLUMNS, note="; ".join(dict.fromkeys(self.notes)))
        for row in self._rows:
            cells: dict[str, Cell] = {
                "weights": row.weights,
                "steps": row.steps,
                "replies": row.replies,
                "mel": row.mel,
                "mos": row.mos,
                "mos_lost": _lost(row, self._rows[0]),
                "words": None if self._recognizer is None else row.words,
                "word_errors": row.errors,
            }
            section.rows.append(cells)
        return section

    def checks(self) -> list[Check]:
        """Each row against the first."""
        found, first = [], self._rows[0] if self._rows else None
        for row in self._rows[1:]:
            assert first is not None
            name = f"{row.weights}, {row.steps} steps"
            if row.steps != first.steps:
                found.append(Check(f"{name}: mel", row.mel, MOST_MEL, row.frames, is_least=False))
            lost = _lost(row, first)
            if lost is not None:
                found.append(Check(f"{name}: MOS lost", lost, MOST_LOSS, row.replies, is_least=False))
            if row.errors is not None:
                added = row.errors - (first.errors or 0.0)  # none where they are counted from the first row
                found.append(Check(f"{name}: word errors added", added, MOST_LOSS, row.words, is_least=False))
        return found


def _lost(row: _Row, first: _Row) -> float | None:
    if row.mos is None or first.mos is None:
        return None
    return 1 - row.mos / first.mos


def _row(
    weights: str,
    steps: int,
    judged: list[_Judged],
    finest: list[_Judged],
    texts: list[str],
    *,
    counts_words: bool,
) -> _Row:
    distances = np.concatenate(
        [np.abs(one.mel - best.mel).mean(axis=0) for one, best in zip(judged, finest, strict=True)]
    )
    scores = [one.mos for one in judged if one.mos is not None]
    heard = [one.heard or "" for one in judged]
    errors, words = word_errors(texts, heard)
    return _Row(
        weights,
        steps,
        len(judged),
        len(distances),
        float(distances.mean()),
        float(np.mean(scores)) if scores else None,
        words,
        errors / words if counts_words else None,
    )


def _reply(engine: Engine, question: Question) -> _Spoken | None:
    """The engine's spoken reply to a question; None without one: a bundle that detects the end of a turn does
    not reply to a question that seems unfinished to it."""
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    if isinstance(question, str):
        run_alone(turn.push_text(question))
    else:
        run_alone(turn.push(question))
    sampling = engine.bundle.lm.sampling_speech.seeded()
    events = list(
        run_alone(turn.commit(Modality.SPEECH, replace(sampling, max_new=min(sampling.max_new, MOST_ROWS))))
    )
    engine.end_conversation(conversation)
    done = events[-1]
    if not isinstance(done, ReplyDone) or not done.codes:
        return None
    text = done.text if engine.bundle.lm.subtitles else ""
    return _Spoken(np.array(done.codes, dtype=np.int64), text)
