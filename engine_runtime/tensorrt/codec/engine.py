"""One engine of TensorRT or TensorRT for RTX: built from an exported graph, and run on torch tensors.

In: a `Graph`, its ONNX file, the library and, for TensorRT for RTX, the compute capability to build for. Out:
the engine as bytes; TensorRT for RTX needs no GPU to build, TensorRT builds for the GPU of this machine. The
parsed network is checked against the graph before the build.

`EngineRunner` runs it: tensors on its device in, new tensors out, computed on the device's current stream.
The engine's tensors are compared with the graph at load, and every shape and address is set for every call;
tensorrt/engine.py checks each call of the library. A failure names the graph and the tensor. The host never
waits. One runner belongs to one thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine_runtime.codec.graph import Graph, GraphTensor
from engine_runtime.errors import EngineError, ExecutorError
from engine_runtime.tensorrt.engine import Binding, EngineTensor, Shape, TensorRTEngine, network_tensors
from engine_runtime.tensorrt.library import RuntimeLibrary, logger, reason


def build_engine(graph: Graph, onnx_file: Path, library: RuntimeLibrary, capability: str) -> bytes:
    """Build an engine for a compute capability ("8.9"). Raises EngineError naming the step that failed."""
    trt = library.module
    if any(spec.dtype == torch.bfloat16 for spec in graph.inputs):
        raise EngineError(
            "{label} cannot build the {graph} in bfloat16, in which it has neither Mish nor transposed "
            "convolutions.",
            "Use --codec-dtype float16 or float32.",
            label=library.label,
            graph=graph.name,
        )
    log = logger(library)
    log.last_error = ""

    def require(done: Any, what: str) -> Any:
        if done is None or done is False:
            raise EngineError(
                "{label} cannot build the {graph}: {what} failed{reason}.",
                "Run the codec in torch, without --trt-codec.",
                label=library.label,
                graph=graph.name,
                what=what,
                reason=reason(log),
            )
        return done

    builder = require(trt.Builder(log), "making a builder")
    # Strongly typed: the dtypes are those of the file, so nothing that torch computes in float32 is lowered.
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = require(builder.create_network(flags), "making a network")
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(onnx_file)):
        errors = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        log.last_error = errors or log.last_error
        require(False, f"reading {onnx_file.name}")
    check_network(graph, network_tensors(network))
    config = require(builder.create_builder_config(), "making a configuration")
    config.clear_flag(trt.BuilderFlag.TF32)  # on by default; rounds float32 to 10 bits
    profile = require(builder.create_optimization_profile(), "making a profile")
    for spec in graph.inputs:
        if spec.dynamic:
            # returns nothing; an invalid range is rejected with the profile
            profile.set_shape(spec.name, spec.at("least"), spec.at("usual"), spec.at("most"))
    require(config.add_optimization_profile(profile) >= 0, "adding the range of sizes")
    if library.is_rtx:
        config.num_compute_capabilities = 1
        target = getattr(trt.ComputeCapability, "SM" + capability.replace(".", ""), None)
        if target is None:
            raise EngineError(
                "{label} does not support compute capability {capability}.",
                "Run without --trt-codec, or install TensorRT itself beside it (packaging/TENSORRT.md).",
                label=library.label,
                capability=capability,
            )
        require(config.set_compute_capability(target, 0), f"choosing compute capability {capability}")
    return bytes(require(builder.build_serialized_network(network, config), "building"))


def check_network(graph: Graph, tensors: Sequence[EngineTensor]) -> None:
    """Raise EngineError unless a parsed network has the tensors of the graph: names, dtypes, shapes."""
    for kind, specs, is_input in (("inputs", graph.inputs, True), ("outputs", graph.outputs, False)):
        found = [tensor for tensor in tensors if tensor.is_input == is_input]
        names = [tensor.name for tensor in found]
        if names != [spec.name for spec in specs]:
            raise EngineError(
                "The {graph} was exported with the {kind} {names}, not {expected}.",
                "Update torch, or run without --trt-codec.",
                graph=graph.name,
                kind=kind,
                names=names,
                expected=[spec.name for spec in specs],
            )
        for spec, tensor in zip(specs, found, strict=True):
            check_tensor(graph, spec, tensor)


def check_tensor(graph: Graph, spec: GraphTensor, tensor: EngineTensor) -> None:
    """Raise EngineError unless a tensor of a network or an engine matches the graph."""
    if not spec.agrees(tensor.shape, is_output=spec in graph.outputs) or tensor.dtype != spec.dtype:
        raise EngineError(
            "{graph}: tensor {spec} is {dtype} {shape}, not {spec_dtype} {engine_shape}.",
            "Delete the cached engine, or run without --trt-codec.",
            graph=graph.name,
            spec=spec.name,
            dtype=tensor.dtype,
            shape=list(tensor.shape),
            spec_dtype=spec.dtype,
            engine_shape=list(spec.engine_shape),
        )


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
        """Enqueue the engine; returns new tensors. Raises ExecutorError for mismatched inputs, and for
        everything that the library rejects."""
        graph = self._graph
        graph.check_inputs(inputs)
        strangers = [
            spec.name
            for spec, value in zip(graph.inputs, inputs, strict=True)
            if value.device != self._device
        ]
        if strangers:
            raise ExecutorError(
                "{graph}: input {strangers} is not on {device}.",
                graph=graph.name,
                strangers=strangers[0],
                device=self._device,
            )
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
                "{spec}: the engine returns {shape} instead of {engine_shape}",
                spec=spec.name,
                shape=list(shape),
                engine_shape=list(spec.engine_shape),
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
                "{graph}: the engine and the graph do not both have {strange}.",
                "Delete the cached engine, or run without --trt-codec.",
                graph=graph.name,
                strange=", ".join(sorted(strange)),
            )
        for spec, is_input in specs:
            tensor = tensors[spec.name]
            check_tensor(graph, spec, tensor)
            if tensor.is_input != is_input:
                raise EngineError(
                    "{graph}: tensor {spec} is not an {expected}.",
                    "Delete the cached engine.",
                    graph=graph.name,
                    spec=spec.name,
                    expected="input" if is_input else "output",
                )
            if tensor.is_on_host:
                raise EngineError(
                    "{graph}: tensor {spec} is read on the host.",
                    "Delete the cached engine.",
                    graph=graph.name,
                    spec=spec.name,
                )
            if is_input and spec.dynamic:
                least, _, most = tensor.ranges[0]
                if (least, most) != (spec.at("least"), spec.at("most")):
                    raise EngineError(
                        "{graph}: the engine takes {spec} from {least} to {most}, "
                        "not {wanted_least} to {wanted_most}.",
                        "Delete the cached engine.",
                        graph=graph.name,
                        spec=spec.name,
                        least=list(least),
                        most=list(most),
                        wanted_least=list(spec.at("least")),
                        wanted_most=list(spec.at("most")),
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
