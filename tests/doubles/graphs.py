"""CUDA graphs on a CPU: captured calls run their operations again on the same tensors.

Detects dependence on the fixed addresses of a graph: state replaced by Python in the meantime, or a capture
used with other buffers. Does not detect reads after a free: nothing is freed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine_runtime.cuda.graphs import GraphedCalls


class _Log(TorchDispatchMode):
    """Records every operation with its arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, given))
        return given

    def replay(self) -> None:
        """The same operations, into the same tensors."""
        for func, args, kwargs, given in self.operations:
            taken = {value.untyped_storage().data_ptr() for value in _tensors((args, kwargs))}
            again = func(*args, **kwargs)
            for old, new in zip(_tensors(given), _tensors(again), strict=True):
                # else it was changed in place, or is a view
                if old.untyped_storage().data_ptr() not in taken:
                    old.copy_(new)


def _tensors(tree: Any) -> list[Tensor]:
    return [value for value in tree_leaves(tree) if isinstance(value, Tensor)]


class EmulatedCalls(GraphedCalls):
    """See the module; as GraphedCalls otherwise."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.is_capturing = True
        self._logs: dict[Hashable, tuple[_Log, list[Tensor], Any]] = {}

    def run(
        self,
        key: Hashable,
        function: Callable[..., Any],
        *inputs: Tensor,
        changes: Sequence[Tensor] = (),
        kind: Hashable = None,
    ) -> Any:
        """See GraphedCalls."""
        with torch.inference_mode():
            if key not in self._logs:
                buffers, before = [value.clone() for value in inputs], [value.clone() for value in changes]
                for logs in (False, True):
                    with _Log() as log:
                        outputs = function(*buffers)
                    for value, kept in zip(changes, before, strict=True):
                        value.copy_(kept)
                    if logs:
                        self._logs[key] = log, buffers, outputs
            log, buffers, outputs = self._logs[key]
            for buffer, value in zip(buffers, inputs, strict=True):
                buffer.copy_(value)
            log.replay()
            return outputs

    def has_graph(self, key: Hashable) -> bool:
        """See GraphedCalls."""
        return key in self._logs

    def forget(self, concerns: Callable[[Hashable], bool]) -> None:
        """See GraphedCalls."""
        for key in self.keys:
            if concerns(key):
                del self._logs[key]

    @property
    def keys(self) -> list[Hashable]:
        """Of the graphs captured so far, in their order."""
        return list(self._logs)

    @property
    def num_captured(self) -> int:
        """Graphs captured so far."""
        return len(self._logs)


class FirstFunctions(GraphedCalls):
    """Runs the first function of each key again, as a captured graph would."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.kept: dict[Any, Callable[..., Any]] = {}

    def run(
        self,
        key: Hashable,
        function: Callable[..., Any],
        *inputs: Tensor,
        changes: Sequence[Tensor] = (),
        kind: Hashable = None,
    ) -> Any:
        """See GraphedCalls."""
        return self.kept.setdefault(key, function)(*inputs)
