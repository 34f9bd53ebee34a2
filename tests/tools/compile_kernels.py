"""Compiles every kernel for real GPUs at the released model's sizes; no GPU is needed for that.

Run by a test in a process of its own (`python -m tests.tools.compile_kernels 89 90`), since the interpreter,
under which the other tests run the kernels, does not know what a GPU lacks. Prints what a program of each
kernel takes, and ends with an error if one does not compile or cannot run.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, get_args

import torch

try:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
except ModuleNotFoundError:
    sys.exit("Triton is not installed. Install it with pip install triton (Linux).")

from engine_runtime.cuda.driver import LARGE_SHARED_MEMORY
from engine_runtime.cuda.kernels.attention import attend_row, attend_small_batch, join_small_batch
from engine_runtime.cuda.kernels.batched_attention import attend_groups, rope_and_write_rows
from engine_runtime.cuda.kernels.batched_linear import add_and_norm, batch_linear
from engine_runtime.cuda.kernels.flow_estimator import (
    attend_rows,
    conv_rows,
    inner_rows,
    linear_add_rows,
    project_rows,
    skip_rows,
    step_rows,
)
from engine_runtime.cuda.kernels.linear import row_linear, row_linear_int4, row_linear_int8
from engine_runtime.cuda.kernels.prefill_elementwise import (
    apply_rope_and_write_kv,
    dense_rows,
    dense_rows_int4,
    fp8_rows,
    gate_rows,
    norm_rows,
    take_slots,
)
from engine_runtime.cuda.kernels.sampling import best_of_tile, sample_one, take_fields
from engine_runtime.cuda.kernels.small_batch_linear import small_batch_linear, small_batch_linear_int4
from engine_runtime.cuda.kernels.snake import snake_values
from engine_runtime.cuda.kernels.speech_encoder import add_norm_split, attend_slots, gelu_split
from engine_runtime.executors.cuda.batch_sampler import TAKEN
from engine_runtime.executors.cuda.batched_linear import tiling_of
from engine_runtime.executors.cuda.triton_linear import ConfigKey, default_config
from engine_runtime.options import WeightFormat
from engine_runtime.quantization import Matrix
from tests.tools.kernel_resources import GPUS, Resources, resources_of

BF16, FP32, FP8 = "*bf16", "*fp32", "*fp8e4nv"
HIDDEN, INNER, HEADS, KV_HEADS, DIM, TOKENS = 4096, 12288, 32, 8, 128, 16
ROW = {"x": BF16, "norm": BF16, "residual": BF16, "out": BF16, "num_rows": "i32", "eps": "fp32"}
FLAGS = {
    "COLUMNS": HIDDEN,
    "WIDTH": HIDDEN,
    "STAGES": 3,
    "HAS_NORM": True,
    "IS_GATED": False,
    "HAS_RESIDUAL": False,
}
HEAD_SIZES = {"HEADS": HEADS, "KV_HEADS": KV_HEADS, "DIM": DIM, "TOKENS": TOKENS}
TABLES = {"q_norm": BF16, "k_norm": BF16, "cos": BF16, "sin": BF16, "table": "*i32"}
NO_QK_NORM: dict[str, object] = {"q_norm": None, "k_norm": None}
"""Of a network whose queries and keys are not normalized."""
OFFSETS = {"layer_offset": "i32", "eps": "fp32"}

INTEGERS = ("num_rows", "count", "capacity", "bucket", "batches", "num_distances", "streams")
WEIGHTS = ("norm", "norm_bias", "weight", "bias", "q", "q_out", "cache", "seen", "distances")
STAGES = {
    "linear_add_rows": 4,
    "attend_rows": 2,
    "small_batch_linear": 4,
    "small_batch_linear_int4": 4,
    "attend_small_batch": 1,
}
"""Of those kernels that are not run with the usual number."""
_FIRST_FP8 = 89
"""Before this, Triton has no e4m3: kernels get the bits of weights, and there is no pool in fp8."""
FORMATS = get_args(WeightFormat)
BATCHED_FORMATS: dict[str, tuple[torch.dtype, WeightFormat, str]] = {
    BF16: (torch.bfloat16, "native", BF16),
    FP8: (torch.float8_e4m3fn, "fp8", "*fp16"),
    "*i8": (torch.int8, "int8", BF16),
    "*u8": (torch.uint8, "int8", "*fp16"),
}
"""Types of the weights of batch_linear (bytes: fp8 on GPUs without that type): how they are stored, their
format, the type of the rows."""

WIDE_LOADS = r"ld\.global[^\n]*\.v4\.b32|cp\.async\.[^\n]*, 0x10|cp\.async\.bulk\.tensor"
"""To registers, and to shared memory: by a thread, or by TMA."""

Case = tuple[Any, Mapping[str, str], Mapping[str, object], int]


def cases(capability: int) -> Iterator[Case]:
    """Kernel, types of its arguments, constants, warps."""
    down = {"COLUMNS": INNER, "WIDTH": 16384, "HAS_NORM": False, "HAS_RESIDUAL": True}
    for use in (FLAGS, FLAGS | {"IS_GATED": True}, FLAGS | down):
        columns, is_gated = int(use["COLUMNS"]), bool(use["IS_GATED"])
        tilings = {form: default_config(ConfigKey(form, (HIDDEN, columns), is_gated)) for form in FORMATS}
        for form, weight in (("native", BF16), ("fp8", FP8), ("fp8", "*u8")):
            flags = use | {"HAS_SCALE": form != "native", "FP8_BITS": weight == "*u8"}
            types, tiling = ROW | {"weight": weight, "scale": FP32}, tilings[form]
            yield row_linear, types, flags | {"ROWS": tiling.rows, "STAGES": tiling.stages}, tiling.warps
        for form, kernel, scale in (("int8", row_linear_int8, FP32), ("int4", row_linear_int4, "*fp16")):
            types, tiling = ROW | {"weight": "*i32", "scale": scale}, tilings[form]
            flags = use | {"HAS_ASM": True, "ROWS": tiling.rows, "STAGES": tiling.stages}
            groups = {"NUM_GROUPS": columns // 128} if form == "int4" else {}
            yield kernel, types, flags | groups, tiling.warps
    between = {"best": FP32, "best_ids": "*i32", "tops": FP32, "top_ids": "*i32", "sums": FP32}
    integer, real = "*i64", "*fp64"
    types = {"logits": FP32, "seen": "*u8", "penalty": real}
    types |= dict.fromkeys(("seen_set", "seen_id", "banned_from", "eosp", "bans_eosp"), integer)
    sampled = {"top_k": integer, "last": FP32, "last_ids": "*i32", "result_row": integer}
    sampled |= dict.fromkeys(("top_p", "temperature", "draw", "result"), real)
    places = {"ID": 0, "TOP": 2, "MAGNITUDE": 3, "NUM_TILES": 75, "TILES_BLOCK": 128}
    for do_sample in (False, True):
        flags = {"VOCAB": 16512, "VOCAB_TILE": 2048, "IS_AUDIO": True, "DO_SAMPLE": do_sample}
        yield best_of_tile, types | between, flags, 8
        yield sample_one, between | sampled, places | {"DO_SAMPLE": do_sample}, 8
    types = {"host": integer, "device": integer, "result": real, "text_vocab": "i32"}
    yield take_fields, types, {"ROWS": 64} | TAKEN, 2
    for pool in (BF16, FP8):
        splits = {"GROUP": 4, "GROUP_TILE": 16, "TILE": 64, "NUM_SPLITS": 64}
        buffers = {"partial": FP32, "tops": FP32, "totals": FP32, "arrived": "*i32", "softmax_scale": "fp32"}
        types = TABLES | OFFSETS | buffers | {"qkv": BF16, "pool": pool, "position": "*i64", "out": BF16}
        for has_more, norms in ((False, {}), (True, {}), (True, NO_QK_NORM)):
            yield attend_row, types, HEAD_SIZES | splits | {"HAS_MORE": has_more} | norms, 4
        types |= {"q": BF16, "positions": "*i64", "num_rows": "i32"}
        for rows, count in ((4, 16), (16, 8), (16, 1)):
            flags = HEAD_SIZES | splits | {"GROUP_TILE": 4, "NUM_SPLITS": count, "ROWS": rows}
            yield attend_small_batch, types, flags, 4
        types = TABLES | OFFSETS | {"qkv": BF16, "pool": pool, "q_out": BF16, "positions": "*i64"}
        for norms in ({}, NO_QK_NORM):
            yield apply_rope_and_write_kv, types, HEAD_SIZES | norms | {"HEAD_TILE": 64}, 8
    types = {"partial": FP32, "tops": FP32, "totals": FP32, "out": BF16, "num_outputs": "i32"}
    yield join_small_batch, types, {"DIM": DIM, "NUM_SPLITS": 16}, 2
    yield take_slots, dict.fromkeys(("host", "device"), integer), {"SLOTS": 16}, 1
    yield gate_rows, {"gate_up": BF16, "out": BF16}, {"WIDTH": INNER, "BLOCK": 1024}, 4
    norm = {"x": BF16, "norm": BF16, "out": BF16, "eps": "fp32"}
    yield norm_rows, norm, {"WIDTH": HIDDEN, "BLOCK": HIDDEN}, 8
    yield fp8_rows, {"x": BF16, "out": FP8, "scale": FP32}, {"WIDTH": INNER, "BLOCK": 16384}, 8
    dense = {"WIDTH": HIDDEN, "FP8_BITS": False, "BLOCK": 4096}
    for weight in (FP8, "*i8"):
        yield dense_rows, {"weight": weight, "scale": FP32, "out": BF16}, dense, 4
    small_batch = {"x": BF16, "residual": BF16, "out": BF16, "num_rows": "i32"}
    for rows, outputs, block in ((16, 32, 256), (16, 64, 128), (64, 32, 128), (64, 64, 128), (64, 64, 64)):
        sizes = {"OUT": HIDDEN, "COLUMNS": INNER, "HAS_RESIDUAL": True, "ROWS": rows, "OUTPUTS": outputs}
        for weight in (FP8, "*i8", "*u8"):
            flags = sizes | {"FP8_BITS": weight == "*u8", "BLOCK": block}
            yield small_batch_linear, small_batch | {"weight": weight, "scale": FP32}, flags, 4
        yield (
            small_batch_linear_int4,
            small_batch | {"weight": "*u8", "scale": "*fp16"},
            sizes | {"NUM_GROUPS": INNER // 128},
            4,
        )
    groups = {"WIDTH": HIDDEN, "NUM_GROUPS": HIDDEN // 128, "GROUPS": 32}
    yield dense_rows_int4, {"weight": "*u8", "scale": "*fp16", "out": BF16}, groups, 4
    yield from batched_cases(capability)
    yield from speech_encoder_cases()
    yield from codec_cases("*fp16")


def batched_cases(capability: int) -> Iterator[Case]:
    """The kernels of a decode step of several sequences, as the executor tiles them for this GPU."""
    is_large = GPUS[capability].shared_of_program >= LARGE_SHARED_MEMORY
    for weight, (stored, form, x) in BATCHED_FORMATS.items():
        matrix = Matrix(form, (HIDDEN, INNER), torch.empty(0, dtype=stored))
        for rows, is_gated in product((2, 16, 32, 64), (False, True)):
            tiling = tiling_of(rows, matrix, is_gated=is_gated, is_large=is_large)
            rows = max(tiling.smallest_rows, rows)
            types = {"x": x, "weight": weight, "scale": FP32, "out": x if is_gated else FP32}
            tiles = {"x_tiles": (x, rows), "weight_tiles": (weight, tiling.outputs)}
            for name, (kind, count) in tiles.items():
                is_descriptor = tiling.uses_tma
                types[name] = f"tensordesc<{kind[1:]}[{count}, {tiling.block}]>" if is_descriptor else kind
            flags: dict[str, object] = {
                "CAPACITY": 64,
                "OUT": INNER if is_gated else HIDDEN,
                "COLUMNS": HIDDEN if is_gated else INNER,
                "SPLITS": 1 if is_gated else 4,
                "IS_GATED": is_gated,
                "HAS_SCALE": weight != BF16,
                "FP8_BITS": weight == "*u8",
                "USES_TMA": tiling.uses_tma,
                "ROWS": rows,
                "OUTPUTS": tiling.outputs,
                "BLOCK": tiling.block,
                "PREFETCH": tiling.prefetch_bytes // stored.itemsize,
                "STARTS_NEXT_LATE": tiling.starts_next_late,
                "num_stages": tiling.stages,
            }
            yield batch_linear, types, flags, tiling.warps
    types = {"source": BF16, "index": "*i64", "partial": FP32, "target": BF16, "kept": BF16}
    types |= {"kept_row": "*i64", "norm": BF16, "out": BF16, "eps": "fp32"}
    flags = {"CAPACITY": 64, "WIDTH": HIDDEN, "BLOCK": HIDDEN, "SPLITS": 4, "IS_INDEXED": False}
    flags |= dict.fromkeys(("HAS_TARGET", "HAS_KEPT", "HAS_NORM"), True)
    yield add_and_norm, types, flags, 16
    yield add_and_norm, types, flags | {"IS_INDEXED": True, "SPLITS": 0}, 8
    for pool in (BF16, FP8):
        sizes = HEAD_SIZES | {"CAPACITY": 64, "MAX_BLOCKS": 512, "GROUP": 4, "GROUP_TILE": 4}
        types = TABLES | OFFSETS | {"qkv": FP32, "pool": pool, "q_out": BF16}
        types |= dict.fromkeys(("positions", "sequences", "group_rows", "group_counts"), "*i64")
        for norms in ({}, NO_QK_NORM):
            yield rope_and_write_rows, types, sizes | norms | {"SPLITS": 2}, 4
        types |= {"q": BF16, "partial": FP32, "tops": FP32, "totals": FP32, "arrived": "*i32", "out": BF16}
        types |= {"softmax_scale": "fp32"}
        for split_rows in (256, 512):
            splits = {"GROUP_ROWS": 4, "TILE": 64, "SPLIT_ROWS": split_rows, "MAX_SPLITS": 32, "STAGES": 2}
            yield attend_groups, types, sizes | splits, 4


def speech_encoder_cases() -> Iterator[Case]:
    """The kernels of the speech encoder, at its released sizes."""
    width, inner, heads, dim = 1280, 5120, 20, 64
    rows = {
        "x": FP32,
        "sums": FP32,
        "bias": FP32,
        "norm": FP32,
        "norm_bias": FP32,
        "out": BF16,
        "eps": "fp32",
    }
    for has_sums in (False, True):
        yield add_norm_split, rows, {"WIDTH": width, "TILE": 2048, "HAS_SUMS": has_sums}, 4
    yield gelu_split, rows, {"WIDTH": inner, "TILE": 1024}, 4
    caches = {"keys": FP32, "values": FP32, "numbers": "*i64", "softmax_scale": "fp32"}
    sizes = {"POSITIONS": 1500, "HEADS": heads, "DIM": dim, "DIM_TILE": dim, "KEYS": 64}
    for new, tile in ((4, 16), (32, 16), (512, 32)):
        yield attend_slots, rows | caches, sizes | {"NEW": new, "ROWS": tile}, 4


def codec_cases(dtype: str) -> Iterator[Case]:
    """The kernels of the codec, at its released sizes."""
    width, heads, dim, bands = 256, 8, 64, 80
    counts = dict.fromkeys(INTEGERS, "i32")
    rows = dict.fromkeys(("x", "other", "past", "new_past", "time", "add", "out", "h", "residual"), dtype)
    weights = dict.fromkeys(WEIGHTS, dtype)
    scalars = dict.fromkeys(("eps", "softmax_scale", "guidance", "dt"), "fp32")
    types = counts | rows | weights | scalars | dict.fromkeys(("slots", "distance_of", "places"), "*i64")
    sizes: dict[str, object] = {"ROWS": 16, "COLUMNS": 16}
    plain: dict[str, object] = sizes | {"IN": width, "OUT": width, "TILE": width}
    heads_of = {"HEADS": heads, "DIM": dim, "COLUMNS": 32}
    yield project_rows, types, plain | heads_of | {"QUERIES": 1, "HAS_BIAS": False}, 4
    encoder = {"IN": 2 * width, "TILE": 2 * width, "QUERIES": 2, "HAS_BIAS": True}
    yield project_rows, types, plain | heads_of | encoder, 4
    half = 2 if dtype == FP32 else 1
    attention = {"HEADS": heads, "DIM": dim, "DIM_TILE": dim, "KEYS": 128 // half}
    for has, is_paged in product((False, True), repeat=2):
        switched = {"HAS_DISTANCES": has, "IS_PAGED": is_paged}
        yield attend_rows, types, attention | switched | {"ROWS": 16}, 4
    yield linear_add_rows, types, plain | {"IN": 4 * width, "BLOCK": 256 // half}, 4
    yield linear_add_rows, types, plain | {"IN": 4 * width // half, "BLOCK": 1024 // half}, 4
    yield inner_rows, types, plain | {"OUT": 4 * width, "IS_GELU": True, "COLUMNS": 32}, 4
    flags = {"IS_SHARED": False, "HAS_NORM": False, "HAS_BIAS": True, "HAS_ADD": False, "PARTS": 1}
    first = {"IS_SHARED": True, "HAS_BIAS": False, "HAS_ADD": True, "IN": bands, "TILE": 128}
    for more in (flags, flags | {"HAS_NORM": True}, flags | {"PARTS": 2}, flags | first):
        noisy = {"x": FP32, "other": FP32} if more["IS_SHARED"] else {}
        yield conv_rows, types | noisy, plain | {"TAPS": 3} | more, 4
        if not more["HAS_NORM"]:
            yield skip_rows, types | noisy, plain | {"OUT_TILE": width} | more, 4
    yield step_rows, types | {"x": FP32, "out": FP32}, plain | {"OUT": bands, "BATCH": 2}, 4
    values = dict.fromkeys(("x", "residual", "bias", "alpha", "total_out", "out"), dtype)
    switches = dict.fromkeys(("HAS_BIAS", "HAS_RESIDUAL", "HAS_TOTAL", "HAS_SNAKE"), True)
    lengths = dict.fromkeys(("size", "length"), "i32")
    yield snake_values, values | lengths, {"CHANNELS": 256, "BLOCK": 1024, **switches}, 4


def compile_for(capability: int, case: Case) -> Any:
    """One case, compiled."""
    kernel, types, constants, warps = case
    names = kernel.arg_names
    options: dict[str, object] = {"num_warps": warps}
    if "USES_PDL" in names:
        constants = {**constants, "USES_PDL": capability >= 90}
        options["launch_pdl"] = capability >= 90
    if "PREFETCH" in names and capability < 90:
        constants = {**constants, "PREFETCH": 0}
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if signature[name].startswith("*") or name == "size"
    }
    values = {(index,): constants[name] for index, name in enumerate(names) if name in constants}
    source = ASTSource(kernel, signature, values, aligned)
    stages = constants.get("num_stages", STAGES.get(kernel.__name__))
    if stages is not None:
        options["num_stages"] = stages
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert compiled.asm["cubin"], kernel.__name__
    if constants.get("USES_PDL"):
        before = str(compiled.asm["ptx"]).split("griddepcontrol.wait")[0]
        assert "st.global" not in before, kernel.__name__
    return compiled


def main(capabilities: list[int]) -> None:
    """Compile all; one line a case: GPU, kernel, whether it has loads of 16 bytes, warps, registers, bytes of
    local and of shared memory, programs that a multiprocessor runs at a time, programs in all."""
    for capability in capabilities:
        for case in cases(capability):
            if capability < _FIRST_FP8 and any("fp8" in kind for kind in case[1].values()):
                continue
            compiled, used, resident = checked(capability, case)
            loads = "v4.b32" if re.search(WIDE_LOADS, str(compiled.asm["ptx"])) else "narrow"
            numbers = f"{used.warps} {used.registers} {used.local} {used.shared} {resident} {programs(case)}"
            sys.stdout.write(f"sm_{capability} {case[0].__name__} {loads} {numbers}\n")
            sys.stdout.flush()
        # Engines run the kernels of the flow in float16. Tests run them in float32, too, where several tiles
        # of a pipeline must fit.
        for case in codec_cases(FP32):
            if case[0].__name__ in STAGES:
                checked(capability, case)


def checked(capability: int, case: Case) -> tuple[Any, Resources, int]:
    """One case, what it takes and the programs of a multiprocessor, of which there must be one."""
    compiled = compile_for(capability, case)
    used = resources_of(compiled)
    resident = used.resident(GPUS[capability])
    assert resident, f"sm_{capability} {case[0].__name__}: {used}"
    return compiled, used, resident


def programs(case: Case) -> int | str:
    """Programs of a product of several rows; other kernels start as many as their caller has work."""
    _, _, constants, _ = case
    if "OUTPUTS" not in constants:
        return "-"
    sizes = {name: int(str(constants.get(name, 1))) for name in ("OUT", "OUTPUTS", "SPLITS")}
    return -(-sizes["OUT"] // sizes["OUTPUTS"]) * sizes["SPLITS"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.tools.compile_kernels", description=__doc__)
    parser.add_argument(
        "capabilities", type=int, nargs="+", choices=sorted(GPUS), help="compute capabilities (89)"
    )
    main(parser.parse_args().capabilities)
