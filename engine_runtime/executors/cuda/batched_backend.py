"""A decode step of several sequences as kernels: seven launches per layer with the attention in CUDA C++ (and
one that plans it), eight with that in Triton, captured as a CUDA graph. Products and norms run in CUDA C++,
too, where they can.

In: the values in BatchInputs. Out: logits in `text_logits` and `audio_logits`, one row for each sequence; K
and V in the pool. The reference implementation is a single step of each sequence (layerwise_backend.py). Rows
of a short prefill may run beside decode rows. A tail runs if a sequence needs it, and is skipped for the rows
of the others. Sizes depend on `BatchShape` alone. Imported only if Triton is available. Engine thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, zip_longest
from typing import TypeVar

import torch
import triton
from torch import Tensor

from engine_runtime.cuda.availability import first_line
from engine_runtime.cuda.gpu_memory import BATCH_SPLIT_ROWS
from engine_runtime.cuda.kernels.batched_attention import attend_groups, rope_and_write_rows
from engine_runtime.cuda.kernels.batched_linear import add_and_norm
from engine_runtime.cuda.kernels.pdl import pdl_launch_args
from engine_runtime.executors.cuda import paged_attention, residual_norm, skinny_gemm
from engine_runtime.executors.cuda.batch_inputs import GROUP_ROWS, BatchInputs
from engine_runtime.executors.cuda.batched_linear import BatchedLinear
from engine_runtime.executors.cuda.paged_attention import PagedAttention, PartitionBuffers
from engine_runtime.executors.cuda.residual_norm import ResidualNorm
from engine_runtime.executors.cuda.skinny_gemm import RowFormat, RowNorms, SkinnyGemm
from engine_runtime.executors.cuda.weights import LayerWeights, Network, Tail
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.quantization import Matrix

_log = logging.getLogger(__name__)
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What fixes the sizes of a step: rows (padded), KV bucket of the longest sequence, tails, and whether it
    samples."""

    rows: int
    bucket: int
    text: bool
    audio: bool
    samples: bool


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    """Cached rows per tile and per partition, pipeline stages and warps of an attention program."""

    split_rows: int
    tile: int = 64
    stages: int = 2
    warps: int = 4


def attention_tiling_of(rows: int) -> AttentionTiling:
    """The tiling of a step of `rows` rows: the fastest ones measured on an H200. Many rows are enough
    programs without small partitions."""
    if rows <= 16:
        return AttentionTiling(split_rows=BATCH_SPLIT_ROWS)
    return AttentionTiling(split_rows=(2 if rows <= 32 else 4) * BATCH_SPLIT_ROWS)


class BatchedBackend:
    """`longest` is the number of rows of the longest sequence."""

    def __init__(self, network: Network, cache: KVCache, inputs: BatchInputs, longest: int) -> None:
        config, device, dtype = network.config, cache.pool.device, cache.trunk.dtype
        self._network, self._cache, self._inputs = network, cache, inputs
        self._capacity = capacity = inputs.capacity
        self.attention_tiling = attention_tiling_of
        """Replaced to measure other tilings."""
        self._pdl = pdl_launch_args(device)
        heads, dim = config.num_attention_heads, config.head_dim
        self._partitions = PartitionBuffers.of(config, capacity, longest, device)
        self._in_triton: dict[str, str] = {}
        """Parts of a step that run in Triton rather than in CUDA C++, each with the reason."""
        self.paged_attention = self._paged_attention()
        """The kernel in CUDA C++; None where attention runs in Triton."""
        self.residual_norm = self._residual_norm(dtype)
        self.linear = BatchedLinear(capacity, device, self._skinny_gemm(dtype))

        def rows(width: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(capacity, width, dtype=kind, device=device)

        def sums(matrices: list[Matrix]) -> Tensor:
            wide = max(self.linear.num_splits(matrix) * matrix.shape[0] for matrix in matrices)
            return torch.zeros(capacity * wide, device=device)

        layers = network.layers
        self._x, self._y = rows(config.hidden_size), rows(config.hidden_size)
        # The input of a product has the dtype that its weight is multiplied in.
        kinds = {self.linear.input_dtype(matrix, dtype) for matrix in network.matrices}
        self._normed = {kind: rows(config.hidden_size, kind) for kind in kinds}
        self._attended = {kind: rows(heads * dim, kind) for kind in kinds}
        self._gated = {kind: rows(config.intermediate_size, kind) for kind in kinds}
        self._qkv = sums([layer.qkv for layer in layers])
        self._sums = sums([matrix for layer in layers for matrix in (layer.o, layer.down)])
        self._norms = self._row_norms()
        self._q = rows(heads * dim)
        self._kept = cache.trunk.view(-1, config.hidden_size)
        self.text_logits = torch.zeros(capacity, config.text_vocab, device=device)
        self.audio_logits = torch.zeros(capacity, config.audio_vocab, device=device)

    def _paged_attention(self) -> PagedAttention | None:
        """The kernel in CUDA C++; None, with the reason in the log, if it cannot run."""
        config, cache = self._network.config, self._cache
        return self._compiled(
            "attention",
            paged_attention.unsupported_reason(config, cache),
            lambda: PagedAttention(self._network, cache, self._inputs, self._partitions),
        )

    def _skinny_gemm(self, dtype: torch.dtype) -> SkinnyGemm | None:
        config, device = self._network.config, self._cache.pool.device
        return self._compiled(
            "products",
            skinny_gemm.unsupported_reason(device, dtype, has_pdl=self._pdl["USES_PDL"])
            or self._mixed_reason(),
            lambda: SkinnyGemm(self._capacity, config.rms_norm_eps, device),
        )

    def _mixed_reason(self) -> str | None:
        """Why kernels in Triton would have to run between products in CUDA C++, whose columns they do not
        interleave."""
        if self.paged_attention is None or self.residual_norm is None:
            return "attention or norms run in Triton"
        if not all(skinny_gemm.can_multiply_layer(layer) for layer in self._network.layers):
            return "it lacks the format or the sizes of a matrix"
        return None

    def _row_norms(self) -> tuple[RowNorms, RowNorms] | None:
        """The missing factors of the norms, two in turn; None if norms are complete. Each norm is multiplied
        by the factor of the one before."""
        if not self.linear.scales_rows or self.residual_norm is None or not self.residual_norm.num_parts:
            return None
        device = self._cache.pool.device
        squares = torch.zeros(self._capacity, self.residual_norm.num_parts, device=device)
        factors = torch.ones(2, self._capacity, device=device)
        return RowNorms(squares, factors[0], factors[1]), RowNorms(squares, factors[1], factors[0])

    def _residual_norm(self, dtype: torch.dtype) -> ResidualNorm | None:
        config, device = self._network.config, self._cache.pool.device
        return self._compiled(
            "residuals and norms",
            residual_norm.unsupported_reason(device, config, dtype),
            lambda: ResidualNorm(config, self._capacity, device),
        )

    def _compiled(self, part: str, reason: str | None, make: Callable[[], K]) -> K | None:
        """A kernel in CUDA C++ for this part of a step; None, with the reason noted and logged, if it cannot
        run or be compiled."""
        if reason is None:
            try:
                return make()
            except (RuntimeError, ImportError, OSError, AttributeError) as error:
                reason = f"it could not be compiled ({first_line(error)})"
        _log.info("Batched steps run %s in Triton: %s", part, reason)
        self._in_triton[part] = reason
        return None

    @property
    def kernel_path(self) -> str:
        """Whether a batched step runs in CUDA C++ or in Triton, and why."""
        if not self._in_triton:
            return "CUDA C++ kernels"
        parts = "; ".join(f"{part}: {reason}" for part, reason in self._in_triton.items())
        return f"{'Triton' if len(self._in_triton) == 3 else 'CUDA C++ and Triton'} kernels ({parts})"

    def forward(self, shape: BatchShape) -> None:
        """Embedding to logits; writes K/V, and keeps the trunk's output for a skipped tail."""
        inputs, x = self._inputs, self._x
        if self.paged_attention is not None:
            self.paged_attention.plan(shape.rows, shape.bucket, text=shape.text, audio=shape.audio)
        first = self._network.trunk[0]
        self._add(shape, self._network.embedding, None, x, first.input_norm, first.qkv, index=inputs["token"])
        pending = self._layers(shape, self._network.trunk, x, inputs["position"])
        self._add(shape, x, pending, x, keeps=True)
        if shape.text:
            self._tail(shape, self._network.text, inputs["text_position"], self.text_logits)
        if shape.audio:
            self._tail(shape, self._network.audio, inputs["audio_position"], self.audio_logits)

    def _tail(self, shape: BatchShape, tail: Tail, positions: Tensor, logits: Tensor) -> None:
        first, y = tail.layers[0], self._y  # the trunk's output is the input of the other tail, too
        self._add(shape, self._x, None, y, first.input_norm, first.qkv)
        pending = self._layers(shape, tail.layers, y, positions)
        last = self._inputs["last_row"]
        self._add(shape, y, pending, None, tail.norm, tail.head, index=last)
        x = self._input(self._normed, tail.head)
        self.linear.run(shape.rows, x, tail.head, logits, is_split=False)

    def _layers(
        self, shape: BatchShape, layers: Sequence[LayerWeights], x: Tensor, positions: Tensor
    ) -> Matrix:
        """Run layers, the first one with normed rows. Returns the matrix whose sums must still be added to
        x."""
        rows, norms, turns = shape.rows, None, cycle(self._norms or [None])
        for layer, following in zip_longest(layers, layers[1:]):
            self.linear.run(rows, self._input(self._normed, layer.qkv), layer.qkv, self._qkv, norms=norms)
            attended = self._input(self._attended, layer.o)
            self._attend(shape, layer, positions, attended)
            self.linear.run(rows, attended, layer.o, self._sums)
            norms = self._add_within(shape, x, layer.o, layer.post_norm, layer.gate_up, next(turns))
            gated = self._input(self._gated, layer.down)
            normed = self._input(self._normed, layer.gate_up)
            self.linear.run_gated(rows, normed, layer.gate_up, gated, norms=norms)
            self.linear.run(rows, gated, layer.down, self._sums)
            if following is not None:
                norms = self._add_within(
                    shape, x, layer.down, following.input_norm, following.qkv, next(turns)
                )
        return layers[-1].down

    def _add_within(
        self,
        shape: BatchShape,
        x: Tensor,
        pending: Matrix,
        norm: Tensor,
        matrix: Matrix,
        norms: RowNorms | None,
    ) -> RowNorms | None:
        """x += the sums of `pending`; the input of `matrix` = its norm, which lacks the result."""
        if norms is None or self.residual_norm is None:
            self._add(shape, x, pending, x, norm, matrix)
            return None
        self.residual_norm.launch_scaled(
            shape.rows,
            x,
            self._sums,
            self.linear.num_splits(pending),
            norm=norm,
            out=self._input(self._normed, matrix),
            row_format=self.linear.row_format(matrix, x.dtype),
            norms=norms,
        )
        return norms

    def _input(self, buffers: dict[torch.dtype, Tensor], matrix: Matrix) -> Tensor:
        return buffers[self.linear.input_dtype(matrix, self._x.dtype)]

    def _add(
        self,
        shape: BatchShape,
        source: Tensor,
        pending: Matrix | None,
        target: Tensor | None,
        norm: Tensor | None = None,
        matrix: Matrix | None = None,
        *,
        index: Tensor | None = None,
        keeps: bool = False,
    ) -> None:
        """target = source + the sums of `pending`; the input of `matrix` = its norm."""
        splits = 0 if pending is None else self.linear.num_splits(pending)
        if target is source and pending is None:
            target = None  # it is there already
        out = None if matrix is None else self._input(self._normed, matrix)
        row_format = RowFormat.BF16 if matrix is None else self.linear.row_format(matrix, self._x.dtype)
        if self.residual_norm is not None:
            self.residual_norm.launch(
                shape.rows,
                source,
                None if pending is None else self._sums,
                splits,
                index=index,
                target=target,
                kept=self._kept if keeps else None,
                kept_row=self._inputs["kept_row"],
                norm=norm,
                out=out,
                row_format=row_format,
                applied=None if self._norms is None or norm is None else self._norms[0].applied,
            )
            return
        width = self._network.config.hidden_size
        # A pointer disabled by a flag is never read; any tensor serves as a placeholder.
        add_and_norm[(shape.rows,)](
            source,
            self._inputs["token"] if index is None else index,
            self._sums,
            source if target is None else target,
            self._kept,
            self._inputs["kept_row"],
            source if norm is None else norm,
            source if out is None else out,
            self._network.config.rms_norm_eps,
            CAPACITY=self._capacity,
            WIDTH=width,
            BLOCK=triton.next_power_of_2(width),
            SPLITS=splits,
            IS_INDEXED=index is not None,
            HAS_TARGET=target is not None,
            HAS_KEPT=keeps,
            HAS_NORM=norm is not None,
            num_warps=16 if shape.rows <= 32 else 8,
            **self._pdl,
        )

    def _attend(self, shape: BatchShape, layer: LayerWeights, positions: Tensor, out: Tensor) -> None:
        if self.paged_attention is not None:
            splits = self.linear.num_splits(layer.qkv)
            self.paged_attention.launch(
                self._qkv,
                layer,
                positions,
                out,
                self.linear.row_format(layer.o, self._x.dtype),
                rows=shape.rows,
                bucket=shape.bucket,
                splits=splits,
            )
            return
        config, cache, inputs = self._network.config, self._cache, self._inputs
        group = config.num_attention_heads // config.num_key_value_heads
        sizes = {
            "CAPACITY": self._capacity,
            "MAX_BLOCKS": inputs.table.shape[1],
            "HEADS": config.num_attention_heads,
            "KV_HEADS": config.num_key_value_heads,
            "DIM": config.head_dim,
            "GROUP": group,
            "GROUP_TILE": triton.next_power_of_2(group),
            "TOKENS": cache.tokens_per_block,
        }
        rope_and_write_rows[(shape.rows, config.num_key_value_heads)](
            self._qkv,
            layer.q_norm,
            layer.k_norm,
            self._network.cos,
            self._network.sin,
            cache.pool,
            inputs.table,
            self._q,
            positions,
            inputs["sequence"],
            cache.layer_offset(layer.index),
            config.rms_norm_eps,
            SPLITS=self.linear.num_splits(layer.qkv),
            num_warps=4,
            **sizes,
            **self._pdl,
        )
        tiling = self.attention_tiling(shape.rows)
        splits = triton.cdiv(shape.bucket, tiling.split_rows)
        attend_groups[(config.num_key_value_heads, shape.rows, splits)](
            self._q,
            cache.pool,
            inputs.table,
            positions,
            inputs["sequence"],
            inputs["group_row"],
            inputs["group_count"],
            self._partitions.sums,
            self._partitions.tops,
            self._partitions.totals,
            self._partitions.arrived,
            out,
            cache.layer_offset(layer.index),
            config.head_dim**-0.5,
            GROUP_ROWS=max(GROUP_ROWS, 16 // triton.next_power_of_2(group)),
            TILE=tiling.tile,
            SPLIT_ROWS=tiling.split_rows,
            MAX_SPLITS=triton.next_power_of_2(splits),
            STAGES=tiling.stages,
            num_warps=tiling.warps,
            **sizes,
            **self._pdl,
        )
