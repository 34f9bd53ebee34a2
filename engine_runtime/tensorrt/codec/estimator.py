"""The flow's estimator as a graph: one Euler step on one packet, caches in and out.

In: the packed estimator of a loaded flow. Out: its `Graph`, and `EngineEstimator`, which computes the
velocity of the streaming flow with a runner. The rows of the causal convolutions, the keys and values of the
past and the mask are inputs, the new ones outputs, so a stream does not change: its caches remain in its
`RingCache`. The convolution of the inputs that are constant over the Euler steps, the guidance and the step
itself stay in torch, the last two in float32. Runs in the thread of its caller.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine_runtime.codec.flow.estimator import EstimatorState, EstimatorSteps
from engine_runtime.codec.flow.ring_cache import RingCache
from engine_runtime.codec.graph import Axis, Graph, GraphTensor, Runner, attend, packet_axis
from engine_runtime.errors import ExecutorError

USUAL_PAST_CODES = 128
"""Past length for which an engine is optimized: a voice prompt and a reply of a few seconds."""


class GivenPast:
    """Keys and values [layers, 2, B, H, P, d] of all layers; implements `Attending` and collects the new
    ones."""

    def __init__(self, past: Tensor, mask: Tensor) -> None:
        self._past, self._mask = past, mask
        self._new: list[Tensor] = []

    def attend(self, layer: int, query: Tensor, kv: Tensor) -> Tensor:
        """See `Attending`; layers are called in order."""
        self._new.append(kv)
        past = self._past[layer]
        return attend(query, (past[0], past[1]), (kv[0], kv[1]), self._mask)

    def collected(self) -> Tensor:
        """The new keys and values [layers, 2, B, H, n, d]."""
        return torch.stack(self._new)


class EstimatorStep(nn.Module):
    """The velocity of one Euler step, with all state as arguments."""

    def __init__(self, steps: EstimatorSteps) -> None:
        super().__init__()
        self._steps = steps

    def forward(
        self,
        x: Tensor,
        convolved: Tensor,
        skipped: Tensor,
        time: Tensor,
        mask: Tensor,
        past: Tensor,
        *rows: Tensor,
    ) -> tuple[Tensor, ...]:
        """Velocity [B, n, n_mels], new keys and values, new rows. See `estimator_graph` for the shapes."""
        cache, replaced = GivenPast(past, mask), list(rows)
        velocity = self._steps.velocity_at(time.unbind(0), replaced, cache, 0, x, convolved, skipped)
        return velocity, cache.collected(), *replaced


def estimator_graph(steps: EstimatorSteps, packet_codes: list[int]) -> Graph:
    """The graph of an estimator for packets of these sizes, which are complete chunks."""
    config, dtype, rate = steps.config, steps.pack.dtype, steps.config.upsample
    frames = Axis("frames", *packet_axis([size * rate for size in packet_codes]))
    most = config.max_frames + frames.most
    past = Axis("past", rate, min(USUAL_PAST_CODES * rate, most), most)
    batch, levels = steps.batch, len(steps.levels)
    kv = (steps.blocks, 2, batch, config.heads)
    rows = [tuple(row.shape) for row in steps.new_state(1).rows[0]]

    def spec(name: str, *shape: int | Axis) -> GraphTensor:
        return GraphTensor(name, shape, dtype)

    return Graph(
        "estimator",
        EstimatorStep(steps),
        inputs=(
            spec("x", 1, frames, config.n_mels),
            spec("convolved", batch, frames, config.channels),
            spec("skipped", batch, frames, config.channels),
            spec("time", levels, config.channels),
            GraphTensor("mask", (frames, past + frames), dtype),
            spec("past", *kv, past, config.head_dim),
            *(spec(f"rows_{index}", *shape) for index, shape in enumerate(rows)),
        ),
        outputs=(
            spec("velocity", batch, frames, config.n_mels),
            spec("new", *kv, frames, config.head_dim),
            *(spec(f"new_rows_{index}", *shape) for index, shape in enumerate(rows)),
        ),
        device=steps.pack.device,
        example_values={"mask": torch.zeros},
    )


class EngineEstimator:
    """Implements `Velocity` with a runner of `estimator_graph`, for static caches."""

    def __init__(self, steps: EstimatorSteps, runner: Runner) -> None:
        self._runner, self._blocks = runner, steps.blocks

    def __call__(
        self, state: EstimatorState, step: int, x: Tensor, convolved: Tensor, skipped: Tensor
    ) -> Tensor:
        """See `Velocity`."""
        cache, first = state.cache, step * self._blocks
        if not isinstance(cache, RingCache):
            raise ExecutorError("An engine of the flow needs static caches. Use --device cuda.")
        velocity, new, *rows = self._runner(
            x,
            convolved,
            skipped,
            torch.stack([table[step] for table in state.schedule.times]),
            cache.mask_over_past_and_new(),
            cache.past(first, self._blocks),
            *state.rows[step],
        )
        cache.put_layers(first, new)
        state.rows[step] = rows
        return velocity
