"""Records work on static buffers once as a CUDA graph, then replays it.

In: a key and a function that launches kernels on static buffers. Out: the same effect, without the host's
time for each launch. On a CPU, or with graphs switched off, the function is simply called. Engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch


class Graphs:
    """One graph per key. They share one memory pool, since they never run at the same time."""

    def __init__(self, device: torch.device, *, is_enabled: bool) -> None:
        self._device = device
        self._is_enabled = is_enabled and device.type == "cuda"
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._is_enabled else None

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """What was recorded so far."""
        return tuple(self._graphs)

    def run(self, key: Hashable, work: Callable[[], None]) -> None:
        """Do the work, by replay if it was recorded before.

        NOTE: the first call runs it as it is, which compiles its kernels and gives the result, and records it
        afterwards, which runs nothing. So `work` is never done twice.
        """
        if not self._is_enabled:
            work()
            return
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        work()
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile; only what this one does must fit into a graph.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            work()
        self._graphs[key] = graph
