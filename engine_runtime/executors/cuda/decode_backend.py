"""The decode backend: runs one decode step, a row through the trunk and the selected tails, then sampling.

In: the values in StepInputs. Out: logits in DecodeOutputs and the sampler's result, in buffers with fixed
addresses. Sizes depend on `StepShape` alone, so that each shape can be captured as a CUDA graph.

Three backends implement it: torch_backend.py, the reference implementation; triton_backend.py; and
persistent_backend.py, one kernel for the whole step. Engine thread.

KV length buckets are powers of two from 512 rows on. Plain torch reads every row of its bucket, at most twice
the rows needed beyond the first bucket; the kernels read only existing rows and derive the number of split-KV
partitions from the bucket. So a few graphs (five up to 8,192 rows) cover every length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.sampler import DeviceSampler
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.models.moss_lm import MossLMConfig

SMALLEST_BUCKET = 512


@dataclass(frozen=True, slots=True)
class StepShape:
    """What fixes the sizes of a step: KV bucket (0 for a backend without buckets), tails, and sampling (if
    any)."""

    bucket: int
    text: bool
    audio: bool
    samples: bool = False
    do_sample: bool = False
    subtitle: bool = False


def bucket_of(num_rows: int, longest: int) -> int:
    """The bucket for a sequence of `num_rows` rows, including the new one; at most `longest`."""
    bucket = SMALLEST_BUCKET
    while bucket < num_rows:
        bucket *= 2
    return min(bucket, longest)


@dataclass(frozen=True, slots=True)
class DecodeOutputs:
    """Result buffers: logits [1, vocabulary] float32, and the kept outputs of the trunk [rows, H]."""

    text_logits: Tensor
    audio_logits: Tensor
    trunk: Tensor

    @classmethod
    def of(cls, config: MossLMConfig, cache: KVCache) -> DecodeOutputs:
        """Buffers on the device of the cache, whose `trunk` keeps the outputs of the trunk."""
        return cls(
            torch.zeros(1, config.text_vocab, device=cache.pool.device),
            torch.zeros(1, config.audio_vocab, device=cache.pool.device),
            cache.trunk.view(-1, config.hidden_size),
        )


class DecodeBackend(ABC):
    """Runs one decode step on static buffers.

    Attributes:
        name: identifies the backend in the keys of captured graphs.
        has_buckets: whether a capture serves one KV length bucket, not every length.
        needs_exclusive_gpu: it occupies every multiprocessor until the step ends: only for steps that have
            the GPU exclusively, not beside the codec, whose kernels would have to wait.
        sampler: samples from the logits; shared by the backends of an executor, as it keeps a reply's state.
    """

    name: ClassVar[str]
    has_buckets: ClassVar[bool]
    needs_exclusive_gpu: ClassVar[bool]

    def __init__(self, inputs: StepInputs, outputs: DecodeOutputs, sampler: DeviceSampler) -> None:
        self._inputs, self._outputs, self.sampler = inputs, outputs, sampler

    def run(self, shape: StepShape) -> None:
        """Run the row in StepInputs, and sample if the shape does."""
        self._inputs.take()
        self.forward(shape)
        if shape.samples:
            self.sample(shape)

    @abstractmethod
    def forward(self, shape: StepShape) -> None:
        """Embedding to logits; writes K/V (and keeps the trunk's output for a skipped tail)."""

    def sample(self, shape: StepShape) -> None:
        """Sample from the logits in the buffers."""
        self.sampler.run(
            self._outputs.text_logits if shape.text else None,
            self._outputs.audio_logits if shape.audio else None,
            do_sample=shape.do_sample,
            subtitle=shape.subtitle,
        )
