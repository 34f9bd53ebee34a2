"""Decode steps by every path that a GPU has for them, by turns: which one is fastest at each size, and by how
much. Run by hand on a GPU, not by pytest:

    python -m tests.tools.decode_gate --weights fp8 [--sequences 1 8] [--contexts 8192 1024] [--json FILE]

One process loads the language model once, with random weights of the released sizes, and builds the paths of
the GPU's own compute capability and those of 8.9 over the same weights and KV pool. At each size all paths
run by turns, seven times; a time is the median of the runs' medians, between the fastest and the slowest run.
Before, the logits of each path are compared with those of plain torch, and afterwards its codes with those of
its other runs and, where the kernels are the same, of the path without look-ahead.

`alone` is the stack of one sequence (executor.py), `chain` how it runs beside the codec, and `batched` the
stack of several sequences (batched_steps.py). An executor chooses `alone` for one sequence, and `batched` for
several. The other paths are experiments with one sequence in the stack of several: with look-ahead, padded
to two rows, with other partitions of attention, and with the forward of the other stack.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor

from engine_runtime.bench.batched_decode import TOLERANCE, batch_bytes
from engine_runtime.bench.ceilings import measure_ceilings
from engine_runtime.bench.costs import LMCosts
from engine_runtime.bench.measuring import BenchError
from engine_runtime.bench.result_file import ResultFile
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.random_weights import random_source
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.cuda.stopwatch import wait_for
from engine_runtime.errors import ExecutorError
from engine_runtime.executors.cuda.autotune import autotuned_configs
from engine_runtime.executors.cuda.batched_backend import AttentionTiling, BatchShape, attention_tiling_of
from engine_runtime.executors.cuda.batched_steps import BatchedSteps
from engine_runtime.executors.cuda.decode_backend import DecodeBackend, DecodeOutputs, StepShape, bucket_of
from engine_runtime.executors.cuda.executor import CudaExecutor
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.persistent_backend import PersistentBackend
from engine_runtime.executors.cuda.step_ahead import StepAhead
from engine_runtime.executors.cuda.triton_backend import TritonBackend
from engine_runtime.executors.cuda.triton_linear import ConfigKey, KernelConfig
from engine_runtime.executors.cuda.weights import Network, build_network
from engine_runtime.hardware import environment, limit_capability, usable_device
from engine_runtime.lm import block_manager
from engine_runtime.lm.block_manager import BlockManager
from engine_runtime.lm.generation import Generation, Token, merged_id
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM, StepRequest
from engine_runtime.lm.step import (
    BatchCheck,
    ExecutorLimits,
    ScheduledBatch,
    ScheduledSequence,
    StepOutput,
    Tails,
)
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import PREFILL_TOKENS, BlockFormats, WeightFormat
from engine_runtime.table import Cell, Section

SEQUENCES = (1, 8, 64, 2, 4, 32)
CONTEXTS = (8192, 4096, 2048, 1024)
OWN, LOWER = "own", "8.9"
RUNS, WARM_UP, REPLAYS = 7, 3, 10
"""Runs of each path; unmeasured steps of a run; replays of the captured step."""
_SPEECH = Tails(text=False, audio=True)
_COMPARED = 4
"""Sequences of a step whose logits are compared with those of plain torch."""
_SPARE_TOKENS = 64
"""Positions of a sequence beyond its context, for the steps of a run."""
_PROMPT_TOKENS = 16
"""Last tokens of the history, from which sampling knows that speech goes on."""
_RESERVED_BYTES = 9 << 30
"""Not for the KV pool: buffers, activations of a prefill, captured graphs."""

COLUMNS = {
    "sequences": "sequences of a step of speech, sampling included",
    "cached_tokens": "of each, before the first step of a run",
    "kernels": "compute capability whose kernels run: that of the GPU, or 8.9",
    "path": "see the head of tests/tools/decode_gate.py",
    "ms": "from the ids of a step to those of the next on the host's clock: median of the runs' medians",
    "ms_min": "of the fastest run",
    "ms_max": "of the slowest run; the true median is between both with 98 % probability",
    "ratio": "ms / floor_ms",
    "device_ms": "the captured step alone, replayed back to back: median of the runs",
    "device_ratio": "device_ms / floor_ms",
    "floor_ms": "reading weights once, keys and values of every sequence / the measured copy bandwidth",
    "error": f"largest distance of logits from those of plain torch / their norm; at most {TOLERANCE}",
    "valid": "yes, or why no time is reported",
}


@dataclass(frozen=True)
class LoadedLM:
    """The language model. `paged` is over an executor that prefills; `reference` is plain torch."""

    bundle: Bundle
    config: MossLMConfig
    formats: BlockFormats
    network: Network
    paged: PagedLM
    reference: CudaExecutor
    max_sequences: int
    kernel_configs: dict[ConfigKey, KernelConfig] | None

    @property
    def device(self) -> torch.device:
        return self.paged.cache.pool.device

    @property
    def limits(self) -> ExecutorLimits:
        """Of a step of several sequences."""
        return replace(self.paged.executor.limits, max_batch_size=self.max_sequences)


def load(
    bundle: Bundle, weights: WeightFormat, device: torch.device, sequences: int, tokens: int
) -> LoadedLM:
    """Random weights, and a KV pool for so many sequences of so many tokens, or for what fits."""
    config, is_cuda = MossLMConfig.from_dict(bundle.lm.config), device.type == "cuda"
    dtype, formats = torch.bfloat16 if is_cuda else torch.float32, BlockFormats.rounded(weights, tails=False)
    max_seq_len, size = tokens + _SPARE_TOKENS, bundle.lm.tokens_per_block
    source = random_source(config, 0, dtype, device)
    network = build_network(
        config, source, formats=formats, dtype=dtype, device=device, max_seq_len=max_seq_len
    )
    configs, blocks = None, sequences * -(-max_seq_len // size)
    if is_cuda:
        with torch.inference_mode(), torch.cuda.device(device):
            configs = dict(autotuned_configs(network))
        torch.cuda.empty_cache()
        width = 2 * config.num_layers * config.num_key_value_heads * config.head_dim + config.hidden_size
        room = torch.cuda.mem_get_info(device)[0] - _RESERVED_BYTES
        blocks = min(blocks, room // (size * width * dtype.itemsize))
    cache = KVCache(config, blocks, size, dtype=dtype, device=device)
    prefilling, reference = (
        CudaExecutor(
            network,
            cache,
            max_seq_len=max_seq_len,
            max_num_tokens=PREFILL_TOKENS,
            uses_triton=uses_triton,
            uses_graphs=False,
            multiplies_fp8=None if uses_triton else False,
        )
        for uses_triton in (is_cuda, False)
    )
    paged = PagedLM(prefilling, cache, BlockManager(blocks, size))
    return LoadedLM(bundle, config, formats, network, paged, reference, sequences, configs)


class DecodePath(Protocol):
    """One way to run a decode step.

    Attributes:
        kernels, name: as in the table.
        looks_ahead: whether the following step is launched before the ids of the present one are read.
        most: sequences that it runs.
        same_codes: what must sample the same codes has this in common.
    """

    kernels: str
    name: str
    looks_ahead: bool
    most: int
    same_codes: str

    def step(self, scheduled: tuple[ScheduledSequence, ...]) -> list[StepOutput]: ...

    def logits(self, count: int) -> Tensor:
        """Audio logits of the last step on the host. [count, vocab]"""
        ...

    def replay(self) -> None:
        """Run the captured step once more."""


class Alone:
    """The stack of one sequence."""

    looks_ahead, most = False, 1

    def __init__(self, kernels: str, name: str, executor: CudaExecutor, *, exclusive_gpu: bool) -> None:
        self.kernels, self.name, self.same_codes = kernels, name, f"{kernels} {name}"
        self._executor, self._exclusive_gpu = executor, exclusive_gpu
        usable = (one for one in executor._backends if exclusive_gpu or not one.needs_exclusive_gpu)
        self._backend = next(usable)
        self._shape = StepShape(0, text=False, audio=True)

    def step(self, scheduled: tuple[ScheduledSequence, ...]) -> list[StepOutput]:
        executor, (one,) = self._executor, scheduled
        longest = executor.limits.max_seq_len
        bucket = bucket_of(one.num_tokens, longest) if self._backend.has_buckets else 0
        self._shape = StepShape(bucket, one.tails.text, one.tails.audio, samples=True, do_sample=True)
        return executor.execute(ScheduledBatch(scheduled, self._exclusive_gpu))

    def logits(self, count: int) -> Tensor:
        return self._executor._outputs.audio_logits[:count].float().cpu()

    def replay(self) -> None:
        self._executor._capture_or_run(self._backend, self._shape)


class Forward(Protocol):
    """What BatchedSteps needs of its backend."""

    text_logits: Tensor
    audio_logits: Tensor

    def forward(self, shape: BatchShape) -> None: ...


class OneSequence:
    """The forward of the stack of one sequence, on inputs and outputs of that of several."""

    def __init__(self, steps: Steps, make: Callable[[StepInputs, DecodeOutputs], DecodeBackend]) -> None:
        inputs, whole = steps._inputs, steps.whole
        names = {"token": "token", "position": "position", "trunk_row": "kept_row"}
        mine = {name: inputs[theirs][:1] for name, theirs in names.items()}
        self.text_logits, self.audio_logits = whole.text_logits, whole.audio_logits
        outputs = DecodeOutputs(self.text_logits[:1], self.audio_logits[:1], whole._kept)
        view = SimpleNamespace(**mine, table=inputs.table[0])
        self._backend = make(cast("StepInputs", view), outputs)

    def forward(self, shape: BatchShape) -> None:
        # NOTE: a position of -1 (padding: a reply that has ended) is not for these kernels; here none ends.
        bucket = shape.bucket if self._backend.has_buckets else 0
        self._backend.forward(StepShape(bucket, shape.text, shape.audio))


@dataclass(frozen=True)
class Plan:
    """What replaces the sizes of a step: rows at least, and, in attention, partitions of a sequence (CUDA
    C++) or cached tokens of a partition (Triton)."""

    least_rows: int = 1
    parts: int | None = None
    split_tokens: int | None = None


class Steps(BatchedSteps):
    """With plans, and look-ahead of one sequence."""

    def __init__(self, lm: LoadedLM) -> None:
        super().__init__(lm.network, lm.paged.cache, lm.limits, GraphedCalls(lm.device))
        self.whole, self._plan = self.backend, Plan()

    def select(self, forward: Forward, graphs: GraphedCalls, plan: Plan) -> None:
        """Run these from now on."""
        self.backend, self._graphs, self._plan = forward, graphs, plan  # type: ignore[assignment]
        split, parts, attention = plan.split_tokens, plan.parts, self.whole.paged_attention
        self.whole.attention_tiling = (
            attention_tiling_of if split is None else lambda rows: AttentionTiling(split_rows=split)
        )
        if attention is not None:
            vars(attention).pop("_parts", None)
            if parts is not None:
                attention._parts = lambda rows, bucket: (parts, parts)  # type: ignore[method-assign]

    def _shape_of(self, sequences: Sequence[ScheduledSequence]) -> BatchShape:
        shape = super()._shape_of(sequences)
        return replace(shape, rows=max(shape.rows, self._plan.least_rows))

    def _launch_ahead(
        self, sequences: Sequence[ScheduledSequence], slot: int, places: list[int]
    ) -> StepAhead | None:
        if len(sequences) > 1:
            return super()._launch_ahead(sequences, slot, places)
        if sequences[0].ahead is None or sequences[0].sampling is None:
            return None
        step = StepAhead(sequences, self._text_vocab, self._limits.tokens_per_block)
        shape = self._shape_of(step.sequences)
        self._set(step.sequences, shape)
        self._inputs.follow(slot, places)
        step.slot = self._launch(shape)
        return step


@dataclass
class Batched:
    """The stack of several sequences."""

    kernels: str
    name: str
    most: int
    steps: Steps
    forward: Forward
    graphs: GraphedCalls
    looks_ahead: bool
    plan: Plan
    same_codes: str
    _last: tuple[ScheduledSequence, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self._check = BatchCheck(self.steps._limits, can_sample=True)

    def step(self, scheduled: tuple[ScheduledSequence, ...]) -> list[StepOutput]:
        self.steps.select(self.forward, self.graphs, self.plan)
        self._last = scheduled
        self._check(ScheduledBatch(scheduled))
        taken = self.steps.take(scheduled)
        return self.steps.run(scheduled, looks_ahead=True) if taken is None else taken

    def logits(self, count: int) -> Tensor:
        return self.forward.audio_logits[:count].float().cpu()

    def replay(self) -> None:
        self.steps.select(self.forward, self.graphs, self.plan)
        self.steps._run(self.steps._shape_of(self._last))


def paths_of(lm: LoadedLM, kernels: str) -> list[DecodePath]:
    """The paths of this compute capability."""
    limit_capability(None if kernels == OWN else kernels)
    alone = CudaExecutor(
        lm.network,
        lm.paged.cache,
        max_seq_len=lm.limits.max_seq_len,
        uses_triton=True,
        kernel_configs=lm.kernel_configs,
        uses_persistent_kernel=True,
        graphed_rows=False,
    )
    steps = Steps(lm)
    is_persistent = len(alone._backends) > 1
    paths: list[DecodePath] = [Alone(kernels, "alone", alone, exclusive_gpu=True)]
    if is_persistent:
        paths.append(Alone(kernels, "alone, chain", alone, exclusive_gpu=False))

    def add(
        name: str,
        *,
        most: int = 1,
        forward: Forward | None = None,
        graphs: GraphedCalls | None = None,
        looks_ahead: bool = True,
        plan: Plan | None = None,
    ) -> None:
        used, own = forward or steps.whole, graphs or GraphedCalls(lm.device)
        codes = f"{kernels} {name if graphs is None else 'batched'}"
        paths.append(Batched(kernels, name, most, steps, used, own, looks_ahead, plan or Plan(), codes))

    def chain(inputs: StepInputs, outputs: DecodeOutputs) -> DecodeBackend:
        return TritonBackend(lm.network, lm.paged.cache, inputs, outputs, lm.kernel_configs)

    def persistent(inputs: StepInputs, outputs: DecodeOutputs) -> DecodeBackend:
        return PersistentBackend(lm.network, lm.paged.cache, inputs, outputs, alone._sampler)

    shared, most = GraphedCalls(lm.device), lm.max_sequences
    add("batched", most=most, graphs=shared)
    add("batched, no look-ahead", most=most, graphs=shared, looks_ahead=False)
    if is_persistent:
        add("persistent in batched", forward=OneSequence(steps, persistent))
    add("chain in batched", forward=OneSequence(steps, chain))
    if steps.whole.paged_attention is not None:
        add("batched, 2 rows", plan=Plan(least_rows=2))
        add("batched, 8 parts", plan=Plan(parts=8))
    else:
        add("batched, splits of 128", most=4, plan=Plan(split_tokens=128))
    limit_capability(None)
    return paths


class Speaker:
    """A sequence of random speech, and the reply of a run."""

    def __init__(self, lm: LoadedLM, seed: int, most_tokens: int) -> None:
        self._lm, self._seed, special = lm, seed, lm.bundle.lm.special_ids
        codes = np.random.default_rng(seed).integers(0, special.eosp, most_tokens + 1)
        # NOTE: audio_pad is also the id of a code; at the end of a prompt it would mean text.
        codes[codes == special.audio_pad] = (special.audio_pad + 1) % special.eosp
        self._history = [Token(special.modality_pad, int(code)) for code in codes]
        self.sequence = block_manager.Sequence()
        self._generation: Generation | None = None
        self.tokens: list[Token] = []

    def hold(self, count: int) -> None:
        """Make the cache hold the first tokens of the history, and no others."""
        lm, sequence = self._lm.paged, self.sequence
        if sequence.num_tokens > count:
            lm.blocks.rollback(sequence, count)
        missing = self._history[sequence.num_tokens : count]
        if missing:
            lm.prefill(sequence, [self._merged(token) for token in missing])

    def begin(self, steps: int) -> None:
        """Begin a reply after the tokens that the cache holds."""
        lm, section, first = self._lm, self._lm.bundle.lm, self.sequence.num_tokens
        params = replace(section.sampling_speech.seeded(), do_sample=True, seed=self._seed)
        self.tokens = self._history[first : first + 1]
        self._generation = Generation(
            self._history[max(0, first + 1 - _PROMPT_TOKENS) : first + 1],
            replace(params, min_new=steps + 2, max_new=steps + 1),
            section.special_ids,
            text_vocab=lm.config.text_vocab,
            audio_vocab=lm.config.audio_vocab,
            want_subtitles=False,
            skip_unused_tails=True,
            samples_on_device=True,
        )

    @property
    def codes(self) -> list[int]:
        """The codes of the reply."""
        return [token.audio for token in self.tokens[1:]]

    def request(self, *, looks_ahead: bool) -> StepRequest:
        """The next step of the reply."""
        generation = self._generation
        assert generation is not None
        ahead = generation.sampling_ahead if looks_ahead else None
        ids = [self._merged(self.tokens[-1])]
        return StepRequest(self.sequence, ids, generation.tails, generation.sampling, ahead=ahead)

    def plain_request(self) -> StepRequest:
        """The same, for its logits."""
        return StepRequest(self.sequence, [self._merged(self.tokens[-1])], _SPEECH)

    def take(self, output: StepOutput) -> None:
        """The result of a step."""
        assert self._generation is not None
        self.tokens.append(self._generation.sample(output).token)

    def _merged(self, token: Token) -> int:
        return merged_id(token, self._lm.bundle.lm.special_ids, self._lm.config.text_vocab)


def steps_of(sequences: int) -> int:
    """Measured steps of a run."""
    return 24 if sequences <= 8 else 10


class Gate:
    """Measures sizes, one after the other."""

    def __init__(
        self, lm: LoadedLM, paths: list[DecodePath], copy_bytes_per_s: float, contexts: list[int]
    ) -> None:
        self._lm, self._paths, self._copy_bytes_per_s = lm, paths, copy_bytes_per_s
        self._speakers = [Speaker(lm, seed, max(contexts)) for seed in range(lm.max_sequences)]
        kv_bytes = lm.paged.cache.pool.element_size()
        self._costs = LMCosts(lm.config, lm.formats, lm.network.embedding.element_size(), kv_bytes)

    def fits(self, sequences: int, cached_tokens: int) -> bool:
        """Whether the pool holds this size."""
        blocks = self._lm.paged.blocks
        needed = sequences * -(-(cached_tokens + _SPARE_TOKENS) // blocks.tokens_per_block)
        return needed <= blocks.num_blocks

    def measure(self, sequences: int, cached_tokens: int, runs: int = RUNS) -> Iterator[dict[str, Cell]]:
        """A row for each path."""
        lm, batch = self._lm.paged, self._speakers[:sequences]
        for one in self._speakers[sequences:]:
            lm.blocks.release(one.sequence)
        for one in batch:
            one.hold(cached_tokens)
        paths = [path for path in self._paths if sequences <= path.most]
        steps = steps_of(sequences)
        wanted = self._reference(batch, cached_tokens)
        problems: dict[str, str] = {}
        errors: dict[str, float] = {}
        host: dict[str, list[float]] = defaultdict(list)
        replayed: dict[str, list[float]] = defaultdict(list)
        codes: dict[str, list[list[int]]] = {}
        for run in range(-1, runs):
            turn = max(run, 0) % len(paths)
            for path in [*paths[turn:], *paths[:turn]]:
                key = f"{path.kernels} {path.name}"
                if key in problems:
                    continue
                try:
                    if run < 0:
                        errors[key] = self._error(path, batch, cached_tokens, wanted)
                        continue
                    times, sampled = self._run(path, batch, cached_tokens, steps)
                    host[key].append(float(np.median(times)))
                    replayed[key].append(self._replayed_ms(path))
                    if sampled != codes.setdefault(path.same_codes, sampled):
                        problems[key] = f"no: other codes in run {run}"
                    if len({code for one in sampled for code in one}) < 2:
                        problems[key] = "no: every step returns the same code"
                except (BenchError, ExecutorError, RuntimeError) as error:
                    problems[key] = f"no: {error}"
                    for one in batch:
                        one.hold(cached_tokens)
        read = batch_bytes(self._costs, sequences, cached_tokens + WARM_UP + steps // 2, _SPEECH)
        floor = read / self._copy_bytes_per_s * 1000
        for path in paths:
            key = f"{path.kernels} {path.name}"
            row: dict[str, Cell] = {
                "sequences": sequences,
                "cached_tokens": cached_tokens,
                "kernels": path.kernels,
                "path": path.name,
                "floor_ms": floor,
                "error": errors.get(key),
                "valid": problems.get(key, "yes"),
            }
            if key not in problems:
                ms, on_device = float(np.median(host[key])), float(np.median(replayed[key]))
                row |= {"ms": ms, "ms_min": min(host[key]), "ms_max": max(host[key]), "ratio": ms / floor}
                row |= {"device_ms": on_device, "device_ratio": on_device / floor}
            yield row

    def _reference(self, batch: list[Speaker], cached_tokens: int) -> dict[int, Tensor]:
        """Logits by plain torch of some of the sequences, by their place."""
        lm, found, last = self._lm, {}, len(batch) - 1
        for place in sorted({0, 1, last // 2, last})[:_COMPARED]:
            if place > last:
                continue
            one = batch[place]
            one.begin(1)
            scheduled = lm.paged._schedule(one.plain_request())
            (output,) = lm.reference.execute(ScheduledBatch((scheduled,)))
            assert output.audio_logits is not None
            found[place] = output.audio_logits.clone()
            lm.paged.blocks.rollback(one.sequence, cached_tokens)
        return found

    def _error(
        self, path: DecodePath, batch: list[Speaker], cached_tokens: int, wanted: dict[int, Tensor]
    ) -> float:
        """Largest relative distance from the reference. Raises BenchError beyond the tolerance."""
        for one in batch:
            one.begin(1)
        self._step(path, batch, looks_ahead=False)
        found = path.logits(len(batch))
        for one in batch:
            self._lm.paged.blocks.rollback(one.sequence, cached_tokens)
        error = max(float((found[at] - one).norm() / one.norm()) for at, one in wanted.items())
        if not error <= TOLERANCE:
            raise BenchError(
                "Logits are {error:.3f} from those of plain torch.", "No times are reported.", error=error
            )
        return error

    def _run(
        self, path: DecodePath, batch: list[Speaker], cached_tokens: int, steps: int
    ) -> tuple[list[float], list[list[int]]]:
        """Milliseconds from the ids of each step to those of the next, and the codes of each sequence. The
        device is not waited for in between, as it may be busy with the next step."""
        for one in batch:
            one.begin(WARM_UP + steps)
        wait_for(self._lm.device)
        read = []
        for _ in range(WARM_UP + steps):
            self._step(path, batch, looks_ahead=path.looks_ahead)
            read.append(time.perf_counter())
        codes = [one.codes for one in batch]
        for one in batch:
            self._lm.paged.blocks.rollback(one.sequence, cached_tokens)
        return [(later - earlier) * 1000 for earlier, later in pairwise(read[WARM_UP - 1 :])], codes

    def _step(self, path: DecodePath, batch: list[Speaker], *, looks_ahead: bool) -> None:
        """A step as PagedLM runs it."""
        lm = self._lm.paged
        requests = [one.request(looks_ahead=looks_ahead) for one in batch]
        scheduled = tuple(lm._schedule(request) for request in requests)
        if all(request.ahead is not None for request in requests):
            lm._look_ahead(requests, scheduled)
        outputs = path.step(scheduled)
        for one, request, output in zip(batch, requests, outputs, strict=True):
            lm._append(request)
            one.take(output)

    def _replayed_ms(self, path: DecodePath) -> float:
        """Milliseconds of the captured step on the device's clock; on the host's without a GPU."""
        if self._lm.device.type != "cuda":
            began = time.perf_counter()
            path.replay()
            return (time.perf_counter() - began) * 1000
        path.replay()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(REPLAYS):
            path.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / REPLAYS


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.decode_gate", description=__doc__)
    parser.add_argument("--bundle", default="moss-speech")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--weights", default="native", choices=("native", "fp8", "int8", "int4"))
    parser.add_argument("--sequences", type=int, nargs="+", default=list(SEQUENCES))
    parser.add_argument("--contexts", type=int, nargs="+", default=list(CONTEXTS))
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seconds", type=float, default=500.0, help="no size begins that would end later")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("There is no CUDA device.")
    began, device = time.monotonic(), usable_device(arguments.device)
    ceilings = measure_ceilings(device)
    result = ResultFile("decode gate", "python -m tests.tools.decode_gate " + " ".join(sys.argv[1:]))
    result.facts |= environment(arguments.device) | {"weights": arguments.weights}
    result.facts["copy_tb_per_s"] = ceilings.copy_bytes_per_s / 1e12
    _say(result.facts)
    section = Section("decode steps by path", COLUMNS)
    result.tables.append((f"weights: {arguments.weights}", section))
    contexts = sorted(arguments.contexts, reverse=True)
    with torch.inference_mode():
        bundle, most = describe(arguments.bundle), max(arguments.sequences)
        lm = load(bundle, arguments.weights, device, most, max(contexts))
        _say(f"# loaded after {time.monotonic() - began:.0f} s, {lm.paged.blocks.num_blocks} blocks")
        paths = [path for kernels in (OWN, LOWER) for path in paths_of(lm, kernels)]
        _say(f"# paths after {time.monotonic() - began:.0f} s:", [(one.kernels, one.name) for one in paths])
        gate, longest = Gate(lm, paths, ceilings.copy_bytes_per_s, contexts), 0.0
        for count in arguments.sequences:
            for tokens in contexts:
                at = time.monotonic()
                if not gate.fits(count, tokens) or at - began + longest > arguments.seconds:
                    result.remarks.append(f"left out: {count} x {tokens}")
                    _say("#", result.remarks[-1])
                    continue
                rows = list(gate.measure(count, tokens, arguments.runs))
                section.rows += rows
                for row in rows:
                    _say(_line(row))
                longest = max(longest if count > 1 else 0.0, time.monotonic() - at)
                _say(f"# {time.monotonic() - at:.1f} s, {time.monotonic() - began:.0f} s in all")
                if arguments.json is not None:
                    arguments.json.write_text(result.text(), encoding="utf-8")
    again = measure_ceilings(device).copy_bytes_per_s
    _say(f"# copy at the end: {again / 1e12:.3f} TB/s")


def _line(row: dict[str, Cell]) -> str:
    cells = [f"{row['sequences']:>3} x {row['cached_tokens']:<5} {row['kernels']:<4} {row['path']:<26}"]
    if row["valid"] != "yes":
        return f"{cells[0]}  {row['valid']}"
    for name in COLUMNS:
        if isinstance(value := row[name], float):
            cells.append(f"{name} {value:.4f}" if name == "error" else f"{name} {value:.3f}")
    return "  ".join(cells)


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
