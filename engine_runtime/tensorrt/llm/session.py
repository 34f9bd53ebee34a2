"""The engine of a language model in memory: its contexts, and the buffers that a step reads and writes.

In: the file of an engine and TensorRT; the tensors of a step (step_tensors.py) in host memory. Out: an
`EngineSession` with execution contexts; the same values in the engine's buffers, on the device or on the
host, and its outputs back on the host. Buffers are allocated once: an address passed to TensorRT must be
valid until the step is done, and a captured step keeps it permanently. All inputs go to the device in one
copy. All contexts share one block of device memory for activations, since they run one after the other. The
engine itself is in tensorrt/engine.py. Engine thread.
"""

from __future__ import annotations

import contextlib
import mmap
import time
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine_runtime.errors import EngineError, ExecutorError
from engine_runtime.lm.step import ExecutorLimits
from engine_runtime.tensorrt.engine import Binding, ExecutionContext, Shape, TensorRTEngine
from engine_runtime.tensorrt.library import RuntimeLibrary
from engine_runtime.tensorrt.llm.contract import Contract, choose_contract
from engine_runtime.tensorrt.llm.step_tensors import CACHE_INDIRECTION, StepTensors

_ALIGNMENT = 256
"""Address alignment that TensorRT requires."""


class Memory:
    """Allocates zeroed bytes on the device and on the host."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def on_device(self, size: int) -> Tensor:
        """[size] uint8 on the device."""
        return torch.zeros(size, dtype=torch.uint8, device=self.device)

    def on_host(self, size: int) -> Tensor:
        """[size] uint8 on the host, pinned if there is a GPU."""
        return torch.zeros(size, dtype=torch.uint8, pin_memory=self.device.type == "cuda")


class EngineInputs:
    """The inputs of an engine.

    The order of a step is `write`, `send`, then an enqueue with `bindings`, on the stream of `send`. The
    stream must be synchronized before the next `write`.
    """

    def __init__(self, contract: Contract, limits: ExecutorLimits, memory: Memory) -> None:
        specs = contract.inputs(limits)
        largest = {spec.name: spec.sized(limits.max_num_tokens, limits.max_batch_size) for spec in specs}
        sent = {spec.name: largest[spec.name] for spec in specs if spec.place == "device"}
        constant = {CACHE_INDIRECTION: sent.pop(CACHE_INDIRECTION)}
        on_host = {spec.name: largest[spec.name] for spec in specs if spec.place == "host"}
        dtypes = {spec.name: spec.dtype for spec in specs}
        size = _size(sent, dtypes)
        self._contract = contract
        self._staged_bytes, self._device_bytes = memory.on_host(size), memory.on_device(size)
        staged = _cut(self._staged_bytes, sent, dtypes)
        device = _cut(self._device_bytes, sent, dtypes)
        host = _cut(memory.on_host(_size(on_host, dtypes)), on_host, dtypes)
        self._written = staged | host
        self._bound = device | host | _cut(memory.on_device(_size(constant, dtypes)), constant, dtypes)
        self._shapes = largest

    def write(self, tensors: StepTensors) -> None:
        """Copy the values of a checked step. Those of a smaller step lie at the start of each buffer."""
        for name, value in self._contract.adapt(tensors).items():
            self._shapes[name] = tuple(value.shape)
            if name != CACHE_INDIRECTION:
                self._written[name].view(-1)[: value.numel()].view(value.shape).copy_(value)

    def set_past(self, rows: int) -> None:
        """Overwrite the number of cached rows on the host, as a captured step does."""
        self._written["host_past_key_value_lengths"].fill_(rows)

    def send(self) -> None:
        """Copy to the device, on the current stream."""
        self._device_bytes.copy_(self._staged_bytes, non_blocking=True)

    def bindings(self) -> list[Binding]:
        """Every input with its shape in this step."""
        return [Binding(name, self._shapes[name], buffer.data_ptr()) for name, buffer in self._bound.items()]


class EngineOutputs:
    """The outputs of an engine, [sequences, width] each, in the engine's dtypes; room for `max_batch_size`
    sequences."""

    def __init__(
        self,
        widths: Mapping[str, int],
        dtypes: Mapping[str, torch.dtype],
        memory: Memory,
        max_batch_size: int = 1,
    ) -> None:
        shapes: dict[str, Shape] = {name: (max_batch_size, width) for name, width in widths.items()}
        size = _size(shapes, dtypes)
        self._device = _cut(memory.on_device(size), shapes, dtypes)
        self._host = _cut(memory.on_host(size), shapes, dtypes)

    def spoil(self, sequences: int) -> None:
        """Fill with NaN, on the current stream, to detect a step that writes nothing."""
        for buffer in self._device.values():
            buffer[:sequences].fill_(torch.nan)

    def fetch(self, sequences: int) -> None:
        """Copy to the host, on the current stream."""
        for name, buffer in self._device.items():
            self._host[name][:sequences].copy_(buffer[:sequences], non_blocking=True)

    def values(self, sequences: int) -> dict[str, Tensor]:
        """The fetched values as new float32 tensors. The stream must be synchronized."""
        return {name: buffer[:sequences].to(torch.float32, copy=True) for name, buffer in self._host.items()}

    def bindings(self, sequences: int) -> list[Binding]:
        """Every output with the shape that it must have."""
        return [
            Binding(name, (sequences, *buffer.shape[1:]), buffer.data_ptr())
            for name, buffer in self._device.items()
        ]


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _size(shapes: Mapping[str, Shape], dtypes: Mapping[str, torch.dtype]) -> int:
    return sum(_aligned(prod(shape) * dtypes[name].itemsize) for name, shape in shapes.items())


def _cut(memory: Tensor, shapes: Mapping[str, Shape], dtypes: Mapping[str, torch.dtype]) -> dict[str, Tensor]:
    """Consecutive tensors in `memory`, each at an aligned address."""
    cut, start = {}, 0
    for name, shape in shapes.items():
        size = prod(shape) * dtypes[name].itemsize
        cut[name] = memory[start : start + size].view(dtypes[name]).view(shape)
        start += _aligned(size)
    return cut


class EngineSession:
    """One loaded engine.

    Attributes:
        engine: the engine in memory.
        tensors: every input and output.
        load_s: seconds for reading and deserializing.
    """

    def __init__(self, plan: Path, library: RuntimeLibrary, memory: Memory) -> None:
        """Load `plan`. EngineError if it cannot be read or TensorRT rejects it.

        NOTE: the library's plugins must be registered before.
        """
        began = time.perf_counter()
        with _mapped(plan) as content:
            try:
                self.engine = TensorRTEngine(content, library)
            except EngineError as error:
                raise EngineError(
                    "{plan}: {error}",
                    "An engine runs with the TensorRT release and on the kind of GPU that "
                    "it was built with: build it here with `moss-voice trt build`.",
                    plan=plan,
                    error=error,
                ) from error
        self.load_s = time.perf_counter() - began
        self.tensors = self.engine.tensors
        self._memory = memory
        self._activations: torch.Tensor | None = None

    def new_context(self, profile: int, stream: int) -> ExecutionContext:
        """A context for one profile. `stream` is the handle that the profile is switched on."""
        if self._activations is None:
            self._activations = self._memory.on_device(max(self.engine.activation_bytes, 1))
        try:
            context = self.engine.new_context(self._activations)
        except EngineError as error:
            raise EngineError(
                "{error}", "Free GPU memory, or build an engine with a smaller max_num_tokens.", error=error
            ) from error
        context.set_profile(profile, stream)
        return context

    def document(self) -> dict[str, Any]:
        """What only a loaded engine says, as plain values. EngineError for an unknown contract."""
        return {
            "load_seconds": round(self.load_s, 2),
            "activation_bytes": self.engine.activation_bytes,
            "fused_layers": self.engine.num_layers,
            "profiles": self.engine.num_profiles,
            "contract": choose_contract(self.tensors).name,
            "inputs": sum(tensor.is_input for tensor in self.tensors),
            "outputs": sum(not tensor.is_input for tensor in self.tensors),
        }

    def close(self) -> None:
        """Release everything. The contexts must be released before."""
        self.engine.close()
        self._activations = None


def bind(context: ExecutionContext, inputs: Iterable[Binding], outputs: Iterable[Binding]) -> None:
    """Set shape and address of every input, and the address of every output, whose shape must match the shape
    inferred by the engine. Raises ExecutorError."""
    context.set_inputs(inputs)
    for binding in outputs:
        shape = context.output_shape(binding.name)
        if shape != binding.shape:
            raise ExecutorError(
                "{binding}: the engine returns {shape} instead of {binding_shape}.",
                "It must gather the last token before its heads: rebuild it with `moss-voice trt build`.",
                binding=binding.name,
                shape=list(shape),
                binding_shape=list(binding.shape),
            )
        context.set_output(binding.name, binding.address)


@contextlib.contextmanager
def _mapped(plan: Path) -> Iterator[mmap.mmap]:
    """The bytes of a file, memory-mapped: an engine may be larger than the free host memory."""
    try:
        with plan.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise EngineError(
            "{plan} cannot be read: {error}.", "Rebuild the engine.", plan=plan, error=error
        ) from error
    try:
        yield content
    finally:
        with contextlib.suppress(BufferError):  # a binding may hold the buffer until it is collected
            content.close()
