"""EncoderStreams: the speech encoder beside the language model, on CUDA streams of its own.

In: works of the encoder. Out: codes that arrive later; until then the engine thread runs other work. Features
have a stream apart, because the host reads their maxima at once. Used by the engine thread.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine_runtime.work import Stage, Work

_PRIORITY = -2
"""Above the codec's -1 and the language model's 0: a call is hundreds of small kernels, and each would wait
for multiprocessors that a decode step occupies (on an H200 with 96 users a call took 30 ms)."""


class EncoderStreams:
    def __init__(self, device: torch.device) -> None:
        self.feature_stream = torch.cuda.Stream(device, priority=_PRIORITY)
        """The stream of the features; what is captured on it keeps its priority."""
        self.encoder_stream = torch.cuda.Stream(device, priority=_PRIORITY)

    def features(self) -> AbstractContextManager[object]:
        """Context manager around the features."""
        return torch.cuda.stream(self.feature_stream)

    def encoder(self) -> AbstractContextManager[object]:
        """Context manager around the encoder, which follows the features computed so far."""
        self.encoder_stream.wait_stream(self.feature_stream)
        return torch.cuda.stream(self.encoder_stream)


class PendingValues:
    """A pending copy of the result of a call to the host. Keeps what the call reads."""

    def __init__(self, values: Tensor, inputs: Sequence[Tensor] = ()) -> None:
        self._inputs = inputs
        self._event: torch.cuda.Event | None = None
        self._host = values
        if values.device.type == "cuda":
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    @property
    def is_here(self) -> bool:
        """Whether the copy is complete."""
        return self._event is None or bool(self._event.query())

    def value(self) -> Tensor:
        """The values; waits for the copy."""
        if self._event is not None:
            self._event.synchronize()
        return self._host


@dataclass(frozen=True, slots=True, eq=False)
class CodesArrival(Work[Tensor]):
    """Waiting for codes; its result is those of one stream, at these places of the call."""

    codes: PendingValues
    places: slice

    @property
    def stage(self) -> Stage:
        return "arrival"

    @property
    def batch_key(self) -> Hashable:
        return "arrival"

    @property
    def is_ready(self) -> bool:
        return self.codes.is_here

    def fits(self, batch: Sequence[Any]) -> bool:
        return True

    def run(self) -> Tensor:
        return self.codes.value()[self.places]
