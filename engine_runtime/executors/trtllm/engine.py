"""An engine in memory: deserialization, tensors, execution contexts; every call of TensorRT is checked.

In: the file of an engine and TensorRT. Out: a `Session` with `EngineContext`s, which bind tensors and
enqueue, and raise where TensorRT only returns False and logs. All contexts share one block of device memory
for activations, since they run one after the other. Engine thread; TensorRT may log from its own threads.
"""

from __future__ import annotations

import contextlib
import mmap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from engine_runtime.cuda.tensorrt_library import RuntimeLibrary, logger
from engine_runtime.errors import EngineError, ExecutorError
from engine_runtime.executors.trtllm.bindings import Binding, Memory
from engine_runtime.executors.trtllm.contract import EngineTensor

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


class Messages:
    """The latest log messages of TensorRT, which contain the reason of a failure."""

    def __init__(self, library: RuntimeLibrary) -> None:
        self.logger = logger(library)
        self.forget()

    def forget(self) -> None:
        """Drop messages of earlier calls."""
        self.logger.last_error = ""

    def said(self) -> str:
        """The messages in brackets, "" if there are none."""
        text = str(self.logger.last_error).strip().rstrip(".")
        return f" ({text})" if text else ""


class Session:
    """One deserialized engine.

    Attributes:
        tensors: every input and output.
        load_s: seconds for reading and deserializing.
    """

    def __init__(self, plan: Path, library: RuntimeLibrary, memory: Memory) -> None:
        """Load `plan`. EngineError if it cannot be read or TensorRT rejects it.

        NOTE: the library's plugins must be registered before.
        """
        self._trt, self._memory = library.module, memory
        self._messages = Messages(library)
        began = time.perf_counter()
        self._runtime = self._trt.Runtime(self._messages.logger)
        with _mapped(plan) as content:
            self._engine = self._runtime.deserialize_cuda_engine(content)
        if self._engine is None:
            raise EngineError(
                f"{library.label} cannot load {plan}{self._messages.said()}. An engine runs "
                "with the TensorRT release and on the kind of GPU that it was built with: build it here with "
                "`moss-voice trt build`."
            )
        self.load_s = time.perf_counter() - began
        self.tensors = tuple(self._tensors())
        self._activations: torch.Tensor | None = None

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

    def new_context(self, profile: int, stream: int) -> EngineContext:
        """A context for one profile. `stream` is the handle that the profile is switched on."""
        if self._activations is None:
            self._activations = self._memory.on_device(max(self.activation_bytes, 1))
        strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        context = self._engine.create_execution_context(strategy)
        if context is None:
            raise EngineError(
                f"TensorRT cannot create an execution context{self._messages.said()}. Free GPU memory, or "
                "build an engine with a smaller max_num_tokens."
            )
        context.set_device_memory(self._activations.data_ptr(), self._activations.numel())
        if not context.set_optimization_profile_async(profile, stream):
            raise EngineError(f"TensorRT rejects profile {profile}{self._messages.said()}.")
        return EngineContext(context, self._messages)

    def close(self) -> None:
        """Release everything, in the order that TensorRT requires. The contexts must be released before."""
        self._engine = self._runtime = self._activations = None

    def _tensors(self) -> Iterator[EngineTensor]:
        engine = self._engine
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            is_input = engine.get_tensor_mode(name) == self._trt.TensorIOMode.INPUT
            ranges = []
            for profile in range(self.num_profiles if is_input else 0):
                least, best, most = map(tuple, engine.get_tensor_profile_shape(name, profile))
                ranges.append((least, best, most))
            yield EngineTensor(
                name=name,
                is_input=is_input,
                dtype=_DTYPES.get(engine.get_tensor_dtype(name).name),
                shape=tuple(engine.get_tensor_shape(name)),
                ranges=tuple(ranges),
            )


class EngineContext:
    """One execution context. Every method raises ExecutorError if TensorRT fails."""

    def __init__(self, context: Any, messages: Messages) -> None:
        self._context, self._messages = context, messages

    def bind(self, inputs: Iterable[Binding], outputs: Iterable[Binding]) -> None:
        """Set shape and address of every input, and the address of every output, whose shape must match the
        shape inferred by the engine."""
        self._messages.forget()
        for binding in inputs:
            if not self._context.set_input_shape(binding.name, binding.shape):
                self._refuse(f"{binding.name}: the engine does not accept shape {list(binding.shape)}")
            self._set_address(binding)
        self._infer()
        for binding in outputs:
            shape = tuple(self._context.get_tensor_shape(binding.name))
            if shape != binding.shape:
                raise ExecutorError(
                    f"{binding.name}: the engine returns {list(shape)} instead of {list(binding.shape)}. It "
                    "must gather the last row before its heads: rebuild it with `moss-voice trt build`."
                )
            self._set_address(binding)

    def enqueue(self, stream: int) -> None:
        """Start the step on the stream of this handle."""
        if not self._context.execute_async_v3(stream):
            self._refuse("execute_async_v3: the step did not start")

    def _set_address(self, binding: Binding) -> None:
        if binding.address == 0 or not self._context.set_tensor_address(binding.name, binding.address):
            self._refuse(f"{binding.name}: address is not set")

    def _infer(self) -> None:
        try:
            missing = self._context.infer_shapes()
        except RuntimeError as error:
            raise ExecutorError(f"infer_shapes: {error}{self._messages.said()}") from error
        if missing:
            self._refuse(f"{', '.join(missing)}: shape or address is not set")

    def _refuse(self, what: str) -> None:
        raise ExecutorError(f"{what}{self._messages.said()}")


@contextlib.contextmanager
def _mapped(plan: Path) -> Iterator[mmap.mmap]:
    """The bytes of a file, memory-mapped: an engine may be larger than the free host memory."""
    try:
        with plan.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise EngineError(f"{plan} cannot be read: {error}. Build the engine anew.") from error
    try:
        yield content
    finally:
        with contextlib.suppress(BufferError):  # a binding may hold the buffer until it is collected
            content.close()
