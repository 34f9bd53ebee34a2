"""Streaming HiFT, following the protocol of the released codec (CosyVoice 2).

In: mel chunks. Out: samples; the last ones of each chunk are held back for a cross-fade. Every call
recomputes the last frames with the same excitation, and fades from the samples computed without right context
to those computed with it. It differs from upstream, where a seam is audible, in two points: the phases of the
sines continue from the last call instead of restarting; and the two weights of the fade sum to one (raised
cosine), while upstream's Hamming window sums to 1.08. Runs in the thread of its caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from engine_runtime.codec.graphed import GraphedFrames
from engine_runtime.codec.vocoder.stream import VocoderStream
from engine_runtime.models.hift import HiFTConfig

DrawNoise = Callable[[int], Tensor]
"""Noise of the excitation for a number of frames, [1, samples, harmonics + 1]; called once per network
call."""


class HiFTNetwork(Protocol):
    """The network as a stream calls it; see `HiFT` for both methods."""

    @property
    def config(self) -> HiFTConfig:
        """The dimensions."""

    @property
    def continued_source(self) -> Callable[[Tensor, Tensor, int, Tensor], tuple[Tensor, Tensor]]:
        """Excitation from mel and noise with given phases at a frame, and the phases at the last frame."""

    @property
    def decode(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Waveform from mel and excitation."""


class HiFTStream(VocoderStream):
    """The stream of one reply. `overlap` frames are computed twice and cross-faded; the same number is held
    back."""

    def __init__(
        self,
        network: HiFTNetwork,
        overlap: int,
        new_noise: Callable[[], DrawNoise],
        check: Callable[[Tensor], None],
        like: Tensor,
        calls: GraphedFrames | None = None,
    ) -> None:
        """`like` has the dtype and the device of the network."""
        self._network, self._overlap, self._new_noise, self._check = network, overlap, new_noise, check
        self._calls, self._dtype = calls, like.dtype
        self._empty = torch.zeros((1, network.config.in_channels, 0), device=like.device)
        samples = overlap * network.config.hop
        self._fade_in, self._fade_out = (weights.to(like.device) for weights in fade_weights(samples))
        # the phase is exact up to the centre of the last frame of a call, and constant after it
        self._unsettled = network.config.hop // 2
        self.reset()

    def reset(self) -> None:
        """Clear the state and restart the noise."""
        self._frames = self._empty
        self._source = self._speech = self._fade_in[:0]
        self._phase = self._source.double()
        self._noise = self._new_noise()

    @torch.inference_mode()
    def push_tensor(self, mel: Tensor) -> Tensor:
        """See `VocoderStream`."""
        self._check(mel)
        if mel.shape[1] == 0:
            return self._fade_in[:0]
        self._frames = torch.cat((self._frames, mel.to(self._empty)[None]), dim=2)
        if self._frames.shape[2] <= self._overlap:  # all of it would be held back
            return self._fade_in[:0]
        speech = self._run(mel.shape[1])
        held = len(self._fade_in)
        self._frames = self._frames[:, :, self._frames.shape[2] - self._overlap :]
        self._speech = speech[len(speech) - held :]
        return speech[: len(speech) - held]

    @torch.inference_mode()
    def finish_tensor(self) -> Tensor:
        """See `VocoderStream`."""
        if len(self._speech) == 0 and self._frames.shape[2] > 0:  # too short for a single call so far
            self._speech = self._run(0)
        pcm = self._speech
        self.reset()
        return pcm

    def _run(self, pushed: int) -> Tensor:
        """Samples of the kept frames, cross-faded with the samples held back before. Keeps the excitation."""
        frames = self._frames
        inputs = (frames, self._noise(frames.shape[2]).to(frames), self._source, self._phase, self._speech)
        if self._calls is not None and pushed in self._calls.frames:
            key = (self._network, frames.shape[2], len(self._source))
            speech, *kept = self._calls.calls.run_copied(key, self._compute, *inputs)
        else:
            speech, *kept = self._compute(*inputs)
        self._source, self._phase = kept
        return speech

    def _compute(
        self, frames: Tensor, noise: Tensor, before: Tensor, phase: Tensor, held: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Samples of the frames, the end of their excitation and its phases. `before`, `phase` and `held` are
        excitation, phases and samples of the last call for the overlap with this one (empty at the start)."""
        excitation, phase = self._network.continued_source(frames, noise, self._overlap - 1, phase)
        source = excitation[0]
        source[: len(before)] = before
        speech = self._network.decode(frames.to(self._dtype), source[None])[0]
        samples = len(self._fade_in)
        if len(held):
            speech[:samples] = speech[:samples] * self._fade_in + held * self._fade_out
        return speech, source[max(len(source) - samples, 0) : len(source) - self._unsettled], phase


def fade_weights(samples: int) -> tuple[Tensor, Tensor]:
    """Fade-in and fade-out weights, float32 [samples] each, that sum to exactly one."""
    turns = (torch.arange(samples, dtype=torch.float64) + 0.5) / (4 * samples)
    fade_out = 1.0 - torch.sin(2.0 * math.pi * turns).square().float()
    # NOTE: the second difference is exact in float32 where the first was rounded
    return 1.0 - fade_out, fade_out
