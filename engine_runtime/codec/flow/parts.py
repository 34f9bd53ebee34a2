"""Shared parts of both flow backends (packed weights, voice), and the backend interface.

In: a flow network and a voice prompt. Out: `FlowParts`. flow/dynamic.py (dynamic caches, chunk by chunk) and
flow/static.py (static buffers, packet by packet, for graphs) implement `FlowBackend`, and so does
flow/paged.py (the same for several streams at once); the first is the reference implementation of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from engine_runtime.codec.flow.encoder import EncoderSteps
from engine_runtime.codec.flow.estimator import EstimatorSteps
from engine_runtime.models.flow import FlowConfig
from engine_runtime.types import Codes
from engine_runtime.work import Work


class PacketState(Protocol):
    """A stream of a backend that computes packets."""

    waiting: list[int]
    """Codes that are not computed yet."""
    position: int
    """Mel frames computed, the prompt's included."""


@dataclass(frozen=True, slots=True)
class FlowParts:
    """Weights, noise and voice, on the device. Shared by all streams."""

    config: FlowConfig
    encoder: EncoderSteps
    estimator: EstimatorSteps
    speaker: Tensor
    """[1, n_mels]."""
    noise: Tensor
    """float32 [max_frames, n_mels]."""
    prompt_codes: Codes
    prompt_mel: Tensor
    """[1, frames, n_mels]."""
    device: torch.device

    def codes_ready(self, state: PacketState, shapes: Sequence[int], packet_end: int, finishing: bool) -> int:
        """Codes that a backend of captured `shapes` can take next: the complete packet once it has its
        look-ahead, in as few calls as possible; at the end all that wait."""
        waiting = len(state.waiting)
        if finishing:
            return min(waiting, shapes[-1])
        missing = packet_end - state.position // self.config.upsample
        if waiting < missing + self.config.look_ahead_codes:
            return 0
        return max(shape for shape in shapes if shape <= missing)


class FlowBackend(Protocol):
    """A backend that runs the flow in chunks. A state belongs to one stream and is opaque to others, except
    `position`, the number of finished mel frames, prompt included."""

    def check_steps(self, steps: int) -> None:
        """Raise FlowCacheError if `use_steps` cannot change to this many Euler steps."""

    def use_steps(self, steps: int) -> None:
        """Make so many Euler steps the usual number: compute the prompt with them, and free what belongs to
        another number. Raises FlowCacheError, with nothing changed, while there are streams in fixed buffers,
        or if memory is too short."""

    def start(self, steps: int) -> Any:
        """The state after the prompt (the part of it with complete look-ahead), for a number of Euler
        steps."""

    def push(self, state: Any, codes: Codes) -> None:
        """Append validated codes to a state; on an accelerator only on the host."""

    def ready(self, state: Any, packet_end: int, finishing: bool) -> int:
        """Number of codes that can be processed now, or 0; the current packet ends before code `packet_end`,
        prompt included."""

    def work(self, state: Any, count: int) -> Work[Tensor]:
        """`advance` as work of a task."""

    def advance(self, state: Any, count: int) -> Tensor:
        """Mel [1, frames, n_mels] (float32) of the next `count` codes, a number returned by `ready`."""
