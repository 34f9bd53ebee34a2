"""Compares the paged runtime with transformers, and the cached flow with one that recomputes its prefix.

In: a loaded engine and the weights it was loaded from. Out: one table per comparison, both sides measured in
the same run. Outputs are compared first; if they disagree, no times are reported. Engine thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from engine_runtime.bench.codec import packets_of
from engine_runtime.bench.language_model import LMBench
from engine_runtime.bench.transformers_reference import ComparisonError, TransformersLM
from engine_runtime.codec.loading import load_flow
from engine_runtime.cuda.stopwatch import p50_p95, times_ms, wait_for
from engine_runtime.lm.step import BOTH_TAILS, StepOutput
from engine_runtime.loading import Stages, load_lm_weights
from engine_runtime.options import Dtype
from engine_runtime.table import Cell, Section
from engine_runtime.types import Codes, Mel

PREFILL_ROWS = 512
CACHED_ROWS = (512, 2048)
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


@dataclass(slots=True)
class Comparison:
    """State shared by both comparisons."""

    stages: Stages
    lm: LMBench
    repeats: int

    @torch.inference_mode()
    def transformers(self) -> Section:
        """Raises ComparisonError if transformers is missing or the logits disagree."""
        stages, most = self.stages, self.stages.lm.max_rows - 1
        model = load_lm_weights(stages.bundle, stages.lm_config, self.lm.device, stages.options)
        theirs = TransformersLM(model, stages.lm.max_rows)
        section = Section("compared with transformers", TRANSFORMERS_COLUMNS)
        agreement = self._agreement(theirs, min(64, most - 8))
        prefill_rows = min(PREFILL_ROWS, most)
        ids = self.stages.sequences.merged_ids(self.lm.rows_of_speech(prefill_rows))

        def prefill_theirs() -> None:
            theirs.reset()
            theirs.run(ids)

        times = times_ms(prefill_theirs, self.lm.device, self.repeats)
        ours = self.lm.prefill_times(prefill_rows)
        section.rows.append(_row(f"prefill {prefill_rows}", ours, times))
        for cached in [rows for rows in CACHED_ROWS if rows <= most] or [most]:
            times = self._their_steps(theirs, cached)
            ours = self.lm.step_times(cached)[0]
            section.rows.append(_row(f"step {cached}", ours, times))
        section.note = agreement
        return section

    def _agreement(self, theirs: TransformersLM, rows: int) -> str:
        """Compare the logits of both heads after the same rows. Returns the result as a sentence."""
        lm, ids = self.stages.lm, self.stages.sequences.merged_ids(self.lm.rows_of_speech(rows + 8))
        theirs.reset()
        with self.lm.sequence() as sequence:
            pairs = [(lm.prefill(sequence, ids[:rows], BOTH_TAILS), theirs.run(ids[:rows]))]
            pairs += [(lm.decode(sequence, i, BOTH_TAILS), theirs.run([i])) for i in ids[rows:]]
        cosines = [_cosine(ours, other) for ours, other in pairs]
        if not min(cosines) > LEAST_COSINE:
            raise ComparisonError(
                f"The logits of both sides differ: smallest cosine {min(cosines):.4f}, and at least "
                f"{LEAST_COSINE} is required. No times are reported; compare with --weights native first."
            )
        return f"logits of both heads over {len(pairs)} rows: smallest cosine {min(cosines):.6f}"

    def _their_steps(self, theirs: TransformersLM, cached_rows: int) -> list[float]:
        """Times of decode steps of transformers, with the sampler of the engine."""
        history = self.lm.rows_of_speech(cached_rows)
        generation = self.lm.plain_generation(history)
        theirs.reset()
        sampled = [generation.sample(StepOutput(*theirs.run(self.stages.sequences.merged_ids(history)))).row]

        def run() -> None:
            ids = self.stages.sequences.merged_ids(sampled)
            sampled[0] = generation.sample(StepOutput(*theirs.run(ids))).row
            theirs.crop(cached_rows)

        return times_ms(run, self.lm.device, self.repeats, self.lm.warm_up_steps)

    @torch.inference_mode()
    def recompute(self, count: int = 6) -> Section:
        """Compare the cached flow with the plain one over all codes so far, at the end of every packet.
        Raises ComparisonError if the mels differ."""
        stage, device = self.stages.token2mel, self.lm.device
        packets = packets_of(stage, count)
        codebook = self.stages.speech_tokenizer.codebook_size
        codes = np.random.default_rng(0).integers(0, codebook, packets[-1].fed.stop)
        plain_flow = self._plain_flow()
        cached: list[list[float]] = [[] for _ in packets]
        recomputed: list[list[float]] = [[] for _ in packets]
        stream, worst, means = stage.stream(), 0.0, []
        for repeat in range(self.repeats + 1):
            stream.reset()
            for index, packet in enumerate(packets):
                wait_for(device)
                began = time.perf_counter()
                (mel,) = stream.push(codes[packet.fed])
                cached_ms = (time.perf_counter() - began) * 1000
                began = time.perf_counter()
                wanted = plain_flow(codes[: packet.fed.stop])
                if repeat:
                    cached[index].append(cached_ms)
                    recomputed[index].append((time.perf_counter() - began) * 1000)
                difference = np.abs(mel - wanted[:, -mel.shape[1] :])
                worst = max(worst, float(difference.max()))
                means.append(float(difference.mean()))
        dtype = self.stages.options.voice_dtype
        if not max(means) < MEL_TOLERANCE[dtype]:
            advice = "check the weights" if dtype == "float32" else "compare with --codec-dtype float32 first"
            raise ComparisonError(
                f"The cached flow and the plain one differ by {max(means):.3g} in log-mel, more than the "
                f"{MEL_TOLERANCE[dtype]} of {dtype}. No times are reported; {advice}."
            )
        section = Section("compared with a flow that recomputes", RECOMPUTE_COLUMNS)
        for index, packet in enumerate(packets):
            ours, other = p50_p95(cached[index])[0], p50_p95(recomputed[index])[0]
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
        stage, device = self.stages.token2mel, self.lm.device
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


def _row(what: str, ours: list[float], theirs: list[float]) -> dict[str, Cell]:
    ours_ms, theirs_ms = p50_p95(ours)[0], p50_p95(theirs)[0]
    return {
        "what": what,
        "ours_ms": ours_ms,
        "theirs_ms": theirs_ms,
        "times_faster": theirs_ms / ours_ms,
    }


def _cosine(ours: StepOutput, theirs: tuple[Tensor, Tensor]) -> float:
    """The smaller cosine of the two heads."""
    if ours.text_logits is None or ours.audio_logits is None:
        raise ComparisonError("The runtime did not return the logits of both heads.")
    both = zip((ours.text_logits, ours.audio_logits), theirs, strict=True)
    return min(float(F.cosine_similarity(a.float().cpu(), b.float().cpu(), dim=0)) for a, b in both)
