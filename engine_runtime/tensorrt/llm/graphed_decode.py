"""Decode steps as captured CUDA graphs, one for each 256 rows of cache.

In: the buffers of a step, written and sent. Out: the outputs in their buffers. A graph fixes the host values
at capture; so the number of cached rows is set to the maximum of its bucket, from which kernels derive their
grid sizes, while they read the true length on the device. The library's own C++ runtime rounds in the same
way. Each graph has its own context, which is not modified afterwards. Steps of several sequences are not
captured: each number of them would need as many graphs again. Engine thread.
"""

from __future__ import annotations

from collections.abc import Callable

from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.tensorrt.engine import ExecutionContext
from engine_runtime.tensorrt.llm.session import EngineInputs, EngineOutputs, bind

ROWS_PER_GRAPH = 256


class GraphedDecode:
    """See the module.

    Args:
        calls: captures the steps, on the stream `stream`.
        new_context: creates a context for one row.
        stream: the handle of the stream.
        most_past: the maximum number of cached rows of a decode step.
    """

    def __init__(
        self,
        calls: GraphedCalls,
        new_context: Callable[[], ExecutionContext],
        inputs: EngineInputs,
        outputs: EngineOutputs,
        *,
        stream: int,
        most_past: int,
    ) -> None:
        self._calls, self._new_context = calls, new_context
        self._inputs, self._outputs = inputs, outputs
        self._stream, self._most_past = stream, most_past
        self._contexts: dict[int, ExecutionContext] = {}

    @property
    def num_graphs(self) -> int:
        """Number of captured steps."""
        return len(self._contexts)

    def run(self, past: int) -> None:
        """Run the step after `past` rows; captures it at the first use of its bucket.

        Raises ExecutorError or RuntimeError if it cannot be captured; the caller must then launch the step
        itself.
        """
        bucket = past // ROWS_PER_GRAPH
        context = self._contexts.get(bucket) or self._bound_context(bucket)
        self._calls.run(bucket, lambda: context.enqueue(self._stream))
        self._contexts[bucket] = context

    def _bound_context(self, bucket: int) -> ExecutionContext:
        context = self._new_context()
        self._inputs.set_past(min((bucket + 1) * ROWS_PER_GRAPH, self._most_past))
        bind(context, self._inputs.bindings(), self._outputs.bindings(1))
        return context
