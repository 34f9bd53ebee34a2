"""The layout shared with the persistent decode kernel: no value is declared twice, differences are errors."""

from __future__ import annotations

import ctypes
import re

import pytest
import torch

from engine_runtime.cuda.nvrtc import compile_program
from engine_runtime.executors.cuda.persistent_backend import kernel_source
from engine_runtime.executors.cuda.persistent_layout import (
    COMPUTE_WARPS,
    MAX_STAGES,
    MIN_STAGES,
    KernelLayout,
    Op,
    OpKind,
    max_stages,
)
from engine_runtime.options import WeightFormat
from tests.factories.tiny_lm import RELEASED

H200_SHARED_BYTES = 227 << 10


def layout_of(weight_format: WeightFormat = "fp8") -> KernelLayout:
    num_stages = max_stages(RELEASED, H200_SHARED_BYTES)
    return KernelLayout(RELEASED, weight_format, 32, torch.bfloat16, kv_splits=16, num_stages=num_stages)


def defined(text: str) -> list[str]:
    return re.findall(r"^#define (\w+)", text, re.MULTILINE)


def without_comments(text: str) -> str:
    return re.sub(r'//.*|"(?:\\.|[^"\\\n])*"', "", text)


def test_no_value_is_written_twice() -> None:
    step, headers = kernel_source(layout_of())
    by_file = {name: defined(text) for name, text in {"step.cu": step, **headers}.items()}
    names = [name for found in by_file.values() for name in found]
    assert sorted(names) == sorted(set(names))
    assert "TILE_ROWS" in by_file["layout.cuh"]


def test_code_and_layout_know_the_same_names() -> None:
    step, headers = kernel_source(layout_of())
    layout = headers.pop("layout.cuh")
    code = without_comments("\n".join([step, *headers.values()]))
    used = set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*\b", code))
    used -= {"F", "FULL", "T", "MMA"}  # template arguments, and the macro that has some
    assert used <= {*defined(code), *defined(layout)}
    assert {*defined(layout)} <= used


def test_ops_are_packed_alike_on_both_sides() -> None:
    """Without padding, fields in one order lie at the same offsets in C++, if the sizes are equal."""
    sizes = [ctypes.sizeof(c_type) for _, c_type in Op._fields_]
    assert sum(sizes) == ctypes.sizeof(Op)
    assert ctypes.sizeof(Op) % 16 == 0  # the kernel copies words of 16 bytes
    header = layout_of().header()
    fields = header[header.index("struct Op {") : header.index("};")]
    assert re.findall(r"(\w+);", fields) == [name for name, _ in Op._fields_]
    assert f"sizeof(Op) == {ctypes.sizeof(Op)}" in header


def test_kinds_are_bits_of_the_field() -> None:
    assert sorted(OpKind) == [1 << bit for bit in range(len(OpKind))]
    assert int(~OpKind(0)) < 1 << 8 * Op.kind.size


@pytest.mark.parametrize(("weight_format", "threads"), [("native", 416), ("fp8", 416), ("int4", 352)])
def test_sizes_of_a_block(weight_format: WeightFormat, threads: int) -> None:
    layout = layout_of(weight_format)
    assert layout.num_threads == threads
    assert layout.num_threads % 32 == 0
    assert layout.num_threads > 32 * COMPUTE_WARPS
    assert layout.num_stages == 10
    assert layout.shared_bytes == 220_416
    values = dict(re.findall(r"^#define (\w+) (\d+)$", layout.header(), re.MULTILINE))
    assert int(values["AT_RING"]) + 10 * int(values["STAGE_BYTES"]) == layout.shared_bytes
    regions = [int(value) for name, value in values.items() if name.startswith("AT_")]
    assert regions == sorted(set(regions))
    assert all(region % 128 == 0 for region in regions)


def test_the_ring_is_as_long_as_shared_memory_allows() -> None:
    assert max_stages(RELEASED, 1 << 20) == MAX_STAGES
    assert max_stages(RELEASED, 99 << 10) < MIN_STAGES
    least = next(size for size in range(0, 1 << 18, 128) if max_stages(RELEASED, size) == MIN_STAGES)
    assert KernelLayout(RELEASED, "fp8", 32, torch.bfloat16, 16, MIN_STAGES).shared_bytes == least


@pytest.mark.parametrize(
    ("declared", "changed", "complaint"),
    [
        ("unsigned short kind;", "unsigned long long kind;", "Op"),
        ("#define Q_STRIDE 320", "#define Q_STRIDE 336", "AttentionShared"),
        ("#define COMPUTE_WARPS 8", "#define COMPUTE_WARPS 4", "AttentionShared"),
        ("#define AT_OPS 28160", "#define AT_OPS 26496", "region of x"),
        ("#define STAGE_BYTES 17920", "#define STAGE_BYTES 16256", "K and V in a pipeline stage"),
        ("#define DIM 128", "#define DIM 64", "sizes that the code is written for"),
        ("#define STAGES 10", "#define STAGES 13", "barriers of the ring"),
    ],
)
def test_a_difference_between_the_sides_does_not_compile(declared: str, changed: str, complaint: str) -> None:
    step, headers = kernel_source(layout_of())
    assert declared in headers["layout.cuh"]
    headers["layout.cuh"] = headers["layout.cuh"].replace(declared, changed)
    try:
        with pytest.raises(RuntimeError, match=complaint):
            compile_program(step, "sm_90", headers=headers)
    except OSError as error:
        pytest.skip(str(error))
