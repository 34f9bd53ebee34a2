"""ChunkWork: the next chunk of a vocoder stream, as work that equal chunks of other streams can join.

In: a stream and the mel of its chunk. Out: the samples that are final now. Engine thread.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from engine_runtime.work import Stage

MOST_STREAMS = 16
"""Streams of one call: as many as those of the flow, whose packets they are."""


class ChunkStream(Protocol):
    """A stream as its works call it; see `HiFTStream`."""

    def shape_of(self, frames: int) -> Hashable:
        """What the next chunks of streams in one call have in common; None if it cannot join others."""

    def takes(self, streams: int, frames: int) -> bool:
        """Whether the next chunks of this many streams can run in one call, without a capture."""

    def push_tensor(self, mel: Tensor) -> Tensor: ...

    def push_together(self, chunks: Sequence[tuple[Any, Tensor]]) -> list[Tensor]:
        """`push_tensor` of several streams."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkWork:
    """The next chunk of a stream; its result is the samples, on the device. See `Work`."""

    stream: ChunkStream
    mel: Tensor
    is_in_flight: bool = False

    @property
    def stage(self) -> Stage:
        return "vocoder"

    @property
    def batch_key(self) -> Hashable:
        return self.stream.shape_of(self.mel.shape[1])

    @property
    def is_ready(self) -> bool:
        return True

    def waits_for_memory(self, beside: Sequence[Any] = ()) -> bool:
        return False

    def fits(self, batch: Sequence[ChunkWork]) -> bool:
        return self.stream.takes(len(batch) + 1, self.mel.shape[1])

    def run(self) -> Tensor:
        return self.stream.push_tensor(self.mel)

    def run_together(self, batch: Sequence[ChunkWork]) -> list[Tensor]:
        return self.stream.push_together([(work.stream, work.mel) for work in batch])
