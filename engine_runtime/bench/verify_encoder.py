"""Compares streamed speech codes with those of complete recordings, by what precedes the speech, by level,
and by what a stream knows of the maximum.

In: a speech tokenizer and recordings at its rate. Out: a verdict with a table. Engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine_runtime.bench.teacher_forcing import no_questions
from engine_runtime.bench.verdict import Check, Verdict
from engine_runtime.codec.speech_tokenizer.features import SPEECH_CEILING
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer, SpeechTokenizerStream
from engine_runtime.errors import ExecutorError
from engine_runtime.table import Section
from engine_runtime.types import Codes, Pcm
from engine_runtime.work import run_alone

LEAD_S = 0.4
ROOM_DBFS = -60.0
QUIET_DB = -20.0
"""Gain of the quiet speech."""
PUSH_MS = 80
LEAST_CODES = 0.995
"""Share of equal codes of streams and of complete recordings if both compute the same, up to rounding."""
LEAST_ESTIMATED_CODES = 0.95
"""The same if a stream estimates the loudness of the complete recording."""

COLUMNS = {
    "before the speech": f"{LEAD_S:g} s of digital silence, dither (one bit) or a room ({ROOM_DBFS:g} dBFS); "
    "turn: room noise around the speech, as the application cuts a turn",
    "level_db": "gain of the recordings",
    "codes": "compared codes; the reference is the complete recording, as in training",
    "bare": "share of equal codes if the ceiling is the maximum so far",
    "prior": f"... with the bundle's prior, else {SPEECH_CEILING:g}, below it and no revision",
    "streamed": "... as a stream runs in the first turn",
    "next turn": "... as it runs after a turn of the same loudness",
    "revisions": "of one recording in the first turn, mean",
}


@dataclass(frozen=True, slots=True)
class LeadIn:
    """Quiet samples before and after the speech."""

    name: str
    before_s: float
    after_s: float = 0.0
    steps: bool = False
    """Dither of one 16-bit step."""
    rms: float = 0.0

    def around(self, speech: Pcm, rate: int, generator: np.random.Generator) -> Pcm:
        """The recording between these samples. Room noise is also added to the speech."""
        before, after = round(self.before_s * rate), round(self.after_s * rate)
        pcm = np.pad(speech, (before, after)).astype(np.float64)
        if self.steps:
            pcm[:before] = generator.integers(-1, 2, before) / 32768
        return (pcm + generator.normal(0.0, self.rms, pcm.size)).astype(np.float32)


def all_lead_ins(pre_roll_s: float, tail_s: float) -> tuple[LeadIn, ...]:
    """All variants; a turn of the application has `pre_roll_s` before and `tail_s` after the speech."""
    room = 10 ** (ROOM_DBFS / 20)
    return (
        LeadIn("none", 0.0),
        LeadIn("zeros", LEAD_S),
        LeadIn("dither", LEAD_S, steps=True),
        LeadIn("room", LEAD_S, rms=room),
        LeadIn("turn", pre_roll_s, tail_s, rms=room),
    )


def verify_encoder(
    tokenizer: SpeechTokenizer,
    questions: Mapping[str, Pcm],
    lead_ins: Sequence[LeadIn],
    *,
    exact: bool = False,
) -> Verdict:
    """Compare streamed speech codes alone. `exact`: each turn is encoded again at its end, so streamed codes
    are only reported. Raises VerifyError if there are no questions."""
    if not questions:
        raise no_questions()
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


def measure_codes(
    tokenizer: SpeechTokenizer, recordings: Mapping[str, Pcm], lead_ins: Sequence[LeadIn]
) -> Section:
    """Compare all variants. A recording with its lead-in is truncated to one segment."""
    note = (
        "estimated and revised while the user speaks; with --exact-encoding all of them are equal at the end"
        if tokenizer.is_revised
        else "never estimated: training and streams compute the same"
    )
    section = Section("streamed speech codes", COLUMNS, note=note)
    stream = tokenizer.stream()
    for lead_in in lead_ins:
        for level_db in (0.0, QUIET_DB):
            signals = _signals(tokenizer, recordings.values(), lead_in, level_db)
            measured = [_Measured.of(tokenizer, stream, pcm) for pcm in signals]
            section.rows.append(
                {
                    "before the speech": lead_in.name,
                    "level_db": level_db,
                    "codes": sum(one.complete.size for one in measured),
                    "bare": _share(measured, lambda one: one.bare),
                    "prior": _share(measured, lambda one: one.prior),
                    "streamed": _share(measured, lambda one: one.streamed),
                    "next turn": _share(measured, lambda one: one.next_turn),
                    "revisions": float(np.mean([one.revisions for one in measured])),
                }
            )
    return section


def _run(stream: SpeechTokenizerStream, pcm: Pcm, rate: int, prior: float | None = None) -> Codes:
    """Final codes of a stream."""
    block = rate * PUSH_MS // 1000
    stream.reset(prior)
    for start in range(0, pcm.size, block):
        run_alone(stream.push(pcm[start : start + block]))
    return np.array([*stream.codes, *run_alone(stream.tail())], np.int64)


def _signals(
    tokenizer: SpeechTokenizer, recordings: Iterable[Pcm], lead_in: LeadIn, level_db: float
) -> Iterator[Pcm]:
    generator = np.random.default_rng(0)
    for speech in recordings:
        gain = np.float32(10 ** (level_db / 20))
        yield lead_in.around(gain * speech, tokenizer.sample_rate, generator)[: tokenizer.segment_samples]


@dataclass(frozen=True, slots=True)
class _Measured:
    """Codes of one recording, with its maximum known (`complete`) and with less knowledge of it."""

    complete: Codes
    bare: Codes
    prior: Codes
    streamed: Codes
    next_turn: Codes
    revisions: int

    @classmethod
    @torch.inference_mode()
    def of(cls, tokenizer: SpeechTokenizer, stream: SpeechTokenizerStream, pcm: Pcm) -> _Measured:
        features, rate = tokenizer.features, tokenizer.sample_rate
        filled = torch.from_numpy(np.pad(pcm, (0, -pcm.size % tokenizer.samples_per_code)))
        mirrored = features.mirror(filled.to(features.window.device), start=True, end=True)
        log_power = features.log_power(mirrored)
        maxima = features.running_maximum(log_power)

        def scaled(ceilings: Tensor) -> Codes:
            return tokenizer.encode_mel(features.scale(log_power, ceilings))

        streamed, complete = _run(stream, pcm, rate), tokenizer.encode(pcm)
        if streamed.size != complete.size:
            raise ExecutorError(
                "A stream returned {size} codes where the complete recording has {expected}.",
                "Check the bundle's speech encoder.",
                size=streamed.size,
                expected=complete.size,
            )
        revisions, maximum = stream.revisions, stream.maximum
        return cls(
            complete=complete,
            bare=scaled(maxima),
            prior=scaled(maxima.clamp_min(features.prior if features.is_revised else SPEECH_CEILING)),
            streamed=streamed,
            next_turn=_run(stream, pcm, rate, maximum),
            revisions=revisions,
        )


def _share(measured: Sequence[_Measured], codes: Callable[[_Measured], Codes]) -> float:
    return float(np.mean(np.concatenate([codes(one) == one.complete for one in measured])))
