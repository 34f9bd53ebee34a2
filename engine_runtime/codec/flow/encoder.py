"""The flow's encoder one chunk at a time: the streaming counterpart of `UpsampleConformerEncoder`.

In: codes as they arrive. Out: mu of the frames of one chunk. State per stream: codes that wait for their
look-ahead, two rows of each causal convolution, keys and values of every block. Weights are fused once:
query, key and value in one product, the upsampling convolution as three taps per phase. Runs in the thread of
its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine_runtime.codec.flow.chunk_cache import ChunkCache
from engine_runtime.codec.flow.packed_weights import Affine, WeightPacker, Windowed
from engine_runtime.codec.flow.ring_cache import RingCache
from engine_runtime.models.flow import CausalFlow
from engine_runtime.models.flow.encoder import (
    ConformerBlock,
    InputLayer,
    Upsample,
    align_distances,
    relative_positions,
)

FIRST_CAPACITY = 64
"""Initial capacity of a stream's caches, in codes."""


@dataclass(slots=True)
class FlowEncoderState:
    """State of a stream. Tensors are replaced, not modified, except inside the caches."""

    waiting: Tensor  # [1, codes, D] embedded codes not yet encoded
    ahead: Tensor  # [1, 2, D] last results of the look-ahead convolution
    before_up: Tensor  # [1, 2, D] last inputs of the upsampling
    codes: ChunkCache | RingCache
    frames: ChunkCache | RingCache

    def copy(self) -> FlowEncoderState:
        """An independent copy; dynamic caches only."""
        if isinstance(self.codes, RingCache) or isinstance(self.frames, RingCache):
            raise TypeError("a static state cannot be copied; start another one")
        return replace(self, codes=self.codes.copy(), frames=self.frames.copy())


class _Input:
    """Linear layer and scaled layer norm."""

    def __init__(self, layer: InputLayer, pack: WeightPacker) -> None:
        self.linear, self.norm = pack.affine(layer.linear), pack.norm(layer.norm, layer.scale)

    def __call__(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x))


class _Block:
    """One conformer block on cached keys and values."""

    def __init__(self, block: ConformerBlock, chunk: int, pack: WeightPacker) -> None:
        attention = block.self_attn
        self.heads, self.head_dim, self.chunk = attention.heads, attention.head_dim, chunk
        scale = self.head_dim**-0.5
        query, key, value = attention.linear_q, attention.linear_k, attention.linear_v
        # the two query biases (content, distance) and the scale are folded into the projection
        weights = (query.weight * scale, query.weight * scale, key.weight, value.weight)
        content, distance = (
            query.bias + bias.flatten() for bias in (attention.pos_bias_u, attention.pos_bias_v)
        )
        biases = (content * scale, distance * scale, key.bias, value.bias)
        self.project = Affine(pack.tensor(torch.cat(weights)), pack.tensor(torch.cat(biases)))
        self.out, self.position = pack.affine(attention.linear_out), pack.affine(attention.linear_pos)
        self.norm_mha, self.norm_ff = pack.norm(block.norm_mha), pack.norm(block.norm_ff)
        self.inner, self.outer = (
            pack.affine(block.feed_forward.w_1),
            pack.affine(block.feed_forward.w_2),
        )
        self.farthest = -1
        self.distances = self.out.weight.new_empty(0)  # [H, d, count], from `farthest` down to 1 - chunk

    def __call__(self, x: Tensor, layer: int, cache: ChunkCache | RingCache) -> Tensor:
        """x [1, n, D] -> [1, n, D]."""
        count = x.shape[1]
        parts = (
            self.project(self.norm_mha(x)).view(count, 4, 1, self.heads, self.head_dim).permute(1, 2, 3, 0, 4)
        )
        keys, values = cache.put(layer, parts[2:])
        if isinstance(cache, RingCache):
            scores = cache.over_keys(parts[1] @ self.over_distances(cache.bucket)) + cache.mask
        else:
            total = cache.length + count
            self.reach(total)
            start = self.farthest - (total - 1)
            scores = align_distances(
                parts[1] @ self.distances[:, :, start : start + total + count - 1], total
            )
        out = F.scaled_dot_product_attention(parts[0], keys, values, attn_mask=scores, scale=1.0)
        x = x + self.out(out.transpose(1, 2).reshape(1, count, -1))
        return x + self.outer(F.silu(self.inner(self.norm_ff(x))))

    def over_distances(self, total: int) -> Tensor:
        """Projected position embeddings of the distances total - 1 ... 1 - chunk: [H, d, distances]."""
        self.reach(total)
        return self.distances[:, :, self.farthest - total + 1 :]

    def reach(self, total: int) -> None:
        """Project the distances from total - 1 down to 1 - chunk, unless already done. A captured graph
        refers to this tensor: call with the largest total before the first capture."""
        if total - 1 > self.farthest:
            self.farthest = max(2 * total, 4 * FIRST_CAPACITY)
            dim = self.heads * self.head_dim
            table = relative_positions(self.farthest, 1 - self.chunk, dim, self.position.weight.device)
            projected = self.position(table.to(self.position.weight.dtype))
            self.distances = projected.view(-1, self.heads, self.head_dim).permute(1, 2, 0).contiguous()


RunBlocks = Callable[[Sequence[_Block], Tensor, "ChunkCache | RingCache"], Tensor]


class EncoderSteps:
    """The encoder's packed weights, for chunks of a few codes; shared by all streams."""

    def __init__(self, flow: CausalFlow, limit_codes: int | None, pack: WeightPacker) -> None:
        encoder, config = flow.encoder, flow.config
        self.config, self.limit_codes, self.pack = config, limit_codes, pack
        self.embedding = pack.tensor(flow.input_embedding.weight)
        self.embed, self.up_embed = _Input(encoder.embed, pack), _Input(encoder.up_embed, pack)
        self.ahead = pack.windowed(encoder.pre_lookahead_layer.conv1)
        self.behind = pack.windowed(encoder.pre_lookahead_layer.conv2)
        self.up = _upsampling(encoder.up_layer, pack)
        self.blocks = _blocks(encoder.encoders, config.chunk_codes, pack)
        self.up_blocks = _blocks(encoder.up_encoders, config.chunk_frames, pack)
        self.after_norm, self.project = pack.norm(encoder.after_norm), pack.affine(flow.encoder_proj)

    def new_state(self) -> FlowEncoderState:
        """The state before the first code."""
        config, pack = self.config, self.pack
        head_dim = config.encoder_dim // config.encoder_heads

        def cache(layers: int, rate: int) -> ChunkCache:
            limit = None if self.limit_codes is None else self.limit_codes * rate
            shape = (layers, 2, 1, config.encoder_heads, FIRST_CAPACITY * rate, head_dim)
            return ChunkCache(shape, limit, pack.dtype, pack.device)

        zeros = torch.zeros((1, 2, config.encoder_dim), dtype=pack.dtype, device=pack.device)
        codes, frames = cache(config.encoder_blocks, 1), cache(config.encoder_up_blocks, config.upsample)
        return FlowEncoderState(zeros[:, :0], zeros, zeros, codes, frames)

    def embedded(self, codes: Tensor) -> Tensor:
        """Codes [n] -> [1, n, D]."""
        return self.embed(F.embedding(codes, self.embedding)).unsqueeze(0)

    def push(self, state: FlowEncoderState, codes: Tensor) -> None:
        """Append codes [n] to the waiting ones."""
        state.waiting = torch.cat((state.waiting, self.embedded(codes)), dim=1)

    def encode(self, state: FlowEncoderState, count: int) -> Tensor:
        """mu [1, count * upsample, n_mels] of the next `count` waiting codes, which must not cross a chunk
        boundary.

        Missing look-ahead is treated as the end of the signal (zeros).
        """
        needed = count + self.config.look_ahead_codes
        ahead = state.waiting[:, :needed]
        state.waiting = state.waiting[:, count:]
        if ahead.shape[1] < needed:
            ahead = F.pad(ahead, (0, 0, 0, needed - ahead.shape[1]))
        return self.encode_ahead(state, ahead)

    def encode_ahead(self, state: FlowEncoderState, ahead: Tensor, run: RunBlocks | None = None) -> Tensor:
        """mu of embedded codes [1, n + look_ahead, D], the last of which are context only: [1, n * upsample,
        n_mels]. `run` replaces `run_blocks`."""
        run = run or run_blocks
        count = ahead.shape[1] - self.config.look_ahead_codes
        x = ahead[:, :count]
        h = torch.cat((state.ahead, F.leaky_relu(self.ahead(ahead.contiguous()))), dim=1)
        state.ahead = h[:, -2:]
        x = run(self.blocks, x + self.behind(h), state.codes)

        x = torch.cat((state.before_up, x), dim=1)
        state.before_up = x[:, -2:]
        x = self.up_embed(self.up(x).view(len(x), count * self.config.upsample, -1))
        x = run(self.up_blocks, x, state.frames)
        return self.project(self.after_norm(x))


def _blocks(blocks: Iterable[nn.Module], chunk: int, pack: WeightPacker) -> list[_Block]:
    return [_Block(block, chunk, pack) for block in blocks if isinstance(block, ConformerBlock)]


def run_blocks(blocks: Sequence[_Block], x: Tensor, cache: ChunkCache | RingCache) -> Tensor:
    """x [1, n, D] through all blocks; stores their keys and values in the cache."""
    cache.reserve(x.shape[1])
    for layer, block in enumerate(blocks):
        x = block(x, layer, cache)
    cache.advance(x.shape[1])
    return x


def _upsampling(layer: Upsample, pack: WeightPacker) -> Windowed:
    """The convolution over repeated vectors as one product over three vectors, which yields all phases at
    once.

    Phase p of vector c sees the repeated samples from stride * c + p - 2 * stride to stride * c + p, so its
    tap k falls on vector c - 2 + (p + k) // stride.
    """
    conv, stride = layer.conv, layer.stride
    phases = conv.weight.new_zeros((stride, conv.out_channels, 3, conv.in_channels))
    for phase in range(stride):
        for tap in range(conv.kernel_size[0]):
            phases[phase, :, (phase + tap) // stride] += conv.weight.detach()[:, :, tap]
    weight = phases.view(stride * conv.out_channels, -1)
    bias = None if conv.bias is None else pack.tensor(conv.bias.repeat(stride))
    return Windowed(pack.tensor(weight), bias, 3)
