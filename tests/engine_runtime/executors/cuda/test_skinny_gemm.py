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
    SkinnyGemm,
    can_multiply,
    kernel_source,
    plan_of,
    unsupported_reason,
)
from engine_runtime.options import WeightFormat
from engine_runtime.quantization import FP8, Matrix, quantize
from tests.doubles.compiled_kernel import RecordedKernel

CAPACITY = 64
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


def matrix_of(shape: tuple[int, int], weight_format: WeightFormat = "native") -> Matrix:
    """Without values."""
    dtype = {"native": torch.bfloat16, "fp8": FP8, "int8": torch.int8, "int4": torch.uint8}[weight_format]
    return Matrix(weight_format, shape, torch.empty(0, dtype=dtype))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [8, 16, 32, 64])
@pytest.mark.parametrize("is_fp8", [False, True])
def test_it_compiles_into_registers(rows: int, is_fp8: bool) -> None:
    for groups, is_gated in ((1, False), (2, False), (3, False), (3, True)):
        source, headers = kernel_source(GemmLayout(rows, groups, is_gated, is_fp8, CAPACITY))
        try:
            program, log = compile_program(source, "sm_90a", "--ptxas-options=-v", headers=headers)
        except OSError as error:
            pytest.skip(str(error))
        assert b"skinny_gemm" in program
        assert " 0 bytes spill stores, 0 bytes spill loads" in log
        assert "serialized" not in log  # products that wait for each other


@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("rows", [8, 16, 32, 64])
def test_the_ring_fits_and_hides_the_latency_of_memory(rows: int, is_fp8: bool) -> None:
    for groups in (1, 2, 3):
        layout = GemmLayout(rows, groups, is_gated=False, is_fp8=is_fp8, capacity=CAPACITY)
        assert layout.shared_bytes <= LARGE_SHARED_MEMORY
        # 31 bytes of weights per ns and multiprocessor, for 2 us
        assert layout.num_stages * groups * GROUP_OUTPUTS * 128 > 62_000


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
        ((72, 128), "native", True, False),  # gates in groups of eight
        ((48, 128), "native", True, True),
    ],
)
def test_formats_and_sizes_that_it_multiplies(
    shape: tuple[int, int], weight_format: WeightFormat, is_gated: bool, supported: bool
) -> None:
    assert can_multiply(matrix_of(shape, weight_format), is_gated=is_gated) == supported


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
    return SkinnyGemm(CAPACITY, torch.device("cuda"))


def launched(gemm: SkinnyGemm, rows: int, matrix: Matrix, x: Tensor, *, is_gated: bool) -> RecordedKernel:
    gemm.launch(rows, x, matrix, torch.zeros(1), is_gated=is_gated, is_split=True)
    kernels = [kernel for kernel in gemm._kernels.values() if isinstance(kernel, RecordedKernel)]
    assert all(kernel.is_architecture_specific for kernel in kernels)
    (kernel,) = [kernel for kernel in kernels if kernel.arguments]
    return kernel


def test_the_kernel_gets_what_it_declares(gemm: SkinnyGemm) -> None:
    weight = torch.randn(640, 256, dtype=torch.bfloat16)
    matrix, x = quantize(weight, "fp8"), torch.zeros(CAPACITY, 256, dtype=torch.float16)
    kernel = launched(gemm, 2, matrix, x, is_gated=False)
    plan = gemm.plan(matrix, is_split=True)
    assert (kernel.blocks, kernel.threads) == (plan.tiles * plan.splits, 128 * plan.groups + 64)
    constants = kernel.constants
    assert (constants["ROWS"], constants["WEIGHT_FP8"], constants["GATED"]) == (8, 1, 0)
    assert (constants["GROUPS"], constants["CAPACITY"]) == (plan.groups, CAPACITY)
    numbers = [kernel.arguments[name] for name in ("outputs", "columns", "splits")]
    assert numbers == [640, 256, plan.splits]
    scale = kernel.arguments["scale"]
    assert isinstance(scale, Tensor)
    assert matrix.scale is not None
    assert scale.data_ptr() == matrix.scale.data_ptr()
    given, rows = kernel.arguments["weight"], kernel.arguments["x"]
    assert isinstance(given, FakeMap)
    assert isinstance(rows, FakeMap)
    assert given.of == (matrix.weight.data_ptr(), [256, 640], [256], [128, 64 * plan.groups])
    assert rows.of == (x.data_ptr(), [256, CAPACITY], [256], [64, 8])


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
    assert gemm.plan(matrix, is_split=True).splits == 4
    gemm.launch(8, torch.zeros(1), matrix, torch.zeros(1), is_gated=False, is_split=False)
    splits = [
        kernel.arguments["splits"]
        for kernel in gemm._kernels.values()
        if isinstance(kernel, RecordedKernel) and kernel.arguments
    ]
    assert splits == [1]


def test_maps_are_made_once_for_what_they_describe(gemm: SkinnyGemm) -> None:
    first = quantize(torch.randn(128, 128, dtype=torch.bfloat16), "native")
    x = torch.zeros(CAPACITY, 128, dtype=torch.bfloat16)
    one = launched(gemm, 8, first, x, is_gated=False).arguments
    again = launched(gemm, 8, first, x, is_gated=False).arguments
    assert (again["weight"], again["x"]) == (one["weight"], one["x"])
    # The same memory, later used for another weight.
    other = Matrix("native", (64, 256), first.weight.view(64, 256))
    assert gemm._weight_map(other, 1, is_gated=False) is not one["weight"]
    assert gemm._rows_map(x.view(torch.float16), 128, 8) is not one["x"]
