"""Quality of a weight format: an engine in that format compared with the same bundle in native weights.

In: two loaders of a bundle, spoken questions. Out: a `Verdict`: one row per check with its value, its
threshold and whether it holds. Teacher forcing: both engines decode the replies of the native engine step by
step, and their logits are compared, so that an early difference does not affect later rows. The engines are
loaded one after the other, because two may not fit into memory. Engine thread.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine_runtime.bench.verify_encoder import LeadIn, measure_codes
from engine_runtime.bench.word_errors import Recognizer, word_errors
from engine_runtime.errors import MossVoiceError
from engine_runtime.lm.generation import Row
from engine_runtime.lm.sequence import Sequence
from engine_runtime.lm.step import BOTH_TAILS, StepOutput
from engine_runtime.table import Section
from engine_runtime.types import Codes, Modality, Pcm, ReplyDone

if TYPE_CHECKING:
    from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
    from engine_runtime.engine import Engine

LEAST_TOP1 = 0.90
LEAST_COSINE = 0.99
LEAST_CODES = 0.995
"""Share of equal codes of streams and of complete recordings if both compute the same, up to rounding."""
LEAST_ESTIMATED_CODES = 0.95
"""The same if a stream estimates the loudness of the complete recording."""
FINE_STEPS, FAST_STEPS = 10, 5
MOST_MEL = 0.1
"""In natural logarithms: 0.9 dB."""
MOST_WORD_ERRORS = 0.10
"""More word errors at FAST_STEPS than at FINE_STEPS, as a share of the words."""
MOST_ROWS = 200
NO_QUESTIONS = "No questions to compare with. Pass a folder of WAV files with --wavs DIR."
NO_SPEECH = "The native engine replied with speech to none of the questions. Pass others with --wavs DIR."

COLUMNS = {
    "check": "compared quantity; heads: teacher-forced over the replies of the native engine",
    "value": "agreement or cosine 0..1; mel distance: mean absolute difference of natural-log mels",
    "threshold": "minimum (>=) or maximum (<=) that counts as aligned",
    "of": "rows, codes, frames or words that were compared",
    "aligned": "whether the threshold is met; - for a value that is only reported",
}


class VerifyError(MossVoiceError):
    """There is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison. `threshold` None: the value is only reported."""

    name: str
    value: float
    threshold: float | None
    count: int
    is_least: bool = True

    @property
    def is_aligned(self) -> bool:
        """Whether the value meets the threshold."""
        if self.threshold is None:
            return True
        return self.value >= self.threshold if self.is_least else self.value <= self.threshold


@dataclass(slots=True)
class Verdict:
    """All checks. `notes`: what could not be checked, and why."""

    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tables: list[Section] = field(default_factory=list)
    """Details of some of the checks."""

    @property
    def is_aligned(self) -> bool:
        """Whether every check is aligned."""
        return all(check.is_aligned for check in self.checks)

    def section(self, title: str) -> Section:
        """As a table."""
        section = Section(title, COLUMNS, note="; ".join(self.notes))
        for check in self.checks:
            sign = ">=" if check.is_least else "<="
            section.rows.append(
                {
                    "check": check.name,
                    "value": check.value,
                    "threshold": "-" if check.threshold is None else f"{sign} {check.threshold:g}",
                    "of": check.count,
                    "aligned": _said(check),
                }
            )
        return section


def _said(check: Check) -> str:
    if check.threshold is None:
        return "-"
    return "yes" if check.is_aligned else "no"


@dataclass(slots=True)
class _TeacherReply:
    """One reply of the teacher: all rows, the first row of the reply, its codes and words, and the logits."""

    rows: list[Row]
    start: int
    codes: Codes
    words: str
    logits: list[tuple[Tensor, Tensor]] = field(default_factory=list)


def verify(
    load_native: Callable[[], Engine],
    load_tested: Callable[[], Engine],
    questions: Mapping[str, Pcm],
    lead_ins: SequenceOf[LeadIn] = (),
) -> Verdict:
    """Compare over spoken questions at the bundle's input rate; streamed codes also with each of `lead_ins`.
    Raises VerifyError if there are no questions."""
    native = load_native()
    replies, notes = _teach_all(native, questions)
    exact = native.stages.options.exact_encoding
    verdict = verify_encoder(native.stages.speech_tokenizer, questions, lead_ins, exact=exact)
    verdict.notes += notes
    _flow_steps(native, replies, verdict)
    native.close()
    del native
    gc.collect()  # free the first engine now (reference cycles): two may not fit into GPU memory
    verdict.checks[:0] = _tested_heads(load_tested, replies)
    return verdict


def verify_heads(
    load_native: Callable[[], Engine], load_tested: Callable[[], Engine], questions: Mapping[str, Pcm]
) -> Verdict:
    """Compare the language models alone. Errors as in `verify`."""
    native = load_native()
    replies, notes = _teach_all(native, questions)
    native.close()
    del native
    gc.collect()  # free the first engine now (reference cycles): two may not fit into GPU memory
    return Verdict(_tested_heads(load_tested, replies), notes)


def _teach_all(native: Engine, questions: Mapping[str, Pcm]) -> tuple[list[_TeacherReply], list[str]]:
    """Replies of the native engine, with their logits; and a note of the questions left without a reply.

    A bundle that detects the end of a turn replies nothing to a question that seems unfinished to it.
    """
    if not questions:
        raise VerifyError(NO_QUESTIONS)
    taught = {name: _teach(native, question) for name, question in questions.items()}
    replies = [reply for reply in taught.values() if reply is not None]
    if not replies:
        raise VerifyError(NO_SPEECH)
    for reply in replies:
        reply.logits = list(_logits(native, reply))
    silent = [name for name, reply in taught.items() if reply is None]
    note = f"left out, because the native engine replies nothing: {', '.join(silent)}"
    return replies, [note] if silent else []


def _tested_heads(load_tested: Callable[[], Engine], replies: list[_TeacherReply]) -> list[Check]:
    tested = load_tested()
    checks = _heads(tested, replies)
    tested.close()
    return checks


def _teach(engine: Engine, question: Pcm) -> _TeacherReply | None:
    """Reply of the native engine to a question; None if it has no speech."""
    conversation = engine.new_conversation()
    turn = engine.open_turn(conversation, 1)
    turn.push(question)
    sampling = engine.bundle.lm.sampling_speech.seeded()
    events = list(turn.commit(Modality.SPEECH, replace(sampling, max_new=min(sampling.max_new, MOST_ROWS))))
    done = events[-1]
    if not isinstance(done, ReplyDone) or not done.codes:
        return None
    exchange = conversation.exchanges[-1]
    opening = len(engine.stages.prompt.open_reply(Modality.SPEECH))
    rows = [*engine.stages.prompt.system(Modality.SPEECH), *exchange.user, *exchange.reply]
    start = len(rows) - len(exchange.reply) + opening
    return _TeacherReply(rows, start, np.array(done.codes, dtype=np.int64), done.text)


def _logits(engine: Engine, reply: _TeacherReply) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits of both heads before each row of the reply, on the host, without ids that are never sampled."""
    special, lm = engine.bundle.lm.special_ids, engine.stages.lm
    ids = engine.stages.sequences.merged_ids(reply.rows)
    sequence = Sequence()
    try:
        yield _on_host(lm.prefill(sequence, ids[: reply.start], BOTH_TAILS), special.audio_forbidden_from)
        for token_id in ids[reply.start : reply.start + len(reply.codes)]:
            logits = lm.decode(sequence, token_id, BOTH_TAILS)
            yield _on_host(logits, special.audio_forbidden_from)
    finally:
        lm.blocks.release(sequence)


def _on_host(logits: StepOutput, audio_end: int) -> tuple[Tensor, Tensor]:
    if logits.text_logits is None or logits.audio_logits is None:
        raise VerifyError("The language model did not return the logits of both heads.")
    return logits.text_logits.float().cpu(), logits.audio_logits[:audio_end].float().cpu()


def _heads(engine: Engine, replies: list[_TeacherReply]) -> list[Check]:
    """Top-1 agreement and cosine of both heads."""
    same: list[list[bool]] = [[], []]
    cosines: list[list[float]] = [[], []]
    for reply in replies:
        for wanted, found in zip(reply.logits, _logits(engine, reply), strict=True):
            for head in range(2):
                same[head].append(bool(wanted[head].argmax() == found[head].argmax()))
                cosines[head].append(float(F.cosine_similarity(wanted[head], found[head], dim=0)))
    checks = []
    for head, name in enumerate(("text head", "audio head")):
        rows = len(same[head])
        checks += [
            Check(f"{name} top-1", float(np.mean(same[head])), LEAST_TOP1, rows),
            Check(f"{name} cosine", float(np.mean(cosines[head])), LEAST_COSINE, rows),
            Check(f"{name} worst", min(cosines[head]), None, rows),
        ]
    return checks


def verify_encoder(
    tokenizer: SpeechTokenizer,
    questions: Mapping[str, Pcm],
    lead_ins: SequenceOf[LeadIn],
    *,
    exact: bool = False,
) -> Verdict:
    """Compare streamed speech codes alone. `exact`: each turn is encoded again at its end, so streamed codes
    are only reported. Raises VerifyError if there are no questions."""
    if not questions:
        raise VerifyError(NO_QUESTIONS)
    table = measure_codes(tokenizer, questions, lead_ins)
    verdict = Verdict(tables=[table])
    least = LEAST_ESTIMATED_CODES if tokenizer.is_revised else LEAST_CODES
    for row in table.rows:
        name = f"codes, {row['before the speech']}, {row['level_db']:g} dB"
        share, count = float(row["streamed"] or 0.0), int(row["codes"] or 0)
        verdict.checks.append(Check(name, share, None if exact else least, count))
    if not verdict.is_aligned:
        verdict.notes.append(
            "streamed codes are not aligned: --exact-encoding encodes each turn again at its end"
            if tokenizer.is_revised
            else "streamed codes are not aligned although the ceiling is not estimated: check the weights"
        )
    return verdict


@torch.inference_mode()
def _flow_steps(engine: Engine, replies: list[_TeacherReply], verdict: Verdict) -> None:
    """Compare mel and recognized words at FINE_STEPS and FAST_STEPS."""
    stages = engine.stages
    mels = [
        [stages.token2mel.convert(reply.codes, steps) for reply in replies]
        for steps in (FINE_STEPS, FAST_STEPS)
    ]
    distance = np.concatenate([np.abs(a - b).mean(axis=0) for a, b in zip(*mels, strict=True)])
    name = f"mel at {FINE_STEPS} / {FAST_STEPS}"
    verdict.checks.append(Check(name, float(distance.mean()), MOST_MEL, len(distance), is_least=False))
    texts = [reply.words for reply in replies]
    if not any(texts):
        verdict.notes.append("word errors not checked: the bundle has no subtitles")
        return
    try:
        recognizer = Recognizer(texts)
    except ImportError:
        verdict.notes.append("word errors not checked: pocketsphinx is not installed")
        return
    rate = stages.vocoder.sample_rate
    shares = []
    for steps, of_steps in zip((FINE_STEPS, FAST_STEPS), mels, strict=True):
        heard = [recognizer.words(stages.vocoder.vocode(mel), rate) for mel in of_steps]
        errors, words = word_errors(texts, heard)
        shares.append(errors / words)
        verdict.checks.append(Check(f"word errors at {steps}", errors / words, None, words))
    verdict.checks.append(
        Check("word errors added", shares[1] - shares[0], MOST_WORD_ERRORS, words, is_least=False)
    )
