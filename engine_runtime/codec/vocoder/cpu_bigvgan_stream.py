"""Stateful BigVGAN on a CPU: every level of the network keeps the rows that its next output depends on.

In: mel chunks. Out: final samples, which later frames cannot change; every row is computed once, except a few
at the borders of a residual block. Equal to one call over the complete mel. Runs in the thread of its caller;
streams do not share state.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine_runtime.codec.vocoder.cpu_bigvgan import CpuBigVGAN, UpsamplingLevel
from engine_runtime.codec.vocoder.stream import VocoderStream


class CpuBigVGANStream(VocoderStream):
    """One reply."""

    def __init__(self, network: CpuBigVGAN, check: Callable[[Tensor], None]) -> None:
        self._network, self._check = network, check
        self.reset()

    def reset(self) -> None:
        """Clear the state: the next frame is the first of a signal."""
        self._levels = [_LevelState(level) for level in self._network.levels]

    @torch.inference_mode()
    def push_tensor(self, mel: Tensor) -> Tensor:
        self._check(mel)
        return self._run(mel.T.float().contiguous(), at_end=False)

    @torch.inference_mode()
    def finish_tensor(self) -> Tensor:
        pcm = self._run(torch.zeros((0, self._network.n_mels)), at_end=True)
        self.reset()
        return pcm

    def _run(self, rows: Tensor | None, at_end: bool) -> Tensor:
        for level in self._levels:
            rows = level.push(rows, at_end)
        return torch.zeros(0) if rows is None else rows[:, 0]


class _LevelState:
    """A level in one stream: the rows of its input that are still needed."""

    def __init__(self, level: UpsamplingLevel) -> None:
        self._level = level
        self._rows: Tensor | None = None
        self._start = 0  # index in the signal of the first kept row
        self._done = 0  # rows that were returned

    def push(self, rows: Tensor | None, at_end: bool) -> Tensor | None:
        """Add rows [T, in]; returns the rows [T', out] that are final now, or None. `at_end`: these are the
        last rows."""
        level = self._level
        if self._rows is not None:
            rows = self._rows if rows is None else torch.cat((self._rows, rows))
        if rows is None:
            return None
        end = level.rate * (self._start + rows.shape[0]) - (0 if at_end else level.delay)
        if end <= self._done:
            self._rows = rows
            return None
        result = level.run(rows, self._start == 0, at_end)
        result = result[result.shape[0] - (end - self._done) :]
        self._done = end
        drop = max((end + level.delay) // level.rate - level.context - self._start, 0)
        self._rows, self._start = rows[drop:].clone(), self._start + drop
        return result
