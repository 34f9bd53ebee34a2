"""Steps of the speech encoder in place of `WhisperVQ.step_hidden`: captured for one stream, one for several.

In: the next frames of each segment, and its caches. Out: the hidden states and the new caches. Runs in the
thread of its caller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.models.whisper_vq import CONV2_STRIDE, CONV_KERNEL, EncoderLayer, EncoderState, WhisperVQ

MOST_CODES = 4
"""Maximum number of codes of a call that are encoded one by one."""
SHORT = 512
"""Positions of the shorter capture (10 s); the other one covers a full segment."""


class GraphedEncoder:
    """In and out as `WhisperVQ.step_hidden`: steps of one code for one stream, captured as CUDA graphs.

    A step is about three hundred launches, which take longer to issue than to run; while a person speaks,
    and at the end, there is one code to encode. The encoder has no look-ahead, so a few codes are encoded as
    single steps; many at once run eagerly. A capture belongs to the buffers of one stream and to a maximum
    number of positions."""

    def __init__(self, model: WhisperVQ, calls: GraphedCalls) -> None:
        self._model, self._calls = model, calls

    def __call__(self, mel: Tensor, state: EncoderState) -> tuple[Tensor, EncoderState]:
        """Hidden states of the next frames of a segment [1, n_mels, T], and its new caches."""
        frames = self._model.config.frames_per_code
        if mel.shape[2] % frames or mel.shape[2] > MOST_CODES * frames:
            return self._model.step_hidden(mel, state)
        hidden = []
        for chunk in mel.split(frames, dim=2):
            one, state = self._step(chunk, state)
            hidden.append(one)
        return torch.cat(hidden, dim=1), state

    def _step(self, mel: Tensor, state: EncoderState) -> tuple[Tensor, EncoderState]:
        longest = self._model.config.max_positions
        end = state.length + mel.shape[2] // CONV2_STRIDE
        if end > longest:
            return self._model.step_hidden(mel, state)  # which raises the error
        seen = min(SHORT, longest) if end <= SHORT else longest
        step = partial(self._model.step_at, keys=state.keys, values=state.values, seen=seen)
        positions = torch.arange(state.length, end)
        hidden, conv1, conv2 = self._calls.run_copied(
            ("step", state.keys.data_ptr(), seen), step, mel, state.conv1, state.conv2, positions
        )
        return hidden, replace(state, conv1=conv1, conv2=conv2, length=end)


def step_batch(
    model: WhisperVQ, mel: Tensor, states: Sequence[EncoderState]
) -> tuple[Tensor, list[EncoderState]]:
    """mel [B, n_mels, T] -> hidden states [B, T / frames_per_code, d], and the new caches of each segment.

    The matrix products take all streams at once; the pasts, which may have different lengths, are stacked
    layer by layer and padded to the longest. Equal to the single steps but for rounding. Never captured: it
    is launched once for all streams."""
    encoder, keep = model.encoder, CONV_KERNEL - 1
    new, longest = mel.shape[2] // CONV2_STRIDE, max(state.length for state in states)
    ends = [state.length + new for state in states]
    if max(ends) > model.config.max_positions:
        raise ValueError(f"a segment has {model.config.max_positions} positions, not {max(ends)}")
    lengths = torch.tensor([state.length for state in states], device=mel.device)
    first = F.gelu(encoder.conv1(mel, torch.cat([state.conv1 for state in states])))
    x = F.gelu(encoder.conv2(first, torch.cat([state.conv2 for state in states]))).transpose(1, 2)
    added = torch.arange(new, device=mel.device)
    x = x + encoder.embed_positions(lengths[:, None] + added)
    mask = _mask(lengths, longest, new, x.dtype)
    keys, values = [], []
    for index, layer in enumerate(encoder.layers):
        assert isinstance(layer, EncoderLayer)
        query, key, value = layer.self_attn.project(layer.self_attn_layer_norm(x))
        all_keys = torch.cat((_past(states, index, longest, is_key=True), key), dim=2)
        all_values = torch.cat((_past(states, index, longest, is_key=False), value), dim=2)
        seen = F.scaled_dot_product_attention(query, all_keys, all_values, attn_mask=mask)
        x = layer.feed_forward(x + layer.self_attn.merge(seen))
        keys.append(key)
        values.append(value)
    _write(states, torch.stack(keys), torch.stack(values))
    mels, firsts = mel[:, :, -keep:], first[:, :, -keep:]
    following = [
        EncoderState(mels[place : place + 1], firsts[place : place + 1], state.keys, state.values, end)
        for place, (state, end) in enumerate(zip(states, ends, strict=True))
    ]
    return model.pool(x), following


def _mask(lengths: Tensor, longest: int, new: int, dtype: torch.dtype) -> Tensor:
    """[B, 1, new, longest + new]: 0 for the past of a stream and the new positions up to each, else -inf."""
    positions = torch.arange(longest, device=lengths.device)
    in_past = (positions < lengths[:, None])[:, None, None].expand(-1, 1, new, -1)
    among_new = torch.ones((new, new), dtype=torch.bool, device=lengths.device).tril()
    is_seen = torch.cat((in_past, among_new.expand(len(lengths), 1, -1, -1)), dim=3)
    return torch.zeros_like(is_seen, dtype=dtype).masked_fill_(~is_seen, -math.inf)


def _past(states: Sequence[EncoderState], layer: int, longest: int, *, is_key: bool) -> Tensor:
    """Keys or values [B, heads, longest, head_dim] of a layer. Buffers hold finite values everywhere."""
    return torch.cat([(state.keys if is_key else state.values)[layer, :, :, :longest] for state in states])


def _write(states: Sequence[EncoderState], keys: Tensor, values: Tensor) -> None:
    """Write keys and values [layers, B, heads, new, head_dim] after the past of each stream."""
    new = keys.shape[3]
    kept = [
        buffer[:, 0, :, state.length : state.length + new]
        for state in states
        for buffer in (state.keys, state.values)
    ]
    torch._foreach_copy_(
        kept, [part for pair in zip(keys.unbind(1), values.unbind(1), strict=True) for part in pair]
    )
