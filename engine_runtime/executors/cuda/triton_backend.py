"""The decode backend as Triton kernels: four or five launches per layer, two per sampled channel.

In and out: as in executors/cuda/decode_backend.py. The reference implementation is torch_backend.py;
triton_prefill.py has the operations of a prefill. Imported only if Triton is available. Engine thread.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
from torch import Tensor

from engine_runtime.cuda.kernels.attention import attend_row
from engine_runtime.cuda.kernels.prefill_elementwise import take_slots
from engine_runtime.executors.cuda.decode_backend import DecodeOutputs
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.layerwise_backend import LayerwiseBackend
from engine_runtime.executors.cuda.triton_linear import ConfigKey, KernelConfig, TritonLinear
from engine_runtime.executors.cuda.triton_sampler import TritonSampler
from engine_runtime.executors.cuda.weights import LayerWeights, Network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.quantization import Matrix

SEQUENCE_TILE = 64
"""Rows per KV tile of an attention program."""
_MAX_SPLITS = 64
"""Maximum number of split-KV partitions per K/V head. Up to 4,096 rows a partition is one tile. With eight
K/V heads, 2,048 rows yield two programs per multiprocessor of a large GPU, enough to saturate its memory
bandwidth."""


class TritonBackend(LayerwiseBackend):
    """`kernel_configs`: see TritonLinear."""

    name = "triton"

    def __init__(
        self,
        network: Network,
        cache: KVCache,
        inputs: StepInputs,
        outputs: DecodeOutputs,
        kernel_configs: Mapping[ConfigKey, KernelConfig] | None = None,
    ) -> None:
        config, device = network.config, cache.pool.device
        sampler = TritonSampler(config.text_vocab, config.audio_vocab, inputs, device)
        super().__init__(network, inputs, outputs, sampler)
        self.linear = TritonLinear(config.rms_norm_eps, device, dict(kernel_configs or {}))
        self._cache = cache
        heads, dim = config.num_attention_heads, config.head_dim
        self._partial = torch.zeros(_MAX_SPLITS, heads, dim, device=device)
        self._tops = torch.zeros(_MAX_SPLITS, heads, device=device)
        self._totals = torch.zeros(_MAX_SPLITS, heads, device=device)
        self._arrived = torch.zeros(config.num_key_value_heads, dtype=torch.int32, device=device)

    def norm_linear(self, x: Tensor, norm: Tensor, matrix: Matrix, out: Tensor) -> None:
        self.linear.run(x, norm, matrix, None, out)

    def norm_gate_up(self, x: Tensor, norm: Tensor, matrix: Matrix, out: Tensor) -> None:
        self.linear.run(x, norm, matrix, None, out, is_gated=True)

    def linear_add(self, x: Tensor, matrix: Matrix, residual: Tensor, out: Tensor) -> None:
        self.linear.run(x, None, matrix, residual, out)

    def attend(self, qkv: Tensor, layer: LayerWeights, bucket: int, out: Tensor) -> None:
        config, cache = self._network.config, self._cache
        splits = max(1, min(_MAX_SPLITS, triton.next_power_of_2(bucket) // SEQUENCE_TILE))
        group = config.num_attention_heads // config.num_key_value_heads
        attend_row[(config.num_key_value_heads, splits)](
            qkv,
            layer.q_norm,
            layer.k_norm,
            self._network.cos,
            self._network.sin,
            cache.pool,
            self._inputs.table,
            self._inputs.position,
            self._partial,
            self._tops,
            self._totals,
            self._arrived,
            out,
            cache.layer_offset(layer.index),
            config.rms_norm_eps,
            config.head_dim**-0.5,
            HEADS=config.num_attention_heads,
            KV_HEADS=config.num_key_value_heads,
            DIM=config.head_dim,
            GROUP=group,
            GROUP_TILE=max(16, triton.next_power_of_2(group)),  # tensor cores require at least 16 rows
            TOKENS=cache.tokens_per_block,
            TILE=SEQUENCE_TILE,
            NUM_SPLITS=splits,
            HAS_MORE=splits * SEQUENCE_TILE < bucket,
            num_warps=4,
            num_stages=1,
        )


def take_inputs(host: Tensor, device: Tensor) -> None:
    """Copy the slots [n] of StepInputs; the kernel reads pinned host memory directly."""
    take_slots[(1,)](host, device, SLOTS=host.numel(), num_warps=1)
