"""The decode backend as one persistent kernel (cuda/kernels/persistent_decode), if GPU and sizes support it.

In and out: as in executors/cuda/decode_backend.py. The step up to the logits is an op list in device memory,
one op per matrix and per attention, and one launch, which streams weights without gaps between kernels.
Engine thread.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine_runtime.cuda.compiled_kernel import CompiledKernel, kernel_files
from engine_runtime.cuda.driver import shared_memory_limit
from engine_runtime.executors.cuda.decode_backend import DecodeBackend, DecodeOutputs, StepShape
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.persistent_layout import (
    K_TILE_BYTES,
    LAUNCH_COUNTER,
    MAX_KV_SPLITS,
    MAX_OPS,
    MIN_STAGES,
    NUM_COUNTERS,
    TILE_ROWS,
    KernelLayout,
    max_records,
    max_stages,
)
from engine_runtime.executors.cuda.persistent_ops import ExchangeBuffers, op_list, tiled_scales
from engine_runtime.executors.cuda.sampler import DeviceSampler
from engine_runtime.executors.cuda.weights import Network
from engine_runtime.hardware import kernel_capability
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.options import WeightFormat


def unsupported_reason(network: Network, cache: KVCache) -> str | None:
    """Why the kernel cannot run this network; None if it can."""
    config, device = network.config, cache.pool.device
    if kernel_capability(device) < (9, 0):
        return "it needs a GPU of compute capability 9.0 or later"
    if network.embedding.dtype != torch.bfloat16:
        return "it needs bfloat16"
    group = config.num_attention_heads // config.num_key_value_heads
    if config.head_dim != 128 or group != 4:
        return "it needs heads of 128, four for each K/V head"
    if not config.qk_norm:
        return "it needs normalized queries and keys (qk_norm)"
    if cache.tokens_per_block % TILE_ROWS:
        return f"it needs KV blocks of a multiple of {TILE_ROWS} rows"
    formats = {matrix.format for matrix in network.matrices}
    if len(formats - {"native"}) > 1 or {network.text.head.format, network.audio.head.format} != {"native"}:
        return "it needs unquantized heads and a single weight format for the other matrices"
    if max_stages(config, shared_memory_limit(device)) < MIN_STAGES:
        return "it needs more shared memory than this GPU has per block"
    if max_records(config) > MAX_OPS:
        return f"its flags distinguish {MAX_OPS} ops, and there are {max_records(config)}"
    for matrix in network.matrices:
        rows, columns = matrix.shape
        stored = matrix.weight.shape[1] * matrix.weight.element_size()
        if rows % TILE_ROWS or stored % K_TILE_BYTES:
            return f"it cannot tile a matrix of {rows} x {columns}"
    if _grid(network, device) < config.num_key_value_heads:
        return "it needs a tile of each matrix for every K/V head"
    return None


def kernel_source(layout: KernelLayout) -> tuple[str, dict[str, str]]:
    """CUDA C++ source of the kernel, and the headers that it includes, by name."""
    source, headers = kernel_files("persistent_decode", "step.cu")
    return source, headers | {"layout.cuh": layout.header()}


class PersistentBackend(DecodeBackend):
    """Raises RuntimeError, ImportError or OSError if the kernel cannot be compiled."""

    name = "persistent"
    has_buckets = False
    needs_exclusive_gpu = True

    def __init__(
        self,
        network: Network,
        cache: KVCache,
        inputs: StepInputs,
        outputs: DecodeOutputs,
        sampler: DeviceSampler,
    ) -> None:
        super().__init__(inputs, outputs, sampler)
        config, device = network.config, cache.pool.device
        self._network, self._cache = network, cache
        self.blocks = _grid(network, device)
        formats: set[WeightFormat] = {matrix.format for matrix in network.matrices} - {"native"}
        self._layout = layout = KernelLayout(
            config,
            weight_format=formats.pop() if formats else "native",
            tokens_per_block=cache.tokens_per_block,
            kv_dtype=cache.pool.dtype,
            kv_splits=min(MAX_KV_SPLITS, 1 << (self.blocks // config.num_key_value_heads).bit_length() - 1),
            num_stages=max_stages(config, shared_memory_limit(device)),
        )
        source, headers = kernel_source(layout)
        self._kernel = CompiledKernel(source, headers, "persistent_decode", layout.shared_bytes, device)
        self._buffers = ExchangeBuffers.of(config, device)
        self._split_sums = torch.zeros(layout.split_bytes, device=device, dtype=torch.uint8)
        self._counters = torch.zeros(NUM_COUNTERS, device=device, dtype=torch.int32)
        self._counters[LAUNCH_COUNTER] = 1  # flags are never 0
        self._scales = tiled_scales(network)
        self._lists: dict[tuple[bool, bool], Tensor] = {}

    def forward(self, shape: StepShape) -> None:
        text, audio = shape.text, shape.audio
        ops = self._lists.get((text, audio))
        if ops is None:
            listed = op_list(
                self._network, self._scales, self._buffers, self._outputs, self._cache, text=text, audio=audio
            )
            ops = self._lists[text, audio] = listed.to(self._cache.pool.device)
        inputs = self._inputs
        self._kernel.launch(
            self.blocks,
            self._layout.num_threads,
            [
                ops,
                inputs.token,
                inputs.position,
                inputs.trunk_row,
                inputs.table,
                self._cache.pool,
                self._network.cos,
                self._network.sin,
                self._outputs.trunk,
                self._buffers.qkv,
                self._buffers.attended,
                self._split_sums,
                self._counters,
                len(ops),
            ],
            is_cooperative=True,
        )


def _grid(network: Network, device: torch.device) -> int:
    """Number of blocks, at most one per multiprocessor."""
    tiles = [(matrix.shape[0] // TILE_ROWS, matrix.shape[1]) for matrix in network.matrices]
    return _balanced_grid(torch.cuda.get_device_properties(device).multi_processor_count, tiles)


def _balanced_grid(most: int, matrices: list[tuple[int, int]]) -> int:
    """Number of blocks with the best balance of output tiles: the fewest (close to `most`) that minimize the
    load of the busiest block. `matrices` are (tiles, columns); every block must get a tile."""
    most = min(most, *(tiles for tiles, _ in matrices))
    work = {
        blocks: sum(-(-tiles // blocks) * columns for tiles, columns in matrices)
        for blocks in range(max(1, most * 7 // 8), most + 1)
    }
    return min(work, key=lambda blocks: (work[blocks], blocks))
