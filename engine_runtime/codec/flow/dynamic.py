"""The flow chunk by chunk on dynamic caches: the CPU backend, and the reference implementation of
flow/static.py.

In: codes. Out: mel of one attention chunk at a time, as soon as its look-ahead has arrived. Runs in the
thread of its caller; streams do not share state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from engine_runtime.codec.flow.encoder import FlowEncoderState
from engine_runtime.codec.flow.estimator import EstimatorState
from engine_runtime.codec.flow.parts import FlowParts
from engine_runtime.models.flow.cfm import check_frames
from engine_runtime.types import Codes
from engine_runtime.work import SingleWork


@dataclass(slots=True)
class DynamicState:
    """State of a stream."""

    encoder: FlowEncoderState
    estimator: EstimatorState
    position: int

    def copy(self) -> DynamicState:
        """An independent state."""
        return DynamicState(self.encoder.copy(), self.estimator.copy(), self.position)


class DynamicFlow:
    """Implements `FlowBackend`. The state after the prompt is computed once and copied for every stream."""

    def __init__(self, parts: FlowParts) -> None:
        self._parts = parts
        self._starts: dict[int, DynamicState] = {}

    def check_steps(self, steps: int) -> None:
        """Accept any number."""

    def use_steps(self, steps: int) -> None:
        """Streams have their own buffers, so they may go on."""
        self._starts = {known: state for known, state in self._starts.items() if known == steps}
        self.start(steps)

    @torch.inference_mode()
    def start(self, steps: int) -> DynamicState:
        parts = self._parts
        if steps not in self._starts:
            state = DynamicState(parts.encoder.new_state(), parts.estimator.new_state(steps), 0)
            self.push(state, parts.prompt_codes)
            while count := self.ready(state, len(parts.prompt_codes), finishing=False):
                self.advance(state, count)
            self._starts[steps] = state
        return self._starts[steps].copy()

    @torch.inference_mode()
    def push(self, state: DynamicState, codes: Codes) -> None:
        if codes.size:
            self._parts.encoder.push(state.encoder, torch.from_numpy(codes).to(self._parts.device))

    def ready(self, state: DynamicState, packet_end: int, finishing: bool) -> int:
        """Up to the next chunk boundary, regardless of the packet, to spread the work
        evenly."""
        config, waiting = self._parts.config, state.encoder.waiting.shape[1]
        to_border = config.chunk_codes - state.position // config.upsample % config.chunk_codes
        if waiting >= to_border + config.look_ahead_codes:
            return to_border
        return min(waiting, to_border) if finishing else 0

    def work(self, state: DynamicState, count: int) -> SingleWork[Tensor]:
        return SingleWork("flow", partial(self.advance, state, count))

    @torch.inference_mode()
    def advance(self, state: DynamicState, count: int) -> Tensor:
        parts, start = self._parts, state.position
        end = start + count * parts.config.upsample
        check_frames(end, parts.config)
        mu = parts.encoder.encode(state.encoder, count)
        cond = parts.prompt_mel[:, start:end]
        if cond.shape[1] < end - start:
            cond = F.pad(cond, (0, 0, 0, end - start - cond.shape[1]))
        state.position = end
        return parts.estimator.sample(state.estimator, parts.noise[None, start:end], mu, parts.speaker, cond)
