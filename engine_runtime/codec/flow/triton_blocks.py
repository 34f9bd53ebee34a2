"""Triton operations shared by the flow's encoder and estimator: pre-norm attention on a ring of keys and
values, and feed-forward, in five launches.

In: rows [B, n, C] of one or several streams, packed weights of the reference implementations
(flow/encoder.py, flow/estimator.py). Out: the rows, modified in place. Imported only if Triton is available.
Runs in the thread of its caller.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from engine_runtime.codec.flow.packed_weights import Affine, Norm
from engine_runtime.codec.flow.paged_cache import PagedCache
from engine_runtime.codec.flow.ring_cache import RingCache
from engine_runtime.cuda.kernels.flow_estimator import attend_rows, inner_rows, linear_add_rows, project_rows
from engine_runtime.cuda.kernels.pdl import pdl_launch_args


@dataclass(frozen=True, slots=True)
class Launch:
    """Tiling of rows times a matrix: rows and columns of the result per program, warps; `block`: inputs (for
    attention: keys) per tile in two-byte formats, half as many in four-byte ones, with `stages` tiles in
    flight."""

    rows: int
    columns: int
    warps: int = 4
    block: int = 256
    stages: int = 4


LAUNCHES = {
    "project": Launch(16, 32),
    "attend": Launch(16, 64, block=128, stages=2),
    "out": Launch(16, 16),
    "inner": Launch(16, 32),
    "outer": Launch(16, 16),
    "conv": Launch(16, 16),
    "skip": Launch(16, 16),
    "step": Launch(16, 16),
}
"""Small tiles: a packet has 40 rows or slightly more, and the time depends on the number of multiprocessors
in use."""

LAUNCHES_OF_MANY = {
    "project": Launch(32, 64),
    "attend": Launch(32, 64, block=128, stages=2),
    "out": Launch(32, 32),
    "inner": Launch(32, 64),
    "outer": Launch(32, 32, block=128),
    "conv": Launch(32, 32),
    "skip": Launch(32, 32),
    "step": Launch(32, 16),
}
LAUNCHES_OF_MOST = {
    "project": Launch(64, 64, block=128),
    "attend": Launch(64, 64, block=64, stages=2),
    "out": Launch(64, 64, block=64),
    "inner": Launch(64, 64, block=128),
    "outer": Launch(64, 64, block=64),
    "conv": Launch(32, 32),
    "skip": Launch(32, 32),
    "step": Launch(32, 16),
}
"""For the packets of several streams: enough rows to reuse each tile of the weights."""
_MANY_ROWS, _MOST_ROWS = 512, 1600

_MAX_PRELOADED_BYTES = 2048
"""Maximum bytes of a row for which a program loads all of its weights at once, before its input is ready."""


def project(
    x: Tensor, norm: Norm, linear: Affine, entry: Tensor, cache: RingCache | PagedCache, queries: int = 1
) -> Tensor:
    """linear(norm(x)): its queries [queries, B, n, H * d]; its keys and values go to the layer `entry` of
    the cache."""
    batch, count, width = x.shape
    heads, capacity, dim = entry.shape[2:]
    q = x.new_empty((queries, batch, count, heads * dim))
    launch = launch_of("project", batch * count)
    project_rows[grid(launch, batch * count, len(linear.weight))](
        x, norm.weight, norm.bias, linear.weight, x if linear.bias is None else linear.bias, cache.slots,
        q, entry, batch * count, count, capacity, cache.streams, norm.eps, IN=width, HEADS=heads, DIM=dim,
        QUERIES=queries, HAS_BIAS=linear.bias is not None, TILE=tile(width), **cut(launch, x),
    )  # fmt: skip
    return q


def attend(
    q: Tensor, entry: Tensor, cache: RingCache | PagedCache, scale: float, distances: Tensor | None = None
) -> Tensor:
    """Attention of q [B, n, H * d] over the bucket of a layer, of the same shape; `distances` [.., n,
    columns] of each B and H are scores indexed by `cache.distance_of`."""
    batch, count, _ = q.shape
    heads, capacity, dim = entry.shape[2:]
    launch, out = launch_of("attend", batch * count), torch.empty_like(q)
    attend_rows[(batch * heads, triton.cdiv(count, launch.rows))](
        q, entry, cache.mask, q if distances is None else distances, cache.distance_of,
        cache.places if isinstance(cache, PagedCache) else cache.slots, out, batch, count, cache.bucket,
        capacity, 0 if distances is None else distances.shape[-1], cache.streams, scale, HEADS=heads, DIM=dim,
        HAS_DISTANCES=distances is not None, IS_PAGED=isinstance(cache, PagedCache), DIM_TILE=tile(dim),
        ROWS=launch.rows, KEYS=_block(launch, q), num_warps=launch.warps, num_stages=launch.stages,
        **pdl_launch_args(q.device),
    )  # fmt: skip
    return out


def linear_add(kind: str, value: Tensor, linear: Affine, x: Tensor) -> None:
    """x [B, n, C] += linear(value)."""
    (outputs, inputs), num_rows = linear.weight.shape, x.shape[0] * x.shape[1]
    launch, width = launch_of(kind, num_rows), tile(inputs)
    preloads = width * x.element_size() <= _MAX_PRELOADED_BYTES and num_rows < _MANY_ROWS
    linear_add_rows[grid(launch, num_rows, outputs)](
        value, linear.weight, linear.bias, x, x, num_rows, IN=inputs, OUT=outputs,
        BLOCK=width if preloads else min(_block(launch, x), width),
        **cut(launch, x),
    )  # fmt: skip


def feed_forward(x: Tensor, norm: Norm, inner: Affine, outer: Affine, *, is_gelu: bool) -> None:
    """x [B, n, C] += outer(activation(inner(norm(x)))), activation GELU or SiLU."""
    batch, count, width = x.shape
    launch, wide = launch_of("inner", batch * count), x.new_empty((batch, count, len(inner.weight)))
    inner_rows[grid(launch, batch * count, wide.shape[2])](
        x, norm.weight, norm.bias, inner.weight, inner.bias, wide, batch * count, norm.eps, IN=width,
        OUT=wide.shape[2], IS_GELU=is_gelu, TILE=tile(width), **cut(launch, x),
    )  # fmt: skip
    linear_add("outer", wide, outer, x)


def launch_of(kind: str, num_rows: int) -> Launch:
    """The tiling of a kind of product."""
    if num_rows < _MANY_ROWS:
        return LAUNCHES[kind]
    return (LAUNCHES_OF_MANY if num_rows < _MOST_ROWS else LAUNCHES_OF_MOST)[kind]


def cut(launch: Launch, like: Tensor) -> dict[str, object]:
    """The arguments common to all products."""
    return pdl_launch_args(like.device) | {
        "ROWS": launch.rows,
        "COLUMNS": launch.columns,
        "num_warps": launch.warps,
        "num_stages": launch.stages,
    }


def grid(launch: Launch, num_rows: int, outputs: int) -> tuple[int, int]:
    """Grid for a result of this many rows and columns."""
    return triton.cdiv(num_rows, launch.rows), triton.cdiv(outputs, launch.columns)


def tile(width: int) -> int:
    """Columns of a tile that holds a full row; a product needs at least 16."""
    return max(16, int(triton.next_power_of_2(width)))


def _block(launch: Launch, like: Tensor) -> int:
    return launch.block * 2 // like.element_size()
