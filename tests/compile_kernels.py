"""Compiles every kernel for real GPUs at the released model's sizes; no GPU is needed for that.

Run by a test in a process of its own (`python -m tests.compile_kernels 89 90`), since the interpreter, under
which the other tests run the kernels, does not know what a GPU lacks. Ends with an error if one does not
compile.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine_runtime.cuda.kernels.attention import attend_row
from engine_runtime.cuda.kernels.linear import row_linear, row_linear_int4
from engine_runtime.cuda.kernels.rows import (
    dense_rows,
    dense_rows_int4,
    fp8_rows,
    gate_rows,
    norm_rows,
    turn_and_write_rows,
)

BF16, FP32, FP8 = "*bf16", "*fp32", "*fp8e4nv"
HIDDEN, INNER, HEADS, KV_HEADS, DIM, TOKENS = 4096, 12288, 32, 8, 128, 16
ROW = {"x": BF16, "norm": BF16, "residual": BF16, "out": BF16, "num_rows": "i32", "eps": "fp32"}
FLAGS = {"COLUMNS": HIDDEN, "HAS_NORM": True, "IS_GATED": False, "HAS_RESIDUAL": False, "OVERLAPS": False}
HEAD_SIZES = {"HEADS": HEADS, "KV_HEADS": KV_HEADS, "DIM": DIM, "TOKENS": TOKENS}
TABLES = {"q_norm": BF16, "k_norm": BF16, "cos": BF16, "sin": BF16, "table": "*i32"}
OFFSETS = {"layer_offset": "i32", "eps": "fp32"}

Case = tuple[Any, dict[str, str], dict[str, object], int]


def cases(*, overlaps: bool) -> Iterator[Case]:
    """Kernel, types of its arguments, constants, warps."""
    flags = FLAGS | {"OVERLAPS": overlaps}
    for weight in (BF16, FP8, "*i8"):
        plain = {"HAS_SCALE": weight != BF16, "FP8_BITS": False, "ROWS": 2, "BLOCK": 4096}
        types = ROW | {"weight": weight, "scale": FP32}
        yield row_linear, types, flags | plain, 8
        yield row_linear, types, flags | plain | {"IS_GATED": True, "ROWS": 1}, 8
        down = {"COLUMNS": INNER, "HAS_NORM": False, "HAS_RESIDUAL": True}
        yield row_linear, types, flags | plain | down, 8
    types = ROW | {"weight": "*u8", "scale": "*fp16"}
    int4 = {"NUM_GROUPS": HIDDEN // 128, "ROWS": 4, "GROUPS": 32}
    yield row_linear_int4, types, flags | int4, 4
    yield row_linear_int4, types, flags | int4 | {"IS_GATED": True, "ROWS": 2}, 4
    for pool in (BF16, FP8):
        pieces = {"GROUP": 4, "GROUP_TILE": 16, "TILE": 64, "PIECES": 32, "OVERLAPS": overlaps}
        buffers = {"partial": FP32, "tops": FP32, "totals": FP32, "arrived": "*i32", "softmax_scale": "fp32"}
        types = TABLES | OFFSETS | buffers | {"qkv": BF16, "pool": pool, "position": "*i64", "out": BF16}
        yield attend_row, types, HEAD_SIZES | pieces, 4
        types = TABLES | OFFSETS | {"qkv": BF16, "pool": pool, "q_out": BF16, "first": "i32"}
        yield turn_and_write_rows, types, HEAD_SIZES | {"HEAD_TILE": 64}, 8
    yield gate_rows, {"gate_up": BF16, "out": BF16}, {"WIDTH": INNER, "BLOCK": 1024}, 4
    norm = {"x": BF16, "norm": BF16, "out": BF16, "eps": "fp32"}
    yield norm_rows, norm, {"WIDTH": HIDDEN, "BLOCK": HIDDEN}, 8
    yield fp8_rows, {"x": BF16, "out": FP8, "scale": FP32}, {"WIDTH": INNER, "BLOCK": 16384}, 8
    dense = {"WIDTH": HIDDEN, "FP8_BITS": False, "BLOCK": 4096}
    for weight in (FP8, "*i8"):
        yield dense_rows, {"weight": weight, "scale": FP32, "out": BF16}, dense, 4
    groups = {"WIDTH": HIDDEN, "NUM_GROUPS": HIDDEN // 128, "GROUPS": 32}
    yield dense_rows_int4, {"weight": "*u8", "scale": "*fp16", "out": BF16}, groups, 4


def compile_for(capability: int, case: Case, *, overlaps: bool) -> str:
    """PTX of one case."""
    kernel, types, constants, warps = case
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if signature[name].startswith("*")
    }
    source = ASTSource(
        kernel, signature, {(names.index(name),): value for name, value in constants.items()}, aligned
    )
    options: dict[str, object] = {"num_warps": warps}
    if overlaps:
        options["launch_pdl"] = True
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert compiled.asm["cubin"], kernel.__name__
    return str(compiled.asm["ptx"])


def main(capabilities: list[int]) -> None:
    """Compile all; one line a kernel: whether it has loads of 16 bytes."""
    for capability in capabilities:
        for overlaps in (False, True) if capability >= 90 else (False,):
            for case in cases(overlaps=overlaps):
                ptx = compile_for(capability, case, overlaps=overlaps)
                wide = "v4.b32" if re.search(r"ld\.global[^\n]*\.v4\.b32", ptx) else "narrow"
                sys.stdout.write(f"sm_{capability} {case[0].__name__} {wide}\n")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
