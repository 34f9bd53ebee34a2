"""The flow's estimator on static buffers with Triton kernels: five launches per transformer block, three per
residual block.

In and out: as `EstimatorSteps.sample`, the reference implementation, on a state whose cache is a `RingCache`.
Imported only if Triton is available. Runs in the thread of its caller.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine_runtime.codec.flow.estimator import (
    PAST,
    EstimatorState,
    EstimatorSteps,
    _Level,
)
from engine_runtime.codec.flow.packed_weights import Affine, Norm, Windowed
from engine_runtime.codec.flow.paged_cache import PagedCache
from engine_runtime.codec.flow.ring_cache import RingCache
from engine_runtime.codec.flow.triton_blocks import (
    attend,
    cut,
    feed_forward,
    grid,
    launch_of,
    linear_add,
    project,
    tile,
)
from engine_runtime.cuda.kernels.flow_estimator import conv_rows, skip_rows, step_rows


class TritonEstimator:
    """Runs the weights of an `EstimatorSteps`."""

    def __init__(self, steps: EstimatorSteps) -> None:
        self._steps = steps

    def sample(
        self, state: EstimatorState, noise: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor
    ) -> Tensor:
        steps = self._steps
        if steps.engine is not None:
            return steps.sample(state, noise, mu, speaker, cond)
        convolved, skipped = (rows.contiguous() for rows in steps.condition(state, mu, speaker, cond))
        sizes = [row.numel() for row in state.rows[0]]
        # rows for the next packet in separate buffers, because programs still read the old rows
        behind = mu.new_empty((len(state.rows), sum(sizes)))
        x = noise
        for step, (_, dt) in enumerate(state.schedule.span):
            fresh = [
                part.view_as(row)
                for part, row in zip(behind[step].split(sizes), state.rows[step], strict=True)
            ]
            x = self._euler_step(state, step, dt, x, fresh, convolved, skipped)
            state.rows[step] = fresh
        return x

    def _euler_step(
        self,
        state: EstimatorState,
        step: int,
        dt: float,
        x: Tensor,
        fresh: list[Tensor],
        convolved: Tensor,
        skipped: Tensor,
    ) -> Tensor:
        """x float32 [streams, n, n_mels] after one Euler step; `fresh` receives the rows for the next
        packet."""
        steps, times = self._steps, state.schedule.times
        rows = iter(zip(state.rows[step], fresh, strict=True))
        layer = step * steps.blocks
        h = skip = convolved
        for index, level in enumerate(steps.levels):
            time = times[index][step]
            if index == 0:
                inner = self._conv(steps.mel_conv, (x,), next(rows), add=convolved, is_shared=True)
                inner = self._conv(level.block2.conv, (inner,), next(rows), level.block1.norm, time)
                h = self._skip(inner, level.block2.norm, steps.mel_skip, (x,), add=skipped, is_shared=True)
            else:
                parts = (h, skip) if level is steps.levels[-1] else (h,)
                inner = self._conv(level.block1.conv, parts, next(rows))
                inner = self._conv(level.block2.conv, (inner,), next(rows), level.block1.norm, time)
                h = self._skip(inner, level.block2.norm, level.skip, parts)
            self._transform(level, h, layer, state.cache)
            layer += len(level.transformers)
            if index == 0:
                skip, h = h, self._conv(steps.down, (h,), next(rows))
        h = self._conv(steps.up, (h,), next(rows))
        h = self._conv(steps.final.conv, (h,), next(rows))
        return self._euler(h, steps.final.norm, steps.project, x, dt)

    def _transform(self, level: _Level, x: Tensor, layer: int, cache: object) -> None:
        """The transformer blocks of a level, in place on x [B, n, C]."""
        assert isinstance(cache, RingCache | PagedCache)
        for index, block in enumerate(level.transformers):
            entry = cache.entry(layer + index)
            q = project(x, block.norm1, block.project, entry, cache)
            linear_add("out", attend(q[0], entry, cache, block.head_dim**-0.5), block.out, x)
            feed_forward(x, block.norm3, block.inner, block.outer, is_gelu=True)

    def _conv(
        self,
        conv: Windowed,
        parts: tuple[Tensor, ...],
        rows: tuple[Tensor, Tensor],
        norm: Norm | None = None,
        time: Tensor | None = None,
        *,
        add: Tensor | None = None,
        is_shared: bool = False,
    ) -> Tensor:
        """[B, n, C] of the channels of all `parts`; `rows` are the rows of the previous and for the next
        packet. With `norm`, the first part is mish(norm(part)) + time."""
        first = parts[0]
        count, outputs = first.shape[1], conv.weight.shape[0]
        batch = first.shape[0] * (self._steps.batch if is_shared else 1)
        launch = launch_of("conv", batch * count)
        out = conv.weight.new_empty((batch, count, outputs))
        # Pointers disabled by a flag are never read; any tensor serves as a placeholder.
        past, new_past = rows
        streams = first.shape[0] if is_shared else 1
        conv_rows[grid(launch, batch * count, outputs)](
            first, parts[-1], past, new_past, *((norm.weight, norm.bias) if norm else (out, out)),
            out if time is None else time, conv.weight, out if conv.bias is None else conv.bias,
            out if add is None else add, out, batch * count, count, streams, norm.eps if norm else 0.0,
            IN=first.shape[-1], PARTS=len(parts), OUT=outputs, TAPS=PAST + 1, IS_SHARED=is_shared,
            HAS_NORM=norm is not None, HAS_BIAS=conv.bias is not None, HAS_ADD=add is not None,
            TILE=tile(first.shape[-1]), **cut(launch, first),
        )  # fmt: skip
        return out

    def _skip(
        self,
        h: Tensor,
        norm: Norm,
        skip: Affine,
        parts: tuple[Tensor, ...],
        *,
        add: Tensor | None = None,
        is_shared: bool = False,
    ) -> Tensor:
        """mish(norm(h)) + skip(parts) [B, n, C], a new buffer."""
        first, out = parts[0], torch.empty_like(h)
        num_rows, width = h.shape[0] * h.shape[1], h.shape[2]
        launch = launch_of("skip", num_rows)
        skip_rows[grid(launch, num_rows, width)](
            h, norm.weight, norm.bias, first, parts[-1], skip.weight, out if skip.bias is None else skip.bias,
            out if add is None else add, out, num_rows, first.shape[0] * first.shape[1], norm.eps,
            IN=first.shape[-1],
            PARTS=len(parts), OUT=width, IS_SHARED=is_shared, HAS_BIAS=skip.bias is not None,
            HAS_ADD=add is not None, TILE=tile(first.shape[-1]), OUT_TILE=tile(width),
            **cut(launch, h),
        )  # fmt: skip
        return out

    def _euler(self, h: Tensor, norm: Norm, project: Affine, x: Tensor, dt: float) -> Tensor:
        count, bands, out = x.shape[0] * x.shape[1], x.shape[2], torch.empty_like(x)
        launch = launch_of("step", count)
        step_rows[grid(launch, count, bands)](
            h, norm.weight, norm.bias, project.weight, project.bias, x, out, count, norm.eps,
            1.0 + self._steps.cfg_rate, dt, IN=h.shape[2], OUT=bands, BATCH=self._steps.batch,
            TILE=tile(h.shape[2]), **cut(launch, h),
        )  # fmt: skip
        return out
