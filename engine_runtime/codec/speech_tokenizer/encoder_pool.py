"""Caches of many encoder streams in common buffers, and their next codes in one captured call.

In: the next frames of each segment and its state, which names a slot of the pool. Out: codes and new states.
The reference implementation is a single step (`WhisperVQ.step_hidden`). A call is captured for the next
larger powers of two of its streams and of the most codes of a stream, without Triton also for a few lengths;
padding uses a spare slot. Runs in the thread of its caller.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from engine_runtime.cuda.graphs import GraphedCalls, padded_size
from engine_runtime.models.whisper_vq import (
    CONV2_STRIDE,
    CONV_KERNEL,
    EncoderLayer,
    EncoderState,
    WhisperVQ,
    WhisperVQConfig,
)

SEEN = (256, 512)
"""Positions that the shorter captures attend to (5 s and 10 s); the longest covers a segment."""
LONG_CODES = (16, 32, 64, 128)
"""Codes of the captured calls of a single stream, for revisions."""
MOST_STREAMS = 64
"""Streams of one call: the end of a turn waits for a call in progress."""
JOINT_CODES = (1, 2, 3, 4, 8)
"""Most codes of a stream in a call of several."""


def stream_bytes(config: WhisperVQConfig) -> int:
    """Bytes of the caches of a stream, in float32."""
    return 2 * torch.float32.itemsize * config.layers * config.max_positions * config.d_model


def split_bytes(config: WhisperVQConfig) -> int:
    """Bytes of the weights that `EncoderPool` copies with `triton`: three bf16 values for each."""
    per_layer = 4 * config.d_model**2 + 2 * config.d_model * config.ffn
    return 3 * torch.bfloat16.itemsize * config.layers * per_layer


class EncoderPool:
    """`slots` streams have their caches here; `calls` capture the steps."""

    @torch.inference_mode()
    def __init__(self, model: WhisperVQ, slots: int, calls: GraphedCalls, *, triton: bool = False) -> None:
        """`triton`: with the kernels of split_encoder.py."""
        self._model, self.calls, self.num_slots = model, calls, slots
        self._step: Callable[..., tuple[Tensor, Tensor]] = partial(step_slots, model)
        longest = model.config.max_positions
        self._lengths = [*(seen for seen in SEEN if seen < longest), longest]
        """Positions that the captures attend to."""
        if triton:
            from engine_runtime.codec.speech_tokenizer.split_encoder import SplitEncoder

            self._step, self._lengths = SplitEncoder(model).step, [longest]  # as many as there are
        self._state = model.initial_state(slots + 1)
        self._spare = slots
        self._free = list(range(slots))
        self._padding = model.initial_state_of(self._state, self._spare)

    def state(self, owner: object) -> EncoderState | None:
        """The state before a segment, in a slot that is free again once the owner was collected; None if all
        are taken."""
        if not self._free:
            return None
        slot = self._free.pop()
        weakref.finalize(owner, self._free.append, slot).atexit = False
        return self._model.initial_state_of(self._state, slot)

    @torch.inference_mode()
    def step(
        self, mels: Sequence[Tensor], states: Sequence[EncoderState]
    ) -> tuple[list[Tensor], list[EncoderState]]:
        """The next frames [n_mels, T] of segments of this pool, T of up to JOINT_CODES[-1] codes each: their
        codes [T / frames_per_code], and the new states."""
        most, frames = max(mel.shape[1] for mel in mels), self._model.config.frames_per_code
        width = next(codes * frames for codes in JOINT_CODES if codes * frames >= most)
        if all(width <= self._room(state) for state in states):
            padded = [F.pad(mel, (0, width - mel.shape[1])) if mel.shape[1] < width else mel for mel in mels]
            return self._run(torch.stack(padded), states, [mel.shape[1] for mel in mels])
        if len(mels) == 1:
            return self._code_by_code(mels[0], states[0])
        alone = [self.step([mel], [state]) for mel, state in zip(mels, states, strict=True)]
        return [codes for (codes,), _ in alone], [state for _, (state,) in alone]

    def _code_by_code(self, mel: Tensor, state: EncoderState) -> tuple[list[Tensor], list[EncoderState]]:
        """At the end of a segment, which has no room for padding."""
        found = []
        for chunk in mel.split(self._model.config.frames_per_code, dim=1):
            (codes,), (state,) = self._run(chunk[None], [state], [chunk.shape[1]])
            found.append(codes)
        return [torch.cat(found)], [state]

    @torch.inference_mode()
    def step_many(self, mel: Tensor, state: EncoderState) -> tuple[Tensor, EncoderState] | None:
        """`step` of one stream for many codes in one call, padded; None if they do not fit."""
        frames = self._model.config.frames_per_code
        codes = next((codes for codes in LONG_CODES if codes * frames >= mel.shape[2]), None)
        if codes is None or codes * frames > self._room(state):
            return None
        padded = F.pad(mel, (0, codes * frames - mel.shape[2]))
        (found,), (following,) = self._run(padded, [state], [mel.shape[2]])
        return found[None], following

    @torch.inference_mode()
    def warm_up(self, most_streams: int) -> None:
        """Capture the steps of up to this many streams, in the spare slot."""
        sizes = [1]
        while sizes[-1] < min(most_streams, MOST_STREAMS):
            sizes.append(2 * sizes[-1])
        alone = [(1, codes) for codes in LONG_CODES]
        # The largest first: the others reuse its memory.
        for size, codes in (*product(reversed(sizes), reversed(JOINT_CODES)), *alone):
            frames = codes * self._model.config.frames_per_code
            mel = self._padding.conv1.new_zeros(size, self._model.config.num_mel_bins, frames)
            for seen in self._lengths:
                if seen * CONV2_STRIDE >= frames:
                    end = replace(self._padding, length=seen - frames // CONV2_STRIDE)
                    self._run(mel, [end] * size, [frames] * size)

    def _room(self, state: EncoderState) -> int:
        """Frames until the end of the segment."""
        return (self._model.config.max_positions - state.length) * CONV2_STRIDE

    def _run(
        self, mel: Tensor, states: Sequence[EncoderState], frames: Sequence[int]
    ) -> tuple[list[Tensor], list[EncoderState]]:
        """One captured call for mel [B, n_mels, T]. The encoder is causal: what follows the first `frames` of
        a stream is padding, and the keys and values of it are written over later."""
        count, new, keep = len(states), mel.shape[2] // CONV2_STRIDE, CONV_KERNEL - 1
        ends = [state.length + new for state in states]
        longest = self._model.config.max_positions
        if max(ends) > longest:
            raise ValueError(f"a segment has {longest} positions, not {max(ends)}")
        size = padded_size(count)
        padded = [*states, *[self._padding] * (size - count)]
        numbers = torch.tensor([[state.slot, state.length] for state in padded])
        seen = next(seen for seen in self._lengths if max(ends) <= seen)
        codes, first = self.calls.run_copied(
            ("encode", size, mel.shape[2], seen),
            partial(self._step, self._state, seen=seen),
            torch.cat((mel, mel.new_zeros(size - count, *mel.shape[1:]))) if size > count else mel,
            torch.cat([state.conv1 for state in padded]),
            torch.cat([state.conv2 for state in padded]),
            numbers,
        )
        found, following = [], []
        for at, (state, wanted) in enumerate(zip(states, frames, strict=True)):
            last = slice(wanted - keep, wanted)
            conv1, conv2 = mel[at : at + 1, :, last], first[at : at + 1, :, last]
            length = state.length + wanted // CONV2_STRIDE
            found.append(codes[at, : wanted // self._model.config.frames_per_code])
            following.append(replace(state, conv1=conv1, conv2=conv2, length=length))
        return found, following


def step_slots(
    model: WhisperVQ,
    caches: EncoderState,
    mel: Tensor,
    conv1: Tensor,
    conv2: Tensor,
    numbers: Tensor,
    *,
    seen: int,
) -> tuple[Tensor, Tensor]:
    """Codes of the next frames [B, n_mels, T] of several segments, and the outputs of the first convolution
    [B, d, T]. `numbers` [B, 2]: slot and length of each; keys and values are written to the slots of
    `caches`. Shapes depend on mel and `seen` only."""
    encoder = model.encoder
    slots, new = numbers[:, 0], mel.shape[2] // CONV2_STRIDE
    first = F.gelu(encoder.conv1(mel, conv1))
    x = F.gelu(encoder.conv2(first, conv2)).transpose(1, 2)
    positions = numbers[:, 1:] + torch.arange(new, device=mel.device)  # [B, new]
    x = x + encoder.embed_positions(positions)
    is_seen = torch.arange(seen, device=mel.device) <= positions[:, :, None]
    mask = torch.zeros_like(is_seen, dtype=x.dtype).masked_fill_(~is_seen, -math.inf).unsqueeze(1)
    for index, layer in enumerate(encoder.layers):
        assert isinstance(layer, EncoderLayer)
        query, key, value = layer.self_attn.project(layer.self_attn_layer_norm(x))
        keys, values = caches.keys[index], caches.values[index]
        keys[slots[:, None], :, positions] = key.transpose(1, 2)
        values[slots[:, None], :, positions] = value.transpose(1, 2)
        past = keys[:, :, :seen].index_select(0, slots)
        scores = query @ past.transpose(2, 3) * query.shape[3] ** -0.5 + mask
        attended = scores.softmax(dim=-1) @ values[:, :, :seen].index_select(0, slots)
        x = layer.feed_forward(x + layer.self_attn.merge(attended))
    return model.quantize(model.pool(x)), first
