"""Compares an engine with the torch executor: teacher forcing through the same conversations, row by row.

In: two loaders of a bundle, without and with an engine; spoken questions. Out: an `Alignment`: agreement of
the most likely id and cosine of the logits, for each head, in the first and the second turn, in prefill and
in decode, and the first row at which they differ. A prefill is split in two chunks, as while a user speaks,
so that all but the first continue from cached rows; a first prefill alone would not test the cache. An engine
that takes several sequences runs everything again in common steps. The models are loaded one after the other.
Engine thread.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch.nn.functional as F
from torch import Tensor

from engine_runtime.bench.verify import LEAST_COSINE, LEAST_TOP1, Check, Verdict, VerifyError
from engine_runtime.lm.paged_lm import StepRequest
from engine_runtime.lm.sequence import Sequence
from engine_runtime.lm.step import StepOutput
from engine_runtime.types import Modality, Pcm

if TYPE_CHECKING:
    from engine_runtime.engine import Engine

ROWS_PER_REPLY = 48
MOST_TOGETHER = 8
"""Sequences of a common step, at most."""
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
    is_together: bool = False

    def __str__(self) -> str:
        together = ", in a step with others" if self.is_together else ""
        return (
            f"{self.question}, turn {self.step.turn}, {self.step.phase}{together}, row {self.step.end - 1}: "
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
    scores = _Scores()
    for lesson in lessons:
        for number, found in enumerate(_run(engine, lesson)):
            scores.add(lesson, number, found)
    if engine.stages.lm.executor.limits.max_batch_size > 1:
        for lesson, number, found in _run_together(engine, lessons):
            scores.add(lesson, number, found, is_together=True)
    return Alignment(scores.verdict(), scores.first)


class _Pupil:
    """One run of a lesson among others."""

    def __init__(self, engine: Engine, lesson: Lesson) -> None:
        self.lesson, self.sequence = lesson, Sequence()
        self._lm = engine.stages.lm
        self._requests = self._all_requests()
        self.pending = next(self._requests, None)
        """Number of the call, and what it needs next; None at the end."""

    def advance(self) -> None:
        """The pending request was run."""
        self.pending = next(self._requests, None)

    def _all_requests(self) -> Iterator[tuple[int, StepRequest]]:
        for number, step in enumerate(self.lesson.steps):
            ids = self.lesson.ids[step.first : step.end]
            if step.phase == "decode":
                yield number, StepRequest(self.sequence, ids)
                continue
            for request in self._lm.prefill_requests(self.sequence, ids):
                yield number, request


def _run_together(
    engine: Engine, lessons: list[Lesson]
) -> Iterator[tuple[Lesson, int, tuple[Tensor, Tensor]]]:
    """Logits after each call, in steps of several lessons. One joins at each step, so that prefills run
    beside decode steps; a few lessons are repeated."""
    lm, end = engine.stages.lm, engine.bundle.lm.special_ids.audio_forbidden_from
    limits = lm.executor.limits
    most = min(limits.max_batch_size, MOST_TOGETHER)
    waiting, running = [*lessons * -(-most // len(lessons))], list[_Pupil]()
    while waiting or running:
        blocks = [-(-len(lesson.ids) // limits.tokens_per_block) for lesson in _lessons_of(running, waiting)]
        if waiting and len(running) < most and (sum(blocks) <= limits.num_blocks or not running):
            running.append(_Pupil(engine, waiting.pop(0)))
        batch, rows = list[tuple[_Pupil, int, StepRequest]](), 0
        for pupil in running:
            assert pupil.pending is not None, "finished ones are removed"
            number, request = pupil.pending
            if not batch or rows + len(request.token_ids) <= limits.max_num_tokens:
                batch.append((pupil, number, request))
                rows += len(request.token_ids)
        outputs = lm.step([request for _, _, request in batch])
        for (pupil, number, _), output in zip(batch, outputs, strict=True):
            if pupil.sequence.num_rows == pupil.lesson.steps[number].end:
                yield pupil.lesson, number, _on_host(output, end)
            pupil.advance()
        for pupil in running:
            if pupil.pending is None:
                lm.blocks.release(pupil.sequence)
        running = [pupil for pupil in running if pupil.pending is not None]


def _lessons_of(running: list[_Pupil], waiting: list[Lesson]) -> list[Lesson]:
    """Those in progress, and the next one."""
    return [*(pupil.lesson for pupil in running), *waiting[:1]]


class _Scores:
    """Agreement by turn, phase, head and whether the step was common; the first row that differs."""

    def __init__(self) -> None:
        self.first: Difference | None = None
        self._same: dict[tuple[bool, int, Phase, str], list[bool]] = {}
        self._cosines: dict[tuple[bool, int, Phase, str], list[float]] = {}

    def add(
        self, lesson: Lesson, number: int, found: tuple[Tensor, Tensor], *, is_together: bool = False
    ) -> None:
        """Compare the logits of both heads after a call with the teacher's."""
        step = lesson.steps[number]
        for head, mine, other in zip(HEADS, found, lesson.logits[number], strict=True):
            key = (is_together, step.turn, step.phase, head)
            ids, cosine = (int(other.argmax()), int(mine.argmax())), _cosine(mine, other)
            self._same.setdefault(key, []).append(ids[0] == ids[1])
            self._cosines.setdefault(key, []).append(cosine)
            if self.first is None and (ids[0] != ids[1] or not cosine >= LEAST_COSINE):
                self.first = Difference(lesson.question, step, head, *ids, cosine, is_together)

    def verdict(self) -> Verdict:
        """The agreement of each kind of row."""
        verdict = Verdict()
        for key in sorted(self._same, key=lambda key: (key[0], key[1], key[2] == "decode", key[3])):
            is_together, turn, phase, head = key
            rows = len(self._same[key])
            name = f"turn {turn} {phase} {head}{' together' if is_together else ''}"
            verdict.checks += [
                Check(f"{name} top-1", sum(self._same[key]) / rows, LEAST_TOP1, rows),
                Check(f"{name} cosine", sum(self._cosines[key]) / rows, LEAST_COSINE, rows),
            ]
        return verdict


def _cosine(one: Tensor, other: Tensor) -> float:
    return float(F.cosine_similarity(one, other, dim=0))
