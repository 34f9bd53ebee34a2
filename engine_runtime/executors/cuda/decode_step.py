"""One decode step on static buffers: a row through the trunk and the selected tails, then sampling.

In: the values in StepInputs. Out: `logits` and the sampler's result, in buffers with fixed addresses. Sizes
depend on `StepShape` alone, so that each shape can be captured as a CUDA graph. Engine thread.

KV length buckets are powers of two from 512 rows on. Plain torch reads every row of its bucket, at most twice
the rows needed beyond the first bucket; the kernels read only existing rows and derive the number of split-KV
partitions from the bucket. So a few graphs (five up to 8,192 rows) cover every length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine_runtime.cuda.availability import first_line
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.operations import Operations
from engine_runtime.executors.cuda.persistent_decode import PersistentDecode, unsuited
from engine_runtime.executors.cuda.persistent_ops import StepOutputs
from engine_runtime.executors.cuda.sampler import DeviceSampler
from engine_runtime.executors.cuda.weights import LayerWeights, Network, Tail
from engine_runtime.lm.kv_cache import KVCache

SMALLEST_BUCKET = 512
GRAPHED_ROWS = (16, 64)
"""Sizes of a captured prefill: a few rows of speech, or the end of a question and the opening of the
reply."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """Key of a captured step: KV bucket, tails, and sampling (if any).

    `is_persistent`: layers and heads run in one launch, for any number of rows (the bucket is 0 then).
    """

    bucket: int
    text: bool
    audio: bool
    samples: bool = False
    do_sample: bool = False
    subtitle: bool = False
    is_persistent: bool = False


@dataclass(frozen=True, slots=True)
class RowsShape:
    """Key of a captured prefill of at most `size` rows.

    `is_full_chunk`: exactly the rows up to `bucket`, as the chunks of a long prompt. The causal structure is
    fixed then, so that attention needs no mask and skips everything above the diagonal.
    """

    size: int
    bucket: int
    text: bool
    audio: bool
    is_full_chunk: bool = False


def bucket_of(num_rows: int, longest: int) -> int:
    """The bucket for a sequence of `num_rows` rows, including the new one; at most `longest`."""
    bucket = SMALLEST_BUCKET
    while bucket < num_rows:
        bucket *= 2
    return min(bucket, longest)


class DecodeStep:
    """See the module."""

    def __init__(
        self,
        network: Network,
        cache: KVCache,
        inputs: StepInputs,
        operations: Operations,
        sampler: DeviceSampler,
    ) -> None:
        config, embedding = network.config, network.embedding
        self._network, self._inputs, self._operations, self._sampler = network, inputs, operations, sampler
        self._trunk = cache.trunk.view(-1, config.hidden_size)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._x = embedding.new_zeros(1, config.hidden_size)
        self._y = embedding.new_zeros(1, config.hidden_size)
        self._qkv = embedding.new_zeros(1, (heads + 2 * kv_heads) * config.head_dim)
        self._attended = embedding.new_zeros(1, heads * config.head_dim)
        self._gated = embedding.new_zeros(1, config.intermediate_size)
        device = embedding.device
        self.text_logits = torch.zeros(1, config.text_vocab, device=device)
        self.audio_logits = torch.zeros(1, config.audio_vocab, device=device)
        self.persistent: PersistentDecode | None = None

    def use_persistent_kernel(self, network: Network, cache: KVCache, inputs: StepInputs) -> str | None:
        """Enable the persistent kernel; returns the reason if it cannot be used."""
        reason = unsuited(network, cache)
        if reason is None:
            outputs = StepOutputs(self.text_logits, self.audio_logits, self._trunk)
            try:
                self.persistent = PersistentDecode(network, cache, inputs, outputs)
            except (RuntimeError, ImportError, OSError, AttributeError) as error:
                reason = f"it could not be compiled ({first_line(error)})"
        return reason

    def run(self, shape: StepShape) -> None:
        """Run the row in StepInputs; writes K/V (and keeps the trunk's output for a skipped tail)."""
        self._inputs.take()
        if shape.is_persistent:
            assert self.persistent is not None
            self.persistent.run(text=shape.text, audio=shape.audio)
        else:
            self._run_layers(shape)
        if shape.samples:
            self.sample(shape)

    def _run_layers(self, shape: StepShape) -> None:
        torch.index_select(self._network.embedding, 0, self._inputs.token, out=self._x)
        for layer in self._network.trunk:
            self._layer(layer, self._x, self._x, shape.bucket)
        if not (shape.text and shape.audio):
            self._trunk.index_copy_(0, self._inputs.trunk_row, self._x)
        if shape.text:
            self._tail(self._network.text, shape.bucket, self.text_logits)
        if shape.audio:
            self._tail(self._network.audio, shape.bucket, self.audio_logits)

    def sample(self, shape: StepShape) -> None:
        """Sample from the logits in the buffers."""
        self._sampler.run(
            self.text_logits if shape.text else None,
            self.audio_logits if shape.audio else None,
            do_sample=shape.do_sample,
            subtitle=shape.subtitle,
        )

    def _tail(self, tail: Tail, bucket: int, logits: Tensor) -> None:
        x = self._x  # not modified: it is the input of the other tail, too
        for layer in tail.layers:
            self._layer(layer, x, self._y, bucket)
            x = self._y
        self._operations.norm_linear(x, tail.norm, tail.head, logits)

    def _layer(self, layer: LayerWeights, x: Tensor, out: Tensor, bucket: int) -> None:
        operations = self._operations
        operations.norm_linear(x, layer.input_norm, layer.qkv, self._qkv)
        operations.attend(self._qkv, layer, bucket, self._attended)
        operations.linear_add(self._attended, layer.o, x, out)
        operations.norm_gate_up(out, layer.post_norm, layer.gate_up, self._gated)
        operations.linear_add(self._gated, layer.down, out, out)
