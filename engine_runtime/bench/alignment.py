"""Compares an engine with the reference: teacher forcing through its own conversations, token by token.

In: a loader of the engine, the reference, questions. Out: an `Alignment`: agreement of the most likely id and
cosine of the logits, for each head, in each turn, in prefill and in decode, and the first token at which they
differ. An engine that takes several sequences runs everything again in batched steps. A quantized checkpoint
is compared with the plain one by `align_checkpoint`. Engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine_runtime.bench.reference import OpenReference, compare_with_reference, open_reference
from engine_runtime.bench.teacher_forcing import (
    TOKENS_PER_REPLY,
    Dialog,
    Difference,
    Lesson,
    Recorded,
    dialogs,
    on_host,
    record,
)
from engine_runtime.bench.verdict import Verdict
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.hardware import usable_device
from engine_runtime.lm.block_manager import Sequence as CachedSequence
from engine_runtime.lm.paged_lm import StepRequest
from engine_runtime.loading import load_stages
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import EngineOptions
from engine_runtime.tensorrt.checkpoint.quantized_network import load_paged
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint
from engine_runtime.types import Pcm

MOST_TOGETHER = 8
"""Sequences of a batched step, at most."""


@dataclass(slots=True)
class Alignment:
    """`first` is the first token that differs; a few may differ in an aligned quantized engine."""

    verdict: Verdict
    first: Difference | None


def align(
    load_engine: Callable[[], Engine],
    open_reference: OpenReference,
    asked: Sequence[Dialog],
    rows_per_reply: int = TOKENS_PER_REPLY,
) -> Alignment:
    """Compare over conversations. Raises VerifyError if the engine has no reply."""
    agreement, note = compare_with_reference(
        load_engine, open_reference, asked, rows_per_reply=rows_per_reply, run=_run
    )
    return Alignment(Verdict(agreement.phases(), [note]), agreement.first)


def align_checkpoint(
    bundle: Bundle,
    plain: Checkpoint,
    quantized: Checkpoint,
    options: EngineOptions,
    questions: Mapping[str, Pcm],
) -> Verdict:
    """Agreement of both heads of a quantized checkpoint in torch with the plain one, over conversations of
    the quantized one. VerifyError if there is nothing to compare."""
    config = MossLMConfig.from_dict(bundle.lm.config)
    source, device = plain.weight_source(), usable_device(options.device)
    agreement, note = compare_with_reference(
        lambda: _load_engine(bundle, quantized, config, options),
        lambda: open_reference(config, source, device),
        dialogs(questions, ()),
    )
    return Verdict(agreement.heads(), [note])


def _load_engine(
    bundle: Bundle, checkpoint: Checkpoint, config: MossLMConfig, options: EngineOptions
) -> Engine:
    lm = load_paged(checkpoint, bundle.lm, config, device=options.device)
    return Engine(load_stages(bundle, options, lm=lm))


def _run(engine: Engine, lessons: Sequence[Lesson]) -> Iterator[Recorded]:
    yield from record(engine, lessons)
    if engine.stages.lm.executor.limits.max_batch_size > 1:
        yield from _run_together(engine, lessons)


class _Pupil:
    """One run of a lesson among others."""

    def __init__(self, engine: Engine, number: int, lesson: Lesson) -> None:
        self.number, self.lesson, self.sequence = number, lesson, CachedSequence()
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


def _run_together(engine: Engine, lessons: Sequence[Lesson]) -> Iterator[Recorded]:
    """Logits after each call, in steps of several lessons. One joins at each step, so that prefills run
    beside decode steps; a few lessons are repeated."""
    lm = engine.stages.lm
    limits = lm.executor.limits
    most = min(limits.max_batch_size, MOST_TOGETHER)
    waiting, running = [*enumerate(lessons)] * -(-most // len(lessons)), list[_Pupil]()
    while waiting or running:
        blocks = [-(-len(lesson.ids) // limits.tokens_per_block) for lesson in _lessons_of(running, waiting)]
        if waiting and len(running) < most and (sum(blocks) <= limits.num_blocks or not running):
            running.append(_Pupil(engine, *waiting.pop(0)))
        batch, rows = list[tuple[_Pupil, int, StepRequest]](), 0
        for pupil in running:
            assert pupil.pending is not None, "finished ones are removed"
            number, request = pupil.pending
            if not batch or rows + len(request.token_ids) <= limits.max_num_tokens:
                batch.append((pupil, number, request))
                rows += len(request.token_ids)
        outputs = lm.step([request for _, _, request in batch])
        for (pupil, number, _), output in zip(batch, outputs, strict=True):
            if pupil.sequence.num_tokens == pupil.lesson.steps[number].end:
                yield Recorded(pupil.number, number, on_host(engine, output), is_together=True)
            pupil.advance()
        for pupil in running:
            if pupil.pending is None:
                lm.blocks.release(pupil.sequence)
        running = [pupil for pupil in running if pupil.pending is not None]


def _lessons_of(running: list[_Pupil], waiting: list[tuple[int, Lesson]]) -> list[Lesson]:
    """The lessons in progress, and the next one."""
    return [*(pupil.lesson for pupil in running), *(lesson for _, lesson in waiting[:1])]
