"""WhisperLogMelStream: the Whisper log-mel of arriving speech, and the call that computes it for many users.

In: PCM as it arrives. Out: final frames, and all frames again after a revision of the ceiling (features.py
describes both). Frames are work of a task (work.py): users who have spoken equally many codes share a call,
and one copy of their maxima to the host. Up to MOST_CAPTURED_STEPS codes are a captured call. Engine thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine_runtime.codec.speech_tokenizer.encoder_pool import MOST_STREAMS
from engine_runtime.codec.speech_tokenizer.encoder_streams import PendingValues
from engine_runtime.codec.speech_tokenizer.features import Ceiling, WhisperLogMel
from engine_runtime.cuda.graphs import GraphedCalls, padded_size
from engine_runtime.cuda.transfer import sent
from engine_runtime.types import Pcm
from engine_runtime.work import Stage, Task, Work, run_alone

MOST_CAPTURED_STEPS = 4
"""Steps of a call that is captured on a GPU."""


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """The next frames of a stream: scaled, and their log power [n_mels, T]; the maximum of the segment up to
    the last one [1], and up to the end of each step, as a row of a pending copy [B, steps]."""

    mel: Tensor
    log_power: Tensor
    maximum: Tensor
    ends: PendingValues
    place: int


@dataclass(frozen=True, slots=True, eq=False)
class FeatureWork(Work[Frames]):
    """The next frames of a stream from its samples [n], those before the first frame included."""

    stream: WhisperLogMelStream
    pcm: Pcm
    is_start: bool
    is_end: bool

    @property
    def stage(self) -> Stage:
        return "features"

    @property
    def batch_key(self) -> Hashable:
        is_joint = self.stream.is_captured(self) and not self.is_end
        return ("features", id(self.stream.calls), self.pcm.size, self.is_start) if is_joint else None

    def fits(self, batch: Sequence[FeatureWork]) -> bool:
        """Only sizes that are captured already."""
        count = len(batch) + 1
        return count <= MOST_STREAMS and self.stream.calls.has_graph(self.key(count))

    def run(self) -> Frames:
        return self.stream.compute([self])[0]

    def run_together(self, batch: Sequence[FeatureWork]) -> list[Frames]:
        return self.stream.compute(batch)

    def key(self, count: int) -> Hashable:
        """Key of the captured call for this many streams."""
        return "mel", padded_size(count), self.pcm.size, self.is_start, self.is_end


class WhisperLogMelStream:
    """Incremental log-mel of one segment, `step_frames` (of one code) at a time.

    Keeps half a window of samples, the incomplete step, ceiling and maximum, and the log power of the segment
    if a revision may need it. Equal to `WhisperLogMel.streamed`; with "running_max" that is `forward`.
    """

    def __init__(
        self,
        features: WhisperLogMel,
        step_frames: int,
        calls: GraphedCalls | None = None,
        before: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`calls` capture up to MOST_CAPTURED_STEPS; `before` is the context manager around work on the
        device."""
        self._features = features
        self._device = features.window.device
        self.calls = calls or GraphedCalls(self._device, enabled=False)
        self._before = before
        self._half_window = features.n_fft // 2
        self._step_frames = step_frames
        self._step_samples = step_frames * features.hop
        self._look_ahead = self._half_window - features.hop
        if self._step_samples <= self._half_window:
            raise ValueError(f"step_frames {step_frames} is less than half a window")
        self.reset()

    @property
    def maximum(self) -> float:
        """Maximum of the log10 mel power of the frames returned by `push`; minus infinity before the
        first."""
        with self._before():
            return float(self._maximum)

    def reset(self, prior: float | None = None) -> None:
        """Start a new segment; `prior` is an estimate of its maximum."""
        self._context: Pcm = np.zeros(0, np.float32)  # half a window before the pending samples
        self._pending: Pcm = np.zeros(0, np.float32)
        self._rule = Ceiling(self._features.start_ceiling(prior))
        with self._before():
            self._ceiling = self._features.filters.new_full((1,), self._rule.value)
            self._maximum = self._features.filters.new_full((1,), -math.inf)
        self._log_power: list[Tensor] = []  # of the segment, [n_mels, frames] each
        self._unread: list[Frames] = []  # whose maxima `revision` has not seen

    def push(self, pcm: Pcm) -> Task[Tensor]:
        """Add samples [n]; returns the final frames, [n_mels, steps * step_frames]."""
        self._pending = np.concatenate((self._pending, pcm))
        ready = max(0, self._pending.size - self._look_ahead) // self._step_samples * self._step_samples
        if ready == 0:
            return self._no_frames()
        found: Frames = yield self._work(self._pending[: ready + self._look_ahead], is_end=False)
        self._maximum = found.maximum
        if self._features.is_revised:
            self._log_power.append(found.log_power)
            self._unread.append(found)
        self._context = self._pending[ready - self._half_window : ready]
        self._pending = self._pending[ready:]
        return found.mel

    def revision(self) -> Tensor | None:
        """All frames returned by `push`, rescaled, [n_mels, T], if the latest ones moved the ceiling."""
        maxima = [value for frames in self._unread for value in frames.ends.value()[frames.place].tolist()]
        self._unread = []
        if not self._rule.revise(maxima):
            return None
        with self._before(), torch.inference_mode():
            self._ceiling = self._features.filters.new_full((1,), self._rule.value)
            self._log_power = [torch.cat(self._log_power, dim=1)]
            (log_power,) = self._log_power
            ceilings = torch.maximum(self._features.running_maximum(log_power), self._ceiling)
            return self._features.scale(log_power, ceilings)

    def tail(self) -> Task[Tensor]:
        """Frames of the pending samples, zero-padded to complete steps, as if the segment ended here.

        Changes nothing, so pushing may continue. [n_mels, 0] if nothing is pending.
        """
        if self._pending.size == 0:
            return self._no_frames()
        filled = np.pad(self._pending, (0, -self._pending.size % self._step_samples))
        found: Frames = yield self._work(filled, is_end=True)
        return found.mel

    def warm_up(self, most_streams: int = 1) -> None:
        """Capture all calls of up to MOST_CAPTURED_STEPS, for up to `most_streams` where they are joint; the
        stream is reset."""
        self.reset()
        sizes = [1]
        while sizes[-1] < min(most_streams, MOST_STREAMS):
            sizes.append(2 * sizes[-1])
        for count in reversed(sizes):  # the smaller ones reuse the memory of the largest
            for steps in range(1, MOST_CAPTURED_STEPS + 1):
                new = steps * self._step_samples + self._look_ahead
                for before in (0, self._half_window):
                    work = FeatureWork(self, np.zeros(before + new, np.float32), before == 0, is_end=False)
                    self.compute([work] * count)
        for end in (1, self._look_ahead + self._step_samples - 1):  # one step and, with its look-ahead, two
            self.reset()
            for _ in range(2):  # at the start of a segment, and later
                self._pending = np.zeros(end, np.float32)
                run_alone(self.tail())
                self._context = np.zeros(self._half_window, np.float32)
        self.reset()

    def is_captured(self, work: FeatureWork) -> bool:
        """Whether a GPU computes these frames by a captured call."""
        most = MOST_CAPTURED_STEPS * self._step_samples + self._look_ahead
        return work.pcm.size - (0 if work.is_start else self._half_window) <= most

    def compute(self, works: Sequence[FeatureWork]) -> list[Frames]:
        """The frames of works with the same key, in one call."""
        first, count = works[0], len(works)
        filled = [*works, *[works[-1]] * (padded_size(count) - count)]
        call = partial(self._features.continued, start=first.is_start, end=first.is_end)
        with self._before(), torch.inference_mode():
            pcm = torch.from_numpy(np.stack([work.pcm for work in filled]))
            ceilings = torch.cat([work.stream._ceiling for work in filled])
            maxima = torch.cat([work.stream._maximum for work in filled])
            if self.is_captured(first):
                mel, power, maxima = self.calls.run_copied(first.key(count), call, pcm, ceilings, maxima)
            else:
                mel, power, maxima = call(sent(pcm, self._device), ceilings, maxima)
            ends = PendingValues(maxima[:count, self._step_frames - 1 :: self._step_frames])
            return [Frames(mel[at], power[at], maxima[at, -1:], ends, at) for at in range(count)]

    def _work(self, samples: Pcm, *, is_end: bool) -> FeatureWork:
        return FeatureWork(
            self, np.concatenate((self._context, samples)), is_start=self._context.size == 0, is_end=is_end
        )

    def _no_frames(self) -> Tensor:
        return self._features.filters.new_zeros(self._features.n_mels, 0)
