"""Caches of many encoder streams in common buffers, and their next codes in one captured call.

In: the next frames of each segment and its state, which names a slot of the pool. Out: codes and new states.
The reference implementation is a single step (`WhisperVQ.step_hidden`). A call for one code is captured for
the next larger power of two of its streams and a few lengths; padding uses a spare slot. Runs in the thread
of its caller.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.models.whisper_vq import CONV2_STRIDE, CONV_KERNEL, EncoderLayer, EncoderState, WhisperVQ

SEEN = (256, 512)
"""Positions that the shorter captures attend to (5 s and 10 s); the longest covers a segment."""
LONG_CODES = (8, 16, 32, 64, 128)
"""Codes of the captured calls of a single stream, for revisions and speech that has waited."""
MOST_STREAMS = 64
"""Streams of one call."""


class EncoderPool:
    """See the module. `slots` streams have their caches here."""

    @torch.inference_mode()
    def __init__(self, model: WhisperVQ, slots: int, calls: GraphedCalls) -> None:
        self._model = model
        self.calls = calls
        """Capture the steps; may be replaced before `warm_up`."""
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
        """The next frames [n_mels, T] of segments of this pool, T of any number of codes each: their codes
        [T / frames_per_code], and the new states. One captured call for the first code of all, one for the
        second code of those that have one, ..."""
        frames, following = self._model.config.frames_per_code, list(states)
        found: list[list[Tensor]] = [[] for _ in mels]
        for start in range(0, max(mel.shape[1] for mel in mels), frames):
            busy = [place for place, mel in enumerate(mels) if start < mel.shape[1]]
            chunk = torch.stack([mels[place][:, start : start + frames] for place in busy])
            codes, new = self._run(chunk, [following[place] for place in busy])
            for place, one, state in zip(busy, codes, new, strict=True):
                found[place].append(one)
                following[place] = state
        return [torch.cat(codes) for codes in found], following

    @torch.inference_mode()
    def step_many(self, mel: Tensor, state: EncoderState) -> tuple[Tensor, EncoderState] | None:
        """`step` of one stream for many codes in one call, padded; None if they do not fit."""
        frames = self._model.config.frames_per_code
        codes = next((codes for codes in LONG_CODES if codes * frames >= mel.shape[2]), None)
        room = (self._model.config.max_positions - state.length) * CONV2_STRIDE
        if codes is None or codes * frames > room:
            return None
        found, (following,) = self._run(F.pad(mel, (0, codes * frames - mel.shape[2])), [state], mel.shape[2])
        return found, following

    @torch.inference_mode()
    def warm_up(self, most_streams: int) -> None:
        """Capture the steps of up to this many streams, in the spare slot."""
        frames = self._model.config.frames_per_code
        mel = self._padding.conv1.new_zeros(1, self._model.config.num_mel_bins, frames)
        size = 1
        while size < 2 * min(most_streams, MOST_STREAMS):
            for seen in self._lengths():
                end = replace(self._padding, length=seen - frames // CONV2_STRIDE)
                self._run(mel.expand(size, -1, -1), [end] * size)
            size *= 2
        for codes in LONG_CODES:
            for seen in self._lengths():
                if seen * CONV2_STRIDE >= codes * frames:
                    end = replace(self._padding, length=seen - codes * frames // CONV2_STRIDE)
                    self._run(mel.repeat(1, 1, codes), [end])

    def _lengths(self) -> list[int]:
        longest = self._model.config.max_positions
        return [*(seen for seen in SEEN if seen < longest), longest]

    def _run(
        self, mel: Tensor, states: Sequence[EncoderState], frames: int | None = None
    ) -> tuple[Tensor, list[EncoderState]]:
        """One captured call. The encoder is causal: what follows the first `frames` is padding, and the keys
        and values of it are written over later."""
        count, new, keep = len(states), mel.shape[2] // CONV2_STRIDE, CONV_KERNEL - 1
        wanted = frames or mel.shape[2]
        ends = [state.length + new for state in states]
        longest = self._model.config.max_positions
        if max(ends) > longest:
            raise ValueError(f"a segment has {longest} positions, not {max(ends)}")
        size = 1 << (count - 1).bit_length()
        padded = [*states, *[self._padding] * (size - count)]
        numbers = torch.tensor([[state.slot, state.length] for state in padded])
        seen = next(seen for seen in self._lengths() if max(ends) <= seen)
        codes, first = self.calls.run_copied(
            ("encode", size, mel.shape[2], seen),
            partial(step_slots, self._model, self._state, seen=seen),
            torch.cat((mel, mel.new_zeros(size - count, *mel.shape[1:]))) if size > count else mel,
            torch.cat([state.conv1 for state in padded]),
            torch.cat([state.conv2 for state in padded]),
            numbers,
        )
        last = slice(wanted - keep, wanted)
        return codes[:count, : wanted // self._model.config.frames_per_code], [
            replace(
                state,
                conv1=mel[at : at + 1, :, last],
                conv2=first[at : at + 1, :, last],
                length=state.length + wanted // CONV2_STRIDE,
            )
            for at, state in enumerate(states)
        ]


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
