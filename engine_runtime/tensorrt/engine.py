"""A TensorRT engine in memory: deserialization, tensors, execution contexts; every call is checked.

In: an engine as bytes, and its library (library.py). Out: a `TensorRTEngine` with its tensors, and
`ExecutionContext`s, which bind memory and enqueue. Where TensorRT returns False or None and logs the reason,
these raise it: EngineError while loading, ExecutorError in a step. The caller makes the device current,
allocates inputs and outputs and chooses the stream. One thread; TensorRT may log from its own threads.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine_runtime.errors import EngineError, ExecutorError
from engine_runtime.tensorrt.library import RuntimeLibrary, logger, reason

Shape = tuple[int, ...]
_DTYPES = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "FP8": torch.float8_e4m3fn,
    "INT8": torch.int8,
    "UINT8": torch.uint8,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "BOOL": torch.bool,
}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """One input or output of an engine or of a network definition.

    `shape` has -1 for variable sizes; then `ranges` holds least, best and most for each profile (inputs of
    engines only). `dtype` is None for a dtype that torch does not have. `is_on_host`: the library itself
    reads it in host memory; an input that only a plugin reads there is not marked.
    """

    name: str
    is_input: bool
    dtype: torch.dtype | None
    shape: Shape
    ranges: tuple[tuple[Shape, Shape, Shape], ...] = ()
    is_on_host: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """Memory for one tensor of an engine."""

    name: str
    shape: Shape
    address: int


def network_tensors(network: Any) -> tuple[EngineTensor, ...]:
    """Inputs, then outputs, of a TensorRT network definition."""
    inputs = [(True, network.get_input(index)) for index in range(network.num_inputs)]
    outputs = [(False, network.get_output(index)) for index in range(network.num_outputs)]
    return tuple(
        EngineTensor(tensor.name, is_input, _DTYPES.get(tensor.dtype.name), tuple(tensor.shape))
        for is_input, tensor in inputs + outputs
    )


class TensorRTEngine:
    """One deserialized engine. EngineError if the library rejects it.

    Attributes:
        tensors: every input and output.
    """

    def __init__(self, plan: bytes | mmap.mmap, library: RuntimeLibrary) -> None:
        self._library, self._log = library, logger(library)
        self._runtime = library.module.Runtime(self._log)
        self._engine = self._made("load the engine", self._runtime.deserialize_cuda_engine, plan)
        self.tensors = tuple(self._tensors())

    @property
    def activation_bytes(self) -> int:
        """Device memory for activations."""
        return int(self._engine.device_memory_size_v2)

    @property
    def num_layers(self) -> int:
        """Number of layers after fusion; some are a complete kernel, others a copy."""
        return int(self._engine.num_layers)

    @property
    def num_profiles(self) -> int:
        """Number of optimization profiles: ranges of sizes that the engine was tuned for."""
        return int(self._engine.num_optimization_profiles)

    def new_context(self, activations: Tensor | None = None) -> ExecutionContext:
        """A context for the first profile.

        `activations`: [activation_bytes] uint8 on the device, which contexts may share if they run one after
        the other; None to allocate them for this context alone.
        """
        if activations is None:
            return self._new_context()
        context = self._new_context(self._library.module.ExecutionContextAllocationStrategy.USER_MANAGED)
        context.set_activations(activations)
        return context

    def new_compiling_context(self, compiled: bytes | None) -> ExecutionContext:
        """A context of TensorRT for RTX, which compiles kernels at the first call of a shape. `compiled` are
        those of an earlier context."""
        config = self._made("create a runtime configuration", self._engine.create_runtime_config)
        cache = self._made("create a cache of kernels", config.create_runtime_cache)
        if compiled and not cache.deserialize(compiled):
            _log.info("the cached kernels were compiled for another driver or GPU")
        if config.set_runtime_cache(cache) is False:
            raise EngineError(
                "{label} rejects the cache of kernels{reason}.",
                label=self._library.label,
                reason=reason(self._log),
            )
        return self._new_context(config, cache=cache)

    def close(self) -> None:
        """Release it, in the order that TensorRT requires. The contexts must be released before."""
        self._engine = self._runtime = None

    def _new_context(self, *arguments: Any, cache: Any = None) -> ExecutionContext:
        create = self._engine.create_execution_context
        context = self._made("create an execution context", create, *arguments)
        return ExecutionContext(context, self._log, cache)

    def _made(self, what: str, make: Callable[..., Any], *arguments: Any) -> Any:
        self._log.last_error = ""
        made = make(*arguments)
        if made is None:
            raise EngineError(
                "{label} cannot {what}{reason}.",
                label=self._library.label,
                what=what,
                reason=reason(self._log),
            )
        return made

    def _tensors(self) -> Iterator[EngineTensor]:
        engine, trt = self._engine, self._library.module
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
            is_on_host = engine.get_tensor_location(name) == trt.TensorLocation.HOST
            ranges = []
            for profile in range(self.num_profiles if is_input and not is_on_host else 0):
                least, best, most = map(tuple, engine.get_tensor_profile_shape(name, profile))
                ranges.append((least, best, most))
            yield EngineTensor(
                name=name,
                is_input=is_input,
                dtype=_DTYPES.get(engine.get_tensor_dtype(name).name),
                shape=tuple(engine.get_tensor_shape(name)),
                ranges=tuple(ranges),
                is_on_host=is_on_host,
            )


class ExecutionContext:
    """One execution context. A step is `set_inputs`, `set_output` for every output, `enqueue`; each raises
    ExecutorError, which names the tensor, if TensorRT fails."""

    def __init__(self, context: Any, log: Any, cache: Any) -> None:
        self._context, self._log, self._cache = context, log, cache

    def set_activations(self, memory: Tensor) -> None:
        """Set the device memory for activations."""
        self._context.set_device_memory(memory.data_ptr(), memory.numel())

    def set_profile(self, profile: int, stream: int) -> None:
        """Switch the profile on the stream of this handle. EngineError if it is rejected."""
        self._log.last_error = ""
        if not self._context.set_optimization_profile_async(profile, stream):
            raise EngineError(
                "TensorRT rejects profile {profile}{reason}.", profile=profile, reason=reason(self._log)
            )

    def set_inputs(self, inputs: Iterable[Binding]) -> None:
        """Set shape and address of every input, and infer the shapes of the outputs."""
        self._log.last_error = ""
        for binding in inputs:
            if not self._context.set_input_shape(binding.name, binding.shape):
                raise self._failure(f"{binding.name}: the engine does not accept shape {list(binding.shape)}")
            self._set_address(binding.name, binding.address)
        try:
            missing = self._context.infer_shapes()
        except RuntimeError as error:
            raise ExecutorError(
                "infer_shapes: {error}{reason}", error=error, reason=reason(self._log)
            ) from error
        if missing:
            raise self._failure(f"{', '.join(missing)}: shape or address is not set")

    def output_shape(self, name: str) -> Shape:
        """The shape of an output for the inputs set."""
        return tuple(self._context.get_tensor_shape(name))

    def set_output(self, name: str, address: int) -> None:
        """Set the address of an output."""
        self._log.last_error = ""
        self._set_address(name, address)

    def enqueue(self, stream: int) -> None:
        """Start the step on the stream of this handle."""
        self._log.last_error = ""
        if not self._context.execute_async_v3(stream):
            raise self._failure("execute_async_v3: the step did not start")

    def compiled(self) -> bytes | None:
        """Kernels compiled so far, for `TensorRTEngine.new_compiling_context`; None for other contexts."""
        return None if self._cache is None else bytes(self._cache.serialize())

    def _set_address(self, name: str, address: int) -> None:
        if address == 0 or not self._context.set_tensor_address(name, address):
            raise self._failure(f"{name}: address is not set")

    def _failure(self, what: str) -> ExecutorError:
        return ExecutorError("{what}{reason}", what=what, reason=reason(self._log))
