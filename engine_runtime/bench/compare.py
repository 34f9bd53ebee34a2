"""Compares the paged runtime with transformers, and the cached flow with one that recomputes its prefix.

In: a loaded engine and the weights it was loaded from. Out: tables, both sides measured in the same run.
Outputs are compared first; if they disagree, no times are reported. Engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from engine_runtime.bench.codec import packets_of
from engine_runtime.bench.language_model import LMBench
from engine_runtime.bench.measuring import p50_p95
from engine_runtime.bench.reference import (
    OpenReference,
    ReferenceOptions,
    agree,
    free_bytes,
    reference_of,
    whole_bytes,
)
from engine_runtime.bench.teacher_forcing import Agreement, Dialog, Lesson, on_host, record, teach
from engine_runtime.bench.transformers_reference import ComparisonError, TransformersLM
from engine_runtime.bench.verdict import Verdict
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.codec.flow.token2mel import arrays_of
from engine_runtime.codec.loading import load_flow
from engine_runtime.cuda.stopwatch import Stopwatch, rounds_ms, times_ms
from engine_runtime.lm.generation import Generation, merged_ids
from engine_runtime.lm.step import BOTH_TAILS, StepOutput
from engine_runtime.loading import Stages, load_lm_weights
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import Dtype, EngineOptions
from engine_runtime.table import Cell, Section
from engine_runtime.types import Codes, Mel

if TYPE_CHECKING:
    from engine_runtime.engine import Engine

PREFILL_TOKENS = 512
CACHED_TOKENS = (512, 2048)
_FIRST_ROWS, _FIRST_STEPS = 72, 8
LEAST_COSINE = 0.98
MEL_TOLERANCE: dict[Dtype, float] = {"float32": 1e-4, "float16": 0.01, "bfloat16": 0.08}
"""Mean absolute difference of log-mels from those of the plain float32 flow. At full size with random weights
on an H200 7e-7, 0.0012 and 0.008; with the nano bundle on a CPU 1.4e-6, 0.0018 and 0.019."""

TRANSFORMERS_COLUMNS = {
    "what": "prefill of this many rows, or decode step after this many cached rows, sampling included",
    "ours_ms": "the paged runtime as a reply uses it (weights as stored in this run), median",
    "theirs_ms": "transformers: the same blocks, native weights, eager, both tails and both heads, median",
    "times_faster": "theirs_ms / ours_ms",
}
RECOMPUTE_COLUMNS = {
    "packet": "number of the packet in the reply",
    "codes": "codes of the packet",
    "cached_ms": "the cached flow as a reply uses it: this packet only, median",
    "recompute_ms": "the plain flow in float32: voice prompt and all codes so far, median",
    "times_faster": "recompute_ms / cached_ms",
}


@dataclass(frozen=True, slots=True)
class _Timed:
    """One call: its rows, what the runtime took for it, and how a decode step samples."""

    what: str
    ids: list[int]
    ours_ms: list[float]
    generation: Generation | None = None


@dataclass(slots=True)
class TransformersComparison:
    """`record` measures ours; `finish` measures theirs once the engine is closed, so that memory need not
    hold two models. If theirs does not fit as a whole, only the agreement is measured."""

    bundle: Bundle
    options: EngineOptions
    device: torch.device
    repeats: int
    warm_up_steps: int
    open_reference: OpenReference
    lessons: list[Lesson]
    agreement: Agreement
    prefill: _Timed
    steps: list[_Timed]
    first_ids: list[int]
    first_logits: list[tuple[Tensor, Tensor]]
    """Logits of the last _FIRST_STEPS rows of `first_ids`, and of the one before them."""

    @classmethod
    @torch.inference_mode()
    def record(
        cls, engine: Engine, lm: LMBench, repeats: int, asked: Sequence[Dialog]
    ) -> TransformersComparison:
        """Measure the runtime, and let it hold conversations. Raises ComparisonError without transformers,
        VerifyError if the engine has no reply."""
        stages, most = engine.stages, engine.stages.lm.max_tokens - 1
        open_reference = reference_of(stages.bundle, stages.options, ReferenceOptions("transformers"))

        def ids_of_speech(count: int) -> list[int]:
            return stages.sequences.merged_ids(lm.tokens_of_speech(count))

        first = ids_of_speech(min(_FIRST_ROWS, most))
        with lm.sequence() as sequence:
            logits = [on_host(engine, stages.lm.prefill(sequence, first[:-_FIRST_STEPS], BOTH_TAILS))]
            for token_id in first[-_FIRST_STEPS:]:
                logits.append(on_host(engine, stages.lm.decode(sequence, token_id, BOTH_TAILS)))
        rows = min(PREFILL_TOKENS, most)
        lessons = teach(engine, asked)
        return cls(
            bundle=stages.bundle,
            options=stages.options,
            device=lm.device,
            repeats=repeats,
            warm_up_steps=lm.warm_up_steps,
            open_reference=open_reference,
            lessons=lessons,
            agreement=Agreement(lessons, record(engine, lessons)),
            prefill=_Timed(f"prefill {rows}", ids_of_speech(rows), lm.prefill_times(rows)),
            steps=[
                _Timed(
                    f"step {cached}",
                    ids_of_speech(cached),
                    lm.step_times(cached)[0],
                    lm.plain_generation(lm.tokens_of_speech(cached)),
                )
                for cached in [count for count in CACHED_TOKENS if count <= most] or [most]
            ],
            first_ids=first,
            first_logits=logits,
        )

    def finish(self) -> list[Section]:
        """Two tables: agreement and times. Raises ComparisonError if the logits disagree."""
        note = agree(self.agreement, self.lessons, self.open_reference)
        verdict = Verdict(self.agreement.heads(), [note])
        if not verdict.is_aligned:
            low = ", ".join(
                f"{check.name} {check.value:.4f}" for check in verdict.checks if not check.is_aligned
            )
            raise ComparisonError(
                "The logits of both sides differ: {low}, first at {first}.",
                "No times are reported; compare with --weights native first.",
                low=low,
                first=self.agreement.first,
            )
        times = Section("compared with transformers", TRANSFORMERS_COLUMNS)
        config, dtype = MossLMConfig.from_dict(self.bundle.lm.config), getattr(torch, self.options.lm_dtype)
        need = whole_bytes(config, dtype, max(len(timed.ids) for timed in (self.prefill, *self.steps)))
        free = free_bytes(self.device)
        if free < need:
            times.note = (
                f"transformers was not timed: the whole model needs {need / 1e9:.1f} GB, and "
                f"{free / 1e9:.1f} GB are free"
            )
            times.rows = [_row(timed.what, timed.ours_ms, None) for timed in (self.prefill, *self.steps)]
        else:
            self._time_theirs(config, times)
        return [verdict.section("agreement with transformers"), times]

    @torch.inference_mode()
    def _time_theirs(self, config: MossLMConfig, times: Section) -> None:
        theirs = TransformersLM(load_lm_weights(self.bundle, config, self.device, self.options))
        worst = self._worst_cosine(theirs)
        if not worst > LEAST_COSINE:
            raise ComparisonError(
                "The logits of both sides differ: smallest cosine {worst:.4f}, and at least "
                "{least} is required.",
                "No times are reported; compare with --weights native first.",
                worst=worst,
                least=LEAST_COSINE,
            )
        times.note = f"the whole model over {len(self.first_logits)} rows: smallest cosine {worst:.6f}"

        def prefill() -> None:
            theirs.reset()
            theirs.run(self.prefill.ids)

        took = times_ms(prefill, self.device, self.repeats)
        times.rows.append(_row(self.prefill.what, self.prefill.ours_ms, took))
        for timed in self.steps:
            took = self._their_steps(theirs, timed, config.text_vocab)
            times.rows.append(_row(timed.what, timed.ours_ms, took))

    def _worst_cosine(self, theirs: TransformersLM) -> float:
        """Lowest cosine of both heads, theirs with a cache against ours."""
        theirs.reset()
        found = [theirs.run(self.first_ids[:-_FIRST_STEPS])]
        found += [theirs.run([token_id]) for token_id in self.first_ids[-_FIRST_STEPS:]]
        pairs = (
            pair for both in zip(self.first_logits, found, strict=True) for pair in zip(*both, strict=True)
        )
        return min(float(F.cosine_similarity(a, b[: len(a)].cpu(), dim=0)) for a, b in pairs)

    def _their_steps(self, theirs: TransformersLM, timed: _Timed, text_vocab: int) -> list[float]:
        """Times of decode steps of transformers, with the sampler of the engine."""
        generation, special = timed.generation, self.bundle.lm.special_ids
        assert generation is not None, "a decode step samples"
        theirs.reset()
        sampled = [generation.sample(StepOutput(*theirs.run(timed.ids))).token]

        def run() -> None:
            sampled[0] = generation.sample(
                StepOutput(*theirs.run(merged_ids(sampled, special, text_vocab)))
            ).token
            theirs.crop(len(timed.ids))

        return times_ms(run, self.device, self.repeats, self.warm_up_steps)


@dataclass(slots=True)
class RecomputeComparison:
    """The cached flow, and one that recomputes its prefix."""

    stages: Stages
    device: torch.device
    repeats: int

    @torch.inference_mode()
    def run(self, count: int = 6) -> Section:
        """Compare the cached flow with the plain one over all codes so far, at the end of every packet.
        Raises ComparisonError if the mels differ."""
        stage, device = self.stages.token2mel, self.device
        packets = packets_of(stage, count)
        codebook = self.stages.speech_tokenizer.codebook_size
        codes = np.random.default_rng(0).integers(0, codebook, packets[-1].fed.stop)
        plain_flow = self._plain_flow()
        stream, worst, means = stage.stream(), 0.0, list[float]()

        def speak(watch: Stopwatch) -> None:
            nonlocal worst
            stream.reset()
            for packet in packets:
                (mel,) = watch.time(partial(arrays_of, stream.push(codes[packet.fed])))
                wanted = watch.time(partial(plain_flow, codes[: packet.fed.stop]))
                difference = np.abs(mel - wanted[:, -mel.shape[1] :])
                worst = max(worst, float(difference.max()))
                means.append(float(difference.mean()))

        times, _ = rounds_ms(speak, device, self.repeats)
        dtype = self.stages.options.voice_dtype
        if not max(means) < MEL_TOLERANCE[dtype]:
            advice = "check the weights" if dtype == "float32" else "compare with --codec-dtype float32 first"
            raise ComparisonError(
                "The cached flow and the plain one differ by {difference:.3g} in log-mel, more than the "
                "{allowed} of {dtype}.",
                "No times are reported; {advice}.",
                difference=max(means),
                allowed=MEL_TOLERANCE[dtype],
                dtype=dtype,
                advice=advice,
            )
        section = Section("compared with a flow that recomputes", RECOMPUTE_COLUMNS)
        for index, packet in enumerate(packets):
            ours, other = (p50_p95(found)[0] for found in times[2 * index : 2 * index + 2])
            section.rows.append(
                {
                    "packet": index + 1,
                    "codes": packet.codes,
                    "cached_ms": ours,
                    "recompute_ms": other,
                    "times_faster": other / ours,
                }
            )
        section.note = (
            f"voice prompt of {stage.prompt_codes} codes, {stage.steps} steps; difference of the log-mels: "
            f"mean {max(means):.2g}, largest {worst:.2g}"
        )
        return section

    def _plain_flow(self) -> Callable[[Codes], Mel]:
        """Log-mel of the codes whose look-ahead has arrived, computed by the plain flow with the engine's
        voice."""
        stage, device = self.stages.token2mel, self.device
        flow, _ = load_flow(self.stages.bundle, device, self.stages.options)
        voice = stage.prompt
        arguments: dict[str, Any] = {}
        if voice is not None:
            arguments = {"prompt_codes": voice.codes, "prompt_mel": voice.mel, "xvector": voice.xvector}

        def on(part: NDArray[Any]) -> Tensor:
            return torch.as_tensor(part, device=device)[None]

        prompt: dict[str, Any] = {name: on(part) for name, part in arguments.items() if part is not None}

        def run(codes: Codes) -> Mel:
            mel = flow.inference(
                on(codes),
                **prompt,
                n_steps=stage.steps,
                finalize=False,
                cfg_rate=stage.estimator.cfg_rate,
                schedule=stage.schedule,
            )
            return mel[0].cpu().numpy()

        return run


def _row(what: str, ours: list[float], theirs: list[float] | None) -> dict[str, Cell]:
    ours_ms = p50_p95(ours)[0]
    theirs_ms = None if theirs is None else p50_p95(theirs)[0]
    return {
        "what": what,
        "ours_ms": ours_ms,
        "theirs_ms": theirs_ms,
        "times_faster": None if theirs_ms is None else theirs_ms / ours_ms,
    }
