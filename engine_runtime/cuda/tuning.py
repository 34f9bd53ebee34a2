"""Chooses how each kind of weight is cut into programs, by trying a few ways on the weights themselves.

In: the network on its GPU. Out: the fastest Launch for each kind of matrix. All matrices of a kind are run
one after the other, as in a step, so that none of them is found in the GPU's cache. Called once at load;
kernels that were compiled before come from Triton's cache, and it takes a second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from engine_runtime.cuda.inputs import StepInputs
from engine_runtime.cuda.network import Network
from engine_runtime.cuda.quantise import GROUP, Matrix
from engine_runtime.cuda.triton_operations import Launch, LaunchKey, TritonOperations, default_launch
from engine_runtime.lm.kv_cache import KVCache

_ROUNDS = 3
_AT_MOST = 12
"""Matrices of a kind that are run: more than a GPU's cache holds of the smallest kind."""


@dataclass(frozen=True, slots=True)
class _Use:
    """A matrix and what it stands for in a step."""

    matrix: Matrix
    has_norm: bool
    is_logits: bool


def measured_launches(network: Network) -> Mapping[LaunchKey, Launch]:
    """The fastest of `candidates` for every kind of matrix in the network."""
    uses: dict[LaunchKey, list[_Use]] = defaultdict(list)
    for layer in (*network.trunk, *network.text.layers, *network.audio.layers):
        for matrix in layer.matrices:
            is_gated = matrix is layer.gate_up
            has_norm = is_gated or matrix is layer.qkv
            uses[LaunchKey(matrix.format, matrix.shape, is_gated)].append(_Use(matrix, has_norm, False))
    for tail in (network.text, network.audio):
        key = LaunchKey(tail.head.format, tail.head.shape, False)
        uses[key].append(_Use(tail.head, True, True))
    return {key: _fastest(network, key, found[:_AT_MOST]) for key, found in uses.items()}


def candidates(key: LaunchKey) -> list[Launch]:
    """The launch by rule first, then others that move about as many bytes at a time."""
    columns = key.shape[1]
    if key.format == "int4":
        groups = min(32, triton.next_power_of_2(-(-columns // GROUP)))
        cuts = [(1, 4), (2, 4), (4, 4), (4, 8), (8, 8)]
        found = [Launch(rows, groups, warps) for rows, warps in cuts]
    else:
        widest = triton.next_power_of_2(columns)
        shapes = [(1, 4096, 8), (2, 4096, 8), (1, 2048, 4), (2, 2048, 4), (4, 2048, 8), (4, 1024, 4)]
        found = [Launch(rows, min(block, widest), warps) for rows, block, warps in shapes]
    return list(dict.fromkeys([default_launch(key), *found]))


def _fastest(network: Network, key: LaunchKey, uses: list[_Use]) -> Launch:
    times = {launch: _time(_work(network, key, uses, launch)) for launch in candidates(key)}
    return min(times, key=lambda launch: times[launch])


def _work(network: Network, key: LaunchKey, uses: list[_Use], launch: Launch) -> Callable[[], None]:
    """All matrices of one kind, one after the other."""
    embedding, config = network.embedding, network.config
    none = KVCache(config, 1, 1, dtype=embedding.dtype, device=embedding.device)
    operations = TritonOperations(network, none, StepInputs(1, embedding.device), launches={key: launch})
    x, norm = embedding.new_zeros(1, key.shape[1]), embedding.new_ones(key.shape[1])
    num_out = key.shape[0] // 2 if key.is_gated else key.shape[0]
    rows = {False: embedding.new_zeros(1, num_out), True: torch.zeros(1, num_out, device=embedding.device)}

    def work() -> None:
        for use in uses:
            out: Tensor = rows[use.is_logits]
            if key.is_gated:
                operations.norm_gate_up(x, norm, use.matrix, out)
            elif use.has_norm:
                operations.norm_linear(x, norm, use.matrix, out)
            else:
                operations.linear_add(x, use.matrix, out, out)

    return work


def _time(work: Callable[[], None]) -> float:
    """Milliseconds of the fastest of a few replays."""
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
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
