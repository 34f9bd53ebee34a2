"""Attention of one sequence over a paged cache, as the kernels of the GPT attention plugin compute it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(
    rows: tuple[Tensor, Tensor, Tensor],
    slots: Tensor,
    offsets: Tensor,
    *,
    first: int,
    positions: Tensor,
    total: Tensor | int,
    longest: int,
    window: int,
    reads_cache: bool,
) -> Tensor:
    """Store the keys and values of new rows and attend with their queries; returns [n, heads, dim].

    Args:
        rows: q [n, heads, dim], k and v [n, kv_heads, dim], after RoPE.
        slots: [K or V blocks of a layer each, kv_heads, tokens_per_block, dim].
        offsets: [2 (K, V), blocks] of the sequence; `first` is added for the layer.
        total: rows of the sequence, the new ones among them.
        longest: rows of the cache that the grid covers.
        reads_cache: otherwise only the new rows are seen.
    """
    q, k, v = rows
    size, places = slots.shape[2], positions.long()
    for new, own in zip((k, v), offsets, strict=True):
        slots[own[places // size] + first, :, places % size] = new.to(slots.dtype)
    cached = positions
    if reads_cache:
        cached = torch.arange(longest, device=q.device)
        k, v = (slots[own[cached // size] + first, :, cached % size] for own in offsets)
    seen = (cached <= positions[:, None]) & (cached > positions[:, None] - window) & (cached < total)
    q_heads, k_heads, v_heads = (x.float().transpose(0, 1)[None] for x in (q, k, v))
    out = F.scaled_dot_product_attention(
        q_heads, k_heads, v_heads, attn_mask=seen[None, None], enable_gqa=True
    )
    return out[0].transpose(0, 1).to(q.dtype)
