"""Autotunes the tiling of the linear kernels for each kind of weight, on the loaded weights.

In: the network on its GPU. Out: the fastest KernelConfig for each kind of matrix. All matrices of a kind run
one after the other, as in a step, so that none of them is in the GPU's L2 cache. Called once at load; with
compiled kernels in Triton's cache it takes a second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from engine_runtime.cuda.graphs import captured
from engine_runtime.executors.cuda.triton_linear import (
    ConfigKey,
    KernelConfig,
    TritonLinear,
    default_config,
    rows_of,
)
from engine_runtime.executors.cuda.weights import Network
from engine_runtime.quantization import Matrix

_ROUNDS = 3
_CANDIDATES = (
    (16384, 4, 3, 3),
    (16384, 4, 4, 2),
    (16384, 4, 6, 2),
    (8192, 4, 4, 3),
    (8192, 4, 6, 3),
    (16384, 8, 2, 3),
    (32768, 8, 2, 3),
)
"""(tile bytes, warps, programs per multiprocessor, stages): each was the fastest for some matrix."""
_MAX_MATRICES = 12
"""Number of matrices run per kind; even of the smallest kind they exceed a GPU's L2 cache."""


@dataclass(frozen=True, slots=True)
class _Use:
    """A matrix and its use in a step."""

    matrix: Matrix
    has_norm: bool
    is_logits: bool


def autotuned_configs(network: Network) -> Mapping[ConfigKey, KernelConfig]:
    """The fastest of `candidates` for every kind of matrix in the network."""
    uses: dict[ConfigKey, list[_Use]] = defaultdict(list)
    for layer in (*network.trunk, *network.text.layers, *network.audio.layers):
        for matrix in layer.matrices:
            is_gated = matrix is layer.gate_up
            has_norm = is_gated or matrix is layer.qkv
            uses[ConfigKey(matrix.format, matrix.shape, is_gated)].append(_Use(matrix, has_norm, False))
    for tail in (network.text, network.audio):
        key = ConfigKey(tail.head.format, tail.head.shape, False)
        uses[key].append(_Use(tail.head, True, True))
    return {key: _fastest(network, key, found[:_MAX_MATRICES]) for key, found in uses.items()}


def candidates(key: ConfigKey) -> list[KernelConfig]:
    """The default configuration first, then others with about as many bytes in flight."""
    found = [default_config(key)]
    for tile_bytes, warps, ctas_per_sm, stages in _CANDIDATES:
        found.append(KernelConfig(rows_of(key, tile_bytes), warps, ctas_per_sm, stages))
    return list(dict.fromkeys(found))


def _fastest(network: Network, key: ConfigKey, uses: list[_Use]) -> KernelConfig:
    times: dict[KernelConfig, float] = {}
    for candidate in candidates(key):
        # Too little shared memory for a candidate is not an error: at least one candidate always fits.
        with suppress(OutOfResources):
            times[candidate] = _time(_work(network, key, uses, candidate))
    return min(times, key=lambda candidate: times[candidate]) if times else KernelConfig(1, 4, 2, 2)


def _work(network: Network, key: ConfigKey, uses: list[_Use], candidate: KernelConfig) -> Callable[[], None]:
    """All matrices of one kind, one after the other."""
    embedding, config = network.embedding, network.config
    linear = TritonLinear(config.rms_norm_eps, embedding.device, {key: candidate})
    x, norm = embedding.new_zeros(1, key.shape[1]), embedding.new_ones(key.shape[1])
    num_out = key.shape[0] // 2 if key.is_gated else key.shape[0]
    rows = {False: embedding.new_zeros(1, num_out), True: torch.zeros(1, num_out, device=embedding.device)}

    def work() -> None:
        for use in uses:
            out: Tensor = rows[use.is_logits]
            if use.has_norm:
                linear.run(x, norm, use.matrix, None, out, is_gated=key.is_gated)
            else:
                linear.run(x, None, use.matrix, out, out)

    return work


def _time(work: Callable[[], None]) -> float:
    """Milliseconds of the fastest of a few replays."""
    work()
    graph = torch.cuda.CUDAGraph()
    with captured(graph):
        work()
    times: list[float] = []
    for _ in range(_ROUNDS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return min(times)
