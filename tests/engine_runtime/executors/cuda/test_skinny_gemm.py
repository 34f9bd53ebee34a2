"""The skinny GEMM of several sequences without a GPU: it compiles; plans, refusals and arguments."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine_runtime.cuda.driver import LARGE_SHARED_MEMORY
from engine_runtime.cuda.nvrtc import compile_program
from engine_runtime.executors.cuda import skinny_gemm
from engine_runtime.executors.cuda.skinny_gemm import (
    GROUP_OUTPUTS,
    GemmLayout,
    GemmPlan,
    RowFormat,
    RowNorms,
    SkinnyGemm,
    can_multiply,
    can_multiply_layer,
    kernel_source,
    plan_of,
    unsupported_reason,
)
from engine_runtime.options import WeightFormat
from engine_runtime.quantization import FP8, Matrix, quantize
from tests.doubles.compiled_kernel import RecordedKernel, constants_of

CAPACITY, EPS = 64, 1e-6
HOPPER = 132
"""Multiprocessors of an H100 or H200."""
QKV, O, GATE_UP, DOWN, AUDIO, TEXT = (  # noqa: E741
    (6144, 4096),
    (4096, 4096),
    (24576, 4096),
    (4096, 12288),
    (16512, 4096),
    (151680, 4096),
)


def layout_of(
    rows: int, groups: int, *, is_gated: bool = False, splits: int = 4, is_fp8: bool = True
) -> GemmLayout:
    return GemmLayout(rows, groups, splits, is_gated, is_fp8, CAPACITY, EPS)


def matrix_of(shape: tuple[int, int], weight_format: WeightFormat = "native") -> Matrix:
    """Without values."""
    dtype = {"native": torch.bfloat16, "fp8": FP8, "int8": torch.int8, "int4": torch.uint8}[weight_format]
    return Matrix(weight_format, shape, torch.empty(0, dtype=dtype))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [8, 16, 32, 64])
@pytest.mark.parametrize("is_fp8", [False, True])
def test_it_compiles_into_registers(rows: int, is_fp8: bool) -> None:
    for groups, is_gated, splits in (
        (1, False, 1),
        (2, False, 4),
        (3, False, 4),
        (3, True, 1),
    ):
        source, headers = kernel_source(
            layout_of(rows, groups, is_gated=is_gated, splits=splits, is_fp8=is_fp8)
        )
        try:
            program, log = compile_program(source, "sm_90a", "--ptxas-options=-v", headers=headers)
        except OSError as error:
            pytest.skip(str(error))
        assert b"skinny_gemm" in program
        assert " 0 bytes spill stores, 0 bytes spill loads" in log
        assert "serialized" not in log  # products that wait for each other
        assert "warning" not in log


@pytest.mark.parametrize(
    ("declared", "changed", "complaint"),
    [
        ("#define RING_AT 1024", "#define RING_AT 128", "barriers and factors before the rings"),
        ("#define RING_AT 1024", "#define RING_AT 1056", "barriers and factors before the rings"),
        ("#define IN_FLIGHT 3", "#define IN_FLIGHT 40", "awaited before its next use"),
        ("#define ROWS 8", "#define ROWS 12", "rows of a product"),
        ("#define SETS 2", "#define SETS 3", "sets take tiles in turn"),
        ("#define STAGES 10", "#define STAGES 2", "stages for the sums"),
    ],
)
def test_a_difference_between_the_sides_does_not_compile(declared: str, changed: str, complaint: str) -> None:
    source, headers = kernel_source(layout_of(8, 2))
    assert declared in headers["layout.cuh"]
    headers["layout.cuh"] = headers["layout.cuh"].replace(declared, changed)
    try:
        with pytest.raises(RuntimeError, match=complaint):
            compile_program(source, "sm_90a", headers=headers)
    except OSError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("rows", [8, 16, 32, 64])
def test_the_rings_fit_and_hide_the_latency_of_memory(rows: int, is_fp8: bool) -> None:
    for groups in (1, 2, 3):
        layout = layout_of(rows, groups, is_fp8=is_fp8)
        # A block of residual_norm fits beside it: both have 1 KB of their own, and that one some barriers.
        assert layout.shared_bytes <= LARGE_SHARED_MEMORY - 2048
        # 31 bytes of weights per ns and multiprocessor, for 4 us
        assert layout.num_stages * groups * GROUP_OUTPUTS * 128 > 124_000
        assert layout.num_in_flight * groups * GROUP_OUTPUTS * 128 <= 48 << 10
        assert layout.num_row_stages >= 3


def test_weights_that_are_converted_have_two_sets_of_warpgroups() -> None:
    """As far as a block has registers for them."""
    sets = {
        (groups, is_fp8): layout_of(64, groups, is_fp8=is_fp8).num_sets
        for groups in (1, 2, 3)
        for is_fp8 in (False, True)
    }
    assert [key for key, number in sets.items() if number == 2] == [(1, True), (2, True)]
    assert layout_of(64, 2).num_threads == 2 * 2 * 128 + 96


@pytest.mark.parametrize(
    ("shape", "is_split", "planned"),
    [
        (QKV, True, GemmPlan(3, 4, 32)),
        (O, True, GemmPlan(2, 4, 32)),
        (GATE_UP, False, GemmPlan(3, 1, 128)),
        (DOWN, True, GemmPlan(2, 4, 32)),
        (AUDIO, False, GemmPlan(2, 1, 129)),
        (TEXT, False, GemmPlan(3, 1, 790)),
    ],
)
def test_products_of_the_released_model_fill_a_hopper_gpu(
    shape: tuple[int, int], is_split: bool, planned: GemmPlan
) -> None:
    for weight_format in ("native", "fp8"):
        plan = plan_of(matrix_of(shape, weight_format), HOPPER, most_splits=4 if is_split else 1)
        assert plan == planned
        rounds = -(-plan.tiles * plan.splits // HOPPER)
        assert plan.tiles * plan.splits > 0.96 * rounds * HOPPER


def test_a_plan_covers_every_output_and_column() -> None:
    for shape in ((72, 128), (1000, 384), (64, 64), (200, 1024)):
        for multiprocessors in (1, 8, HOPPER):
            plan = plan_of(matrix_of(shape), multiprocessors, most_splits=4)
            assert plan.tiles * plan.groups * GROUP_OUTPUTS >= shape[0]
            assert (shape[1] // 64) % plan.splits == 0


@pytest.mark.parametrize(
    ("shape", "weight_format", "is_gated", "supported"),
    [
        (QKV, "native", False, True),
        (QKV, "fp8", False, True),
        (QKV, "int8", False, False),
        (QKV, "int4", False, False),
        ((72, 192), "native", False, True),
        ((72, 192), "fp8", False, False),  # a tile has 128 columns
        ((72, 200), "native", False, False),
        ((70, 192), "native", False, False),  # four sums are stored at a time
        ((72, 128), "native", True, False),  # gates in groups of eight
        ((48, 128), "native", True, True),
        ((48, 128), "fp8", True, False),  # sixteen of them are interleaved
        ((96, 128), "fp8", True, True),
    ],
)
def test_formats_and_sizes_that_it_multiplies(
    shape: tuple[int, int], weight_format: WeightFormat, is_gated: bool, supported: bool
) -> None:
    assert can_multiply(matrix_of(shape, weight_format), is_gated=is_gated) == supported


def test_formats_of_rows_have_the_numbers_of_the_code() -> None:
    _, headers = kernel_source(layout_of(8, 1))
    numbers = constants_of(headers["primitives.cuh"])
    assert {name: numbers[f"ROWS_{name}"] for name in RowFormat.__members__} == RowFormat.__members__


def layer_of(**changes: Matrix) -> Any:
    """A layer of the released model in bf16, with other matrices."""
    shapes = {"qkv": QKV, "o": O, "gate_up": GATE_UP, "down": DOWN}
    return SimpleNamespace(**{name: matrix_of(shape) for name, shape in shapes.items()} | changes)


def test_layers_whose_products_it_runs() -> None:
    assert can_multiply_layer(layer_of())
    assert not can_multiply_layer(layer_of(o=matrix_of(O, "int8")))
    assert not can_multiply_layer(layer_of(gate_up=matrix_of((72, 4096))))


def test_it_multiplies_no_float32() -> None:
    assert not can_multiply(quantize(torch.randn(64, 64), "native"), is_gated=False)


@pytest.mark.parametrize(
    ("where", "capability", "shared", "dtype", "has_pdl", "reason"),
    [
        ("cuda", (9, 0), LARGE_SHARED_MEMORY, torch.bfloat16, True, None),
        ("cpu", (9, 0), LARGE_SHARED_MEMORY, torch.bfloat16, True, "compute capability 9.0"),
        ("cuda", (8, 9), LARGE_SHARED_MEMORY, torch.bfloat16, True, "compute capability 9.0"),
        ("cuda", (10, 0), LARGE_SHARED_MEMORY, torch.bfloat16, True, "compute capability 9.0"),
        ("cuda", (9, 0), LARGE_SHARED_MEMORY - 1, torch.bfloat16, True, "shared memory"),
        ("cuda", (9, 0), LARGE_SHARED_MEMORY, torch.float16, True, "bfloat16"),
        ("cuda", (9, 0), LARGE_SHARED_MEMORY, torch.bfloat16, False, "driver for CUDA 12.3"),
    ],
)
def test_where_it_cannot_run(
    where: str,
    capability: tuple[int, int],
    shared: int,
    dtype: torch.dtype,
    has_pdl: bool,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    properties = SimpleNamespace(shared_memory_per_block_optin=shared)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    found = unsupported_reason(torch.device(where), dtype, has_pdl=has_pdl)
    assert found is None if reason is None else reason in str(found)


class FakeMap(ctypes.Structure):
    """A tensor map that knows what it was made of."""

    of: tuple[Any, ...]


@pytest.fixture
def gemm(monkeypatch: pytest.MonkeyPatch) -> SkinnyGemm:
    properties = SimpleNamespace(multi_processor_count=HOPPER)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(skinny_gemm, "CompiledKernel", RecordedKernel)

    def tensor_map(
        tensor: Tensor, sizes: list[int], strides: list[int], box: list[int], *, l2_bytes: int = 128
    ) -> FakeMap:
        made = FakeMap()
        made.of = (tensor.data_ptr(), sizes, strides, box)
        return made

    monkeypatch.setattr(skinny_gemm, "tensor_map", tensor_map)
    return SkinnyGemm(CAPACITY, EPS, torch.device("cuda"))


def launched(gemm: SkinnyGemm, rows: int, matrix: Matrix, x: Tensor, **options: Any) -> RecordedKernel:
    gemm.launch(rows, x, matrix, torch.zeros(1), **options)
    kernels = [kernel for kernel in gemm._kernels.values() if isinstance(kernel, RecordedKernel)]
    assert all(kernel.is_architecture_specific for kernel in kernels)
    (kernel,) = [kernel for kernel in kernels if kernel.arguments]
    return kernel


def is_same(given: Any, tensor: Tensor | None) -> bool:
    return isinstance(given, Tensor) and tensor is not None and given.data_ptr() == tensor.data_ptr()


def test_the_kernel_gets_what_it_declares(gemm: SkinnyGemm) -> None:
    weight = torch.randn(640, 256, dtype=torch.bfloat16)
    matrix, x = quantize(weight, "fp8"), torch.zeros(CAPACITY, 256, dtype=torch.float16)
    kernel = launched(gemm, 2, matrix, x)
    plan, constants = gemm.plan(matrix), kernel.constants
    assert kernel.blocks == plan.tiles * plan.splits
    assert kernel.threads == 128 * plan.groups * constants["SETS"] + 96
    assert (constants["ROWS"], constants["WEIGHT_FP8"]) == (8, 1)
    assert constants["SPLITS"] == plan.splits
    assert (constants["GROUPS"], constants["CAPACITY"]) == (plan.groups, CAPACITY)
    assert [kernel.arguments[name] for name in ("outputs", "columns", "parts")] == [640, 256, 0]
    assert is_same(kernel.arguments["scale"], matrix.scale)
    for name in ("squares", "applied", "whole"):
        assert kernel.arguments[name] is None
    given, rows = kernel.arguments["weight"], kernel.arguments["x"]
    assert isinstance(given, FakeMap)
    assert isinstance(rows, FakeMap)
    assert given.of == (matrix.weight.data_ptr(), [256, 640], [256], [128, 64 * plan.groups])
    # A box has the columns of a tile of the weight, 64 after 64.
    assert rows.of == (x.data_ptr(), [64, CAPACITY, 4], [256, 64], [64, 8, 2])


def test_a_box_of_rows_has_the_columns_of_a_tile_in_bf16(gemm: SkinnyGemm) -> None:
    matrix, x = matrix_of((64, 256)), torch.zeros(CAPACITY, 256, dtype=torch.bfloat16)
    rows = launched(gemm, 64, matrix, x).arguments["x"]
    assert isinstance(rows, FakeMap)
    assert rows.of == (x.data_ptr(), [64, CAPACITY, 4], [256, 64], [64, 64, 1])


@pytest.mark.parametrize(("shape", "is_gated"), [(QKV, False), (GATE_UP, True)])
def test_what_the_norm_of_rows_lacks(shape: tuple[int, int], is_gated: bool, gemm: SkinnyGemm) -> None:
    norms = RowNorms(torch.zeros(CAPACITY, 8), *torch.zeros(2, CAPACITY))
    x = torch.zeros(CAPACITY, 4096, dtype=torch.bfloat16)
    arguments = launched(gemm, 8, matrix_of(shape), x, is_gated=is_gated, norms=norms).arguments
    assert is_same(arguments["squares"], norms.squares)
    assert is_same(arguments["applied"], norms.applied)
    assert is_same(arguments["whole"], norms.whole)
    assert arguments["parts"] == 8


def test_gates_and_their_ups_alternate_in_a_tile(gemm: SkinnyGemm) -> None:
    """The map orders the weight's rows as the kernel stores them: eight gates, then the ups of these."""
    width, columns = 96, 64
    matrix = quantize(torch.randn(2 * width, columns, dtype=torch.bfloat16), "native")
    x = torch.zeros(CAPACITY, columns, dtype=torch.bfloat16)
    given = launched(gemm, 64, matrix, x, is_gated=True).arguments["weight"]
    assert isinstance(given, FakeMap)
    _, sizes, strides, box = given.of
    assert box[:3] == [64, 8, 2]
    at = [
        torch.arange(size) * stride for size, stride in zip(sizes[:0:-1], strides[::-1], strict=True)
    ]  # outermost first
    rows = (at[0][:, None, None] + at[1][:, None] + at[2]).flatten() // columns
    wanted = [part * width + 8 * group + i for group in range(12) for part in range(2) for i in range(8)]
    assert rows.tolist() == wanted


def test_sums_that_are_not_added_up_later_are_not_split(gemm: SkinnyGemm) -> None:
    """Those of a head, however few its outputs are."""
    matrix = matrix_of((128, 4096))
    assert gemm.plan(matrix).splits == 4
    x = torch.zeros(CAPACITY, 4096, dtype=torch.bfloat16)
    assert launched(gemm, 8, matrix, x, is_split=False).constants["SPLITS"] == 1


def test_maps_are_made_once_for_what_they_describe(gemm: SkinnyGemm) -> None:
    first = quantize(torch.randn(128, 128, dtype=torch.bfloat16), "native")
    x = torch.zeros(CAPACITY, 128, dtype=torch.bfloat16)
    one = launched(gemm, 8, first, x).arguments
    again = launched(gemm, 8, first, x).arguments
    assert (again["weight"], again["x"]) == (one["weight"], one["x"])
    # The same memory, later used for another weight.
    other = Matrix("native", (64, 256), first.weight.view(64, 256))
    assert gemm._weight_map(other, 1, is_gated=False) is not one["weight"]
    assert gemm._rows_map(x.view(torch.float16), 128, 8) is not one["x"]
