"""Benchmark of the language model: prefill, and decode steps at several context lengths.

In: the stages of an engine and the ceilings of the machine. Out: two tables. Decode steps run as in a spoken
reply, back to back, sampling included, with the tails that speech needs. Times are reported only if no step
failed, logits are finite and not constant, and the sampled rows differ; otherwise the table states the
reason. Engine thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from engine_runtime.bench.ceilings import Ceilings
from engine_runtime.bench.costs import LMCosts
from engine_runtime.bench.measuring import BenchError, p50_p95
from engine_runtime.cuda.stopwatch import times_ms
from engine_runtime.errors import ExecutorError
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.generation import Generation, Token
from engine_runtime.lm.step import BOTH_TAILS, StepOutput, Tails
from engine_runtime.loading import Stages
from engine_runtime.table import Cell, Section
from engine_runtime.tensorrt.llm.executor import TrtllmExecutor

PREFILL_TOKENS = (64, 512, 2048)
CACHED_TOKENS = (512, 2048, 4096, 8192)
_NOISE = 0.05
"""Both are measured, and reading alone can be a few percent faster than the copy: an H200 copied 4.13 to
4.3 TB/s in different runs."""
_SPEECH_TAILS = Tails(text=False, audio=True)
_VALID = (
    "yes, or why no time is reported: a step failed, its output is not finite or is constant, or its time "
    "is impossible (on a GPU)"
)

PREFILL_COLUMNS = {
    "tokens": "tokens of one prefill without history, audio tail only (an engine runs both)",
    "ms": "median",
    "ms_p95": "95th percentile",
    "tokens_per_s": "rows / ms",
    "tflop": "operations: two per weight and row, causal attention, one row of the head",
    "tflop_per_s": "tflop / ms",
    "matrix_share": "tflop_per_s / the measured matrix rate",
    "device_ms": "median GPU time, by events on the engine's own stream",
    "valid": _VALID,
}
STEP_COLUMNS = {
    "cached_tokens": "rows before the first step; steps of speech, sampling included, without the text tail "
    "unless the model has subtitles (an engine runs both)",
    "ms": "median",
    "ms_p95": "95th percentile",
    "tokens_per_s": "1 / ms",
    "sampling_ms": "median time of sampling on the host, part of ms; where the GPU samples within the step, "
    "ms minus the median of steps that return logits",
    "gbytes": "bytes to read: weights that the step uses, keys and values of the cached rows",
    "floor_ms": "gbytes / the measured copy bandwidth",
    "ratio": "ms / floor_ms",
    "device_ms": "median GPU time, by events on the engine's own stream",
    "valid": _VALID,
}


@dataclass(frozen=True, slots=True)
class LMBench:
    """State shared by the measurements."""

    stages: Stages
    ceilings: Ceilings
    repeats: int
    seed: int = 0
    warm_up_steps: int = 3

    @property
    def costs(self) -> LMCosts:
        """Bytes and operations in the weight formats of this engine."""
        return LMCosts.of(self.stages)

    @property
    def prefill_tails(self) -> Tails:
        """The tails that run in a measured prefill."""
        return self._run_tails(_SPEECH_TAILS)

    @property
    def step_tails(self) -> Tails:
        """The tails that run in a decode step of speech."""
        return self._run_tails(self.generation(self.tokens_of_speech(1)).tails)

    @property
    def device(self) -> torch.device:
        """The device of the model; logits may be on the host."""
        return self.stages.lm.cache.pool.device

    def prefill(self) -> Section:
        """Measure prefills of every size that fits into the context."""
        section = Section("prefill", PREFILL_COLUMNS)
        left_out = [rows for rows in PREFILL_TOKENS if rows > self.stages.lm.max_tokens]
        for rows in PREFILL_TOKENS:
            if rows not in left_out:
                section.rows.append(self._possible(valid_row("tokens", rows, self._prefill)))
        section.note = self._left_out(left_out)
        return section

    def step(self) -> Section:
        """Measure decode steps at every context length that fits, or at the longest possible one."""
        section = Section("decode step", STEP_COLUMNS)
        most = self.stages.lm.max_tokens - 1
        left_out = [rows for rows in CACHED_TOKENS if rows > most]
        for rows in [rows for rows in CACHED_TOKENS if rows <= most] or [most]:
            section.rows.append(self._possible(valid_row("cached_tokens", rows, self._step)))
        section.note = self._left_out(left_out)
        return section

    def _possible(self, row: dict[str, Cell]) -> dict[str, Cell]:
        """The row, not valid if it beats a ceiling of a GPU. What a CPU reads may come from its caches."""
        if self.device.type == "cuda" and (impossible := impossible_share(row)):
            row["valid"] = f"no: impossible, {impossible}"
        return row

    def _left_out(self, sizes: list[int]) -> str:
        if not sizes:
            return ""
        rows = ", ".join(map(str, sizes))
        return f"not measured: {rows} tokens; context and KV pool hold {self.stages.lm.max_tokens}"

    def _prefill(self, rows: int) -> dict[str, Cell]:
        device_ms: list[float] = []
        p50, p95 = p50_p95(self.prefill_times(rows, device_ms))
        flops = self.costs.prefill_flops(rows, self.prefill_tails)
        rate = flops / p50 * 1000
        return {
            "tokens": rows,
            "ms": p50,
            "ms_p95": p95,
            "tokens_per_s": rows / p50 * 1000,
            "tflop": flops / 1e12,
            "tflop_per_s": rate / 1e12,
            "matrix_share": rate / self.ceilings.matrix_flops_per_s,
            "device_ms": _median(device_ms[-self.repeats :]),
        }

    def _step(self, cached_tokens: int) -> dict[str, Cell]:
        device_ms: list[float] = []
        sampling_ms: list[float] = []
        times, tails = self.step_times(cached_tokens, device_ms, sampling_ms)
        p50, p95 = p50_p95(times)
        read = self.costs.step_bytes(cached_tokens, tails)
        floor = read / self.ceilings.copy_bytes_per_s * 1000
        return {
            "cached_tokens": cached_tokens,
            "ms": p50,
            "ms_p95": p95,
            "tokens_per_s": 1000 / p50,
            "sampling_ms": self._sampling_ms(cached_tokens, p50, sampling_ms),
            "gbytes": read / 1e9,
            "floor_ms": floor,
            "ratio": p50 / floor,
            "device_ms": _median(device_ms[-self.repeats :]),
        }

    def prefill_times(self, rows: int, device_ms: list[float] | None = None) -> list[float]:
        """Milliseconds per prefill of this many rows. Raises BenchError if the logits ignore the last row.

        Device times, if the executor measures them, are appended to `device_ms`.
        """
        lm, history = self.stages.lm, self.tokens_of_speech(rows)
        ids, others = (
            self.stages.sequences.merged_ids(history),
            self.stages.sequences.merged_ids([*history[:-1], Token(history[-1].text, 0)]),
        )
        logits: list[Tensor] = []

        def run() -> None:
            lm.blocks.rollback(sequence, 0)
            logits[:] = [checked_logits(lm.prefill(sequence, ids, _SPEECH_TAILS))]
            self._note_device(device_ms)

        with self.sequence() as sequence:
            times = times_ms(run, self.device, self.repeats)
            before = logits[0].clone()
            lm.blocks.rollback(sequence, 0)
            if torch.equal(before, checked_logits(lm.prefill(sequence, others, _SPEECH_TAILS))):
                raise BenchError("Logits do not depend on the last token.", "No times are reported.")
        return times

    def sampling_in_step_ms(self, cached_tokens: int) -> float:
        """Time that sampling adds to a step of an executor that samples; 0 for one that returns logits, or if
        the difference is within the noise."""
        if not self.stages.lm.executor.can_sample:
            return 0.0
        step_ms = float(np.median(self.step_times(cached_tokens)[0]))
        return self._sampling_ms(cached_tokens, step_ms, [])

    def _sampling_ms(self, cached_tokens: int, step_ms: float, on_host_ms: list[float]) -> float:
        if not self.stages.lm.executor.can_sample:
            return float(np.median(on_host_ms))
        # Below the noise the step without sampling may take longer.
        return max(step_ms - float(np.median(self._unsampled_times(cached_tokens))), 0.0)

    def _unsampled_times(self, cached_tokens: int) -> list[float]:
        """Milliseconds per decode step as in `step_times`, each of which returns its logits."""
        lm, history = self.stages.lm, self.tokens_of_speech(cached_tokens)
        tails, ids = self.generation(history).tails, self.stages.sequences.merged_ids(history)

        outputs: list[StepOutput] = []

        def run() -> None:
            outputs[:] = [lm.decode(sequence, ids[-1], tails, exclusive_gpu=True)]
            if sequence.num_tokens == lm.max_tokens:
                lm.blocks.rollback(sequence, cached_tokens)

        with self.sequence() as sequence:
            lm.prefill(sequence, ids, tails)
            times = times_ms(run, self.device, self.repeats, self.warm_up_steps)
        checked_logits(outputs[0])
        return times

    def step_times(
        self,
        cached_tokens: int,
        device_ms: list[float] | None = None,
        sampling_ms: list[float] | None = None,
    ) -> tuple[list[float], Tails]:
        """Milliseconds per decode step after this many rows, and the tails that ran; `device_ms` as in
        `prefill_times`, times of sampling on the host are appended to `sampling_ms`. Raises BenchError if all
        steps return the same."""
        lm, history = self.stages.lm, self.tokens_of_speech(cached_tokens)
        generation = self.generation(history)
        sampled: list[Token] = []
        heads: list[Tensor] = []

        def run() -> None:
            token_id = self.stages.sequences.merged_ids(sampled[-1:])[0]
            output = lm.decode(sequence, token_id, generation.tails, generation.sampling, exclusive_gpu=True)
            decoded = time.perf_counter()
            sampled.append(generation.sample(output).token)
            if sampling_ms is not None:
                sampling_ms.append((time.perf_counter() - decoded) * 1000)
            self._note_device(device_ms)
            if sequence.num_tokens == lm.max_tokens:
                lm.blocks.rollback(sequence, cached_tokens)
            if output.audio_logits is not None:  # None if the executor samples
                heads.append(output.audio_logits)

        with self.sequence() as sequence:
            ids = self.stages.sequences.merged_ids(history)
            output = lm.prefill(sequence, ids, generation.tails, generation.sampling)
            sampled.append(generation.sample(output).token)
            times = times_ms(run, self.device, self.repeats, self.warm_up_steps)
        if len({row.audio for row in sampled}) < 2:
            raise BenchError(
                "Every decode step returns the same code.", "No times are reported; check the weights."
            )
        if len(heads) > 1 and all(torch.equal(heads[0], other) for other in heads[1:]):
            raise BenchError(
                "Every decode step returns the same logits.", "No times are reported; it does not run."
            )
        return times, self._run_tails(generation.tails)

    def _run_tails(self, wanted: Tails) -> Tails:
        """The tails that a step runs if these are requested."""
        return wanted if self.stages.lm.executor.supports_deferred_tails else BOTH_TAILS

    def _note_device(self, device_ms: list[float] | None) -> None:
        executor = self.stages.lm.executor
        if device_ms is not None and isinstance(executor, TrtllmExecutor) and executor.last_step_ms:
            device_ms.append(executor.last_step_ms)

    def generation(self, history: list[Token]) -> Generation:
        """A spoken reply that samples its codes and does not end early, configured as in a turn."""
        executor = self.stages.lm.executor
        return self._generation(history, str(executor.device), True, executor.can_sample)

    def plain_generation(self, history: list[Token]) -> Generation:
        """The same, sampling on the device from the logits of both heads."""
        return self._generation(history, str(self.device), False, False)

    def _generation(
        self, history: list[Token], device: str, skip_unused_tails: bool, samples_on_device: bool
    ) -> Generation:
        lm, config = self.stages.bundle.lm, self.stages.lm_config
        steps = self.repeats + self.warm_up_steps + 1
        sampling = replace(lm.sampling_speech.seeded(), do_sample=True, min_new=steps + 1, max_new=steps)
        return Generation(
            history,
            sampling,
            lm.special_ids,
            text_vocab=config.text_vocab,
            audio_vocab=config.audio_vocab,
            want_subtitles=lm.subtitles,
            skip_unused_tails=skip_unused_tails,
            samples_on_device=samples_on_device,
            device=device,
        )

    def tokens_of_speech(self, count: int) -> list[Token]:
        """Rows of random speech; the speech continues after the last one."""
        special = self.stages.bundle.lm.special_ids
        codes = np.random.default_rng(self.seed).integers(0, special.eosp, count)
        # NOTE: audio_pad is also the id of a code; at the end of a prompt it would mean text.
        codes[-1] = (special.audio_pad + 1) % special.eosp
        return [Token(special.modality_pad, int(code)) for code in codes]

    @contextmanager
    def sequence(self) -> Iterator[Sequence]:
        """A sequence whose blocks are released at the end."""
        sequence = Sequence()
        try:
            yield sequence
        finally:
            self.stages.lm.blocks.release(sequence)


def _median(times: list[float]) -> float | None:
    return float(np.median(times)) if times else None


def impossible_share(row: Mapping[str, Cell]) -> str:
    """By how much a row beats a measured ceiling beyond the noise of both; "" if it does not. If it does, the
    time is wrong, or the computed traffic is."""
    ratio, share = row.get("ratio"), row.get("matrix_share")
    if isinstance(ratio, float) and ratio < 1 - _NOISE:
        return f"{1 / ratio:.0%} of the copy bandwidth"
    if isinstance(share, float) and share > 1 + _NOISE:
        return f"{share:.0%} of the matrix rate"
    return ""


def valid_row(name: str, rows: int, measure: Callable[[int], dict[str, Cell]]) -> dict[str, Cell]:
    """A row of a table; without times if the measurement is not valid."""
    try:
        return measure(rows) | {"valid": "yes"}
    except (BenchError, ExecutorError) as error:
        return {name: rows, "valid": f"no: {error.what_is_wrong}"}
    except torch.OutOfMemoryError:
        return {name: rows, "valid": "no: the GPU has too little memory for it"}


def checked_logits(output: StepOutput) -> Tensor:
    """The audio logits. Raises BenchError if they are not finite or all equal."""
    audio = output.audio_logits
    if audio is None or not torch.isfinite(audio).all() or float(audio.float().std()) == 0:
        raise BenchError("The language model's logits are not finite or all equal.", "No times are reported.")
    return audio
