"""Runs an engine on torch tensors.

In: an engine as bytes, and tensors on its device. Out: new tensors, computed on the device's current stream.
The engine's tensors are compared with the graph at load, and every shape and address is set for every call;
tensorrt/engine.py checks each call of the library. A failure names the graph and the tensor. The host
never waits. One runner belongs to one thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from engine_runtime.codec.graph import Graph, GraphTensor
from engine_runtime.errors import EngineError, ExecutorError
from engine_runtime.tensorrt.codec.build import check_tensor
from engine_runtime.tensorrt.engine import Binding, Shape, TensorRTEngine
from engine_runtime.tensorrt.library import RuntimeLibrary


class EngineRunner:
    """Implements `Runner` with an execution context of TensorRT or TensorRT for RTX.

    `compiled` is the value of `compiled` of an earlier runner (RTX only): without it, the first call of a
    shape compiles. Raises EngineError if the engine cannot be loaded or does not match the graph.
    """

    def __init__(
        self,
        graph: Graph,
        plan: bytes,
        library: RuntimeLibrary,
        device: torch.device,
        compiled: bytes | None = None,
    ) -> None:
        self._graph, self._device = graph, device
        with self._calling():
            self._engine = TensorRTEngine(plan, library)
        self._check_engine()
        with self._calling():
            self._context = (
                self._engine.new_compiling_context(compiled) if library.is_rtx else self._engine.new_context()
            )
        # on the default stream the library would synchronize with the device at every call
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """See `Runner`. Raises ExecutorError for mismatched inputs, and for everything that the library
        rejects."""
        graph = self._graph
        graph.check_inputs(inputs)
        strangers = [
            spec.name
            for spec, value in zip(graph.inputs, inputs, strict=True)
            if value.device != self._device
        ]
        if strangers:
            raise ExecutorError(f"{graph.name}: input {strangers[0]} is not on {self._device}.")
        held = [value.contiguous() for value in inputs]  # an engine does not support strides
        with self._calling():
            self._context.set_inputs(
                Binding(spec.name, tuple(value.shape), value.data_ptr())
                for spec, value in zip(graph.inputs, held, strict=True)
            )
            outputs = [self._new_output(spec) for spec in graph.outputs]
            self._enqueue()
        return tuple(outputs)

    def compiled(self) -> bytes | None:
        """Kernels compiled for this GPU so far, to be cached; None if the library does not compile at run
        time."""
        return self._context.compiled()

    def _new_output(self, spec: GraphTensor) -> Tensor:
        """Memory for an output of the inputs set, bound to the engine."""
        shape = self._context.output_shape(spec.name)
        if min(shape, default=1) < 1 or not spec.agrees(_opened(spec, shape), is_output=True):
            raise ExecutorError(
                f"{spec.name}: the engine returns {list(shape)} instead of {list(spec.engine_shape)}"
            )
        output = torch.empty(shape, dtype=spec.dtype, device=self._device)
        self._context.set_output(spec.name, output.data_ptr())
        return output

    def _enqueue(self) -> None:
        """Enqueue the work on the current stream; for the default stream, on a separate stream that it waits
        for."""
        if self._stream is None:
            self._context.enqueue(0)
            return
        current = torch.cuda.current_stream(self._device)
        if current == torch.cuda.default_stream(self._device):
            self._stream.wait_stream(current)
            self._context.enqueue(self._stream.cuda_stream)
            current.wait_stream(self._stream)
        else:
            self._context.enqueue(current.cuda_stream)

    def _check_engine(self) -> None:
        """Raise EngineError unless the engine has the graph's tensors, all on the device, and supports the
        graph's sizes."""
        graph = self._graph
        tensors = {tensor.name: tensor for tensor in self._engine.tensors}
        specs = [(spec, True) for spec in graph.inputs] + [(spec, False) for spec in graph.outputs]
        if strange := tensors.keys() ^ {spec.name for spec, _ in specs}:
            raise EngineError(
                f"{graph.name}: the engine and the graph do not both have {', '.join(sorted(strange))}. "
                "Delete the cached engine, or run without --trt-codec."
            )
        for spec, is_input in specs:
            tensor = tensors[spec.name]
            check_tensor(graph, spec, tensor)
            if tensor.is_input != is_input:
                raise EngineError(
                    f"{graph.name}: tensor {spec.name} is not an {'input' if is_input else 'output'}. "
                    "Delete the cached engine."
                )
            if tensor.is_on_host:
                raise EngineError(
                    f"{graph.name}: tensor {spec.name} is read on the host. Delete the cached engine."
                )
            if is_input and spec.dynamic:
                least, _, most = tensor.ranges[0]
                if (least, most) != (spec.at("least"), spec.at("most")):
                    raise EngineError(
                        f"{graph.name}: the engine takes {spec.name} from {list(least)} to {list(most)}, not "
                        f"{list(spec.at('least'))} to {list(spec.at('most'))}. Delete the cached engine."
                    )

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Make the device current, because the library uses the current device; name the graph in errors."""
        try:
            with torch.cuda.device(self._device if self._device.type == "cuda" else -1):
                yield
        except (EngineError, ExecutorError) as error:
            raise type(error)(
                f"The {self._graph.name} failed: {str(error).rstrip('.')}. Run without --trt-codec."
            ) from error


def _opened(spec: GraphTensor, shape: Shape) -> Shape:
    """The shape with -1 for variable dimensions."""
    return tuple(-1 if place in spec.dynamic else size for place, size in enumerate(shape))
