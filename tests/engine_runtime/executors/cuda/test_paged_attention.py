"""The attention kernels of several sequences without a GPU: they compile; sizes, refusals and arguments."""

from __future__ import annotations

import ctypes
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
from engine_runtime.executors.cuda.skinny_gemm import RowFormat
from engine_runtime.executors.cuda.weights import LayerWeights, Network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.quantization import FP8
from tests.doubles.compiled_kernel import RESIDENT_CLUSTERS, RecordedKernel, constants_of
from tests.factories.tiny_lm import RELEASED

CPU = torch.device("cpu")
LARGE_SHARED, SMALL_SHARED = 227 << 10, 99 << 10
"""Bytes that a block can have on data-center and on consumer GPUs."""
CAPACITY, TOKENS, PARTS = 64, 16, 128


def layout_of(
    kv_dtype: torch.dtype = torch.bfloat16, tokens_per_block: int = TOKENS, shared_limit: int = LARGE_SHARED
) -> AttentionLayout:
    return AttentionLayout(RELEASED, tokens_per_block, kv_dtype, CAPACITY, 2048, PARTS, shared_limit)


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


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [16, 64])
@pytest.mark.parametrize("architecture", ["sm_90", "sm_120"])
def test_the_planner_compiles_into_registers(architecture: str, capacity: int) -> None:
    source, headers = kernel_source(replace(layout_of(), capacity=capacity), "plan.cu")
    try:
        program, log = compile_program(source, architecture, "--ptxas-options=-v", headers=headers)
    except OSError as error:
        pytest.skip(str(error))
    assert b"plan_units" in program
    assert " 0 bytes spill stores, 0 bytes spill loads" in log


@pytest.mark.parametrize(
    ("declared", "changed", "complaint"),
    [
        ("#define DIM 128", "#define DIM 64", "sizes that the code is written for"),
        ("#define TOKENS 16", "#define TOKENS 24", "sizes that the code is written for"),
        ("#define COMPUTE_WARPS 8", "#define COMPUTE_WARPS 4", "two dims of one head"),
        ("#define RING_STAGES 24", "#define RING_STAGES 20", "the same compute warp"),
        ("#define MAX_NEW_ROWS 16", "#define MAX_NEW_ROWS 17", "one tile"),
        ("#define RING_AT 34816", "#define RING_AT 24576", "shared memory before the ring"),
        ("#define RING_AT 34816", "#define RING_AT 35328", "alignment of tiles"),
        ("#define GROUP_ROWS 4", "#define GROUP_ROWS 3", "attended in pairs"),
        ("#define GROUP_ROWS 4", "#define GROUP_ROWS 2", "two tables for each row"),
        ("#define RING_STAGES 24", "#define RING_STAGES 32", "the first copies are in the plan"),
        ("#define PLAN_BYTES 128", "#define PLAN_BYTES 144", "a word for each lane"),
        ("#define CAPACITY 64", "#define CAPACITY 512", "a row is a byte"),
    ],
)
def test_a_difference_between_the_sides_does_not_compile(declared: str, changed: str, complaint: str) -> None:
    source, headers = kernel_source(layout_of(), "plan.cu" if "CAPACITY" in declared else "attend.cu")
    assert declared in headers["layout.cuh"]
    headers["layout.cuh"] = headers["layout.cuh"].replace(declared, changed)
    try:
        with pytest.raises(RuntimeError, match=complaint):
            compile_program(source, "sm_90", headers=headers)
    except OSError as error:
        pytest.skip(str(error))


def test_code_and_layout_know_the_same_names() -> None:
    (attends, headers), (plans, _) = (kernel_source(layout_of(), name) for name in ("attend.cu", "plan.cu"))
    layout = re.findall(r"^#define (\w+)", headers.pop("layout.cuh"), re.MULTILINE)
    code = re.sub(r'//.*|"(?:\\.|[^"\\\n])*"', "", "\n".join([attends, plans, *headers.values()]))
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
    ("shared_limit", "kv_dtype", "in_flight"),
    [
        (LARGE_SHARED, torch.bfloat16, 8),
        (LARGE_SHARED, FP8, 16),
        (SMALL_SHARED, torch.bfloat16, 8),
        (SMALL_SHARED, FP8, 16),
    ],
)
def test_the_first_copies_leave_room_for_q(shared_limit: int, kv_dtype: torch.dtype, in_flight: int) -> None:
    layout = layout_of(kv_dtype, shared_limit=shared_limit)
    assert layout.num_in_flight == constants_of(layout.header())["IN_FLIGHT"] == in_flight
    assert in_flight <= layout.num_stages
    assert in_flight * 2 * 16 * 128 * kv_dtype.itemsize <= 64 << 10


@pytest.mark.parametrize(
    ("where", "changes", "dtype", "tokens_per_block", "reason"),
    [
        ("cuda", {}, torch.bfloat16, 48, None),
        ("cpu", {}, torch.bfloat16, 16, "compute capability 9.0"),
        ("older", {}, torch.bfloat16, 16, "compute capability 9.0"),
        ("cuda", {}, torch.float16, 16, "bfloat16"),
        ("cuda", {"head_dim": 64}, torch.bfloat16, 16, "heads of 128"),
        ("cuda", {"num_key_value_heads": 16}, torch.bfloat16, 16, "four for each K/V head"),
        ("cuda", {"qk_norm": False}, torch.bfloat16, 16, "normalized queries and keys (qk_norm)"),
        ("cuda", {}, torch.bfloat16, 24, "KV blocks of a multiple of 16"),
    ],
)
def test_sizes_that_the_kernel_cannot_run(
    where: str,
    changes: dict[str, Any],
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


class PoolMap(ctypes.Structure):
    """A tensor map that knows what it was made of."""

    of: tuple[Any, ...]
    is_swizzled: bool


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What torch reports of an H200."""
    properties = SimpleNamespace(multi_processor_count=132, shared_memory_per_block_optin=LARGE_SHARED)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(paged_attention, "CompiledKernel", RecordedKernel)

    def tensor_map(
        tensor: Tensor,
        sizes: tuple[int, ...],
        strides: tuple[int, ...],
        box: tuple[int, ...],
        *,
        l2_bytes: int,
        is_swizzled: bool,
    ) -> PoolMap:
        made = PoolMap()
        made.of, made.is_swizzled = (tensor, sizes, strides, box), is_swizzled
        return made

    monkeypatch.setattr(paged_attention, "tensor_map", tensor_map)
    return properties


Q_NORM = torch.ones(128)
LAYER = cast(LayerWeights, SimpleNamespace(q_norm=Q_NORM, k_norm=torch.ones(128), index=5))


def make_attention(longest: int, cache: Any = None, capacity: int = CAPACITY) -> PagedAttention:
    network = cast(Network, SimpleNamespace(config=RELEASED, cos=torch.zeros(1), sin=torch.zeros(1)))
    pool = torch.zeros(1, dtype=torch.bfloat16)
    cache = cache or SimpleNamespace(
        pool=pool, tokens_per_block=TOKENS, layer_offset=lambda layer: 100 * layer
    )
    inputs = BatchInputs(capacity, -(-longest // TOKENS), CPU)
    partitions = PartitionBuffers.of(replace(RELEASED, head_dim=2), capacity, longest, CPU)
    return PagedAttention(network, cache, inputs, partitions)


def launched(
    attention: PagedAttention,
    rows: int,
    bucket: int,
    row_format: RowFormat = RowFormat.BF16,
    positions: str = "position",
) -> RecordedKernel:
    attention.launch(
        torch.zeros(1),
        LAYER,
        attention._inputs[positions],
        torch.zeros(1),
        row_format,
        rows=rows,
        bucket=bucket,
        splits=2,
    )
    kernel = attention._kernel
    assert isinstance(kernel, RecordedKernel)
    return kernel


def planned(
    attention: PagedAttention, rows: int, bucket: int, *, text: bool = True, audio: bool = True
) -> RecordedKernel:
    attention.plan(rows, bucket, text=text, audio=audio)
    kernel = attention._planner
    assert isinstance(kernel, RecordedKernel)
    return kernel


def assert_addresses(kernel: RecordedKernel, expected: dict[str, Tensor]) -> None:
    """Of arguments of the last launch."""
    for name, tensor in expected.items():
        given = kernel.arguments[name]
        assert isinstance(given, Tensor)
        assert given.data_ptr() == tensor.data_ptr(), name


@pytest.mark.usefixtures("hopper")
def test_the_kernel_gets_what_it_declares() -> None:
    attention = make_attention(4096)
    kernel = launched(attention, 8, 256)
    values = kernel.constants
    assert kernel.threads == 32 * (values["COMPUTE_WARPS"] + 1)
    assert kernel.shared_bytes == values["RING_AT"] + 24 * 2 * 16 * 128 * 2
    assert (values["HEADS"], values["KV_HEADS"], values["GROUP"]) == (32, 8, 4)
    assert (values["CAPACITY"], values["MAX_BLOCKS"], values["MAX_PARTS"]) == (CAPACITY, 256, 16)
    partitions = attention._partitions
    expected = {
        "table": attention._inputs.table,
        "partial": partitions.sums,
        "tops": partitions.tops,
        "totals": partitions.totals,
        "arrived": partitions.arrived,
        "q_norm": Q_NORM,
    }
    assert_addresses(kernel, expected)
    names = ("layer_offset", "num_groups", "max_parts", "splits")
    assert [kernel.number(name) for name in names] == [500, 8, 2, 2]
    for row_format in RowFormat:
        assert launched(attention, 8, 256, row_format).number("row_format") == row_format


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("capacity", [16, 64])
def test_the_planner_gets_what_it_declares(capacity: int) -> None:
    attention = make_attention(4096, capacity=capacity)
    kernel = planned(attention, 8, 256)
    assert (kernel.blocks, kernel.threads, kernel.shared_bytes) == (3 * 2, capacity, 0)
    assert kernel.constants == constants_of(attention._layout.header())
    inputs = attention._inputs
    expected = {
        "of_trunk": inputs["position"],
        "of_text": inputs["text_position"],
        "of_audio": inputs["audio_position"],
        "table": inputs.table,
        "sequences": inputs["sequence"],
        "group_rows": inputs["group_row"],
        "group_counts": inputs["group_count"],
        "group_firsts": inputs["group_first"],
        "plans": attention._plans,
    }
    assert_addresses(kernel, expected)
    assert (kernel.number("min_parts"), kernel.number("max_parts")) == (2, 2)
    # [positions, partitions, groups], as plan.cu counts them
    values = kernel.constants
    assert attention._plans.shape == (3, values["MAX_PARTS"], values["CAPACITY"], values["PLAN_BYTES"])
    assert attention._plans.is_contiguous()


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("audio", [False, True])
def test_a_tail_that_does_not_run_is_not_planned(text: bool, audio: bool) -> None:
    given = planned(make_attention(4096), 4, 256, text=text, audio=audio).arguments
    assert given["of_trunk"] is not None
    assert (given["of_text"] is not None, given["of_audio"] is not None) == (text, audio)


@pytest.mark.usefixtures("hopper")
def test_a_layer_reads_the_plans_of_its_positions() -> None:
    """In the order in which plan.cu gets them."""
    attention = make_attention(4096)
    given = planned(attention, 4, 256).arguments
    of_positions = [given[name] for name in ("of_trunk", "of_text", "of_audio")]
    for index, name in enumerate(("position", "text_position", "audio_position")):
        positions = of_positions[index]
        assert isinstance(positions, Tensor)
        assert positions.data_ptr() == attention._inputs[name].data_ptr()
        kernel = launched(attention, 4, 256, positions=name)
        assert_addresses(kernel, {"plans": attention._plans[index]})


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, FP8])
def test_a_box_of_the_map_is_k_and_v_of_a_tile(kv_dtype: torch.dtype) -> None:
    """At the position that attend.cu computes, for every tile of a layer of a pool whose values are all
    different."""
    config = replace(RELEASED, shared_layers=1, text_layers=1, audio_layers=1)
    kv_heads, dim, tokens = config.num_key_value_heads, config.head_dim, 32
    cache = KVCache(config, 3, tokens, dtype=torch.bfloat16, kv_dtype=kv_dtype, keep_trunk=False)
    given = launched(make_attention(256, cache), 8, 256).arguments["tiles"]
    assert isinstance(given, PoolMap)
    of, sizes, strides, box = given.of
    assert of.data_ptr() == cache.pool.data_ptr()
    assert given.is_swizzled == (kv_dtype == torch.bfloat16)
    assert box[0] * kv_dtype.itemsize == 128
    assert all(stride * kv_dtype.itemsize % 16 == 0 for stride in strides)
    flat = torch.arange(cache.pool.numel())
    pool = flat.view(cache.blocks.shape)  # K and V blocks, head, row, dim
    layer = 2
    for block in range(cache.num_blocks):
        entry = block * cache.block_stride  # of the block table
        for head in range(kv_heads):
            for row in range(0, tokens, 16):
                place = ((entry + cache.layer_offset(layer)) * kv_heads + head) * tokens + row
                assert place + box[1] <= sizes[1]
                # [K or V, area, row, column]
                found = flat.as_strided(box[::-1], (*strides[::-1], 1), place * strides[0])
                for is_v in range(2):
                    tile = pool[entry + cache.layer_offset(layer) + is_v, head, row : row + 16]
                    assert torch.equal(found[is_v].transpose(0, 1).reshape(16, dim), tile)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("rows", "bucket", "longest", "parts", "blocks", "cluster"),
    [
        (1, 256, 32768, (16, 16), 128, 1),  # larger clusters are not portable
        (2, 256, 32768, (8, 8), 128, 8),
        (2, 256, 512, (2, 2), 32, 2),  # no more than the buffers hold
        (2, 32768, 32768, (8, 16), 132, 1),
        (4, 8192, 32768, (4, 4), 128, 4),
        (8, 256, 32768, (2, 2), 128, 2),
        (8, 8192, 32768, (2, 4), 132, 1),
        (16, 2048, 32768, (1, 1), 128, 1),
        (16, 32768, 32768, (1, 16), 132, 1),
        (64, 256, 32768, (1, 1), 132, 1),
        (64, 40000, 40000, (1, 20), 132, 1),
    ],
)
def test_partitions_and_blocks_of_a_step(
    rows: int, bucket: int, longest: int, parts: tuple[int, int], blocks: int, cluster: int
) -> None:
    attention = make_attention(longest)
    planner, kernel = planned(attention, rows, bucket), launched(attention, rows, bucket)
    assert (planner.number("min_parts"), planner.number("max_parts")) == parts
    assert planner.blocks == 3 * parts[1]
    assert kernel.number("max_parts") == parts[1]
    assert (kernel.blocks, kernel.cluster) == (blocks, cluster)
    # A block of a cluster has a single unit: partition, head and group follow from its index.
    assert cluster == 1 or (kernel.blocks == 8 * rows * cluster and parts == (cluster, cluster))


@pytest.mark.usefixtures("hopper")
def test_no_cluster_waits_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A multiprocessor may lack the neighbours for a cluster."""
    monkeypatch.setitem(RESIDENT_CLUSTERS, 8, 15)
    kernel = launched(make_attention(4096), 2, 256)
    assert (kernel.blocks, kernel.cluster, kernel.number("max_parts")) == (128, 1, 8)


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
            kernel = planned(attention, rows, bucket_of(num_rows, longest))
            least, most = kernel.number("min_parts"), kernel.number("max_parts")
            # As plan.cu cuts the rows that are in the pool before a step with a single new one.
            tiles = -(-(num_rows - 1) // kernel.constants["TILE_ROWS"])
            parts = max(least, -(-tiles // kernel.constants["MAX_PART_TILES"]))
            assert 1 <= least <= parts <= most <= held, (rows, num_rows)


def test_too_little_shared_memory_is_an_error(hopper: SimpleNamespace) -> None:
    hopper.shared_memory_per_block_optin = 64 << 10
    with pytest.raises(RuntimeError, match="too little shared memory"):
        make_attention(256)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("longest", [1, 256, 257, 1000, 5000])
def test_the_memory_plan_knows_the_buffers(longest: int) -> None:
    """Of the buffers in the memory plan, those of the partitions alone depend on the longest sequence."""

    def taken(of: int) -> int:
        buffers = PartitionBuffers.of(RELEASED, 16, of, CPU)
        assert not buffers.arrived.any()
        plans = make_attention(of, capacity=16)._plans
        return buffers.sums.nbytes + buffers.tops.nbytes + buffers.totals.nbytes + plans.nbytes

    expected = batch_bytes(RELEASED, 16, longest, 2) - batch_bytes(RELEASED, 16, 256, 2)
    assert taken(longest) - taken(256) == expected
    assert taken(256) == 16 * (32 * (128 + 2) * 4 + 3 * 128)
