"""Attention of several sequences on a real GPU, in CUDA C++ against Triton: same outputs, keys and values."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine_runtime.cuda.gpu_memory import BATCH_SPLIT_ROWS
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.executors.cuda.batch_inputs import BatchInputs
from engine_runtime.executors.cuda.decode_backend import bucket_of
from engine_runtime.executors.cuda.paged_attention import unsupported_reason
from engine_runtime.executors.cuda.skinny_gemm import RowFormat
from engine_runtime.executors.cuda.weights import build_network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.step import MAX_JOINT_TOKENS, ScheduledSequence, Tails
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.options import BlockFormats
from engine_runtime.quantization import FP8
from tests.doubles.interpreted_triton import HAS_TRITON, needs_triton
from tests.tools.interleaved_rows import in_order

if HAS_TRITON:
    from engine_runtime.executors.cuda.batched_backend import AttentionTiling, BatchedBackend, BatchShape

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    needs_triton,
]
DEVICE = torch.device("cuda")
CONFIG = MossLMConfig(
    hidden_size=4096,
    intermediate_size=1024,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    shared_layers=1,
    text_layers=1,
    audio_layers=1,
    text_vocab=400,
    audio_vocab=80,
    modality_pad=399,
)
"""Heads of the released model, and its parts of the product that yields q, k and v."""
LENGTHS = (0, 1, 15, 16, 17, 255, 256, 1000, 2047, 2048, 2049, 4200)
"""Rows of a sequence before the step, also around a tile and a partition."""
CAPACITY, LONGEST, POOL_ROWS = 64, 6000, 1 << 16
CASES = [
    (2, [(0, 1), (15, 1)]),
    (2, [(17, 2)]),
    (2, [(4200, 1), (16, 1)]),
    (4, [(1000, 1), (0, 1), (2049, 1), (40, 1)]),
    (8, [(0, 7)]),
    (8, [(2048, 3), (255, 4), (4200, 1)]),
    (8, [(length, 1) for length in LENGTHS[:7]]),
    (32, [(1000, 15), (0, 15), (17, 1)]),
    (32, [(2049, MAX_JOINT_TOKENS), (16, 5), (4200, 9), (15, 2)]),
    (64, [(LENGTHS[index % len(LENGTHS)], 1) for index in range(64)]),
    (64, [(LENGTHS[3 * index % len(LENGTHS)], 1 + index) for index in range(10)]),
]
"""Rows of the step with padding; for each sequence the rows before it and the new ones."""


class Bench:
    """A backend over a pool full of random numbers, in blocks that lie in no order."""

    def __init__(self, kv_dtype: torch.dtype, tokens_per_block: int) -> None:
        torch.manual_seed(0)
        with DEVICE:
            model = MossLM(CONFIG)
            model.reset_parameters()
        num_blocks = POOL_ROWS // tokens_per_block
        self.cache = KVCache(
            CONFIG, num_blocks, tokens_per_block, dtype=torch.bfloat16, kv_dtype=kv_dtype, device=DEVICE
        )
        self.pool = torch.randn(self.cache.pool.shape, device=DEVICE).to(kv_dtype)
        """The pool before a step."""
        self.network = build_network(
            CONFIG,
            model.state_dict().__getitem__,
            formats=BlockFormats(),
            dtype=torch.bfloat16,
            device=DEVICE,
            max_seq_len=LONGEST,
        )
        for layer in self.network.layers:
            for norm in (layer.q_norm, layer.k_norm):
                assert norm is not None
                norm.copy_(1 + torch.randn_like(norm) / 4)
        self.inputs = BatchInputs(CAPACITY, -(-LONGEST // tokens_per_block), DEVICE)
        self.backend = BatchedBackend(self.network, self.cache, self.inputs, LONGEST)
        reason = unsupported_reason(CONFIG, self.cache)
        if reason is not None and "9.0" in reason:
            pytest.skip(reason)
        assert reason is None
        self.kernel: Any = self.backend.paged_attention
        assert self.kernel is not None
        self.backend._qkv.copy_(torch.randn_like(self.backend._qkv))

    def at(self, rows: int, sequences: list[tuple[int, int]], tails: list[Tails] | None = None) -> BatchShape:
        """Set the inputs of a step, and the pool. Without `tails`, both run for every sequence."""
        tokens = self.cache.tokens_per_block
        free = list(range(self.cache.num_blocks))
        random.Random(rows).shuffle(free)
        scheduled = []
        for (length, count), runs in zip(sequences, tails or [Tails()] * len(sequences), strict=True):
            table = [free.pop() for _ in range(-(-(length + count) // tokens))]
            scheduled.append(ScheduledSequence([1] * count, length, table, 0, 0, 0, count > 1, runs))
        self.inputs.set_rows(scheduled, tokens, self.cache.block_stride)
        self.inputs.send()
        self.inputs.note_use()
        self.cache.pool.copy_(self.pool)
        longest = max(one.num_tokens for one in scheduled)
        text = any(one.tails.text for one in scheduled)
        audio = any(one.tails.audio for one in scheduled)
        return BatchShape(rows, bucket_of(longest, LONGEST), text, audio, samples=False)

    def attend(self, shape: BatchShape, row_format: RowFormat, positions: str = "position") -> list[Tensor]:
        """The outputs of all layers, one after the other, as they are stored. [CAPACITY, heads * dim]"""
        kernel = self.backend.paged_attention
        if kernel is not None:
            kernel.plan(shape.rows, shape.bucket, text=shape.text, audio=shape.audio)
        # The kernels of torch stand for the first product, which waits for the plans: attention does not.
        dtype = torch.bfloat16 if row_format == RowFormat.BF16 else torch.float16
        width = CONFIG.num_attention_heads * CONFIG.head_dim
        outs = [
            torch.full((CAPACITY, width), torch.nan, dtype=dtype, device=DEVICE) for _ in self.network.layers
        ]
        for layer, out in zip(self.network.layers, outs, strict=True):
            if kernel is None:
                self.backend._attend(shape, layer, self.inputs[positions], out)
                continue
            kernel.launch(
                self.backend._qkv,
                layer,
                self.inputs[positions],
                out,
                row_format,
                rows=shape.rows,
                bucket=shape.bucket,
                splits=self.backend.linear.num_splits(layer.qkv),
            )
        return outs

    def run(
        self, rows: int, sequences: list[tuple[int, int]], row_format: RowFormat, *, in_triton: bool
    ) -> tuple[list[Tensor], Tensor]:
        """Outputs and the pool after a step. Those of Triton have their columns in order."""
        self.backend.paged_attention = None if in_triton else self.kernel
        shape = self.at(rows, sequences)
        if in_triton:  # compiled once
            self.backend.attention_tiling = lambda rows: AttentionTiling(BATCH_SPLIT_ROWS)
            shape = replace(shape, bucket=LONGEST)
        outs = self.attend(shape, row_format)
        torch.cuda.synchronize()
        return outs, self.cache.pool.clone()

    def written(self, sequences: list[tuple[int, int]]) -> Tensor:
        """Whether a step writes the row of the pool. [blocks, 1, 1, 1, tokens, 1]"""
        rows = torch.zeros(
            self.cache.num_blocks, self.cache.tokens_per_block, dtype=torch.bool, device=DEVICE
        )
        table = self.inputs.table.cpu() // self.cache.block_stride
        for index, (length, count) in enumerate(sequences):
            for position in range(length, length + count):
                block, slot = divmod(position, self.cache.tokens_per_block)
                rows[table[index, block], slot] = True
        return rows[:, None, None, None, :, None]


@pytest.mark.parametrize(("kv_dtype", "tokens_per_block"), [(torch.bfloat16, 16), (FP8, 32)])
@torch.inference_mode()
def test_outputs_and_pool_are_those_of_triton(kv_dtype: torch.dtype, tokens_per_block: int) -> None:
    bench = Bench(kv_dtype, tokens_per_block)
    # With fp8 weights the next product takes float16.
    row_format = RowFormat.BF16 if kv_dtype == torch.bfloat16 else RowFormat.F16
    for rows, sequences in CASES:
        expected, wanted_pool = bench.run(rows, sequences, row_format, in_triton=True)
        found, pool = bench.run(rows, sequences, row_format, in_triton=False)
        num_rows = sum(count for _, count in sequences)
        for one, other in zip(found, expected, strict=True):
            assert bool(one[num_rows:].isnan().all())  # padding
            error = (one - other)[:num_rows].float().norm(dim=1) / other[:num_rows].float().norm(dim=1)
            # A K that is rounded to fp8 may fall on the other side of a border.
            most = 0.01 if kv_dtype == torch.bfloat16 else 0.02
            assert float(error.max()) < most, (rows, sequences, error)
        is_written = bench.written(sequences)
        before, after, in_triton = (one.view(torch.uint8) for one in (bench.pool, pool, wanted_pool))
        assert bool(((before == after) | is_written).all()), (rows, sequences)
        num_written = num_rows * before[0, ..., 0, :].numel()
        assert int(is_written.sum()) == num_rows
        assert int((before != after).sum()) > 0.8 * num_written  # a byte can stay the same by chance
        assert int((in_triton != after).sum()) <= 8 + num_written // 1000, (rows, sequences)
        assert not bench.backend._partitions.arrived.any()


@torch.inference_mode()
def test_a_captured_step_yields_the_same_for_other_inputs() -> None:
    """Also without a pause between two kernels, where each begins before the one before it ends."""
    bench, calls = Bench(torch.bfloat16, 16), GraphedCalls(DEVICE)
    bench.backend.paged_attention = bench.kernel
    cases = [
        (8, [(4200, 3), (255, 5)]),
        (8, [(2049, 1), (4199, 1), (0, 6)]),
        (8, [(4100, 2)]),
    ]
    for rows, sequences in [*cases, *cases]:
        expected, wanted_pool = bench.run(rows, sequences, RowFormat.BF16, in_triton=False)
        shape = bench.at(rows, sequences)
        found = calls.run(shape, lambda shape=shape: bench.attend(shape, RowFormat.BF16))
        torch.cuda.synchronize()
        num_rows = sum(count for _, count in sequences)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one[:num_rows], other[:num_rows])
        assert torch.equal(bench.cache.pool, wanted_pool)
        assert not bench.backend._partitions.arrived.any()
    assert calls.num_captured == 1


@torch.inference_mode()
def test_a_row_does_not_depend_on_the_other_sequences() -> None:
    bench = Bench(torch.bfloat16, 16)
    found = []
    for others in ([(0, 1)], [(4200, 7)], [(16, 2), (4200, 1), (255, 4)]):
        outs, _ = bench.run(8, [(1000, 1), *others], RowFormat.BF16, in_triton=False)
        found.append([out[0] for out in outs])
    for first, *rest in zip(*found, strict=True):
        assert bool(first.isfinite().all())
        assert all(torch.equal(one, first) for one in rest)


@torch.inference_mode()
def test_a_row_does_not_depend_on_its_place() -> None:
    """Whatever a block has attended to before."""
    bench, kinds = Bench(torch.bfloat16, 16), len(LENGTHS)
    bench.pool.copy_(bench.pool[:1].expand_as(bench.pool))
    qkv = bench.backend._qkv.view(-1, CAPACITY, bench.network.trunk[0].qkv.shape[0])
    qkv.copy_(qkv[:, :1].expand_as(qkv).clone())
    sequences = [(LENGTHS[index % kinds], 1) for index in range(CAPACITY)]
    outs, _ = bench.run(CAPACITY, sequences, RowFormat.BF16, in_triton=False)
    for out in outs:
        assert bool(out.isfinite().all())
        assert torch.equal(out[kinds:], out[:-kinds])


@pytest.mark.parametrize(
    ("rows", "sequences"),
    [(2, [(4200, 1), (17, 1)]), (4, [(1000, 1), (90, 1), (255, 2)]), (8, [(1000, 1), (16, 1), (33, 1)])],
)
@torch.inference_mode()
def test_a_cluster_yields_what_device_memory_yields(rows: int, sequences: list[tuple[int, int]]) -> None:
    bench = Bench(torch.bfloat16, 16)
    found, _ = bench.run(rows, sequences, RowFormat.BF16, in_triton=False)
    bench.kernel._num_clusters = {}
    expected, _ = bench.run(rows, sequences, RowFormat.BF16, in_triton=False)
    num_rows = sum(count for _, count in sequences)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one[:num_rows], other[:num_rows])


@torch.inference_mode()
def test_what_lies_behind_a_sequence_does_not_matter() -> None:
    """Whole tiles are copied, and 0 x NaN is NaN."""
    bench, sequences = Bench(torch.bfloat16, 32), [(1000, 1), (5, 1), (17, 3), (47, 1)]
    expected, _ = bench.run(8, sequences, RowFormat.BF16, in_triton=False)
    table = bench.inputs.table.cpu() // bench.cache.block_stride
    for index, (length, _) in enumerate(sequences):
        block, slot = divmod(length, bench.cache.tokens_per_block)
        bench.pool[int(table[index, block]), ..., slot:, :] = torch.nan
    found, _ = bench.run(8, sequences, RowFormat.BF16, in_triton=False)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one[:6], other[:6])


@pytest.mark.parametrize(
    ("rows", "sequences"),
    [
        (2, [(4200, 1), (17, 1)]),  # a cluster combines
        (4, [(4200, 2), (17, 2)]),  # through device memory
        (32, [(1000, 15), (4200, 1)]),  # also within a block
    ],
)
@torch.inference_mode()
def test_interleaved_rows_hold_the_same_numbers(rows: int, sequences: list[tuple[int, int]]) -> None:
    bench = Bench(torch.bfloat16, 16)
    plain, _ = bench.run(rows, sequences, RowFormat.F16, in_triton=False)
    stored, _ = bench.run(rows, sequences, RowFormat.F16_INTERLEAVED, in_triton=False)
    num_rows = sum(count for _, count in sequences)
    for one, other in zip(stored, plain, strict=True):
        assert bool(other[:num_rows].isfinite().all())
        assert torch.equal(in_order(one)[:num_rows], other[:num_rows])
        assert bool(one[num_rows:].isnan().all())


@torch.inference_mode()
def test_a_tail_attends_for_the_sequences_that_it_runs_for() -> None:
    """Also after a step that planned it for all of them."""
    bench, sequences = Bench(torch.bfloat16, 16), [(1000, 1), (2049, 3), (17, 1)]
    bench.backend.paged_attention = bench.kernel
    wanted = bench.attend(bench.at(8, sequences), RowFormat.BF16, "text_position")
    torch.cuda.synchronize()
    shape = bench.at(8, sequences, [Tails(), Tails(text=False), Tails(text=False)])
    found = bench.attend(shape, RowFormat.BF16, "text_position")
    torch.cuda.synchronize()
    for one, other in zip(found, wanted, strict=True):
        assert bool(other[:5].isfinite().all())
        assert torch.equal(one[0], other[0])
        assert bool(one[1:].isnan().all())
