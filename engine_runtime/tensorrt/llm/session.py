"""The engine of a language model in memory, with contexts for its profiles.

In: the file of an engine and TensorRT. Out: an `EngineSession` with execution contexts, and `bind`, which
sets the buffers of a step. All contexts share one block of device memory for activations, since they run one
after the other. The engine itself is in tensorrt/engine.py. Engine thread.
"""

from __future__ import annotations

import contextlib
import mmap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from engine_runtime.errors import EngineError, ExecutorError
from engine_runtime.tensorrt.engine import Binding, ExecutionContext, TensorRTEngine
from engine_runtime.tensorrt.library import RuntimeLibrary
from engine_runtime.tensorrt.llm.bindings import Memory


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
                    f"{plan}: {error} An engine runs with the TensorRT release and on the kind of GPU that "
                    "it was built with: build it here with `moss-voice trt build`."
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
                f"{error} Free GPU memory, or build an engine with a smaller max_num_tokens."
            ) from error
        context.set_profile(profile, stream)
        return context

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
                f"{binding.name}: the engine returns {list(shape)} instead of {list(binding.shape)}. It "
                "must gather the last row before its heads: rebuild it with `moss-voice trt build`."
            )
        context.set_output(binding.name, binding.address)


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
