"""Runs an exported part of the codec on onnxruntime, on the CPU.

In: a `Graph` and its ONNX model, with its weights or without. Out: a `Runner`. Runs in the thread of its
caller, with one thread by default, because the codec runs beside the language model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from engine_runtime.codec.graph import Graph
from engine_runtime.errors import ExecutorError
from engine_runtime.onnx_runtime import create_session


class OnnxRunner:
    """Implements `Runner`."""

    def __init__(
        self,
        graph: Graph,
        model: Path | bytes,
        threads: int = 1,
        *,
        purpose: str = "check an exported codec",
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`weights`, on the CPU, are for a model file without weights; they are not copied. Raises as
        `create_session` does."""
        self._graph = graph
        self._weights = {name: value.detach().numpy() for name, value in (weights or {}).items()}
        self._session = create_session(model, purpose=purpose, threads=threads, initializers=self._weights)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """See `Runner`. Raises ExecutorError for inputs that do not match the graph or the model."""
        self._graph.check_inputs(inputs)
        named = {
            spec.name: value.cpu().contiguous().numpy()
            for spec, value in zip(self._graph.inputs, inputs, strict=True)
        }
        try:
            outputs = self._session.run([spec.name for spec in self._graph.outputs], named)
        except Exception as error:  # onnxruntime has its own exception types, none of them public
            raise ExecutorError(f"onnxruntime cannot run the {self._graph.name}: {error}") from error
        return tuple(torch.from_numpy(value) for value in outputs)
