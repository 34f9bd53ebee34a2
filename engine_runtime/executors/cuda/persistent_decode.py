"""Persistent decode kernel: a decode step in one launch (kernels/persistent_decode), if GPU and sizes support
it.

In: network, pool and the step's buffers. Out: the same results as the sequence of `Operations`, including
logits. The step is an op list in device memory, one op per matrix and per attention. One launch streams
weights without gaps between kernels, but occupies every multiprocessor until it ends: use it while the
language model has the GPU exclusively, not beside the codec, whose kernels would have to wait. Engine thread.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import torch
from torch import Tensor

from engine_runtime.cuda.cooperative import CooperativeKernel
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.persistent_ops import (
    PIECE,
    TILE_ROWS,
    Messages,
    StepOutputs,
    listed_phases,
    tiled_scales,
)
from engine_runtime.executors.cuda.weights import Network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import WeightFormat
from engine_runtime.quantization import FP8

_FORMATS: dict[WeightFormat, int] = {"native": 0, "fp8": 1, "int8": 2, "int4": 3}
_PARTS = ("base", "attention", "linear", "step")
"""Source files of the kernel, in the order of concatenation."""
_STAGE = TILE_ROWS * (PIECE + 64 + PIECE // 32)
"""Bytes of shared memory for a pipeline stage of 16 rows and their int4 scales; see base.cu."""
_FEWEST_STAGES, _MOST_STAGES = 6, 12
_FIXED, _ATTENTION = 3456, 23168
"""Bytes of shared memory besides the ring of stages, x and the op list; and the minimum that attention needs
in place of x."""
_WARPS = 9
"""Threads of the compute and epilogue warps; producer warps are added to them."""
_COUNTERS = 64
_MOST_PIECES = 16
"""Split-KV partitions per K/V head."""


def unsuited(network: Network, cache: KVCache) -> str | None:
    """Why the kernel cannot run this network; None if it can."""
    config, device = network.config, cache.pool.device
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return "it needs a GPU of compute capability 9.0 or later"
    if network.embedding.dtype != torch.bfloat16:
        return "it needs bfloat16"
    group = config.num_attention_heads // config.num_key_value_heads
    if config.head_dim != 128 or group != 4:
        return "it needs heads of 128, four for each K/V head"
    if cache.tokens_per_block % TILE_ROWS:
        return f"it needs KV blocks of a multiple of {TILE_ROWS} rows"
    formats = {matrix.format for matrix in network.matrices}
    if len(formats - {"native"}) > 1 or {network.text.head.format, network.audio.head.format} != {"native"}:
        return "it needs unquantized heads and a single weight format for the other matrices"
    if _ring(config, device)[0] < _FEWEST_STAGES:
        return "it needs more shared memory than this GPU has per block"
    for matrix in network.matrices:
        rows, columns = matrix.shape
        stored = matrix.weight.shape[1] * matrix.weight.element_size()
        if rows % TILE_ROWS or stored % PIECE:
            return f"it cannot tile a matrix of {rows} x {columns}"
    return None


def kernel_source() -> str:
    """CUDA C++ source of the kernel, to be compiled after its macros."""
    files = resources.files("engine_runtime.cuda.kernels").joinpath("persistent_decode")
    return "".join(files.joinpath(f"{part}.cu").read_text(encoding="utf-8") for part in _PARTS)


def kernel_macros(
    config: MossLMConfig,
    quantized: WeightFormat,
    tokens_per_block: int,
    kv_dtype: torch.dtype,
    *,
    pieces: int,
    stages: int,
) -> dict[str, int | str]:
    """Macros for sizes and formats; `quantized` is the format of weights that are not native."""
    return {
        "HIDDEN": config.hidden_size,
        "INNER": config.intermediate_size,
        "HEADS": config.num_attention_heads,
        "KV_HEADS": config.num_key_value_heads,
        "DIM": config.head_dim,
        "TOKENS": tokens_per_block,
        "PIECES": pieces,
        "STAGES": stages,
        "FORMAT": _FORMATS[quantized],
        "COPIERS": _copiers(quantized),
        "KV_FP8": int(kv_dtype == FP8),
        "EPS": f"{config.rms_norm_eps!r}f",
        "SOFTMAX_SCALE": f"{config.head_dim**-0.5!r}f",
    }


class PersistentDecode:
    """See the module. Raises RuntimeError where the kernel cannot be compiled."""

    def __init__(self, network: Network, cache: KVCache, inputs: StepInputs, outputs: StepOutputs) -> None:
        config, device = network.config, cache.pool.device
        self._network, self._inputs, self._outputs, self._cache = network, inputs, outputs, cache
        properties = torch.cuda.get_device_properties(device)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        tiles = [(matrix.shape[0] // TILE_ROWS, matrix.shape[1]) for matrix in network.matrices]
        self.blocks = _even_blocks(properties.multi_processor_count, tiles)
        pieces = min(_MOST_PIECES, 1 << (self.blocks // kv_heads).bit_length() - 1)
        formats: set[WeightFormat] = {matrix.format for matrix in network.matrices} - {"native"}
        quantized = formats.pop() if formats else "native"
        stages, shared_bytes = _ring(config, device)
        self._threads = 32 * (_WARPS + _copiers(quantized))
        macros = kernel_macros(
            config, quantized, cache.tokens_per_block, cache.pool.dtype, pieces=pieces, stages=stages
        )
        self._kernel = CooperativeKernel(kernel_source(), "persistent_decode", macros, shared_bytes, device)
        self._messages = Messages.of(config, device)
        self._partial = torch.zeros(pieces * heads * (2 * config.head_dim + 4), device=device)
        self._counters = torch.zeros(_COUNTERS, device=device, dtype=torch.int32)
        self._counters[0] = 1  # launch number; flags are never 0
        self._scales = tiled_scales(network)
        self._lists: dict[tuple[bool, bool], Tensor] = {}

    def run(self, *, text: bool, audio: bool) -> None:
        """Run the row that StepInputs holds through the trunk and these tails."""
        phases = self._lists.get((text, audio))
        if phases is None:
            listed = listed_phases(
                self._network, self._scales, self._messages, self._outputs, text=text, audio=audio
            )
            phases = self._lists[text, audio] = listed.to(self._cache.pool.device)
        inputs = self._inputs
        self._kernel.launch(
            self.blocks,
            self._threads,
            [
                phases,
                inputs.token,
                inputs.position,
                inputs.trunk_row,
                inputs.table,
                self._cache.pool,
                self._network.cos,
                self._network.sin,
                self._outputs.trunk,
                self._messages.qkv,
                self._messages.attended,
                self._partial,
                self._counters,
                len(phases),
            ],
        )


def _copiers(quantized: WeightFormat) -> int:
    """Number of producer warps: more of them issue copies sooner, but each splits the int4 scales into
    smaller copies."""
    return 2 if quantized == "int4" else 4


def _ring(config: MossLMConfig, device: torch.device) -> tuple[int, int]:
    """Number of pipeline stages, and the total shared memory of a block in bytes."""
    widest = max(config.hidden_size, config.intermediate_size, config.num_attention_heads * config.head_dim)
    records = 5 * config.num_layers + 3  # heads, and the terminating empty op
    fixed = _FIXED + widest // 16 + max(2 * widest + 128, _ATTENTION) + 64 * records
    properties: Any = torch.cuda.get_device_properties(device)  # the type stubs lack this attribute
    room = properties.shared_memory_per_block_optin - fixed
    stages = min(_MOST_STAGES, room // _STAGE)
    return stages, fixed + stages * _STAGE


def _even_blocks(most: int, phases: list[tuple[int, int]]) -> int:
    """Number of blocks with the best balance of output tiles: the fewest (close to `most`) that minimize the
    load of the busiest block. `phases` are (tiles, columns); every block must get a tile."""
    most = min(most, *(tiles for tiles, _ in phases))
    work = {
        blocks: sum(-(-tiles // blocks) * columns for tiles, columns in phases)
        for blocks in range(max(1, most * 7 // 8), most + 1)
    }
    return min(work, key=lambda blocks: (work[blocks], blocks))
