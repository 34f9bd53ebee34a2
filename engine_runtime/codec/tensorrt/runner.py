"""Runs an engine on torch tensors.

In: an engine as bytes, and tensors on its device. Out: new tensors, computed on the device's current stream.
Every step is checked: the engine's tensors are compared with the graph at load, every shape and address is
set for every call, and every return value of the library is checked; a failure becomes an ExecutorError that
names the tensor. The host never waits. One runner belongs to one thread.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from engine_runtime.codec.tensorrt.build import check_tensor
from engine_runtime.codec.tensorrt.graph import Graph, TensorSpec
from engine_runtime.cuda.tensorrt_library import RuntimeLibrary, TensorRTError, first_line, logger
from engine_runtime.errors import ExecutorError

_log = logging.getLogger(__name__)


class EngineRunner:
    """Implements `Runner` with an execution context of TensorRT or TensorRT for RTX.

    `compiled` is the value of `compiled` of an earlier runner (RTX only): without it, the first call of a
    shape compiles. Raises TensorRTError if the engine cannot be loaded or does not match the graph.
    """

    def __init__(
        self,
        graph: Graph,
        plan: bytes,
        library: RuntimeLibrary,
        device: torch.device,
        compiled: bytes | None = None,
    ) -> None:
        self._graph, self._library, self._device = graph, library, device
        self._log = logger(library)
        with _on(device):
            # kept alive: an engine must not outlive its runtime, nor a context its engine
            self._runtime = self._require(library.module.Runtime(self._log), "starting the library")
            self._engine = self._require(self._runtime.deserialize_cuda_engine(plan), "loading the engine")
            self._check_engine()
            self._compiled: Any = None
            self._context = self._new_context(compiled)
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
        with _on(self._device):
            for spec, value in zip(graph.inputs, held, strict=True):
                self._set(spec.name, value, with_shape=bool(spec.dynamic))
            if missing := self._context.infer_shapes():
                raise self._failure(f"shapes of {', '.join(missing)} are not known")
            outputs = []
            for spec in graph.outputs:
                shape = tuple(self._context.get_tensor_shape(spec.name))
                if min(shape, default=1) < 1 or not spec.agrees(_opened(spec, shape), is_output=True):
                    raise self._failure(f"output {spec.name} would have the shape {list(shape)}")
                outputs.append(torch.empty(shape, dtype=spec.dtype, device=self._device))
                self._set(spec.name, outputs[-1])
            self._execute()
        return tuple(outputs)

    def compiled(self) -> bytes | None:
        """Kernels compiled for this GPU so far, to be cached; None if the library does not compile at run
        time."""
        return None if self._compiled is None else bytes(self._compiled.serialize())

    def _set(self, name: str, value: Tensor, with_shape: bool = False) -> None:
        if with_shape and not self._context.set_input_shape(name, tuple(value.shape)):
            raise self._failure(f"shape {list(value.shape)} of {name} was rejected")
        if not self._context.set_tensor_address(name, value.data_ptr()):
            raise self._failure(f"the address of {name} was rejected")

    def _execute(self) -> None:
        """Enqueue the work on the current stream; for the default stream, on a separate stream that it waits
        for."""
        if self._stream is None:
            done = self._context.execute_async_v3(0)
        else:
            current = torch.cuda.current_stream(self._device)
            if current == torch.cuda.default_stream(self._device):
                self._stream.wait_stream(current)
                done = self._context.execute_async_v3(self._stream.cuda_stream)
                current.wait_stream(self._stream)
            else:
                done = self._context.execute_async_v3(current.cuda_stream)
        if not done:
            raise self._failure("the work was rejected")

    def _new_context(self, compiled: bytes | None) -> Any:
        if not self._library.is_rtx:
            return self._require(self._engine.create_execution_context(), "making a context")
        config = self._require(self._engine.create_runtime_config(), "making a configuration")
        self._compiled = self._require(config.create_runtime_cache(), "making a cache")
        if compiled and not self._compiled.deserialize(compiled):
            _log.info("%s: the cached kernels were compiled for another driver or GPU", self._graph.name)
        if config.set_runtime_cache(self._compiled) is False:
            raise self._failure("the cache of compiled kernels was rejected")
        return self._require(self._engine.create_execution_context(config), "making a context")

    def _check_engine(self) -> None:
        """Raise TensorRTError unless the engine has the graph's tensors, all on the device, and supports the
        graph's sizes."""
        engine, graph, trt = self._engine, self._graph, self._library.module
        names = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
        specs = [(spec, trt.TensorIOMode.INPUT) for spec in graph.inputs]
        specs += [(spec, trt.TensorIOMode.OUTPUT) for spec in graph.outputs]
        if strange := names ^ {spec.name for spec, _ in specs}:
            raise TensorRTError(
                f"{graph.name}: the engine and the graph do not both have {', '.join(sorted(strange))}. "
                "Delete the cached engine, or run without --trt-codec."
            )
        for spec, mode in specs:
            check_tensor(
                graph,
                spec,
                tuple(engine.get_tensor_shape(spec.name)),
                engine.get_tensor_dtype(spec.name),
                self._library,
            )
            if engine.get_tensor_mode(spec.name) != mode:
                raise TensorRTError(
                    f"{graph.name}: tensor {spec.name} is not an {mode}. Delete the cached engine."
                )
            if engine.get_tensor_location(spec.name) != trt.TensorLocation.DEVICE:
                raise TensorRTError(
                    f"{graph.name}: tensor {spec.name} is read on the host. Delete the cached engine."
                )
            if mode == trt.TensorIOMode.INPUT and spec.dynamic:
                least, _, most = (tuple(shape) for shape in engine.get_tensor_profile_shape(spec.name, 0))
                if (least, most) != (spec.at("least"), spec.at("most")):
                    raise TensorRTError(
                        f"{graph.name}: the engine takes {spec.name} from {list(least)} to {list(most)}, not "
                        f"{list(spec.at('least'))} to {list(spec.at('most'))}. Delete the cached engine."
                    )

    def _require(self, made: Any, what: str) -> Any:
        if made is None:
            raise TensorRTError(
                f"{self._library.label} cannot run the {self._graph.name}: {what} failed "
                f"({first_line(self._log.last_error)}). Run without --trt-codec."
            )
        return made

    def _failure(self, what: str) -> ExecutorError:
        return ExecutorError(
            f"The {self._graph.name} failed in {self._library.label}: {what} "
            f"({first_line(self._log.last_error)}). Run without "
            "--trt-codec."
        )


def _opened(spec: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with -1 for variable dimensions."""
    return tuple(-1 if place in spec.dynamic else size for place, size in enumerate(shape))


@contextlib.contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Make `device` current, since the library uses the current device."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield
