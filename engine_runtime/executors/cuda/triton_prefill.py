"""The operations between a prefill's matrix products as Triton kernels; for small batches also attention and
products.

In: rows, weights in any format. Out: as in `RowOperations` of executors/cuda/prefill.py, whose plain torch is
the reference implementation. Imported only if Triton is available. Engine thread.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from engine_runtime.cuda.kernels.attention import attend_small_batch, join_small_batch
from engine_runtime.cuda.kernels.prefill_elementwise import (
    apply_rope_and_write_kv,
    dense_rows,
    dense_rows_int4,
    fp8_rows,
    gate_rows,
    norm_rows,
)
from engine_runtime.cuda.kernels.small_batch_linear import small_batch_linear, small_batch_linear_int4
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.triton_backend import SEQUENCE_TILE
from engine_runtime.executors.cuda.triton_linear import lacks_fp8
from engine_runtime.executors.cuda.weights import LayerWeights, Network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.quantization import FP8, GROUP, Matrix

_MAX_SMALL_BATCH = 64
"""Maximum number of rows multiplied with a quantized weight in its stored format; above it a dense copy is
faster."""
_WIDE = 16384
"""Number of outputs from which a matrix has enough programs with larger tiles."""
_ROWS_TILE, _MAX_SMALL_BATCH_SPLITS = 16, 16
"""Small-batch attention: query rows per program, and the split-KV partitions if there is one tile of query
rows."""


class TritonRowOperations:
    """`RowOperations` by Triton kernels."""

    def __init__(self, network: Network, cache: KVCache, inputs: StepInputs) -> None:
        self._network, self._cache, self._inputs = network, cache, inputs
        self._fp8_as_bits = lacks_fp8(cache.pool.device)

    def norm(self, x: Tensor, norm: Tensor) -> Tensor:
        out, width = torch.empty_like(x), x.shape[1]
        eps = self._network.config.rms_norm_eps
        norm_rows[(x.shape[0],)](
            x, norm, out, eps, WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=8
        )
        return out

    def apply_rope_and_write_kv(self, qkv: Tensor, layer: LayerWeights, positions: Tensor) -> Tensor:
        config = self._network.config
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        q = qkv.new_empty(qkv.shape[0], heads, dim)
        apply_rope_and_write_kv[(qkv.shape[0],)](
            qkv,
            layer.q_norm,
            layer.k_norm,
            self._network.cos,
            self._network.sin,
            self._cache.pool,
            self._inputs.table,
            q,
            positions,
            self._cache.layer_offset(layer.index),
            config.rms_norm_eps,
            HEADS=heads,
            KV_HEADS=kv_heads,
            DIM=dim,
            TOKENS=self._cache.tokens_per_block,
            HEAD_TILE=triton.next_power_of_2(heads + 2 * kv_heads),
            num_warps=8,
        )
        return q

    def attend(self, q: Tensor, layer: LayerWeights, positions: Tensor, bucket: int) -> Tensor:
        config, (num_rows, heads, dim) = self._network.config, q.shape
        group_tile = triton.next_power_of_2(heads // config.num_key_value_heads)
        # tensor cores require at least 16 query rows
        rows = max(min(_ROWS_TILE, triton.next_power_of_2(num_rows)), 16 // group_tile)
        tiles = triton.cdiv(num_rows, rows)
        splits = max(
            1, min(_MAX_SMALL_BATCH_SPLITS // tiles, triton.next_power_of_2(bucket) // SEQUENCE_TILE)
        )
        out = torch.empty_like(q)
        partial = q.new_empty(splits * num_rows, heads, dim if splits > 1 else 0, dtype=torch.float32)
        tops, totals = q.new_empty(2, splits * num_rows, heads, dtype=torch.float32)
        attend_small_batch[(config.num_key_value_heads, splits, tiles)](
            q,
            self._cache.pool,
            self._inputs.table,
            positions,
            partial,
            tops,
            totals,
            out,
            num_rows,
            self._cache.layer_offset(layer.index),
            dim**-0.5,
            HEADS=heads,
            KV_HEADS=config.num_key_value_heads,
            DIM=dim,
            GROUP=heads // config.num_key_value_heads,
            GROUP_TILE=group_tile,
            TOKENS=self._cache.tokens_per_block,
            TILE=SEQUENCE_TILE,
            NUM_SPLITS=splits,
            ROWS=rows,
            num_warps=4,
            num_stages=1,
        )
        if splits > 1:
            join_small_batch[(num_rows * heads,)](
                partial, tops, totals, out, num_rows * heads, DIM=dim, NUM_SPLITS=splits, num_warps=2
            )
        return out.view(num_rows, -1)

    def gate(self, gate_up: Tensor) -> Tensor:
        num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(num_rows, width)
        block = min(1024, triton.next_power_of_2(width))
        gate_rows[(num_rows, triton.cdiv(width, block))](gate_up, out, WIDTH=width, BLOCK=block)
        return out

    def to_fp8(self, x: Tensor) -> tuple[Tensor, Tensor]:
        num_rows, width = x.shape
        out = torch.empty(x.shape, dtype=FP8, device=x.device)
        scale = torch.empty(num_rows, 1, device=x.device)
        fp8_rows[(num_rows,)](x, out, scale, WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=8)
        return out, scale

    def small_batch_linear(self, x: Tensor, matrix: Matrix, residual: Tensor | None) -> Tensor | None:
        num_rows, (num_outputs, width) = x.shape[0], matrix.shape
        if matrix.scale is None or num_rows > _MAX_SMALL_BATCH:
            return None
        out = x.new_empty(num_rows, num_outputs)
        rows = max(16, triton.next_power_of_2(num_rows))
        outputs, block, stages = _small_batch_tiling(rows, num_outputs)
        flags: dict[str, Any] = {
            "OUT": num_outputs,
            "COLUMNS": width,
            "HAS_RESIDUAL": residual is not None,
            "ROWS": rows,
            "OUTPUTS": outputs,
            "num_warps": 4,
            "num_stages": stages,
        }
        grid = (triton.cdiv(num_outputs, outputs),)
        # A pointer disabled by a flag is never read; any tensor serves as a placeholder.
        pointers = (matrix.scale, x if residual is None else residual, out, num_rows)
        if matrix.format == "int4":
            small_batch_linear_int4[grid](x, matrix.weight, *pointers, NUM_GROUPS=-(-width // GROUP), **flags)
            return out
        as_bits = self._fp8_as_bits and matrix.weight.dtype == FP8
        weight = matrix.weight.view(torch.uint8) if as_bits else matrix.weight
        small_batch_linear[grid](x, weight, *pointers, FP8_BITS=as_bits, BLOCK=block, **flags)
        return out

    def dense(self, matrix: Matrix, dtype: torch.dtype, scratch: Tensor) -> Tensor:
        if matrix.scale is None:
            return matrix.weight.to(dtype)
        num_rows, width = matrix.shape
        out = scratch[: num_rows * width].view(matrix.shape)
        if matrix.format == "int4":
            groups = -(-width // GROUP)
            dense_rows_int4[(num_rows, triton.cdiv(groups, 32))](
                matrix.weight, matrix.scale, out, WIDTH=width, NUM_GROUPS=groups, GROUPS=32
            )
            return out
        as_bits = self._fp8_as_bits and matrix.weight.dtype == FP8
        weight = matrix.weight.view(torch.uint8) if as_bits else matrix.weight
        block = min(4096, triton.next_power_of_2(width))
        dense_rows[(num_rows, triton.cdiv(width, block))](
            weight, matrix.scale, out, WIDTH=width, FP8_BITS=as_bits, BLOCK=block
        )
        return out


def _small_batch_tiling(rows: int, num_outputs: int) -> tuple[int, int, int]:
    """Outputs per program, columns per tile, and pipeline stages: the fastest configuration measured on an
    H200. Narrow matrices need many programs, and these need wide tiles."""
    if num_outputs >= _WIDE:
        return (64, 128, 4) if rows == 16 else (64, 64, 5)
    if rows == 16:
        return 32, 256, 4
    return (64, 128, 4) if num_outputs > _WIDE // 4 else (32, 128, 4)
