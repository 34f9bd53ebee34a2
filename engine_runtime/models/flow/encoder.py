"""Upsampling conformer encoder of the flow: embedded codes in, one vector per mel frame out.

Stage: first half of token2mel, one-shot and batched (the streaming counterpart is codec/flow/token2mel.py).
Structure and parameter names follow CosyVoice 2: a convolution that looks a few codes ahead, conformer blocks
with relative positions, nearest-neighbour upsampling with a causal convolution, more conformer blocks. Runs
in the thread of its caller.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine_runtime.models.flow.config import FlowConfig


def chunk_mask(length: int, chunk: int, device: torch.device | str) -> Tensor:
    """Chunked attention: bool [length, length], true where the key's chunk is not after the query's."""
    index = torch.arange(length, device=device) // chunk
    return index.unsqueeze(0) <= index.unsqueeze(1)


def relative_positions(first: int, last: int, dim: int, device: torch.device | str) -> Tensor:
    """Sinusoids of the distances `first`, `first - 1`, ... `last` (query minus key): float32 [first - last
    + 1, dim].

    Even columns are sines, odd ones cosines, wavelengths 2 pi ... 20000 pi (Transformer-XL in the ESPnet
    layout).
    """
    distance = torch.arange(first, last - 1, -1.0, device=device)
    rate = torch.exp(torch.arange(0, dim, 2, device=device, dtype=torch.float32) * (-math.log(10000.0) / dim))
    angle = distance.unsqueeze(1) * rate
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


def align_distances(scores: Tensor, keys: int) -> Tensor:
    """Convert scores over distances to scores over keys.

    `scores` [..., n, keys + n - 1] holds for each query the distances from `keys - 1` down to `1 - n`, the
    queries being the last n of the keys. Query i and key j are `keys - n + i - j` apart, which is column `n
    - 1 - i + j`. Returns [..., n, keys].
    """
    lead, n, width = scores.shape[:-2], scores.shape[-2], scores.shape[-1]
    flat = F.pad(scores, (1, 0)).reshape(*lead, n * (width + 1))
    return flat[..., n:].reshape(*lead, n, width)[..., :keys]


class RelativeAttention(nn.Module):
    """Multi-head attention with content and distance terms."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.linear_q = nn.Linear(dim, dim)
        self.linear_k = nn.Linear(dim, dim)
        self.linear_v = nn.Linear(dim, dim)
        self.linear_out = nn.Linear(dim, dim)
        self.linear_pos = nn.Linear(dim, dim, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(heads, self.head_dim))
        self.pos_bias_v = nn.Parameter(torch.empty(heads, self.head_dim))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """x [B, T, D], positions [2T - 1, D], mask bool, broadcastable to [B, 1, T, T] -> [B, T, D].

        The mask is true where a key is attended to.
        """
        batch, length, _ = x.shape
        q, k, v = (
            linear(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
            for linear in (self.linear_q, self.linear_k, self.linear_v)
        )  # [B, H, T, d]
        p = (
            self.linear_pos(positions.to(x.dtype)).view(-1, self.heads, self.head_dim).permute(1, 2, 0)
        )  # [H, d, 2T-1]
        scale = self.head_dim**-0.5
        bias = align_distances((q + self.pos_bias_v.unsqueeze(1).to(q.dtype)) @ p, length) * scale
        if mask is not None:
            bias = bias.masked_fill(~mask, float("-inf"))
        content = q + self.pos_bias_u.unsqueeze(1).to(q.dtype)
        out = F.scaled_dot_product_attention(content, k, v, attn_mask=bias.to(q.dtype), scale=scale)
        return self.linear_out(out.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Two linear layers with SiLU between them."""

    def __init__(self, dim: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.w_1 = nn.Linear(dim, inner)
        self.w_2 = nn.Linear(inner, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return self.w_2(self.dropout(F.silu(self.w_1(x))))  # type: ignore[no-any-return]


class ConformerBlock(nn.Module):
    """Pre-norm attention and feed-forward (no convolution module, no macaron half)."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.self_attn = RelativeAttention(config.encoder_dim, config.encoder_heads)
        self.feed_forward = FeedForward(config.encoder_dim, config.encoder_ffn, config.encoder_dropout)
        self.norm_mha = nn.LayerNorm(config.encoder_dim, eps=1e-12)
        self.norm_ff = nn.LayerNorm(config.encoder_dim, eps=1e-12)
        self.dropout = nn.Dropout(config.encoder_dropout)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x = x + self.dropout(self.self_attn(self.norm_mha(x), positions, mask))
        return x + self.dropout(self.feed_forward(self.norm_ff(x)))  # type: ignore[no-any-return]


class InputLayer(nn.Module):
    """Linear, layer norm, and the factor sqrt(dim) of the position encoding."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim, eps=1e-5), nn.Dropout(dropout))
        self.scale = math.sqrt(dim)

    @property
    def linear(self) -> nn.Linear:
        """The linear layer inside."""
        return cast(nn.Linear, self.out[0])

    @property
    def norm(self) -> nn.LayerNorm:
        """The norm inside."""
        return cast(nn.LayerNorm, self.out[1])

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        return self.out(x) * self.scale  # type: ignore[no-any-return]


class LookAhead(nn.Module):
    """Residual pair of convolutions: the first looks `look_ahead` codes ahead, the second is causal."""

    def __init__(self, dim: int, look_ahead: int) -> None:
        super().__init__()
        self.look_ahead = look_ahead
        self.conv1 = nn.Conv1d(dim, dim, look_ahead + 1)
        self.conv2 = nn.Conv1d(dim, dim, 3)

    def forward(self, x: Tensor, context: Tensor | None) -> Tensor:
        """x [B, T, D], context [B, look_ahead, D] (None: nothing follows) -> [B, T, D]."""
        ahead = F.pad(x, (0, 0, 0, self.look_ahead)) if context is None else torch.cat((x, context), dim=1)
        h = F.leaky_relu(self.conv1(ahead.transpose(1, 2)))
        return x + self.conv2(F.pad(h, (2, 0))).transpose(1, 2)  # type: ignore[no-any-return]


class Upsample(nn.Module):
    """Each vector repeated `stride` times, then a causal convolution of width 2 * stride + 1."""

    def __init__(self, dim: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv1d(dim, dim, 2 * stride + 1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T * stride, D]."""
        repeated = x.transpose(1, 2).repeat_interleave(self.stride, dim=2)
        return self.conv(F.pad(repeated, (2 * self.stride, 0))).transpose(1, 2)  # type: ignore[no-any-return]


class UpsampleConformerEncoder(nn.Module):
    """Codes' embeddings at the code rate -> hidden vectors at the mel frame rate."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        dim = config.encoder_dim
        self.chunk_codes = config.chunk_codes
        self.embed = InputLayer(dim, config.encoder_dropout)
        self.pre_lookahead_layer = LookAhead(dim, config.look_ahead_codes)
        self.encoders = nn.ModuleList(ConformerBlock(config) for _ in range(config.encoder_blocks))
        self.up_layer = Upsample(dim, config.upsample)
        self.up_embed = InputLayer(dim, config.encoder_dropout)
        self.up_encoders = nn.ModuleList(ConformerBlock(config) for _ in range(config.encoder_up_blocks))
        self.after_norm = nn.LayerNorm(dim, eps=1e-5)

    def forward(
        self, x: Tensor, context: Tensor | None = None, lengths: Tensor | None = None, streaming: bool = True
    ) -> Tensor:
        """Encode a batch.

        x [B, N, D]: embedded codes; context [B, look_ahead, D]: embedded codes that follow, None at the end
        of the signal; lengths [B]: codes of each row, None if there is no padding. `streaming` selects
        chunked attention. Returns [B, N * upsample, D].
        """
        x = self.embed(x)
        if lengths is not None:  # zeros after the end of a padded row, as after a row without padding
            x = x * (torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)).unsqueeze(-1).to(
                x.dtype
            )
        x = self.pre_lookahead_layer(x, None if context is None else self.embed(context))
        x = self._blocks(self.encoders, x, self.chunk_codes, lengths, streaming)
        x = self.up_embed(self.up_layer(x))
        stride = self.up_layer.stride
        up_lengths = None if lengths is None else lengths * stride
        x = self._blocks(self.up_encoders, x, self.chunk_codes * stride, up_lengths, streaming)
        return self.after_norm(x)  # type: ignore[no-any-return]

    @staticmethod
    def _blocks(
        blocks: nn.ModuleList, x: Tensor, chunk: int, lengths: Tensor | None, streaming: bool
    ) -> Tensor:
        length = x.shape[1]
        positions = relative_positions(length - 1, 1 - length, x.shape[2], x.device)
        mask = attention_mask(length, chunk if streaming else None, lengths, x.device)
        for block in blocks:
            x = block(x, positions, mask)
        return x


def attention_mask(
    length: int, chunk: int | None, lengths: Tensor | None, device: torch.device | str
) -> Tensor | None:
    """Combined chunk and padding mask: bool, broadcastable to [B, 1, T, T], true where a key is attended to.

    `chunk` None means full attention; `lengths` [B] None means no padding. Returns None if both are None.
    """
    mask = None if chunk is None else chunk_mask(length, chunk, device)
    if lengths is None:
        return mask
    valid = (torch.arange(length, device=device) < lengths.unsqueeze(1))[:, None, None, :]  # [B, 1, 1, T]
    return valid if mask is None else valid & mask
