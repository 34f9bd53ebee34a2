"""Velocity estimator of the flow: a causal 1-D U-Net with one resolution, chunk-masked attention, time
embedding.

Stage: second half of token2mel, called once per Euler step. In: noisy mel, condition and time. Out:
velocity of the mel. Structure and parameter names follow CosyVoice 2's causal conditional decoder. Runs in
the thread of its caller.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine_runtime.models.flow.config import FlowConfig
from engine_runtime.models.flow.encoder import attention_mask

KERNEL = 3
"""Width of every causal convolution of the estimator: two frames of state each."""


def time_features(t: Tensor, dim: int) -> Tensor:
    """Sines and cosines of 1000 t at dim / 2 rates from 1 down to 1e-4: float32 [B, dim] for t [B]."""
    half = dim // 2
    rate = torch.exp(
        torch.arange(half, device=t.device, dtype=torch.float32) * (-math.log(10000.0) / (half - 1))
    )
    angle = 1000.0 * t.float().unsqueeze(1) * rate
    return torch.cat((angle.sin(), angle.cos()), dim=1)


class CausalConv1d(nn.Conv1d):
    """Causal convolution: an output depends on the current and earlier frames only."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C', T]."""
        return super().forward(F.pad(x, (self.kernel_size[0] - 1, 0)))


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of [B, C, T]."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, T]."""
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class CausalBlock(nn.Module):
    """Causal convolution, layer norm, Mish. The gap in the indices is part of the released names."""

    def __init__(self, dim_in: int, dim_out: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            CausalConv1d(dim_in, dim_out, KERNEL),
            nn.Identity(),
            ChannelNorm(dim_out),
            nn.Identity(),
            nn.Mish(),
        )

    @property
    def conv(self) -> CausalConv1d:
        """The convolution inside."""
        return cast(CausalConv1d, self.block[0])

    @property
    def norm(self) -> ChannelNorm:
        """The norm inside."""
        return cast(ChannelNorm, self.block[2])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x [B, C, T], mask [B, 1, T] -> [B, C', T]."""
        return self.block(x * mask) * mask  # type: ignore[no-any-return]


class ResidualBlock(nn.Module):
    """Two causal blocks with the time embedding added between them."""

    def __init__(self, dim_in: int, dim_out: int, time_dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Mish(), nn.Linear(time_dim, dim_out))
        self.block1 = CausalBlock(dim_in, dim_out)
        self.block2 = CausalBlock(dim_out, dim_out)
        self.res_conv = nn.Conv1d(dim_in, dim_out, 1)

    def forward(self, x: Tensor, mask: Tensor, time: Tensor) -> Tensor:
        """x [B, C, T], mask [B, 1, T], time [B, E] -> [B, C', T]."""
        h = self.block1(x, mask) + self.mlp(time).unsqueeze(-1)
        return self.block2(h, mask) + self.res_conv(x * mask)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Multi-head self-attention without position terms."""

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.to_q = nn.Linear(dim, heads * head_dim, bias=False)
        self.to_k = nn.Linear(dim, heads * head_dim, bias=False)
        self.to_v = nn.Linear(dim, heads * head_dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(heads * head_dim, dim))

    @property
    def out(self) -> nn.Linear:
        """The output projection."""
        return cast(nn.Linear, self.to_out[0])

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x [B, T, C]; mask bool, broadcastable to [B, 1, T, T] -> [B, T, C]."""
        batch, length, _ = x.shape
        q, k, v = (
            linear(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
            for linear in (self.to_q, self.to_k, self.to_v)
        )
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.to_out(out.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


class GeluLinear(nn.Module):
    """Linear layer followed by the exact GELU."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, inner)

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., inner]."""
        return F.gelu(self.proj(x))


class FeedForward(nn.Module):
    """GELU feed-forward of four times the width."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(GeluLinear(dim, 4 * dim), nn.Identity(), nn.Linear(4 * dim, dim))

    @property
    def layers(self) -> tuple[nn.Linear, nn.Linear]:
        """The linear layers before and after the GELU."""
        return cast(GeluLinear, self.net[0]).proj, cast(nn.Linear, self.net[2])

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        return self.net(x)  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    """Pre-norm attention and a GELU feed-forward of four times the width."""

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn1 = Attention(dim, heads, head_dim)
        self.norm3 = nn.LayerNorm(dim)
        self.ff = FeedForward(dim)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x [B, T, C]; mask bool, broadcastable to [B, 1, T, T] -> [B, T, C]."""
        x = x + self.attn1(self.norm1(x), mask)
        return x + self.ff(self.norm3(x))  # type: ignore[no-any-return]


class TimeEmbedding(nn.Module):
    """Time features through two linear layers with SiLU between them."""

    def __init__(self, features: int, dim: int) -> None:
        super().__init__()
        self.features = features
        self.linear_1 = nn.Linear(features, dim)
        self.linear_2 = nn.Linear(dim, dim)

    def forward(self, t: Tensor) -> Tensor:
        """t [B] in [0, 1] -> [B, dim]."""
        features = time_features(t, self.features).to(self.linear_1.weight.dtype)
        return self.linear_2(F.silu(self.linear_1(features)))  # type: ignore[no-any-return]


class Level(nn.ModuleList):
    """A residual block, its transformer blocks and, at both ends of the network, a causal convolution."""

    def __init__(self, config: FlowConfig, dim_in: int, conv: bool) -> None:
        width = config.channels
        transformers = nn.ModuleList(
            TransformerBlock(width, config.heads, config.head_dim) for _ in range(config.n_blocks)
        )
        super().__init__([ResidualBlock(dim_in, width, 4 * width), transformers])
        if conv:
            self.append(CausalConv1d(width, width, KERNEL))

    @property
    def residual(self) -> ResidualBlock:
        """The residual block."""
        return cast(ResidualBlock, self[0])

    @property
    def transformers(self) -> list[TransformerBlock]:
        """The transformer blocks."""
        return [cast(TransformerBlock, block) for block in self[1].children()]

    @property
    def conv(self) -> CausalConv1d:
        """The convolution at the end of the first and the last level."""
        return cast(CausalConv1d, self[2])

    def forward(self, x: Tensor, mask: Tensor, time: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
        """x [B, C, T], mask [B, 1, T], time [B, E], seen (attention mask) -> output and skip [B, C', T]."""
        x = self.residual(x, mask, time).transpose(1, 2)
        for transformer in self.transformers:
            x = transformer(x, seen)
        skip = x.transpose(1, 2)
        return (self.conv(skip * mask) if len(self) > 2 else skip), skip


class CausalEstimator(nn.Module):
    """Velocity of the mel at time t, given the encoder's output, a speaker vector and prompt frames."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        width, self.chunk_frames = config.channels, config.chunk_frames
        self.time_mlp = TimeEmbedding(4 * config.n_mels, 4 * width)

        self.down_blocks = nn.ModuleList([Level(config, 4 * config.n_mels, conv=True)])
        self.mid_blocks = nn.ModuleList(Level(config, width, conv=False) for _ in range(config.mid_blocks))
        self.up_blocks = nn.ModuleList([Level(config, 2 * width, conv=True)])
        self.final_block = CausalBlock(width, width)
        self.final_proj = nn.Conv1d(width, config.n_mels, 1)
        self._initialise()

    @property
    def levels(self) -> list[Level]:
        """All levels in the order of the data."""
        parts = (self.down_blocks, self.mid_blocks, self.up_blocks)
        return [cast(Level, level) for part in parts for level in part]

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, (nn.Conv1d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        mu: Tensor,
        t: Tensor,
        spks: Tensor,
        cond: Tensor,
        streaming: bool = True,
    ) -> Tensor:
        """Velocity [B, n_mels, T].

        x noisy mel, mu encoder output and cond prompt frames, each [B, n_mels, T]; mask [B, 1, T] (1 = a real
        frame); t [B] in [0, 1]; spks [B, n_mels]. `streaming` selects chunked attention.
        """
        length = x.shape[2]
        time = self.time_mlp(t)
        mask = mask.to(x.dtype)
        seen = attention_mask(length, self.chunk_frames if streaming else None, None, x.device)
        valid = mask.bool().unsqueeze(1)  # [B, 1, 1, T]
        seen = valid if seen is None else valid & seen
        x = torch.cat((x, mu, spks.unsqueeze(-1).expand(-1, -1, length), cond), dim=1)

        first, *middle, last = self.levels
        x, skip = first(x, mask, time, seen)
        for level in middle:
            x, _ = level(x, mask, time, seen)
        x, _ = last(torch.cat((x, skip), dim=1), mask, time, seen)
        return self.final_proj(self.final_block(x, mask) * mask) * mask  # type: ignore[no-any-return]
