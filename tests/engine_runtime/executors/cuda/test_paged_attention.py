"""The attention kernel of several sequences without a GPU: it compiles; sizes, refusals and arguments."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from engine_runtime.cuda.gpu_memory import batch_bytes
from engine_runtime.cuda.nvrtc import compile_program
from engine_runtime.executors.cuda import paged_attention
from engine_runtime.executors.cuda.batch_inputs import BatchInputs
from engine_runtime.executors.cuda.decode_backend import bucket_of
from engine_runtime.executors.cuda.paged_attention import (
    AttentionLayout,
    PagedAttention,
    PartitionBuffers,
    kernel_source,
    unsupported_reason,
)
from engine_runtime.executors.cuda.weights import LayerWeights, Network
from engine_runtime.quantization import FP8
from tests.doubles.compiled_kernel import RecordedKernel, constants_of
from tests.factories.tiny_lm import RELEASED

CPU = torch.device("cpu")
LARGE_SHARED, SMALL_SHARED = 227 << 10, 99 << 10
"""Bytes that a block can have on data-center and on consumer GPUs."""
CAPACITY, TOKENS = 64, 16


def layout_of(
    kv_dtype: torch.dtype = torch.bfloat16, tokens_per_block: int = TOKENS, shared_limit: int = LARGE_SHARED
) -> AttentionLayout:
    return AttentionLayout(RELEASED, tokens_per_block, kv_dtype, CAPACITY, 2048, shared_limit)


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, FP8])
@pytest.mark.parametrize(
    ("architecture", "shared_limit", "tokens_per_block"),
    [("sm_90", LARGE_SHARED, 16), ("sm_90", LARGE_SHARED, 32), ("sm_120", SMALL_SHARED, 16)],
)
def test_it_compiles_into_registers(
    architecture: str, shared_limit: int, kv_dtype: torch.dtype, tokens_per_block: int
) -> None:
    source, headers = kernel_source(layout_of(kv_dtype, tokens_per_block, shared_limit))
    try:
        program, log = compile_program(source, architecture, "--ptxas-options=-v", headers=headers)
    except OSError as error:
        pytest.skip(str(error))
    assert b"attend_units" in program
    spilled = [int(count) for count in re.findall(r"(\d+) bytes spill", log)]
    assert spilled
    assert not any(spilled), log


@pytest.mark.parametrize(
    ("declared", "changed", "complaint"),
    [
        ("#define DIM 128", "#define DIM 64", "sizes that the code is written for"),
        ("#define TOKENS 16", "#define TOKENS 24", "sizes that the code is written for"),
        ("#define COMPUTE_WARPS 8", "#define COMPUTE_WARPS 4", "two dims of one head"),
        ("#define RING_STAGES 24", "#define RING_STAGES 20", "the same compute warp"),
        ("#define MAX_NEW_ROWS 16", "#define MAX_NEW_ROWS 17", "one tile"),
        ("#define RING_AT 33792", "#define RING_AT 24576", "shared memory before the ring"),
    ],
)
def test_a_difference_between_the_sides_does_not_compile(declared: str, changed: str, complaint: str) -> None:
    source, headers = kernel_source(layout_of())
    assert declared in headers["layout.cuh"]
    headers["layout.cuh"] = headers["layout.cuh"].replace(declared, changed)
    try:
        with pytest.raises(RuntimeError, match=complaint):
            compile_program(source, "sm_90", headers=headers)
    except OSError as error:
        pytest.skip(str(error))


def test_code_and_layout_know_the_same_names() -> None:
    source, headers = kernel_source(layout_of())
    layout = re.findall(r"^#define (\w+)", headers.pop("layout.cuh"), re.MULTILINE)
    code = re.sub(r'//.*|"(?:\\.|[^"\\\n])*"', "", "\n".join([source, *headers.values()]))
    defined = re.findall(r"^#define (\w+)", code, re.MULTILINE)
    used = set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*\b", code)) - {"FULL", "T"}  # of templates
    assert len({*layout, *defined}) == len([*layout, *defined])
    assert used <= {*layout, *defined}
    assert {*layout} <= used


@pytest.mark.parametrize(
    ("shared_limit", "kv_dtype", "stages"),
    [
        (LARGE_SHARED, torch.bfloat16, 24),
        (LARGE_SHARED, FP8, 24),  # more would fit
        (163 << 10, torch.bfloat16, 16),
        (SMALL_SHARED, torch.bfloat16, 8),
        (SMALL_SHARED, FP8, 16),
        (64 << 10, torch.bfloat16, 0),
    ],
)
def test_the_ring_is_as_long_as_shared_memory_allows(
    shared_limit: int, kv_dtype: torch.dtype, stages: int
) -> None:
    layout = layout_of(kv_dtype, shared_limit=shared_limit)
    values = constants_of(layout.header())
    assert layout.num_stages == values["RING_STAGES"] == stages
    assert layout.num_stages % values["COMPUTE_WARPS"] == 0
    tile_bytes = values["TILE_ROWS"] * values["DIM"] * kv_dtype.itemsize
    assert layout.shared_bytes == values["RING_AT"] + stages * 2 * tile_bytes <= shared_limit
    assert values["KV_FP8"] == (kv_dtype == FP8)


@pytest.mark.parametrize(
    ("where", "changes", "dtype", "tokens_per_block", "reason"),
    [
        ("cuda", {}, torch.bfloat16, 48, None),
        ("cpu", {}, torch.bfloat16, 16, "compute capability 9.0"),
        ("older", {}, torch.bfloat16, 16, "compute capability 9.0"),
        ("cuda", {}, torch.float16, 16, "bfloat16"),
        ("cuda", {"head_dim": 64}, torch.bfloat16, 16, "heads of 128"),
        ("cuda", {"num_key_value_heads": 16}, torch.bfloat16, 16, "four for each K/V head"),
        ("cuda", {}, torch.bfloat16, 24, "KV blocks of a multiple of 16"),
    ],
)
def test_sizes_that_the_kernel_cannot_run(
    where: str,
    changes: dict[str, int],
    dtype: torch.dtype,
    tokens_per_block: int,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capability = (8, 9) if where == "older" else (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    device = torch.device("cpu" if where == "cpu" else "cuda")
    cache: Any = SimpleNamespace(
        pool=SimpleNamespace(device=device),
        trunk=SimpleNamespace(dtype=dtype),
        tokens_per_block=tokens_per_block,
    )
    found = unsupported_reason(replace(RELEASED, **changes), cache)
    assert found is None if reason is None else reason in str(found)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What torch reports of an H200."""
    properties = SimpleNamespace(multi_processor_count=132, shared_memory_per_block_optin=LARGE_SHARED)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(paged_attention, "CompiledKernel", RecordedKernel)
    return properties


LAYER = cast(LayerWeights, SimpleNamespace(q_norm=torch.ones(128), k_norm=torch.ones(128), index=5))


def make_attention(longest: int) -> PagedAttention:
    network = cast(Network, SimpleNamespace(config=RELEASED, cos=torch.zeros(1), sin=torch.zeros(1)))
    pool = torch.zeros(1, dtype=torch.bfloat16)
    cache: Any = SimpleNamespace(pool=pool, tokens_per_block=TOKENS, layer_offset=lambda layer: 100 * layer)
    inputs = BatchInputs(CAPACITY, -(-longest // TOKENS), CPU)
    partitions = PartitionBuffers.of(replace(RELEASED, head_dim=2), CAPACITY, longest, CPU)
    return PagedAttention(network, cache, inputs, partitions)


def launched(
    attention: PagedAttention, rows: int, bucket: int, out_dtype: torch.dtype = torch.bfloat16
) -> RecordedKernel:
    attention.launch(
        torch.zeros(1),
        LAYER,
        torch.zeros(1),
        torch.zeros(1, dtype=out_dtype),
        rows=rows,
        bucket=bucket,
        splits=2,
    )
    kernel = attention._kernel
    assert isinstance(kernel, RecordedKernel)
    return kernel


@pytest.mark.usefixtures("hopper")
def test_the_kernel_gets_what_it_declares() -> None:
    attention = make_attention(4096)
    kernel = launched(attention, 8, 256)
    values = kernel.constants
    assert kernel.threads == 32 * (values["COMPUTE_WARPS"] + 1)
    assert kernel.shared_bytes == values["RING_AT"] + 24 * 2 * 16 * 128 * 2
    assert (values["HEADS"], values["KV_HEADS"], values["GROUP"]) == (32, 8, 4)
    assert (values["CAPACITY"], values["MAX_BLOCKS"]) == (CAPACITY, 256)
    inputs, partitions = attention._inputs, attention._partitions
    expected = {
        "table": inputs.table,
        "sequences": inputs["sequence"],
        "group_rows": inputs["group_row"],
        "group_counts": inputs["group_count"],
        "group_firsts": inputs["group_first"],
        "partial": partitions.sums,
        "tops": partitions.tops,
        "totals": partitions.totals,
        "arrived": partitions.arrived,
        "q_norm": LAYER.q_norm,
    }
    for name, tensor in expected.items():
        given = kernel.arguments[name]
        assert isinstance(given, Tensor)
        assert given.data_ptr() == tensor.data_ptr(), name
    numbers = [kernel.number(name) for name in ("is_f16", "layer_offset", "num_groups", "splits")]
    assert numbers == [0, 500, 8, 2]
    assert launched(attention, 8, 256, torch.float16).number("is_f16") == 1


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("rows", "bucket", "longest", "parts", "blocks"),
    [
        (2, 256, 32768, (8, 8), 128),
        (2, 256, 512, (2, 2), 32),  # no more than the buffers hold
        (2, 32768, 32768, (8, 16), 132),
        (8, 256, 32768, (2, 2), 128),
        (8, 8192, 32768, (2, 4), 132),
        (16, 2048, 32768, (1, 1), 128),
        (16, 32768, 32768, (1, 16), 132),
        (64, 256, 32768, (1, 1), 132),
        (64, 40000, 40000, (1, 20), 132),
    ],
)
def test_partitions_and_blocks_of_a_step(
    rows: int, bucket: int, longest: int, parts: tuple[int, int], blocks: int
) -> None:
    kernel = launched(make_attention(longest), rows, bucket)
    assert (kernel.number("min_parts"), kernel.number("max_parts")) == parts
    assert kernel.blocks == blocks


def test_blocks_are_no_more_than_multiprocessors(hopper: SimpleNamespace) -> None:
    hopper.multi_processor_count = 20
    assert launched(make_attention(4096), 64, 4096).blocks == 20


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("longest", [200, 300, 4096, 40000])
def test_partitions_of_every_length_fit_launch_and_buffers(longest: int) -> None:
    attention = make_attention(longest)
    held = attention._partitions.sums.shape[0]
    edges = {num_rows for edge in range(0, longest + 1, 2048) for num_rows in range(edge - 17, edge + 18)}
    for rows in (1, 2, 4, 8, 16, 32, 64):
        for num_rows in sorted(edges & set(range(1, longest + 1))) + [longest]:
            kernel = launched(attention, rows, bucket_of(num_rows, longest))
            least, most = kernel.number("min_parts"), kernel.number("max_parts")
            # As attend.cu cuts the rows that are in the pool before a step with a single new one.
            tiles = -(-(num_rows - 1) // kernel.constants["TILE_ROWS"])
            parts = max(least, -(-tiles // kernel.constants["MAX_PART_TILES"]))
            assert 1 <= least <= parts <= most, (rows, num_rows)
            assert parts <= held, (rows, num_rows)


def test_too_little_shared_memory_is_an_error(hopper: SimpleNamespace) -> None:
    hopper.shared_memory_per_block_optin = 64 << 10
    with pytest.raises(RuntimeError, match="too little shared memory"):
        make_attention(256)


@pytest.mark.parametrize("longest", [1, 256, 257, 1000, 5000])
def test_the_memory_plan_knows_the_buffers(longest: int) -> None:
    """Of the buffers in the plan, those of the partitions alone depend on the longest sequence."""

    def taken(of: int) -> int:
        buffers = PartitionBuffers.of(RELEASED, 16, of, CPU)
        assert not buffers.arrived.any()
        return buffers.sums.nbytes + buffers.tops.nbytes + buffers.totals.nbytes

    planned = batch_bytes(RELEASED, 16, longest, 2) - batch_bytes(RELEASED, 16, 256, 2)
    assert taken(longest) - taken(256) == planned
    assert taken(256) == 16 * 32 * (128 + 2) * 4
