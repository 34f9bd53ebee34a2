"""Verify engines: language model against the reference, streamed speech codes, quality of what is heard.

In: loaders of engines, such as of several weight formats of one bundle; questions, spoken and typed. Out: a
`Verdict`. Each engine holds conversations of several turns and is closed; then the reference runs the same
rows (bench/reference.py), so that an early difference does not affect later rows and no two models share the
memory. Engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine_runtime.bench.quality import QualityBench
from engine_runtime.bench.reference import OpenReference, compare_with_reference
from engine_runtime.bench.teacher_forcing import Lesson, Recorded, dialogs, record
from engine_runtime.bench.verdict import Check, Verdict
from engine_runtime.bench.verify_encoder import LeadIn, verify_encoder
from engine_runtime.errors import MossVoiceError
from engine_runtime.types import Pcm

if TYPE_CHECKING:
    from engine_runtime.engine import Engine


@dataclass(slots=True)
class Verification:
    """`add` one engine or several, then `finish`.

    Attributes:
        spoken: recordings at the bundle's input rate, by name.
        typed: questions.
        lead_ins: with each of which streamed speech codes are compared.
    """

    open_reference: OpenReference
    spoken: Mapping[str, Pcm]
    typed: Sequence[str]
    quality: QualityBench
    lead_ins: Sequence[LeadIn] = ()
    verdict: Verdict = field(default_factory=Verdict)

    def add(self, name: str, load: Callable[[], Engine]) -> None:
        """Compare an engine, which is closed afterwards. Raises VerifyError if there is nothing to compare,
        and the errors of loading."""

        def run(engine: Engine, lessons: Sequence[Lesson]) -> Iterator[Recorded]:
            if not self.verdict.tables:  # the same for all engines
                self._compare_encoder(engine)
            self.quality.add(name, engine, [*self.spoken.values(), *self.typed])
            yield from record(engine, lessons)

        asked = dialogs(self.spoken, self.typed)
        agreement, note = compare_with_reference(load, self.open_reference, asked, run=run)
        self.verdict.checks += agreement.heads(f"{name} ")
        if note not in self.verdict.notes:
            self.verdict.notes.append(note)

    def fail(self, name: str, error: MossVoiceError) -> None:
        """An engine of several that cannot be compared."""
        self.verdict.checks.append(Check(f"{name} runs", 0.0, 1.0, 1))
        self.verdict.notes.append(f"{name}: {error}")

    def finish(self) -> Verdict:
        """Everything that was compared."""
        self.verdict.checks += self.quality.checks()
        self.verdict.tables.append(self.quality.section())
        return self.verdict

    def _compare_encoder(self, engine: Engine) -> None:
        stages = engine.stages
        found = verify_encoder(
            stages.speech_tokenizer, self.spoken, self.lead_ins, exact=stages.options.exact_encoding
        )
        self.verdict.checks += found.checks
        self.verdict.notes += found.notes
        self.verdict.tables += found.tables
