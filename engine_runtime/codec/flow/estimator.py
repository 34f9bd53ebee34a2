"""The flow's estimator one chunk at a time: the streaming counterpart of `CausalCFM.sample`.

In: mu of one chunk, its noise and prompt frames. Out: the mel of the chunk. State per stream and Euler step:
two rows of each causal convolution, keys and values of every transformer block. The guided and the unguided
half run as one batch; the first convolution of the inputs that are constant over the Euler steps (mu,
speaker, prompt frames) is computed once. Runs in the thread of its caller.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from engine_runtime.codec.flow.chunk_cache import ChunkCache
from engine_runtime.codec.flow.packed_weights import Affine, WeightPacker
from engine_runtime.codec.flow.ring_cache import RingCache
from engine_runtime.models.flow import CausalFlow, FlowConfig
from engine_runtime.models.flow.cfm import time_span
from engine_runtime.models.flow.estimator import KERNEL, CausalBlock, Level, TransformerBlock
from engine_runtime.options import FlowSchedule

PAST = KERNEL - 1
"""State rows of a causal convolution."""
FIRST_CAPACITY = 256
"""Initial capacity of a stream's caches, in frames."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The Euler steps of a stream: (t, dt), and per level and step the time embedding added to its rows."""

    span: list[tuple[float, float]]
    times: list[tuple[Tensor, ...]]


@dataclass(slots=True)
class EstimatorState:
    """State of a stream. Rows are replaced, keys and values are written in place."""

    schedule: Schedule
    condition: Tensor  # [B, 2, 3 * n_mels] last mu, speaker and prompt frames
    rows: list[list[Tensor]]  # per Euler step and convolution: its last inputs [B, 2, C]
    cache: ChunkCache | RingCache  # its layer index is Euler step * blocks + block

    def copy(self) -> EstimatorState:
        """An independent copy; dynamic cache only."""
        if isinstance(self.cache, RingCache):
            raise TypeError("a static state cannot be copied; start another one")
        return EstimatorState(
            self.schedule, self.condition, [list(rows) for rows in self.rows], self.cache.copy()
        )


class Attending(Protocol):
    """Keys and values of the past; stores the new ones."""

    def attend(self, layer: int, query: Tensor, kv: Tensor) -> Tensor:
        """query [B, H, n, d] over the past of a layer and the new kv [2, B, H, n, d] -> [B, H, n, d]."""


Velocity = Callable[["EstimatorState", int, Tensor, Tensor, Tensor], Tensor]
"""(state, Euler step, x [1, n, n_mels], convolved and skipped condition [B, n, C]) -> velocity [B, n,
n_mels]; afterwards the state is the one after these frames."""


class _Transformer:
    """One transformer block on cached keys and values."""

    def __init__(self, block: TransformerBlock, pack: WeightPacker) -> None:
        attention = block.attn1
        self.heads, self.head_dim = attention.heads, attention.head_dim
        weights = (attention.to_q.weight, attention.to_k.weight, attention.to_v.weight)
        self.project = Affine(pack.tensor(torch.cat(weights)), None)
        self.out = pack.affine(attention.out)
        self.inner, self.outer = (pack.affine(layer) for layer in block.ff.layers)
        self.norm1, self.norm3 = pack.norm(block.norm1), pack.norm(block.norm3)

    def __call__(self, x: Tensor, layer: int, cache: Attending) -> Tensor:
        """x [B, n, C] -> [B, n, C]."""
        batch, count, _ = x.shape
        parts = self.project(self.norm1(x)).view(batch, count, 3, self.heads, self.head_dim)
        parts = parts.permute(2, 0, 3, 1, 4)  # [3, B, H, n, d]
        out = cache.attend(layer, parts[0], parts[1:])
        x = x + self.out(out.transpose(1, 2).reshape(batch, count, -1))
        return x + self.outer(F.gelu(self.inner(self.norm3(x))))


class _Causal:
    """Causal convolution over rows with their past prepended, layer norm, Mish."""

    def __init__(self, block: CausalBlock, pack: WeightPacker) -> None:
        self.conv, self.norm = pack.windowed(block.conv), pack.norm(block.norm)

    def __call__(self, x: Tensor) -> Tensor:
        """[B, n + 2, C] -> [B, n, C']."""
        return F.mish(self.norm(self.conv(x)))


class _Level:
    """Residual block and transformer blocks. The time embedding comes from the schedule."""

    def __init__(self, level: Level, pack: WeightPacker) -> None:
        residual = level.residual
        self.time = copy.deepcopy(residual.mlp)
        self.block1, self.block2 = _Causal(residual.block1, pack), _Causal(residual.block2, pack)
        self.skip = pack.pointwise(residual.res_conv)
        self.transformers = [_Transformer(block, pack) for block in level.transformers]


def cache_shape(config: FlowConfig, cfg_rate: float, steps: int, frames: int) -> tuple[int, ...]:
    """Shape of the keys and values of `frames` frames: (transformers of all steps, 2, batch, heads, frames,
    head_dim). Without guidance the batch is one."""
    transformers = config.n_blocks * (config.mid_blocks + 2)
    return (transformers * steps, 2, 2 if cfg_rate > 0 else 1, config.heads, frames, config.head_dim)


class EstimatorSteps:
    """The estimator's packed weights for a number of Euler steps; shared by all streams."""

    @torch.no_grad()
    def __init__(
        self,
        flow: CausalFlow,
        cfg_rate: float,
        limit_frames: int | None,
        pack: WeightPacker,
        schedule: FlowSchedule = "cosine",
    ) -> None:
        estimator, n_mels = flow.decoder.estimator, flow.config.n_mels
        self.config, self.cfg_rate, self.limit, self.pack = flow.config, cfg_rate, limit_frames, pack
        self.blocks, _, self.batch, *_ = cache_shape(flow.config, cfg_rate, 1, 0)
        self.time_mlp = copy.deepcopy(estimator.time_mlp)
        self._shape = schedule
        self._schedules: dict[int, Schedule] = {}
        first, *_, last = estimator.levels
        self.levels = [_Level(level, pack) for level in estimator.levels]
        # the input is (noisy mel, mu, speaker, prompt frames): only the first part changes between Euler
        # steps
        conv, skip = first.residual.block1.conv, first.residual.res_conv
        self.mel_conv = pack.windowed(conv, 0, n_mels, bias=False)
        self.condition_conv = pack.windowed(conv, n_mels)
        self.mel_skip = pack.pointwise(skip, 0, n_mels, bias=False)
        self.condition_skip = pack.pointwise(skip, n_mels)
        self.down, self.up = pack.windowed(first.conv), pack.windowed(last.conv)
        self.final, self.project = (
            _Causal(estimator.final_block, pack),
            pack.pointwise(estimator.final_proj),
        )
        self.engine: Velocity | None = None
        """Replaces the velocity computation of this module, if set."""

    @contextmanager
    def without_engine(self) -> Iterator[None]:
        """Compute velocities in this module meanwhile."""
        engine, self.engine = self.engine, None
        try:
            yield
        finally:
            self.engine = engine

    @torch.inference_mode()
    def schedule(self, steps: int) -> Schedule:
        """The tables of a number of Euler steps, computed once."""
        if steps not in self._schedules:
            span = time_span(steps, self._shape)
            at = torch.tensor([t for t, _ in span], device=self.time_mlp.linear_1.weight.device)
            embedded = self.time_mlp(at)
            times = [self.pack.tensor(level.time(embedded)).unbind(0) for level in self.levels]
            self._schedules[steps] = Schedule(span, times)
        return self._schedules[steps]

    def new_state(self, steps: int, cache: RingCache | None = None) -> EstimatorState:
        """The state before the first frame, for a number of Euler steps; dynamic unless a `cache` is
        given."""
        config, pack, width = self.config, self.pack, self.config.channels

        def zeros(batch: int, channels: int) -> Tensor:
            return torch.zeros((batch, PAST, channels), dtype=pack.dtype, device=pack.device)

        # in the order of use: first level, down, middle levels, last level, up, final
        widths = [width] * (2 * len(self.levels) + 3)
        widths[2 * len(self.levels) - 1] = 2 * width  # the last level also takes the skip connection
        rows = [zeros(self.batch, channels) for channels in widths]
        rows[0] = zeros(1, config.n_mels)
        return EstimatorState(
            self.schedule(steps),
            zeros(self.batch, 3 * config.n_mels),
            [list(rows) for _ in range(steps)],
            cache or ChunkCache(self.cache_shape(steps, FIRST_CAPACITY), self.limit, pack.dtype, pack.device),
        )

    def cache_shape(self, steps: int, frames: int) -> tuple[int, ...]:
        """Shape of the keys and values of all Euler steps."""
        return cache_shape(self.config, self.cfg_rate, steps, frames)

    def condition(
        self, state: EstimatorState, mu: Tensor, speaker: Tensor, cond: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Contribution of mu, speaker and prompt frames to the first convolution and to its skip connection:
        [B, n, channels] each. Arguments as those of `sample`."""
        condition = torch.cat((mu, speaker.unsqueeze(1).expand(*mu.shape[:2], -1), cond), dim=2)
        if self.batch == 2:
            condition = torch.cat((condition, torch.zeros_like(condition)))
        rows = torch.cat((state.condition, condition), dim=1)
        state.condition = rows[:, -PAST:]
        return self.condition_conv(rows), self.condition_skip(condition)

    def sample(
        self, state: EstimatorState, noise: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor
    ) -> Tensor:
        """Mel [1, n, n_mels] (float32) of the next frames, which must be one chunk or part of one.

        noise float32, mu and cond [1, n, n_mels]; speaker [1, n_mels]. Runs all Euler steps.
        """
        convolved, skipped = self.condition(state, mu, speaker, cond)
        count = mu.shape[1]
        state.cache.reserve(count)
        x, velocity_of = noise, self.engine or self.velocity
        for step, (_, dt) in enumerate(state.schedule.span):
            # the state of the ODE and its increments stay in float32
            velocity = velocity_of(state, step, x.to(mu.dtype), convolved, skipped).float()
            if self.batch == 2:
                velocity = torch.lerp(velocity[1:], velocity[:1], 1.0 + self.cfg_rate)
            x = torch.add(x, velocity, alpha=dt)
        state.cache.advance(count)
        return x

    def velocity(
        self, state: EstimatorState, step: int, x: Tensor, convolved: Tensor, skipped: Tensor
    ) -> Tensor:
        times = [table[step] for table in state.schedule.times]
        return self.velocity_at(
            times, state.rows[step], state.cache, step * self.blocks, x, convolved, skipped
        )

    def velocity_at(
        self,
        times: Sequence[Tensor],
        rows: list[Tensor],
        cache: Attending,
        layer: int,
        x: Tensor,
        convolved: Tensor,
        skipped: Tensor,
    ) -> Tensor:
        """Velocity [B, n, n_mels] at one Euler step, of which `layer` is the first in the cache; `times` is
        the time embedding of each level. The rows are replaced in their list."""

        def with_past(index: int, value: Tensor) -> Tensor:
            value = torch.cat((rows[index], value), dim=1)
            rows[index] = value[:, -PAST:]
            return value

        first, *others = self.levels
        h = self.mel_conv(with_past(0, x)) + convolved
        h = F.mish(first.block1.norm(h)) + times[0]
        h = first.block2(with_past(1, h)) + (self.mel_skip(x) + skipped)
        for transformer in first.transformers:
            h, layer = transformer(h, layer, cache), layer + 1
        skip, h = h, self.down(with_past(2, h))
        index = 3
        for level, time in zip(others, times[1:], strict=True):
            if level is others[-1]:
                h = torch.cat((h, skip), dim=2)
            inner = level.block1(with_past(index, h)) + time
            h = level.block2(with_past(index + 1, inner)) + level.skip(h)
            for transformer in level.transformers:
                h, layer = transformer(h, layer, cache), layer + 1
            index += 2
        h = self.up(with_past(index, h))
        return self.project(self.final(with_past(index + 1, h)))
