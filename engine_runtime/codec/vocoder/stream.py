"""VocoderStream: the state of a vocoder in one reply, and the code shared by all vocoders.

In: mel chunks. Out: final samples, as tensors on the device or, waiting for it, as arrays on the host. Runs
in the thread of its caller; streams do not share state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.types import Mel, Pcm
from engine_runtime.work import SingleWork, Work


@dataclass(frozen=True, slots=True)
class GraphedFrames:
    """`frames` are the sizes of a push, in mel frames, that run through `calls`: packets of a reply have a
    few. The last packet may have any size and runs eagerly, because a capture per size would cost more time
    and memory than it saves."""

    calls: GraphedCalls
    frames: frozenset[int]


class VocoderStream(ABC):
    """The stream of one reply."""

    def push(self, mel: Mel) -> Pcm:
        """Add frames [n_mels, frames]; returns the samples that are final now, possibly none."""
        return self.push_tensor(torch.as_tensor(mel)).cpu().numpy()

    def finish(self) -> Pcm:
        """Return the samples held back, at the end of the mel; the stream is reset afterwards."""
        return self.finish_tensor().cpu().numpy()

    def push_work(self, mel: Tensor) -> Work[Tensor]:
        """`push_tensor` as work of a task. Here of this stream alone, as BigVGAN's; `HiFTStream` joins."""
        return SingleWork("vocoder", partial(self.push_tensor, mel))

    def finish_work(self) -> Work[Tensor]:
        """`finish_tensor` as work of a task."""
        return SingleWork("vocoder", self.finish_tensor)

    @abstractmethod
    def push_tensor(self, mel: Tensor) -> Tensor:
        """Like `push`, but returns float32 tensors on the device without waiting for them."""

    @abstractmethod
    def finish_tensor(self) -> Tensor:
        """Like `finish`, but a tensor on the device."""

    @abstractmethod
    def reset(self) -> None:
        """Clear the state: the next frame is the first of a signal."""
