"""Compares an engine with the torch executor: teacher forcing through the same conversations, row by row.

In: two loaders of a bundle, without and with an engine; spoken questions. Out: an `Alignment`: agreement of
the most likely id and cosine of the logits, for each head, in the first and the second turn, in prefill and
in decode, and the first row at which they differ. A prefill is split in two chunks, as while a user speaks,
so that all but the first continue from cached rows; a first prefill alone would not test the cache. The
models are loaded one after the other. Engine thread.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch.nn.functional as F
from torch import Tensor

from engine_runtime.bench.verify import LEAST_COSINE, LEAST_TOP1, Check, Verdict, VerifyError
from engine_runtime.lm.sequence import Sequence
from engine_runtime.lm.step import StepOutput
from engine_runtime.types import Modality, Pcm

if TYPE_CHECKING:
    from engine_runtime.engine import Engine

ROWS_PER_REPLY = 48
HEADS = ("text", "audio")
Phase = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Step:
    """One call: rows [first, end) of the conversation, in one of its turns (counted from 1)."""

    turn: int
    phase: Phase
    first: int
    end: int


@dataclass(slots=True)
class Lesson:
    """A conversation of two turns: merged ids of its rows, the calls that run them, and the teacher's logits
    of each call."""

    question: str
    ids: list[int]
    steps: list[Step]
    logits: list[tuple[Tensor, Tensor]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Difference:
    """A row at which the most likely id of a head differs, or the logits do."""

    question: str
    step: Step
    head: str
    wanted: int
    found: int
    cosine: float

    def __str__(self) -> str:
        return (
            f"{self.question}, turn {self.step.turn}, {self.step.phase}, row {self.step.end - 1}: "
            f"{self.head} head {self.found} where torch says {self.wanted}, cosine {self.cosine:.4f}"
        )


@dataclass(slots=True)
class Alignment:
    """`first` is the first row that differs; a few may differ in an aligned quantized engine."""

    verdict: Verdict
    first: Difference | None


def align(
    load_torch: Callable[[], Engine],
    load_engine: Callable[[], Engine],
    questions: Mapping[str, Pcm],
    rows_per_reply: int = ROWS_PER_REPLY,
) -> Alignment:
    """Compare over spoken questions at the bundle's input rate. Raises VerifyError if there are none."""
    if not questions:
        raise VerifyError("No questions to compare with. Pass a folder of WAV files with --wavs DIR.")
    teacher = load_torch()
    try:
        lessons = [_teach(teacher, *pair, rows_per_reply) for pair in _pairs(questions)]
        for lesson in lessons:
            lesson.logits = list(_run(teacher, lesson))
    finally:
        teacher.close()
    del teacher
    gc.collect()  # turns and conversations form reference cycles, and a GPU may not hold two models
    pupil = load_engine()
    try:
        return _compare(pupil, lessons)
    finally:
        pupil.close()


def _pairs(questions: Mapping[str, Pcm]) -> Iterator[tuple[str, Pcm, Pcm]]:
    """Each question with the one after it, the last with the first."""
    spoken = list(questions.values())
    for index, name in enumerate(questions):
        yield name, spoken[index], spoken[(index + 1) % len(spoken)]


def _teach(engine: Engine, name: str, first: Pcm, second: Pcm, rows_per_reply: int) -> Lesson:
    """The conversation with the teacher's replies."""
    conversation, sampling = engine.new_conversation(), engine.bundle.lm.sampling_speech.seeded()
    params = replace(sampling, max_new=min(sampling.max_new, rows_per_reply))
    for number, question in enumerate((first, second)):
        turn = engine.open_turn(conversation, number)
        turn.push(question)
        for _ in turn.commit(Modality.SPEECH, params):
            pass
    prompt = engine.stages.prompt
    rows, opening, steps = [*prompt.system(Modality.SPEECH)], len(prompt.open_reply(Modality.SPEECH)), []
    start = 0
    for number, exchange in enumerate(conversation.exchanges, start=1):
        reply = len(rows) + len(exchange.user) + opening
        rows += [*exchange.user, *exchange.reply]
        middle = (start + reply) // 2
        steps += [Step(number, "prefill", start, middle), Step(number, "prefill", middle, reply)]
        # The last row of a reply is run with the rows after it.
        start = len(rows) - 1
        steps += [Step(number, "decode", row, row + 1) for row in range(reply, start)]
    engine.end_conversation(conversation)
    return Lesson(name, engine.stages.sequences.merged_ids(rows), steps)


def _run(engine: Engine, lesson: Lesson) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits of both heads after each call, on the host, without speech codes that are never sampled."""
    lm, end = engine.stages.lm, engine.bundle.lm.special_ids.audio_forbidden_from
    sequence = Sequence()
    try:
        for step in lesson.steps:
            ids = lesson.ids[step.first : step.end]
            if step.phase == "prefill":
                logits = lm.prefill(sequence, ids)
            else:
                logits = lm.decode(sequence, ids[0])
            yield _on_host(logits, end)
    finally:
        lm.blocks.release(sequence)


def _on_host(logits: StepOutput, audio_end: int) -> tuple[Tensor, Tensor]:
    assert logits.text_logits is not None, "both heads are requested"
    assert logits.audio_logits is not None, "both heads are requested"
    return logits.text_logits.float().cpu(), logits.audio_logits[:audio_end].float().cpu()


def _compare(engine: Engine, lessons: list[Lesson]) -> Alignment:
    same: dict[tuple[int, Phase, str], list[bool]] = {}
    cosines: dict[tuple[int, Phase, str], list[float]] = {}
    first: Difference | None = None
    for lesson in lessons:
        for step, wanted, found in zip(lesson.steps, lesson.logits, _run(engine, lesson), strict=True):
            for head, mine, other in zip(HEADS, found, wanted, strict=True):
                key = (step.turn, step.phase, head)
                ids, cosine = (int(other.argmax()), int(mine.argmax())), _cosine(mine, other)
                same.setdefault(key, []).append(ids[0] == ids[1])
                cosines.setdefault(key, []).append(cosine)
                if first is None and (ids[0] != ids[1] or not cosine >= LEAST_COSINE):
                    first = Difference(lesson.question, step, head, *ids, cosine)
    verdict = Verdict()
    for turn, phase, head in sorted(same, key=lambda key: (key[0], key[1] == "decode", key[2])):
        key, rows = (turn, phase, head), len(same[turn, phase, head])
        name = f"turn {turn} {phase} {head}"
        top1 = sum(same[key]) / rows
        verdict.checks += [
            Check(f"{name} top-1", top1, LEAST_TOP1, rows),
            Check(f"{name} cosine", sum(cosines[key]) / rows, LEAST_COSINE, rows),
        ]
    return Alignment(verdict, first)


def _cosine(one: Tensor, other: Tensor) -> float:
    return float(F.cosine_similarity(one, other, dim=0))
