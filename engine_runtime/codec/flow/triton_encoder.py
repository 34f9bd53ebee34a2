"""The conformer blocks of the flow's encoder on static buffers with Triton kernels: five launches and a
matrix product per block.

In and out: as `run_blocks` of flow/encoder.py, the reference implementation, on a `RingCache`. Imported only
if Triton is available. Runs in the thread of its caller.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine_runtime.codec.flow.chunk_cache import ChunkCache
from engine_runtime.codec.flow.encoder import _Block
from engine_runtime.codec.flow.paged_cache import PagedCache
from engine_runtime.codec.flow.ring_cache import RingCache
from engine_runtime.codec.flow.triton_blocks import attend, feed_forward, linear_add, project


def run_blocks(blocks: Sequence[_Block], x: Tensor, cache: ChunkCache | RingCache) -> Tensor:
    """Changes x in place."""
    assert isinstance(cache, RingCache | PagedCache)
    for layer, block in enumerate(blocks):
        entry = cache.entry(layer)
        content, distance = project(x, block.norm_mha, block.project, entry, cache, queries=2)
        by_head = distance.view(*x.shape[:2], block.heads, block.head_dim).transpose(1, 2)
        scores = by_head @ block.over_distances(cache.bucket)
        linear_add("out", attend(content, entry, cache, 1.0, scores), block.out, x)
        feed_forward(x, block.norm_ff, block.inner, block.outer, is_gelu=False)
    return x
