"""Decode steps as captured CUDA graphs, one for each 256 rows of cache.

In: the buffers of a step, written and sent. Out: the outputs in theirs. A graph keeps what the host said when
it was captured; so rows in the cache are stated as the most that its bucket holds, from which kernels take
the size of their grids, and they read the true length on the device. The library's own C++ runtime rounds in
the same way. Each graph has a context of its own that is not touched afterwards. Engine thread.
"""

from __future__ import annotations

from collections.abc import Callable

from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.executors.trtllm.bindings import StepInputs, StepOutputs
from engine_runtime.executors.trtllm.engine import EngineContext

ROWS_PER_GRAPH = 256


class GraphedDecode:
    """See the module.

    Args:
        calls: what captures; its stream is that of `stream`.
        new_context: gives a context for one row.
        stream: the handle of the stream.
        most_past: the most rows that a decode step can find in the cache.
    """

    def __init__(
        self,
        calls: GraphedCalls,
        new_context: Callable[[], EngineContext],
        inputs: StepInputs,
        outputs: StepOutputs,
        *,
        stream: int,
        most_past: int,
    ) -> None:
        self._calls, self._new_context = calls, new_context
        self._inputs, self._outputs = inputs, outputs
        self._stream, self._most_past = stream, most_past
        self._contexts: dict[int, EngineContext] = {}

    @property
    def num_graphs(self) -> int:
        """Steps that were captured."""
        return len(self._contexts)

    def run(self, past: int) -> None:
        """Run the step behind `past` rows; capture it where none of its bucket was.

        Raises ExecutorError or RuntimeError where it cannot be captured; the step has to be run otherwise
        then.
        """
        bucket = past // ROWS_PER_GRAPH
        context = self._contexts.get(bucket) or self._bound_context(bucket)
        self._calls.run(bucket, lambda: context.enqueue(self._stream))
        self._contexts[bucket] = context

    def _bound_context(self, bucket: int) -> EngineContext:
        context = self._new_context()
        self._inputs.set_past(min((bucket + 1) * ROWS_PER_GRAPH, self._most_past))
        context.bind(self._inputs.bindings(), self._outputs.bindings())
        return context
