"""The dual-head language model: Qwen3 or Llama blocks as a shared trunk, then a text tail and an audio tail.

In: rows [B, L, 2] of (text id, audio id). Out: logits over the text vocabulary and over the speech codes.
This is the plain, batch-first network without a cache, used for training and as the reference implementation
of the paged executor. State-dict names are those of the released checkpoint
(`model.shared_block.layers.0.self_attn.q_proj.weight` ...). Any thread; no state apart from weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_runtime.errors import BundleError
from engine_runtime.models.limits import LM_CONFIG, check_config


@dataclass(frozen=True)
class MossLMConfig:
    """Sizes of the network. `modality_pad` is the text id that means "read the audio channel of this row".

    `qk_norm`: queries and keys are normalized per head before RoPE, as in Qwen3; without it a layer is
    Llama's.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    shared_layers: int
    text_layers: int
    audio_layers: int
    text_vocab: int
    audio_vocab: int
    modality_pad: int
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-6
    qk_norm: bool = True

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise BundleError(
                "[lm.config] has {num_attention_heads} num_attention_heads, which is not a multiple of "
                "{num_key_value_heads} num_key_value_heads.",
                "Correct the bundle's manifest.",
                num_attention_heads=self.num_attention_heads,
                num_key_value_heads=self.num_key_value_heads,
            )
        if self.head_dim % 2:
            raise BundleError(
                "[lm.config] has head_dim {head_dim}, which is not even.",
                "Correct the bundle's manifest.",
                head_dim=self.head_dim,
            )
        if not 0 <= self.modality_pad < self.text_vocab:
            raise BundleError(
                "[lm.config] has modality_pad {modality_pad} outside the text vocabulary of {text_vocab}.",
                "Correct the bundle's manifest.",
                modality_pad=self.modality_pad,
                text_vocab=self.text_vocab,
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MossLMConfig:
        """Config from a manifest table; a missing or unknown key is a BundleError that names it."""
        known = {field.name for field in fields(cls)}
        optional = {"rope_theta", "rms_norm_eps", "qk_norm"}
        unknown = sorted(set(values) - known)
        missing = sorted(known - optional - set(values))
        if unknown or missing:
            raise BundleError(
                "[lm.config] has unknown keys {unknown} and lacks the keys {missing}.",
                "Correct the bundle's manifest.",
                unknown=unknown,
                missing=missing,
            )
        check_config(values, LM_CONFIG, "lm.config")
        return cls(**dict(values))

    @property
    def num_layers(self) -> int:
        """Layer instances that own a KV cache: trunk, text tail, audio tail, in this order."""
        return self.shared_layers + self.text_layers + self.audio_layers


class RMSNorm(nn.Module):
    """x / rms(x) * weight; statistics in float32, the quotient rounded to the input's dtype first."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis."""
        if x.dtype in (torch.float32, torch.float64):
            return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


@lru_cache(maxsize=16)
def inverse_frequencies(head_dim: int, theta: float, device: torch.device) -> Tensor:
    """RoPE frequencies [head_dim / 2], computed in float32 on the CPU (pow on GPUs differs in the last
    bit)."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64, device="cpu").float() / head_dim
    return (1.0 / theta**exponents).to(device)


def rotary_tables(config: MossLMConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [n, head_dim] (float32) of positions [n], the two halves repeated (NEOX layout)."""
    inverse = inverse_frequencies(config.head_dim, config.rope_theta, positions.device)
    angles = positions.float()[:, None] * inverse[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE to x [..., n, head_dim] by half rotation."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos.to(x.dtype) + turned * sin.to(x.dtype)


class Attention(nn.Module):
    """Grouped-query self-attention without biases; with `qk_norm` RMS norms per query and key head before
    RoPE."""

    def __init__(self, config: MossLMConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)
        self.q_norm, self.k_norm = (
            RMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity() for _ in range(2)
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """x [B, L, H]; `mask` [B, 1, L, L] (True = may attend) or None for plain causal attention."""
        batch, length, _ = x.shape
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q = self.q_norm(self.q_proj(x).view(batch, length, self.heads, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim)).transpose(1, 2)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        heads = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        out: Tensor = self.o_proj(heads.transpose(1, 2).reshape(batch, length, -1))
        return out


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: MossLMConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One Qwen3 or Llama decoder layer (pre-norm, residual stream)."""

    def __init__(self, config: MossLMConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """[B, L, H] -> [B, L, H]."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Block(nn.Module):
    """A stack of layers: the trunk or one of the tails."""

    def __init__(self, config: MossLMConfig, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(num_layers))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """[B, L, H] -> [B, L, H]."""
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return x


class MossSpeechModel(nn.Module):
    """Everything below the heads; exists for the `model.` prefix of the released names."""

    def __init__(self, config: MossLMConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.text_vocab, config.hidden_size)
        self.audio_embed = nn.Embedding(config.audio_vocab, config.hidden_size)
        self.shared_block = Block(config, config.shared_layers)
        self.text_block = Block(config, config.text_layers)
        self.audio_block = Block(config, config.audio_layers)
        self.text_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.audio_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class MossLM(nn.Module):
    """The complete network. A row with text id `modality_pad` uses the audio embedding, others the text
    embedding."""

    def __init__(self, config: MossLMConfig) -> None:
        super().__init__()
        self.config = config
        self.model = MossSpeechModel(config)
        self.text_lm_head = nn.Linear(config.hidden_size, config.text_vocab, bias=False)
        self.audio_lm_head = nn.Linear(config.hidden_size, config.audio_vocab, bias=False)

    def reset_parameters(self, std: float = 0.02) -> None:
        """Initial weights for training: normal(std), projections into the residual stream scaled by depth."""
        depth = self.config.shared_layers + max(self.config.text_layers, self.config.audio_layers)
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                nn.init.ones_(parameter)
            else:
                into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=std / (2 * depth) ** 0.5 if into_residual else std)

    def embed(self, rows: Tensor) -> Tensor:
        """Rows [B, L, 2] -> [B, L, H]; exactly one table is read per row, the other channel is ignored."""
        text, audio = rows[..., 0], rows[..., 1]
        is_audio = text == self.config.modality_pad
        spoken = self.model.audio_embed(audio.masked_fill(~is_audio, 0))
        return torch.where(is_audio[..., None], spoken, self.model.embed_tokens(text))

    def trunk(self, rows: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Rows [B, L, 2] -> residual stream [B, L, H] after the shared layers, before any norm."""
        x = self.embed(rows)
        return self._run(self.model.shared_block, x, key_padding_mask)

    def text_tail(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Trunk output [B, L, H] -> hidden [B, L, H] after the text norm (input of `text_lm_head`)."""
        out: Tensor = self.model.text_norm(self._run(self.model.text_block, x, key_padding_mask))
        return out

    def audio_tail(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Trunk output [B, L, H] -> hidden [B, L, H] after the audio norm (input of `audio_lm_head`)."""
        out: Tensor = self.model.audio_norm(self._run(self.model.audio_block, x, key_padding_mask))
        return out

    def forward(self, rows: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Rows [B, L, 2] int64 -> text logits [B, L, text_vocab], audio logits [B, L, audio_vocab].

        `key_padding_mask` [B, L] is True at padding. Padding on the right needs no mask: attention is causal.
        """
        x = self.trunk(rows, key_padding_mask)
        text: Tensor = self.text_lm_head(self.text_tail(x, key_padding_mask))
        audio: Tensor = self.audio_lm_head(self.audio_tail(x, key_padding_mask))
        return text, audio

    def _run(self, block: Block, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        cos, sin = rotary_tables(self.config, torch.arange(x.shape[1], device=x.device))
        mask = None if key_padding_mask is None else _causal_mask(key_padding_mask)
        out: Tensor = block(x, cos, sin, mask)
        return out


def _causal_mask(key_padding_mask: Tensor) -> Tensor:
    """[B, L] (True = padding) -> [B, 1, L, L] (True = may attend); every row attends at least to itself."""
    length = key_padding_mask.shape[1]
    square = torch.ones(length, length, dtype=torch.bool, device=key_padding_mask.device)
    seen = square.tril() & ~key_padding_mask[:, None, :]
    return (seen | torch.eye(length, dtype=torch.bool, device=square.device))[:, None]
