"""Teacher forcing: conversations of an engine, run again call by call, and compared with a reference.

In: an engine and questions, spoken and typed. Out: `Lesson`s, the conversations that it holds; `Recorded`,
its logits after each call; `Agreement`, how these agree with a reference's (bench/reference.py): agreement of
the most likely id and cosine, for each head, and the first row that differs. The rows are those of the tested
engine, so that it can be closed before the reference is loaded, and the reference runs all rows of a
conversation at once. A prefill is split in two chunks, as while a user speaks, so that all but the first
continue from cached rows; a first prefill alone would not test the cache. Engine thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_runtime.bench.verdict import Check, VerifyError
from engine_runtime.lm.block_manager import Sequence as CachedSequence
from engine_runtime.lm.step import BOTH_TAILS, StepOutput
from engine_runtime.types import Modality, Pcm
from engine_runtime.work import run_alone

if TYPE_CHECKING:
    from engine_runtime.engine import Engine

LEAST_TOP1 = 0.90
LEAST_COSINE = 0.99
TOKENS_PER_REPLY = 48
Head = Literal["text", "audio"]
HEADS: tuple[Head, Head] = ("text", "audio")
Phase = Literal["prefill", "decode"]
Question = Pcm | str


@dataclass(frozen=True, slots=True)
class Dialog:
    """Questions of one conversation, in order, and how they are answered. `name` is that of the first."""

    name: str
    questions: tuple[Question, ...]
    reply: Modality = Modality.SPEECH


@dataclass(frozen=True, slots=True)
class Step:
    """One call: rows [first, end) of the conversation, in one of its turns (counted from 1)."""

    turn: int
    phase: Phase
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Lesson:
    """A conversation: merged ids of its rows, and the calls that run them."""

    name: str
    ids: list[int]
    steps: list[Step]

    @property
    def turns(self) -> int:
        """Questions that got a reply."""
        return self.steps[-1].turn if self.steps else 0

    @property
    def rows(self) -> list[int]:
        """The last row of each call, whose logits are compared."""
        return [step.end - 1 for step in self.steps]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Logits [vocabulary] of both heads, on the host, after one call of a lesson."""

    lesson: int
    step: int
    logits: tuple[Tensor, Tensor]
    is_together: bool = False
    """Whether the call was part of a step of several conversations."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A row at which the most likely id of a head differs, or the logits do."""

    name: str
    step: Step
    head: Head
    wanted: int
    found: int
    cosine: float
    is_together: bool = False

    def __str__(self) -> str:
        together = ", in a step with others" if self.is_together else ""
        return (
            f"{self.name}, turn {self.step.turn}, {self.step.phase}{together}, position {self.step.end - 1}: "
            f"{self.head} head {self.found} where the reference says {self.wanted}, "
            f"cosine {self.cosine:.4f}"
        )


def no_questions() -> VerifyError:
    """The error of a comparison without recordings."""
    return VerifyError("No questions to compare with.", "Pass a folder of recordings with --wavs DIR.")


def no_reply() -> VerifyError:
    """The error of a comparison in which nothing was said."""
    return VerifyError("The tested engine replied to none of the questions.", "Pass others with --wavs DIR.")


def dialogs(spoken: Mapping[str, Pcm], typed: Sequence[str]) -> list[Dialog]:
    """Each recording with the next one and a typed question, answered with speech; each typed question with a
    recording, answered with text. VerifyError without recordings."""
    if not spoken:
        raise no_questions()
    recordings = list(spoken.values())
    found = []
    for index, name in enumerate(spoken):
        pair = (recordings[index], recordings[(index + 1) % len(recordings)])
        third = (typed[index % len(typed)],) if typed else ()
        found.append(Dialog(name, (*pair, *third)))
    for index, text in enumerate(typed):
        found.append(Dialog(repr(text), (text, recordings[index % len(recordings)]), Modality.TEXT))
    return found


def teach(engine: Engine, asked: Iterable[Dialog], rows_per_reply: int = TOKENS_PER_REPLY) -> list[Lesson]:
    """The conversations with the engine's own replies; one without any reply is left out. VerifyError if none
    is left."""
    lessons = [_lesson(engine, dialog, rows_per_reply) for dialog in asked]
    if not (found := [lesson for lesson in lessons if lesson.steps]):
        raise no_reply()
    return found


def _lesson(engine: Engine, dialog: Dialog, rows_per_reply: int) -> Lesson:
    """Turns that do not fit into the cache with those before are left out, and those without a reply: a
    bundle that detects the end of a turn does not reply to a question that seems unfinished to it."""
    conversation, section = engine.new_conversation(), engine.bundle.lm
    sampling = section.sampling_speech if dialog.reply is Modality.SPEECH else section.sampling_text
    params = replace(sampling.seeded(), max_new=min(sampling.max_new, rows_per_reply))
    for number, question in enumerate(dialog.questions):
        turn = run_alone(engine.open_turn(conversation, number, reply=dialog.reply))
        if isinstance(question, str):
            run_alone(turn.push_text(question))
        else:
            run_alone(turn.push(question))
        for _ in run_alone(turn.commit(dialog.reply, params)):
            pass
    prompt, most = engine.stages.prompt, engine.stages.lm.max_tokens
    rows, opening = [*prompt.system(dialog.reply)], len(prompt.open_reply(dialog.reply))
    steps, start, turn_number = list[Step](), 0, 0
    for exchange in conversation.exchanges:
        if len(exchange.reply) <= opening or len(rows) + exchange.num_tokens > most:
            continue
        turn_number += 1
        reply = len(rows) + len(exchange.user) + opening
        rows += [*exchange.user, *exchange.reply]
        middle = (start + reply) // 2
        steps += [
            Step(turn_number, "prefill", start, middle),
            Step(turn_number, "prefill", middle, reply),
        ]
        # The last row of a reply is run with the rows after it.
        start = len(rows) - 1
        steps += [Step(turn_number, "decode", row, row + 1) for row in range(reply, start)]
    engine.end_conversation(conversation)
    return Lesson(dialog.name, engine.stages.sequences.merged_ids(rows), steps)


def record(engine: Engine, lessons: Sequence[Lesson]) -> Iterator[Recorded]:
    """Run each lesson alone, as its replies were made."""
    lm = engine.stages.lm
    for index, lesson in enumerate(lessons):
        sequence = CachedSequence()
        try:
            for number, step in enumerate(lesson.steps):
                ids = lesson.ids[step.first : step.end]
                if step.phase == "prefill":
                    output = lm.prefill(sequence, ids, BOTH_TAILS)
                else:
                    output = lm.decode(sequence, ids[0], BOTH_TAILS)
                yield Recorded(index, number, on_host(engine, output))
        finally:
            lm.blocks.release(sequence)


def on_host(engine: Engine, output: StepOutput) -> tuple[Tensor, Tensor]:
    """The logits of both heads in float32, without speech codes that are never sampled."""
    if output.text_logits is None or output.audio_logits is None:
        raise VerifyError("The language model did not return the logits of both heads.")
    end = engine.bundle.lm.special_ids.audio_forbidden_from
    return output.text_logits.float().cpu(), output.audio_logits[:end].float().cpu()


@dataclass(slots=True)
class _Rows:
    """Rows of one kind: whether the most likely ids are the same, and cosines."""

    same: list[bool] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)


class Agreement:
    """Filled in by `add`, in any order. A few rows may differ in an aligned quantized engine."""

    def __init__(self, lessons: Sequence[Lesson], recorded: Iterable[Recorded]) -> None:
        self._lessons = lessons
        self._recorded: list[list[Recorded]] = [[] for _ in lessons]
        for one in recorded:
            self._recorded[one.lesson].append(one)
        self._rows: dict[tuple[bool, int, Phase, Head], _Rows] = {}
        self._differences: list[tuple[tuple[int, bool, int], Difference]] = []

    @torch.inference_mode()
    def add(self, head: Head, lesson: int, reference: Tensor) -> None:
        """Compare one head with the logits [steps of the lesson, vocabulary] of a reference."""
        taught, recorded = self._lessons[lesson], self._recorded[lesson]
        mine = torch.stack([one.logits[HEADS.index(head)] for one in recorded]).to(reference.device)
        other = reference[:, : mine.shape[1]].float()
        other = other[torch.tensor([one.step for one in recorded], device=reference.device)]
        wanted, found = other.argmax(dim=1).tolist(), mine.argmax(dim=1).tolist()
        cosines = F.cosine_similarity(mine, other, dim=1).tolist()
        for one, *values in zip(recorded, wanted, found, cosines, strict=True):
            step, (want, got, cosine) = taught.steps[one.step], values
            rows = self._rows.setdefault((one.is_together, step.turn, step.phase, head), _Rows())
            rows.same.append(want == got)
            rows.cosines.append(cosine)
            if want != got or not cosine >= LEAST_COSINE:
                place = (lesson, one.is_together, one.step)
                difference = Difference(taught.name, step, head, want, got, cosine, one.is_together)
                self._differences.append((place, difference))

    @property
    def first(self) -> Difference | None:
        """The first row that differs."""
        return min(self._differences, key=lambda found: found[0])[1] if self._differences else None

    def heads(self, prefix: str = "") -> list[Check]:
        """Top-1 agreement, mean and smallest cosine of each head over all rows."""
        checks = []
        for head in HEADS:
            rows = self._of(head)
            checks += [
                *_checks(f"{prefix}{head} head", rows),
                Check(f"{prefix}{head} head worst", min(rows.cosines), None, len(rows.same)),
            ]
        return checks

    def phases(self) -> list[Check]:
        """Top-1 agreement and mean cosine by turn, phase, head and whether the step was one of several."""
        checks = []
        for key in sorted(self._rows, key=lambda key: (key[0], key[1], key[2] == "decode", key[3])):
            is_together, turn, phase, head = key
            name = f"turn {turn} {phase} {head}{' together' if is_together else ''}"
            checks += _checks(name, self._rows[key])
        return checks

    def _of(self, head: Head) -> _Rows:
        kinds = [rows for key, rows in self._rows.items() if key[3] == head]
        return _Rows(
            [same for rows in kinds for same in rows.same],
            [cosine for rows in kinds for cosine in rows.cosines],
        )


def _checks(name: str, rows: _Rows) -> list[Check]:
    count = len(rows.same)
    return [
        Check(f"{name} top-1", sum(rows.same) / count, LEAST_TOP1, count),
        Check(f"{name} cosine", sum(rows.cosines) / count, LEAST_COSINE, count),
    ]
