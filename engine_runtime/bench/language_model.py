"""The language model alone: prefill of many rows, and one decode step behind many rows.

In: the stages of an engine and the ceilings of the machine. Out: two tables. A step is measured as a reply
runs it, sampling included, with the tails that speech needs, and the next one follows behind it, as in a
reply. Times count only if every step went through, logits are finite and move, and the rows that come
out differ: otherwise the row says why it has none. Engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from engine_runtime.bench.ceilings import Ceilings
from engine_runtime.bench.costs import LMCosts, weight_numbers
from engine_runtime.bench.replies import BenchError
from engine_runtime.cuda.stopwatch import p50_p95, times_ms
from engine_runtime.errors import ExecutorError
from engine_runtime.executors.trtllm.executor import TrtllmExecutor
from engine_runtime.lm.generation import Generation, Row
from engine_runtime.lm.paged_lm import Logits
from engine_runtime.lm.sequence import Sequence
from engine_runtime.lm.step import BOTH_TAILS, Tails
from engine_runtime.loading import Stages
from engine_runtime.table import Cell, Section

PREFILL_ROWS = (64, 512, 2048)
CACHED_ROWS = (512, 2048, 4096, 8192)
_SPEECH_TAILS = Tails(text=False, audio=True)
_VALID = "yes, or why there is no time: a step failed, or what it gave is not finite or does not move"

PREFILL_COLUMNS = {
    "rows": "new rows of one prefill, no rows before them, audio tail only (an engine runs both)",
    "ms": "median",
    "ms_p95": "95th percentile",
    "tflop": "operations: two a weight and row, causal attention, one row of the head",
    "tflop_per_s": "tflop / ms",
    "matrix_share": "tflop_per_s / the measured matrix rate",
    "device_ms": "median of what the GPU took, by events on the engine's own stream",
    "valid": _VALID,
}
STEP_COLUMNS = {
    "cached_rows": "rows before the first step; each is speech, sampling included, the text tail left out "
    "unless it says subtitles (an engine runs both)",
    "ms": "median",
    "ms_p95": "95th percentile",
    "gbytes": "what must be read: weights that the step uses, keys and values of the cached rows",
    "floor_ms": "gbytes / the measured copy bandwidth",
    "ratio": "ms / floor_ms",
    "device_ms": "median of what the GPU took, by events on the engine's own stream",
    "valid": _VALID,
}


@dataclass(frozen=True, slots=True)
class LMBench:
    """What the measurements share."""

    stages: Stages
    ceilings: Ceilings
    repeats: int
    seed: int = 0
    warm_up_steps: int = 3

    @property
    def costs(self) -> LMCosts:
        """Bytes and operations in the formats of this engine."""
        formats, weight_bytes = weight_numbers(self.stages.options)
        kv_bytes = self.stages.lm.cache.pool.element_size()
        return LMCosts(self.stages.lm_config, formats, weight_bytes, kv_bytes)

    @property
    def device(self) -> torch.device:
        """Where the model runs; the tensors of a step may lie on the host."""
        return self.stages.lm.cache.pool.device

    def prefill(self) -> Section:
        """Each number of rows that the context holds."""
        section = Section("prefill", PREFILL_COLUMNS)
        left_out = [rows for rows in PREFILL_ROWS if rows > self.stages.lm.max_rows]
        for rows in PREFILL_ROWS:
            if rows not in left_out:
                section.rows.append(_valid("rows", rows, self._prefill))
        section.note = self._left_out(left_out)
        return section

    def step(self) -> Section:
        """Each number of cached rows that the context holds, or as many as it holds."""
        section = Section("decode step", STEP_COLUMNS)
        most = self.stages.lm.max_rows - 1
        left_out = [rows for rows in CACHED_ROWS if rows > most]
        for rows in [rows for rows in CACHED_ROWS if rows <= most] or [most]:
            section.rows.append(_valid("cached_rows", rows, self._step))
        section.note = self._left_out(left_out)
        return section

    def _left_out(self, sizes: list[int]) -> str:
        if not sizes:
            return ""
        rows = ", ".join(map(str, sizes))
        return f"not measured: {rows} rows; context and KV pool hold {self.stages.lm.max_rows}"

    def _prefill(self, rows: int) -> dict[str, Cell]:
        device_ms: list[float] = []
        p50, p95 = p50_p95(self.prefill_times(rows, device_ms))
        flops = self.costs.prefill_flops(rows, self._run_tails(_SPEECH_TAILS))
        rate = flops / p50 * 1000
        return {
            "rows": rows,
            "ms": p50,
            "ms_p95": p95,
            "tflop": flops / 1e12,
            "tflop_per_s": rate / 1e12,
            "matrix_share": rate / self.ceilings.matrix_flops_per_s,
            "device_ms": _median(device_ms[-self.repeats :]),
        }

    def _step(self, cached_rows: int) -> dict[str, Cell]:
        device_ms: list[float] = []
        times, tails = self.step_times(cached_rows, device_ms)
        p50, p95 = p50_p95(times)
        read = self.costs.step_bytes(cached_rows, tails)
        floor = read / self.ceilings.copy_bytes_per_s * 1000
        return {
            "cached_rows": cached_rows,
            "ms": p50,
            "ms_p95": p95,
            "gbytes": read / 1e9,
            "floor_ms": floor,
            "ratio": p50 / floor,
            "device_ms": _median(device_ms[-self.repeats :]),
        }

    def prefill_times(self, rows: int, device_ms: list[float] | None = None) -> list[float]:
        """Milliseconds of prefills of so many rows. BenchError where the last row makes no difference.

        What the device took, where an executor measures that, is added to `device_ms`.
        """
        lm, history = self.stages.lm, self.rows_of_speech(rows)
        ids, others = (
            self.stages.sequences.merged_ids(history),
            self.stages.sequences.merged_ids([*history[:-1], Row(history[-1].text, 0)]),
        )
        logits: list[Tensor] = []

        def run() -> None:
            lm.blocks.rollback(sequence, 0)
            logits[:] = [_checked(lm.prefill(sequence, ids, _SPEECH_TAILS))]
            self._note_device(device_ms)

        with self.sequence() as sequence:
            times = times_ms(run, self.device, self.repeats)
            before = logits[0].clone()
            lm.blocks.rollback(sequence, 0)
            if torch.equal(before, _checked(lm.prefill(sequence, others, _SPEECH_TAILS))):
                raise BenchError("Logits do not depend on the last row. No times are given.")
        return times

    def step_times(self, cached_rows: int, device_ms: list[float] | None = None) -> tuple[list[float], Tails]:
        """Milliseconds of decode steps behind so many rows, and the tails that they ran; `device_ms` as in
        `prefill_times`. BenchError where all of them give the same."""
        lm, history = self.stages.lm, self.rows_of_speech(cached_rows)
        generation = self.generation(history)
        sampled: list[Row] = []
        heads: list[Tensor] = []

        def run() -> None:
            token_id = self.stages.sequences.merged_ids(sampled[-1:])[0]
            logits = lm.decode(sequence, token_id, generation.tails)
            sampled.append(generation.sample(logits).row)
            self._note_device(device_ms)
            if sequence.num_rows == lm.max_rows:
                lm.blocks.rollback(sequence, cached_rows)
            if logits.audio is not None:  # None where the executor samples
                heads.append(logits.audio)

        with self.sequence() as sequence:
            logits = lm.prefill(sequence, self.stages.sequences.merged_ids(history), generation.tails)
            sampled.append(generation.sample(logits).row)
            times = times_ms(run, self.device, self.repeats, self.warm_up_steps)
        if len({row.audio for row in sampled}) < 2:
            raise BenchError("Every decode step gives the same code. No times are given; check the weights.")
        if len(heads) > 1 and all(torch.equal(heads[0], other) for other in heads[1:]):
            raise BenchError("Every decode step gives the same logits. No times are given; it does not run.")
        return times, self._run_tails(generation.tails)

    def _run_tails(self, wanted: Tails) -> Tails:
        """The tails that a step runs where these are wanted."""
        return wanted if self.stages.lm.executor.supports_deferred_tails else BOTH_TAILS

    def _note_device(self, device_ms: list[float] | None) -> None:
        executor = self.stages.lm.executor
        if device_ms is not None and isinstance(executor, TrtllmExecutor) and executor.last_step_ms:
            device_ms.append(executor.last_step_ms)

    def generation(self, history: list[Row]) -> Generation:
        """A reply in speech that draws its codes and never ends by itself, made as a turn makes it."""
        executor = self.stages.lm.executor
        return self._generation(history, str(executor.device), True, executor.can_sample)

    def plain_generation(self, history: list[Row]) -> Generation:
        """The same from the logits of both heads on the device."""
        return self._generation(history, str(self.device), False, False)

    def _generation(
        self, history: list[Row], device: str, skip_unused_tails: bool, samples_on_device: bool
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

    def rows_of_speech(self, count: int) -> list[Row]:
        """Rows of random speech, the last of them inside it."""
        special = self.stages.bundle.lm.special_ids
        codes = np.random.default_rng(self.seed).integers(0, special.eosp, count)
        # NOTE: audio_pad is an id of a code, too; at the end of a prompt it would stand for text.
        codes[-1] = (special.audio_pad + 1) % special.eosp
        return [Row(special.modality_pad, int(code)) for code in codes]

    @contextmanager
    def sequence(self) -> Iterator[Sequence]:
        """A sequence whose blocks go back in the end."""
        sequence = Sequence()
        try:
            yield sequence
        finally:
            self.stages.lm.blocks.release(sequence)


def _median(times: list[float]) -> float | None:
    return float(np.median(times)) if times else None


def _valid(name: str, rows: int, measure: Callable[[int], dict[str, Cell]]) -> dict[str, Cell]:
    """A row of a table, without times where they would be of something else than the work."""
    try:
        return measure(rows) | {"valid": "yes"}
    except (BenchError, ExecutorError) as error:
        return {name: rows, "valid": f"no: {error.what_is_wrong}"}
    except torch.OutOfMemoryError:
        return {name: rows, "valid": "no: the GPU has too little memory for it"}


def _checked(logits: Logits) -> Tensor:
    """Audio logits that are finite and not all the same."""
    audio = logits.audio
    if audio is None or not torch.isfinite(audio).all() or float(audio.float().std()) == 0:
        raise BenchError("The language model's logits are not finite or all the same. No times are given.")
    return audio
