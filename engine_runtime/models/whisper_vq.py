"""Causal Whisper-VQ speech encoder: log-mel -> one code per 80 ms.

In: Whisper log-mel [B, n_mels, T] of one segment (codec/speech_tokenizer/features.py). Out: codes [B, T /
frames_per_code]. Any thread, no state of its own; `EncoderState` holds the caches of a segment that is
encoded incrementally (codec/speech_tokenizer/speech_tokenizer.py).

Two causal convolutions (the second halves the frame rate) with GELU, learned positions, pre-LN transformer
layers with causal attention, an average pool, and the nearest entry of one codebook. No final layer norm: the
pooled hidden state is quantized directly. State-dict names are those of the released encoder
(`encoder.conv1.weight`, ...); its EMA buffers and second position table are only used in training and are
ignored. There is no look-ahead, so right padding changes no earlier code and needs no mask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_runtime.errors import BundleError
from engine_runtime.models.limits import SPEECH_ENCODER_CONFIG, check_config

CONV_KERNEL = 3
CONV2_STRIDE = 2
FEW_POSITIONS = 16
"""Maximum number of positions for which all scores are stored: those of a complete segment take 180 MB."""


@dataclass(frozen=True)
class WhisperVQConfig:
    """Dimensions of the encoder. `layers` counts only the layers before the quantizer."""

    num_mel_bins: int
    d_model: int
    heads: int
    ffn: int
    layers: int
    max_positions: int
    """Positions of one segment, after the second convolution (1500 for 30 s)."""
    codebook_size: int
    pool: int = 4

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise BundleError(
                    "speech encoder: {field} must be at least 1.", "Correct the bundle.", field=field.name
                )
        if self.d_model % 2 or self.d_model % self.heads:
            raise BundleError(
                "speech encoder: d_model {width} is not even or not a multiple of heads {heads}.",
                "Correct the bundle.",
                width=self.d_model,
                heads=self.heads,
            )
        if self.max_positions % self.pool:
            raise BundleError(
                "speech encoder: max_positions {max_positions} is not a multiple of pool {pool}.",
                "Correct the bundle.",
                max_positions=self.max_positions,
                pool=self.pool,
            )

    @property
    def frames_per_code(self) -> int:
        """Mel frames per code."""
        return CONV2_STRIDE * self.pool

    @property
    def segment_frames(self) -> int:
        """Mel frames of a complete segment."""
        return CONV2_STRIDE * self.max_positions

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> WhisperVQConfig:
        """Read the bundle's `[speech_encoder.config]`; BundleError names the unknown or missing keys."""
        known = {field.name for field in fields(cls)}
        required = known - {"pool"}
        unknown, missing = sorted(set(values) - known), sorted(required - set(values))
        if unknown or missing:
            raise BundleError(
                "speech encoder config: unknown keys {unknown}, missing keys {missing}.",
                "Correct the bundle.",
                unknown=unknown,
                missing=missing,
            )
        check_config(values, SPEECH_ENCODER_CONFIG, "speech_encoder.config")
        return cls(**values)

    @classmethod
    def from_released(cls, values: Mapping[str, Any]) -> WhisperVQConfig:
        """Read the released `config.json`; BundleError if it describes a different network."""
        names = {
            "num_mel_bins": "num_mel_bins",
            "d_model": "d_model",
            "heads": "encoder_attention_heads",
            "ffn": "encoder_ffn_dim",
            "layers": "quantize_position",
            "max_positions": "max_source_positions",
            "codebook_size": "quantize_vocab_size",
            "pool": "pooling_kernel_size",
        }
        expected = {
            "encoder_causal_attention": True,
            "encoder_causal_convolution": True,
            "pooling_type": "avg",
            "pooling_position": values.get("quantize_position"),
            "activation_function": "gelu",
            "scale_embedding": False,
        }
        missing = sorted((set(names.values()) | set(expected)) - set(values))
        if missing:
            raise BundleError(
                "speech encoder config.json: missing keys {missing}.",
                "Fetch the file again.",
                missing=missing,
            )
        for key, value in expected.items():
            if values[key] != value:
                raise BundleError(
                    "speech encoder config.json: {key} is {values!r}, only {value!r} is supported.",
                    key=key,
                    values=values[key],
                    value=value,
                )
        return cls(**{name: values[key] for name, key in names.items()})


@dataclass(frozen=True)
class EncoderState:
    """Caches of one segment after `length` positions.

    Each step returns a new state that shares the key/value buffers. A step writes only positions >= `length`,
    so the state before a step can be continued from instead; the state after it is then invalid.
    """

    conv1: Tensor  # [B, n_mels, kernel - 1] last mel frames
    conv2: Tensor  # [B, d, kernel - 1] last outputs of the first convolution
    keys: Tensor  # [layers, B, heads, max_positions, head_dim]
    values: Tensor  # same shape
    length: int
    slot: int = -1
    """Index of its buffers in those of a pool; -1 for buffers of its own."""


class CausalConv1d(nn.Conv1d):
    """Causal convolution: `kernel - 1` frames on the left, zeros before the segment."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__(in_channels, out_channels, CONV_KERNEL, stride=stride)

    def forward(self, x: Tensor, past: Tensor | None = None) -> Tensor:
        """[B, in, T] -> [B, out, T / stride]; `past` [B, in, kernel - 1] are the frames before x."""
        if past is None:
            return super().forward(F.pad(x, (CONV_KERNEL - 1, 0)))
        if torch.compiler.is_exporting():  # other runtimes lack strided views
            return super().forward(torch.cat((past, x), dim=2))
        # A few frames: one matrix product costs a quarter of a convolution call on the CPU.
        windows = torch.cat((past, x), dim=2).unfold(2, CONV_KERNEL, self.stride[0])  # [B, in, T / stride, k]
        return F.linear(windows.transpose(1, 2).flatten(2), self.weight.flatten(1), self.bias).transpose(1, 2)


class CausalSelfAttention(nn.Module):
    """Multi-head causal attention; keys have no bias (Whisper)."""

    def __init__(self, config: WhisperVQConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.q_proj = nn.Linear(config.d_model, config.d_model)
        self.k_proj = nn.Linear(config.d_model, config.d_model, bias=False)
        self.v_proj = nn.Linear(config.d_model, config.d_model)
        self.out_proj = nn.Linear(config.d_model, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """[B, n, d] -> [B, n, d], each position attends to itself and to earlier ones."""
        query, key, value = self.project(x)
        return self.merge(F.scaled_dot_product_attention(query, key, value, is_causal=True))

    def step(self, x: Tensor, keys: Tensor, values: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Same for some positions [n] only; writes their keys and values into the buffers. mask [n, seen] is
        0 for those of the first positions that each of them sees, else -inf."""
        seen = mask.shape[1]
        query, key, value = self.project(x)
        keys.index_copy_(2, positions, key)
        values.index_copy_(2, positions, value)
        keys, values = keys[:, :, :seen], values[:, :, :seen]
        if len(positions) > FEW_POSITIONS:
            return self.merge(F.scaled_dot_product_attention(query, keys, values, attn_mask=mask))
        # For the four positions of a code the library's attention takes 64 us on an H200, these products 27.
        flat = query.flatten(0, 1)
        scores = torch.baddbmm(mask, flat, keys.flatten(0, 1).transpose(1, 2), alpha=flat.shape[-1] ** -0.5)
        return self.merge((scores.softmax(dim=-1) @ values.flatten(0, 1)).view(query.shape))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, n, d] -> query, key and value [B, heads, n, head_dim]."""
        shape = (x.shape[0], x.shape[1], self.heads, -1)
        query, key, value = (
            p(x).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        return query, key, value

    def merge(self, attended: Tensor) -> Tensor:
        """[B, heads, n, head_dim] -> [B, n, d]."""
        merged: Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return merged


class EncoderLayer(nn.Module):
    """Pre-LN transformer layer."""

    def __init__(self, config: WhisperVQConfig) -> None:
        super().__init__()
        self.self_attn = CausalSelfAttention(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.fc1 = nn.Linear(config.d_model, config.ffn)
        self.fc2 = nn.Linear(config.ffn, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """[B, n, d] -> [B, n, d]."""
        x = x + self.self_attn(self.self_attn_layer_norm(x))
        return self.feed_forward(x)

    def step(self, x: Tensor, keys: Tensor, values: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Same, continuing a segment (see `CausalSelfAttention.step`)."""
        x = x + self.self_attn.step(self.self_attn_layer_norm(x), keys, values, positions, mask)
        return self.feed_forward(x)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The second half of the layer: [B, n, d] -> [B, n, d]."""
        hidden: Tensor = self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))
        return x + hidden


def sinusoids(positions: int, width: int) -> Tensor:
    """Whisper's initial position table [n, d]: sines, then cosines of log-spaced rates."""
    rates = torch.exp(-math.log(10000.0) / max(width // 2 - 1, 1) * torch.arange(width // 2))
    angles = torch.arange(positions)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), dim=1)


class Encoder(nn.Module):
    """Everything under the released prefix `encoder.`, the codebook included."""

    def __init__(self, config: WhisperVQConfig) -> None:
        super().__init__()
        self.conv1 = CausalConv1d(config.num_mel_bins, config.d_model)
        self.conv2 = CausalConv1d(config.d_model, config.d_model, stride=CONV2_STRIDE)
        self.embed_positions = nn.Embedding(
            config.max_positions, config.d_model, _weight=sinusoids(config.max_positions, config.d_model)
        )
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.codebook = nn.Embedding(config.codebook_size, config.d_model)


class WhisperVQ(nn.Module):
    """The encoder with its quantizer."""

    def __init__(self, config: WhisperVQConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)

    def forward(self, mel: Tensor) -> Tensor:
        """Encode one segment: mel [B, n_mels, T] -> codes [B, T / frames_per_code]."""
        return self.quantize(self.encode_hidden(mel))

    def encode_hidden(self, mel: Tensor) -> Tensor:
        """Hidden states before the quantizer, for training: [B, n_mels, T] -> [B, T / frames_per_code, d]."""
        self._check(mel, positions_before=0)
        return self.pool(self.encode_frames(mel))

    def encode_frames(self, mel: Tensor) -> Tensor:
        """Output of the last layer before the pool: [B, n_mels, T] -> [B, T / 2, d]."""
        x = F.gelu(self.encoder.conv1(mel))
        x = F.gelu(self.encoder.conv2(x)).transpose(1, 2)  # [B, T / 2, d]
        x = x + self.encoder.embed_positions.weight[: x.shape[1]]
        for layer in self.encoder.layers:
            x = layer(x)
        return x

    def quantize(self, hidden: Tensor) -> Tensor:
        """Nearest codebook entry in Euclidean distance, in fp32: [..., d] -> [...].

        -1 where that distance is not finite: a hidden state, or an entry, holds NaN or infinity.
        """
        with torch.autocast(hidden.device.type, enabled=False):
            entries = self.encoder.codebook.weight.float()
            # |h - c|^2 without |h|^2, which is the same for every entry.
            norms = torch.linalg.vector_norm(entries, dim=1)
            nearest = (norms.square() - 2.0 * (hidden.float() @ entries.T)).min(dim=-1)
            # min propagates NaN, so NaN in the codebook is detected as well.
            return torch.where(nearest.values.isfinite(), nearest.indices, -1)

    def initial_state(self, batch: int = 1) -> EncoderState:
        """Empty caches for a new segment, on the device and in the dtype of the weights."""
        config, like = self.config, self.encoder.conv1.weight
        shape = (config.layers, batch, config.heads, config.max_positions, config.d_model // config.heads)
        return EncoderState(
            conv1=like.new_zeros(batch, config.num_mel_bins, CONV_KERNEL - 1),
            conv2=like.new_zeros(batch, config.d_model, CONV_KERNEL - 1),
            # not torch.empty: masked values are still read and must be finite
            keys=like.new_zeros(shape),
            values=like.new_zeros(shape),
            length=0,
        )

    @staticmethod
    def initial_state_of(states: EncoderState, slot: int) -> EncoderState:
        """The empty caches of one segment among several, in their buffers."""
        one = slice(slot, slot + 1)
        keys, values = states.keys[:, one], states.values[:, one]
        return EncoderState(states.conv1[one], states.conv2[one], keys, values, 0, slot)

    def step_hidden(self, mel: Tensor, state: EncoderState) -> tuple[Tensor, EncoderState]:
        """`encode_hidden` continued: hidden states of the next frames of a segment, and its new caches."""
        self._check(mel, positions_before=state.length)
        end = state.length + mel.shape[2] // CONV2_STRIDE
        positions = torch.arange(state.length, end, device=mel.device)
        hidden, conv1, conv2 = self.step_at(
            mel, state.conv1, state.conv2, positions, state.keys, state.values, seen=end
        )
        return hidden, replace(state, conv1=conv1, conv2=conv2, length=end)

    def step_at(
        self,
        mel: Tensor,
        conv1: Tensor,
        conv2: Tensor,
        positions: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        seen: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states of the frames of `positions` [n] int64, among the first `seen` ones, and the caches
        of both convolutions. Shapes depend on mel and `seen` only, so that this can be captured."""
        first = F.gelu(self.encoder.conv1(mel, conv1))
        x = F.gelu(self.encoder.conv2(first, conv2)).transpose(1, 2)
        x = x + self.encoder.embed_positions(positions)
        is_seen = torch.arange(seen, device=x.device) <= positions[:, None]
        mask = torch.zeros_like(is_seen, dtype=x.dtype).masked_fill_(~is_seen, -math.inf)
        for index, layer in enumerate(self.encoder.layers):
            assert isinstance(layer, EncoderLayer)
            x = layer.step(x, keys[index], values[index], positions, mask)
        keep = CONV_KERNEL - 1
        return self.pool(x), mel[:, :, -keep:], first[:, :, -keep:]

    def pool(self, x: Tensor) -> Tensor:
        """The mean over the positions of each code: [B, positions, d] -> [B, codes, d]."""
        batch, positions, width = x.shape
        return x.reshape(batch, positions // self.config.pool, self.config.pool, width).mean(dim=2)

    def _check(self, mel: Tensor, positions_before: int) -> None:
        bands, frames = mel.shape[-2:]
        room = self.config.segment_frames - CONV2_STRIDE * positions_before
        if mel.ndim != 3 or bands != self.config.num_mel_bins:
            raise ValueError(f"mel must be [B, {self.config.num_mel_bins}, T], got {tuple(mel.shape)}")
        if frames == 0 or frames % self.config.frames_per_code or frames > room:
            raise ValueError(
                f"mel has {frames} frames; a positive multiple of {self.config.frames_per_code}"
                f" up to {room} is needed"
            )
