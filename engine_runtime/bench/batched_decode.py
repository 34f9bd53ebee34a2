"""Benchmark of decode steps of several sequences, against the time to read their bytes.

In: the stages of an engine and the ceilings of the machine. Out: a table by batch size. Before steps of a
batch are timed, the logits of one of them are compared with those of a single step of each sequence, which
is the reference implementation. Engine thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from engine_runtime.bench.costs import LMCosts
from engine_runtime.bench.language_model import LMBench, checked_logits, valid_row
from engine_runtime.bench.measuring import BenchError, p50_p95
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.generation import Generation, Token
from engine_runtime.lm.paged_lm import StepRequest
from engine_runtime.lm.step import BOTH_TAILS, Tails
from engine_runtime.table import Cell, Section

BATCHES = ((1, 2048), (1, 1024), (8, 1024), (32, 1024), (64, 1024))
"""Sequences of a step, and cached tokens of each in the middle of the measurement."""
TOLERANCE = 0.05
"""Largest distance of the logits of a batched step from those of single steps, relative to their norm."""
_TAILS = Tails(text=False, audio=True)

COLUMNS = {
    "sequences": "sequences of a step of speech, sampling included; one alone has the GPU to itself",
    "cached_tokens": "rows of each, on average over the steps: they grow by a row with each",
    "ms": "median time from the ids of a step to those of the next on the host's clock, steps back to back; "
    "the executor may launch the next one ahead",
    "ms_p95": "95th percentile",
    "gbytes": "bytes to read: weights once, keys and values of every sequence",
    "floor_ms": "gbytes / the measured copy bandwidth",
    "ratio": "ms / floor_ms",
    "error": "largest distance of a sequence's logits from those of its single step / their norm; at most "
    f"{TOLERANCE}",
    "valid": "yes, or why no time is reported",
}


def measure_batched_decode(bench: LMBench, batches: Seq[tuple[int, int]] = BATCHES) -> Section:
    """Steps of every size for which executor and KV pool have room."""
    section, left_out = Section("decode steps of several sequences", COLUMNS), []
    for sequences, cached_tokens in batches:
        if _fits(bench, sequences, cached_tokens):
            measure = partial(_measure, bench, cached_tokens)
            section.rows.append({"cached_tokens": cached_tokens} | valid_row("sequences", sequences, measure))
        else:
            left_out.append(f"{sequences} x {cached_tokens}")
    if left_out:
        section.note = f"not measured, for want of KV blocks or batch size: {', '.join(left_out)}"
    return section


def batch_bytes(costs: LMCosts, sequences: int, cached_tokens: int, tails: Tails) -> int:
    """Bytes that a batched step must read: the weights once, keys and values of every sequence."""
    weights = costs.step_bytes(0, tails)
    return weights + sequences * (costs.step_bytes(cached_tokens, tails) - weights)


def _fits(bench: LMBench, sequences: int, cached_tokens: int) -> bool:
    lm = bench.stages.lm
    last_row = _first_rows(bench, cached_tokens) + _num_steps(bench)
    blocks = sequences * -(-last_row // lm.blocks.tokens_per_block)
    limits = lm.executor.limits
    return sequences <= limits.max_batch_size and last_row < lm.max_tokens and blocks <= lm.blocks.num_blocks


def _first_rows(bench: LMBench, cached_tokens: int) -> int:
    """Rows before the first step: so many fewer that timed steps have `cached_tokens` on average."""
    return max(2, cached_tokens - bench.warm_up_steps - bench.repeats // 2)


def _num_steps(bench: LMBench) -> int:
    """Tokens by which a sequence grows."""
    return bench.repeats + bench.warm_up_steps + 2


def _measure(bench: LMBench, cached_tokens: int, sequences: int) -> dict[str, Cell]:
    first_rows = _first_rows(bench, cached_tokens)
    with ExitStack() as stack:
        batch = [
            Speaker(replace(bench, seed=number), stack.enter_context(bench.sequence()), first_rows)
            for number in range(sequences)
        ]
        error = _difference(bench, batch) if sequences > 1 else None
        times = _times_ms(bench, batch)
    if len({code for one in batch for code in one.codes}) < 2:
        raise BenchError("Every decode step returns the same code.", "No times are reported.")
    p50, p95 = p50_p95(times)
    read = batch_bytes(bench.costs, sequences, cached_tokens, batch[0].generation.tails)
    floor = read / bench.ceilings.copy_bytes_per_s * 1000
    return {
        "sequences": sequences,
        "ms": p50,
        "ms_p95": p95,
        "gbytes": read / 1e9,
        "floor_ms": floor,
        "ratio": p50 / floor,
        "error": error,
    }


class Speaker:
    """A reply after `cached_tokens` rows of random speech."""

    def __init__(self, bench: LMBench, sequence: Sequence, cached_tokens: int) -> None:
        history = bench.tokens_of_speech(cached_tokens)
        self.sequence, self.generation = sequence, bench.generation(history)
        self._merged_ids = bench.stages.sequences.merged_ids
        ids = self._merged_ids(history)
        lm, generation = bench.stages.lm, self.generation
        lm.prefill(sequence, ids[:-1], BOTH_TAILS)  # as while a user speaks
        output = lm.prefill(sequence, ids[-1:], generation.tails, generation.sampling)
        self.rows: list[Token] = [generation.sample(output).token]

    @property
    def codes(self) -> list[int]:
        """The codes sampled so far."""
        return [row.audio for row in self.rows]

    def request(self, generation: Generation | None) -> StepRequest:
        """The next step; without a generation for its logits."""
        ids = self._merged_ids(self.rows[-1:])
        if generation is None:
            return StepRequest(self.sequence, ids, _TAILS)
        sampling, ahead = generation.sampling, generation.sampling_ahead
        return StepRequest(self.sequence, ids, generation.tails, sampling, ahead=ahead)


def _times_ms(bench: LMBench, batch: list[Speaker]) -> list[float]:
    """Milliseconds from the ids of each step to those of the next, `repeats` times after the warm-up. The
    device is not waited for in between, as it may be busy with the next step."""
    read = []
    for _ in range(bench.warm_up_steps + bench.repeats):
        requests = [one.request(one.generation) for one in batch]
        outputs = bench.stages.lm.step(requests, exclusive_gpu=len(batch) == 1)
        read.append(time.perf_counter())
        for one, output in zip(batch, outputs, strict=True):
            one.rows.append(one.generation.sample(output).token)
    return [(later - earlier) * 1000 for earlier, later in pairwise(read[bench.warm_up_steps - 1 :])]


def _difference(bench: LMBench, batch: list[Speaker]) -> float:
    """Largest relative distance of the logits of a batched step from those of single ones. Raises BenchError
    beyond the tolerance. Leaves the sequences as they were."""
    lm = bench.stages.lm
    alone: list[Tensor] = []
    for one in batch:
        (output,) = lm.step([one.request(None)])
        alone.append(checked_logits(output).clone())
        lm.blocks.rollback(one.sequence, one.sequence.num_tokens - 1)
    together = [checked_logits(output) for output in lm.step([one.request(None) for one in batch])]
    for one in batch:
        lm.blocks.rollback(one.sequence, one.sequence.num_tokens - 1)
    if len(batch) > 1 and torch.equal(together[0], together[1]):
        raise BenchError("Different sequences of a step have the same logits.", "No times are reported.")
    pairs = zip(alone, together, strict=True)
    error = max(float((ours - single).norm() / single.norm()) for single, ours in pairs)
    if not error <= TOLERANCE:
        raise BenchError(
            "Logits of a batched step are {error:.3f} from those of single steps.",
            "No times are reported.",
            error=error,
        )
    return error
