"""Streaming HiFT, following the protocol of the released codec (CosyVoice 2).

In: mel chunks. Out: samples; the last ones of each chunk are held back for a cross-fade. Every call
recomputes the last frames with the same excitation, and fades from the samples computed without right context
to those computed with it. It differs from upstream, where a seam is audible, in two points: the phases of the
sines continue from the last call instead of restarting; and the two weights of the fade sum to one (raised
cosine), while upstream's Hamming window sums to 1.08. Equal chunks of several replies run in one call. Runs
in the thread of its caller; on CUDA all chunks must run on one CUDA stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from engine_runtime.codec.vocoder.stream import GraphedFrames, VocoderStream
from engine_runtime.cuda.graphs import padded_size
from engine_runtime.cuda.transfer import sent
from engine_runtime.models.hift import HiFTConfig
from engine_runtime.work import Stage, Work

MOST_STREAMS = 16
"""Streams of one call: as many as those of the flow, whose packets they are."""

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
        most_streams: int = 1,
    ) -> None:
        """`like` has the dtype and the device of the network; `most_streams` can run in one call."""
        self._network, self._overlap, self._new_noise, self._check = network, overlap, new_noise, check
        self._calls, self._dtype, self._most_streams = calls, like.dtype, most_streams
        self._empty = torch.zeros((1, network.config.in_channels, 0), device=like.device)
        samples = overlap * network.config.hop
        self._fade_in, self._fade_out = _fade_weights_on(like.device, samples)
        # the phase is exact up to the centre of the last frame of a call, and constant after it
        self._unsettled = network.config.hop // 2
        self.reset()

    def reset(self) -> None:
        """Clear the state and restart the noise."""
        self._frames = self._empty
        self._source = self._speech = self._empty[:, 0]  # [1, samples]
        self._phase = self._source.double()
        self._noise = self._new_noise()

    def push_work(self, mel: Tensor) -> ChunkWork:
        return ChunkWork(self, mel)

    def push_tensor(self, mel: Tensor) -> Tensor:
        return self.push_together([(self, mel)])[0]

    @torch.inference_mode()
    def push_together(self, chunks: Sequence[tuple[HiFTStream, Tensor]]) -> list[Tensor]:
        """`push_tensor` of streams of one vocoder whose chunks have the same shape."""
        for _, mel in chunks:
            self._check(mel)
        streams = [stream for stream, _ in chunks]
        frames = [torch.cat((stream._frames, mel.to(self._empty)[None]), dim=2) for stream, mel in chunks]
        pcm = [self._fade_in[:0]] * len(chunks)
        if frames[0].shape[2] > self._overlap:  # else all of it is held back
            pushed = chunks[0][1].shape[1]
            is_graphed = self._calls is not None and (len(chunks) > 1 or pushed in self._calls.frames)
            pcm = self._run(streams, frames, is_graphed)
        for stream, own in zip(streams, frames, strict=True):
            # The overlap is computed again in the next call, then with its right context, and faded over.
            stream._frames = own[:, :, max(own.shape[2] - self._overlap, 0) :]
        return pcm

    @torch.inference_mode()
    def finish_tensor(self) -> Tensor:
        if self._speech.shape[1] == 0 and self._frames.shape[2] > 0:  # too short for a single call so far
            self._run([self], [self._frames], is_graphed=False)
        pcm = self._speech[0]
        self.reset()
        return pcm

    def shape_of(self, frames: int) -> Hashable:
        count = self._frames.shape[2] + frames
        return ("vocoder", id(self._network), *self._shape(count)) if count > self._overlap else None

    def takes(self, streams: int, frames: int) -> bool:
        """A call whose capture ran out of memory is not run in a batch either."""
        key = self._key(streams, self._frames.shape[2] + frames)
        return streams <= self._most_streams and (self._calls is None or self._calls.calls.has_graph(key))

    def _shape(self, count: int) -> tuple[int, int]:
        """The shape that fixes all sizes of the next call of `count` frames."""
        return count, self._source.shape[1]

    def _key(self, streams: int, count: int) -> Hashable:
        """Key of the captured call for this many streams, padded to a power of two."""
        return self._network, padded_size(streams), *self._shape(count)

    def _run(self, streams: Sequence[HiFTStream], frames: Sequence[Tensor], is_graphed: bool) -> list[Tensor]:
        """Final samples of each stream, cross-faded with those held back before. Keeps what the next call
        continues from."""
        count = frames[0].shape[2]
        noise = sent(_joined([stream._noise(count) for stream in streams]), frames[0].device, frames[0].dtype)
        before = [(stream._source, stream._phase, stream._speech) for stream in streams]
        inputs = [_joined(frames), noise, *(_joined(parts) for parts in zip(*before, strict=True))]
        if self._calls is not None and is_graphed:
            results = self._calls.calls.run_copied(self._key(len(streams), count), self._compute, *inputs)
        else:
            results = self._compute(*inputs)
        # rows behind the streams are padding
        pcm, *kept = (value.split(1)[: len(streams)] for value in results)
        for stream, *own in zip(streams, *kept, strict=True):
            stream._speech, stream._source, stream._phase = own
        return [samples[0] for samples in pcm]

    def _compute(
        self, frames: Tensor, noise: Tensor, before: Tensor, phase: Tensor, held: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Samples of the frames [B, n_mels, frames] up to those held back, and those; the end of their
        excitation, and its phases. `before`, `phase` and `held` [B, n] are excitation, phases and samples of
        the last call for the overlap with this one (n = 0 at the start)."""
        source, phase = self._network.continued_source(frames, noise, self._overlap - 1, phase)
        # The overlap has to get the excitation of the last call, noise included: with new noise the two sides
        # of the cross-fade would be different signals.
        source[:, : before.shape[1]] = before
        speech = self._network.decode(frames.to(self._dtype), source)
        samples = len(self._fade_in)
        if held.shape[1]:
            speech[:, :samples] = speech[:, :samples] * self._fade_in + held * self._fade_out
        end = max(source.shape[1] - samples, 0)
        return speech[:, :end], speech[:, end:], source[:, end : source.shape[1] - self._unsettled], phase


@dataclass(frozen=True, slots=True, eq=False)
class ChunkWork(Work[Tensor]):
    """The next chunk of a stream; its result is the samples, on the device."""

    stream: HiFTStream
    mel: Tensor

    @property
    def stage(self) -> Stage:
        return "vocoder"

    @property
    def batch_key(self) -> Hashable:
        return self.stream.shape_of(self.mel.shape[1])

    def fits(self, batch: Sequence[ChunkWork]) -> bool:
        return self.stream.takes(len(batch) + 1, self.mel.shape[1])

    def run(self) -> Tensor:
        return self.stream.push_tensor(self.mel)

    def run_together(self, batch: Sequence[ChunkWork]) -> list[Tensor]:
        return self.stream.push_together([(work.stream, work.mel) for work in batch])


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """[1, ...] of each stream as [B, ...], where B is a power of two; the last stream fills the rest."""
    missing = padded_size(len(parts)) - len(parts)
    return parts[0] if len(parts) == 1 else torch.cat([*parts, *[parts[-1]] * missing])


@cache
def _fade_weights_on(device: torch.device, samples: int) -> tuple[Tensor, Tensor]:
    """`fade_weights` on a device, for all streams: no reply waits there for a copy."""
    fade_in, fade_out = fade_weights(samples)
    return fade_in.to(device), fade_out.to(device)


def fade_weights(samples: int) -> tuple[Tensor, Tensor]:
    """Fade-in and fade-out weights, float32 [samples] each, that sum to exactly one."""
    turns = (torch.arange(samples, dtype=torch.float64) + 0.5) / (4 * samples)
    fade_out = 1.0 - torch.sin(2.0 * math.pi * turns).square().float()
    # NOTE: the second difference is exact in float32 where the first was rounded
    return 1.0 - fade_out, fade_out
