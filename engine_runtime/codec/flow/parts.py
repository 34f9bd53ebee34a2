"""What both ways of running the flow in chunks share: its prepared weights and its voice, and what a way has
to do.

In: a flow network and a voice prompt. Out: `FlowParts`. `DynamicFlow` (caches that grow, chunk by chunk) and
`StaticFlow` (buffers of a fixed size, packet by packet, for graphs) are the two ways; the first is the plain
twin of the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from engine_runtime.codec.flow.encoder import EncoderSteps
from engine_runtime.codec.flow.estimator import EstimatorSteps
from engine_runtime.models.flow import FlowConfig
from engine_runtime.types import Codes


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


class FlowBackend(Protocol):
    """One way of running the flow in chunks. A state is what one stream keeps; only its path looks inside,
    but for `position`, the mel frames done, prompt included."""

    def start(self, steps: int) -> Any:
        """The state behind the prompt (as much of it as has its look-ahead), for a number of Euler steps."""

    def push(self, state: Any, codes: Codes) -> None:
        """Add codes to a state; they are known to be good."""

    def ready(self, state: Any, packet_end: int, finishing: bool) -> int:
        """Codes that can be worked on now, or 0; the present packet ends before code `packet_end`, prompt
        included."""

    def advance(self, state: Any, count: int) -> Tensor:
        """Mel [1, frames, n_mels] (float32) of the next `count` codes, as many as `ready` said."""
