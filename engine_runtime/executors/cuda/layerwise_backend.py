"""What the backends in torch and in Triton share: the order of a step's operations, and the buffers between.

In and out: as in executors/cuda/decode_backend.py. A layer is four operations, which a subclass implements.
All of them can be captured in a CUDA graph, since sizes depend on the bucket and never on the position, which
is read on the device. Engine thread.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from engine_runtime.executors.cuda.decode_backend import DecodeBackend, DecodeOutputs, StepShape
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.sampler import DeviceSampler
from engine_runtime.executors.cuda.weights import LayerWeights, Network, Tail
from engine_runtime.quantization import Matrix


class LayerwiseBackend(DecodeBackend):
    """Operations: x [1, in] -> out [1, out]; `out` may be `residual` itself; nothing else may
    overlap."""

    has_buckets = True
    needs_exclusive_gpu = False

    def __init__(
        self, network: Network, inputs: StepInputs, outputs: DecodeOutputs, sampler: DeviceSampler
    ) -> None:
        super().__init__(inputs, outputs, sampler)
        config, embedding = network.config, network.embedding
        self._network = network
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._x = embedding.new_zeros(1, config.hidden_size)
        self._y = embedding.new_zeros(1, config.hidden_size)
        self._qkv = embedding.new_zeros(1, (heads + 2 * kv_heads) * config.head_dim)
        self._attended = embedding.new_zeros(1, heads * config.head_dim)
        self._gated = embedding.new_zeros(1, config.intermediate_size)

    @abstractmethod
    def norm_linear(self, x: Tensor, norm: Tensor, matrix: Matrix, out: Tensor) -> None:
        """out = rms_norm(x) * norm @ matrix^T."""

    @abstractmethod
    def norm_gate_up(self, x: Tensor, norm: Tensor, matrix: Matrix, out: Tensor) -> None:
        """gate, up = rms_norm(x) * norm @ matrix^T; out = silu(gate) * up."""

    @abstractmethod
    def linear_add(self, x: Tensor, matrix: Matrix, residual: Tensor, out: Tensor) -> None:
        """out = residual + x @ matrix^T."""

    @abstractmethod
    def attend(self, qkv: Tensor, layer: LayerWeights, bucket: int, out: Tensor) -> None:
        """Normalize q and k (if the layer has their norms), apply RoPE, write k and v to the pool, attend
        over rows 0..position (below `bucket`).

        qkv [1, (heads + 2 kv_heads) * head_dim] -> out [1, heads * head_dim].
        """

    def forward(self, shape: StepShape) -> None:
        torch.index_select(self._network.embedding, 0, self._inputs.token, out=self._x)
        for layer in self._network.trunk:
            self._layer(layer, self._x, self._x, shape.bucket)
        if not (shape.text and shape.audio):
            self._outputs.trunk.index_copy_(0, self._inputs.trunk_row, self._x)
        if shape.text:
            self._tail(self._network.text, shape.bucket, self._outputs.text_logits)
        if shape.audio:
            self._tail(self._network.audio, shape.bucket, self._outputs.audio_logits)

    def _tail(self, tail: Tail, bucket: int, logits: Tensor) -> None:
        x = self._x  # not modified: it is the input of the other tail, too
        for layer in tail.layers:
            self._layer(layer, x, self._y, bucket)
            x = self._y
        self.norm_linear(x, tail.norm, tail.head, logits)

    def _layer(self, layer: LayerWeights, x: Tensor, out: Tensor, bucket: int) -> None:
        self.norm_linear(x, layer.input_norm, layer.qkv, self._qkv)
        self.attend(self._qkv, layer, bucket, self._attended)
        self.linear_add(self._attended, layer.o, x, out)
        self.norm_gate_up(out, layer.post_norm, layer.gate_up, self._gated)
        self.linear_add(self._gated, layer.down, out, out)
