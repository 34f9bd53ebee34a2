"""Two comparisons in one run on one machine: transformers against the paged runtime, and a flow that
recomputes its prefix against the cached one.

In: a loaded engine and the weights it was loaded from. Out: a table each. Outputs are held against each other
first; where they do not agree there are no times. Engine thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine_runtime.bench.clock import p50_p95, times_ms, wait_for
from engine_runtime.bench.language_model import LMBench
from engine_runtime.bench.section import Cell, Section
from engine_runtime.bench.transformers_twin import ComparisonError, TransformersLM
from engine_runtime.codec.loading import load_flow
from engine_runtime.lm.paged_lm import Logits
from engine_runtime.lm.step import BOTH_TAILS
from engine_runtime.stages import Stages, load_lm_weights

PREFILL_ROWS = 512
CACHED_ROWS = (512, 2048)
LEAST_COSINE = 0.98
MEL_TOLERANCE = 0.01
"""Mean absolute difference of log-mels. Float32 at full size on a CPU: 2.5e-6 at the worst value."""

TRANSFORMERS_COLUMNS = {
    "what": "prefill of so many rows, or decode steps behind so many rows, sampling included",
    "ours_ms": "the paged runtime as a reply uses it (weights as stored in this run), median",
    "theirs_ms": "transformers: the same blocks, native weights, eager, both tails and both heads, median",
    "times_faster": "theirs_ms / ours_ms",
}
RECOMPUTE_COLUMNS = {
    "chunk": "number of the chunk in the reply",
    "cached_ms": "the cached flow: this chunk only, median",
    "recompute_ms": "the flow over voice prompt and all codes so far, of which this chunk is new, median",
    "times_faster": "recompute_ms / cached_ms",
}


@dataclass(slots=True)
class Comparison:
    """What both comparisons share."""

    stages: Stages
    lm: LMBench
    repeats: int

    @torch.inference_mode()
    def transformers(self) -> Section:
        """Raises ComparisonError where transformers is missing or the logits disagree."""
        stages, most = self.stages, self.stages.lm.max_rows - 1
        model = load_lm_weights(stages.bundle, stages.lm_config, self.lm.device, stages.options)
        theirs = TransformersLM(model, stages.lm.max_rows)
        section = Section("compared with transformers", TRANSFORMERS_COLUMNS)
        agreement = self._agreement(theirs, min(64, most - 8))
        prefill_rows = min(PREFILL_ROWS, most)
        ids = self.stages.merged_ids(self.lm.rows_of_speech(prefill_rows))

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
        """Logits of both heads after the same rows. What was found, as a sentence."""
        lm, ids = self.stages.lm, self.stages.merged_ids(self.lm.rows_of_speech(rows + 8))
        theirs.reset()
        with self.lm.sequence() as sequence:
            pairs = [(lm.prefill(sequence, ids[:rows], BOTH_TAILS), theirs.run(ids[:rows]))]
            pairs += [(lm.decode(sequence, i, BOTH_TAILS), theirs.run([i])) for i in ids[rows:]]
        cosines = [_cosine(ours, other) for ours, other in pairs]
        if not min(cosines) > LEAST_COSINE:
            raise ComparisonError(
                f"The logits of both sides differ: smallest cosine {min(cosines):.4f}, and at least "
                f"{LEAST_COSINE} is asked for. No times are given; compare with --weights native first."
            )
        return f"logits of both heads over {len(pairs)} rows: smallest cosine {min(cosines):.6f}"

    def _their_steps(self, theirs: TransformersLM, cached_rows: int) -> list[float]:
        """Steps of the other side, picks by the same sampler."""
        history = self.lm.rows_of_speech(cached_rows)
        generation = self.lm.plain_generation(history)
        theirs.reset()
        picked = [generation.pick(Logits(*theirs.run(self.stages.merged_ids(history)))).row]

        def run() -> None:
            picked[0] = generation.pick(Logits(*theirs.run(self.stages.merged_ids(picked)))).row
            theirs.crop(cached_rows)

        return times_ms(run, self.lm.device, self.repeats, self.lm.warm_up_steps)

    @torch.inference_mode()
    def recompute(self, chunks: int = 6) -> Section:
        """The plain flow at every chunk border against the cached one. ComparisonError if the mel differs."""
        stage, device = self.stages.token2mel, self.lm.device
        flow, prompt = load_flow(self.stages.bundle, device, self.stages.options)
        start = stage.chunk_codes - (stage.prompt_codes % stage.chunk_codes)
        codebook = self.stages.speech_tokenizer.codebook_size
        total = start + (chunks - 1) * stage.chunk_codes + stage.look_ahead_codes
        codes = np.random.default_rng(0).integers(0, codebook, total)
        prompt_inputs: dict[str, Any] = {}
        if prompt is not None:
            given = {"prompt_codes": prompt.codes, "prompt_mel": prompt.mel, "xvector": prompt.xvector}
            prompt_inputs = {
                name: torch.as_tensor(part, device=device)[None]
                for name, part in given.items()
                if part is not None
            }
        cached: list[list[float]] = [[] for _ in range(chunks)]
        anew: list[list[float]] = [[] for _ in range(chunks)]
        stream, worst, means = stage.stream(), 0.0, []
        for repeat in range(self.repeats + 1):
            stream.reset()
            for chunk in range(chunks):
                upto = start + chunk * stage.chunk_codes + stage.look_ahead_codes
                since = 0 if chunk == 0 else upto - stage.chunk_codes
                wait_for(device)
                began = time.perf_counter()
                packets = stream.push(codes[since:upto])
                cached_ms = (time.perf_counter() - began) * 1000
                began = time.perf_counter()
                whole = flow.inference(
                    torch.as_tensor(codes[:upto], device=device)[None],
                    **prompt_inputs,
                    n_steps=stage.steps,
                    finalize=False,
                    cfg_rate=self.stages.bundle.flow.cfg_rate,
                )[0].cpu()
                if repeat:
                    cached[chunk].append(cached_ms)
                    anew[chunk].append((time.perf_counter() - began) * 1000)
                mel = np.concatenate(packets, axis=1)
                wanted = whole[:, whole.shape[1] - mel.shape[1] :].numpy()
                worst = max(worst, float(np.abs(mel - wanted).max()))
                means.append(float(np.abs(mel - wanted).mean()))
        if not max(means) < MEL_TOLERANCE:
            raise ComparisonError(
                f"The cached flow and the plain one differ by {max(means):.3g} in log-mel, more than "
                f"{MEL_TOLERANCE}. No times are given; compare with --codec-dtype float32 first."
            )
        section = Section("compared with a flow that recomputes", RECOMPUTE_COLUMNS)
        for chunk in range(chunks):
            ours, other = p50_p95(cached[chunk])[0], p50_p95(anew[chunk])[0]
            section.rows.append(
                {
                    "chunk": chunk + 1,
                    "cached_ms": ours,
                    "recompute_ms": other,
                    "times_faster": other / ours,
                }
            )
        section.note = (
            f"voice prompt of {stage.prompt_codes} codes, {stage.steps} steps; largest difference of the "
            f"log-mels {worst:.2g}"
        )
        return section


def _row(what: str, ours: list[float], theirs: list[float]) -> dict[str, Cell]:
    ours_ms, theirs_ms = p50_p95(ours)[0], p50_p95(theirs)[0]
    return {
        "what": what,
        "ours_ms": ours_ms,
        "theirs_ms": theirs_ms,
        "times_faster": theirs_ms / ours_ms,
    }


def _cosine(ours: Logits, theirs: tuple[Tensor, Tensor]) -> float:
    """The smaller one of the two heads."""
    if ours.text is None or ours.audio is None:
        raise ComparisonError("The runtime left a head out although both were asked for.")
    both = zip((ours.text, ours.audio), theirs, strict=True)
    return min(float(F.cosine_similarity(a.float().cpu(), b.float().cpu(), dim=0)) for a, b in both)
